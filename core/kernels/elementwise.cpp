#include "core/kernels/elementwise.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/elementwise.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tapeformer::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// erf as x P(x^2) / Q(x^2) on [-4, 4]; within 4 units in the last place of f32 (checked by a test against std::erf).
template <class D, class V>
HWY_INLINE V erf(D d, V x) {
  x = hn::Min(hn::Max(x, hn::Set(d, -4.0f)), hn::Set(d, 4.0f));
  const V s = hn::Mul(x, x);
  V p = hn::Set(d, -2.72614225801306e-10f);
  for (float c : {2.77068142495902e-08f, -2.10102402082508e-06f, -5.69250639462346e-05f, -7.34990630326855e-04f, -2.95459980854025e-03f,
                  -1.60960333262415e-02f})
    p = hn::MulAdd(p, s, hn::Set(d, c));
  V q = hn::Set(d, -1.45660718464996e-05f);
  for (float c : {-2.13374055278905e-04f, -1.68282697438203e-03f, -7.37332916720468e-03f, -1.42647390514189e-02f})
    q = hn::MulAdd(q, s, hn::Set(d, c));
  return hn::Div(hn::Mul(x, p), q);
}

// The vector library's exponential wraps around far above the largest result and is not meant for arguments far below the smallest one.
template <class D, class V>
HWY_INLINE V exponential(D d, V x) {
  const V high = hn::Set(d, 88.722839f);
  const V e = hn::Exp(d, hn::Max(hn::Min(x, high), hn::Set(d, -150.0f)));
  return hn::IfThenElse(hn::Gt(x, high), hn::Set(d, std::numeric_limits<float>::infinity()), e);
}
template <class D, class V>
HWY_INLINE V decay(D d, V x) {
  return hn::Exp(d, hn::Max(x, hn::Set(d, -150.0f)));
}  // exp(x) for x <= 0

template <class D, class V>
HWY_INLINE V sigmoid(D d, V x) {
  const V one = hn::Set(d, 1.0f), e = decay(d, hn::Neg(hn::Abs(x)));
  return hn::Div(hn::IfThenElse(hn::Lt(x, hn::Zero(d)), e, one), hn::Add(one, e));
}

template <class D, class V>
HWY_INLINE V tanh_gelu_inner(D d, V x) {
  const V c = hn::Set(d, 0.7978845608028654f), a = hn::Set(d, 0.044715f), one = hn::Set(d, 1.0f);
  return hn::Mul(hn::Mul(c, x), hn::MulAdd(a, hn::Mul(x, x), one));
}

template <Unary F, class D, class V>
HWY_INLINE V value(D d, V x) {
  const V zero = hn::Zero(d), one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f);
  if constexpr (F == Unary::Relu) return hn::IfThenElse(hn::Le(x, zero), zero, x);  // NaN stays NaN
  if constexpr (F == Unary::Gelu) return hn::Mul(hn::Mul(half, x), hn::Add(one, erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f)))));
  if constexpr (F == Unary::GeluTanh) return hn::Mul(hn::Mul(half, x), hn::Add(one, hn::Tanh(d, tanh_gelu_inner(d, x))));
  if constexpr (F == Unary::Silu) return hn::Mul(x, sigmoid(d, x));
  if constexpr (F == Unary::Tanh) return hn::Tanh(d, x);
  if constexpr (F == Unary::Sigmoid) return sigmoid(d, x);
  if constexpr (F == Unary::Elu) return hn::IfThenElse(hn::Gt(x, zero), x, hn::Expm1(d, hn::Max(hn::Min(x, zero), hn::Set(d, -87.0f))));
  if constexpr (F == Unary::Elu1) return hn::IfThenElse(hn::Gt(x, zero), hn::Add(x, one), decay(d, hn::Min(x, zero)));
  if constexpr (F == Unary::Softplus) {
    const V e = decay(d, hn::Neg(hn::Abs(x)));
    return hn::Add(hn::Max(x, zero), hn::Log1p(d, e));
  }
  if constexpr (F == Unary::Exp) return exponential(d, x);
  if constexpr (F == Unary::Sqrt) return hn::Sqrt(x);
  if constexpr (F == Unary::Neg) return hn::Neg(x);
  if constexpr (F == Unary::Abs) return hn::Abs(x);
}

template <Unary F, class D, class V>
HWY_INLINE V slope(D d, V x) {
  const V zero = hn::Zero(d), one = hn::Set(d, 1.0f), half = hn::Set(d, 0.5f);
  if constexpr (F == Unary::Relu) return hn::IfThenElse(hn::Gt(x, zero), one, zero);
  if constexpr (F == Unary::Gelu) {
    const V phi = hn::Mul(half, hn::Add(one, erf(d, hn::Mul(x, hn::Set(d, 0.70710678118654752f)))));
    const V density = hn::Mul(hn::Set(d, 0.3989422804014327f), decay(d, hn::Mul(hn::Mul(x, x), hn::Set(d, -0.5f))));
    return hn::MulAdd(x, density, phi);
  }
  if constexpr (F == Unary::GeluTanh) {
    x = hn::Max(hn::Min(x, hn::Set(d, 20.0f)), hn::Set(d, -20.0f));  // beyond, the slope is exactly 0 or 1, and x^2 may overflow
    const V t = hn::Tanh(d, tanh_gelu_inner(d, x));
    const V inner = hn::Mul(hn::Set(d, 0.7978845608028654f), hn::MulAdd(hn::Set(d, 3 * 0.044715f), hn::Mul(x, x), one));
    return hn::MulAdd(hn::Mul(half, x), hn::Mul(hn::NegMulAdd(t, t, one), inner), hn::Mul(half, hn::Add(one, t)));
  }
  if constexpr (F == Unary::Silu) {
    const V s = sigmoid(d, x);
    return hn::Mul(s, hn::MulAdd(x, hn::Sub(one, s), one));
  }
  if constexpr (F == Unary::Tanh) {
    const V t = hn::Tanh(d, x);
    return hn::NegMulAdd(t, t, one);
  }
  if constexpr (F == Unary::Sigmoid) {
    const V s = sigmoid(d, x);
    return hn::Mul(s, hn::Sub(one, s));
  }
  if constexpr (F == Unary::Elu || F == Unary::Elu1) return hn::IfThenElse(hn::Gt(x, zero), one, decay(d, hn::Min(x, zero)));
  if constexpr (F == Unary::Softplus) return sigmoid(d, x);
  if constexpr (F == Unary::Exp) return exponential(d, x);
  if constexpr (F == Unary::Sqrt) return hn::Div(half, hn::Sqrt(x));
  if constexpr (F == Unary::Neg) return hn::Set(d, -1.0f);
  if constexpr (F == Unary::Abs) return hn::IfThenElse(hn::Gt(x, zero), one, hn::IfThenElse(hn::Lt(x, zero), hn::Set(d, -1.0f), zero));
}

// NaN goes through (the exponentials of the vector library would turn it into a number).
// Whole vectors, then the tail through a padded vector: every element takes the same instructions wherever a chunk begins.
template <Unary F, class D, class V>
HWY_INLINE V guarded_value(D d, V x) {
  return hn::IfThenElse(hn::Eq(x, x), value<F>(d, x), x);
}
template <Unary F, class D, class V>
HWY_INLINE V guarded_slope(D d, V x) {
  return hn::IfThenElse(hn::Eq(x, x), slope<F>(d, x), x);
}

template <Unary F>
void unary_run(const float* x, float* y, i64 n) {
  const hn::ScalableTag<float> d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  i64 i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(guarded_value<F>(d, hn::LoadU(d, x + i)), d, y + i);
  if (i < n) {
    HWY_ALIGN float buffer[HWY_MAX_BYTES / 4] = {};
    std::memcpy(buffer, x + i, static_cast<std::size_t>(n - i) * 4);
    hn::Store(guarded_value<F>(d, hn::Load(d, buffer)), d, buffer);
    std::memcpy(y + i, buffer, static_cast<std::size_t>(n - i) * 4);
  }
}

template <Unary F>
void unary_grad_run(const float* x, const float* dy, float* dx, i64 n) {
  const hn::ScalableTag<float> d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  i64 i = 0;
  for (; i + lanes <= n; i += lanes) hn::StoreU(hn::Mul(hn::LoadU(d, dy + i), guarded_slope<F>(d, hn::LoadU(d, x + i))), d, dx + i);
  if (i < n) {
    HWY_ALIGN float a[HWY_MAX_BYTES / 4] = {}, b[HWY_MAX_BYTES / 4] = {};
    std::memcpy(a, x + i, static_cast<std::size_t>(n - i) * 4);
    std::memcpy(b, dy + i, static_cast<std::size_t>(n - i) * 4);
    hn::Store(hn::Mul(hn::Load(d, b), guarded_slope<F>(d, hn::Load(d, a))), d, a);
    std::memcpy(dx + i, a, static_cast<std::size_t>(n - i) * 4);
  }
}

template <template <Unary> class Run, class... A>
bool choose(Unary f, A... a) {
  switch (f) {
    case Unary::Relu:
      Run<Unary::Relu>::go(a...);
      return true;
    case Unary::Gelu:
      Run<Unary::Gelu>::go(a...);
      return true;
    case Unary::GeluTanh:
      Run<Unary::GeluTanh>::go(a...);
      return true;
    case Unary::Silu:
      Run<Unary::Silu>::go(a...);
      return true;
    case Unary::Tanh:
      Run<Unary::Tanh>::go(a...);
      return true;
    case Unary::Sigmoid:
      Run<Unary::Sigmoid>::go(a...);
      return true;
    case Unary::Elu:
      Run<Unary::Elu>::go(a...);
      return true;
    case Unary::Elu1:
      Run<Unary::Elu1>::go(a...);
      return true;
    case Unary::Softplus:
      Run<Unary::Softplus>::go(a...);
      return true;
    case Unary::Exp:
      Run<Unary::Exp>::go(a...);
      return true;
    case Unary::Sqrt:
      Run<Unary::Sqrt>::go(a...);
      return true;
    case Unary::Neg:
      Run<Unary::Neg>::go(a...);
      return true;
    case Unary::Abs:
      Run<Unary::Abs>::go(a...);
      return true;
    default:
      return false;
  }
}
template <Unary F>
struct ValueRun {
  static void go(const float* x, float* y, i64 n) { unary_run<F>(x, y, n); }
};
template <Unary F>
struct SlopeRun {
  static void go(const float* x, const float* dy, float* dx, i64 n) { unary_grad_run<F>(x, dy, dx, n); }
};

bool fast_unary(Unary f, const float* x, float* y, i64 n) { return choose<ValueRun>(f, x, y, n); }
bool fast_unary_grad(Unary f, const float* x, const float* dy, float* dx, i64 n) { return choose<SlopeRun>(f, x, dy, dx, n); }

// The loops below are left to the compiler's vectoriser, which sees this target's instructions.
template <class F>
HWY_INLINE void run_loop(const float* a, i64 sa, const float* b, i64 sb, float* HWY_RESTRICT y, i64 n, F f) {
  if (sa == 1 && sb == 1)
    for (i64 i = 0; i < n; ++i) y[i] = f(a[i], b[i]);
  else if (sa == 1 && sb == 0)
    for (i64 i = 0; i < n; ++i) y[i] = f(a[i], b[0]);
  else if (sa == 0 && sb == 1)
    for (i64 i = 0; i < n; ++i) y[i] = f(a[0], b[i]);
  else
    for (i64 i = 0; i < n; ++i) y[i] = f(a[i * sa], b[i * sb]);
}
void fast_binary(Binary f, const float* a, i64 sa, const float* b, i64 sb, float* y, i64 n) {
  switch (f) {
    case Binary::Add:
      return run_loop(a, sa, b, sb, y, n, [](float p, float q) { return p + q; });
    case Binary::Sub:
      return run_loop(a, sa, b, sb, y, n, [](float p, float q) { return p - q; });
    case Binary::Mul:
      return run_loop(a, sa, b, sb, y, n, [](float p, float q) { return p * q; });
    case Binary::Div:
      return run_loop(a, sa, b, sb, y, n, [](float p, float q) { return p / q; });
    case Binary::Max:
      return run_loop(a, sa, b, sb, y, n, [](float p, float q) { return p < q || q != q ? q : p; });
    case Binary::Min:
      return run_loop(a, sa, b, sb, y, n, [](float p, float q) { return p > q || q != q ? q : p; });
  }
}
void fast_axpy(float a, const float* HWY_RESTRICT x, float* HWY_RESTRICT y, i64 n) {
  for (i64 i = 0; i < n; ++i) y[i] += a * x[i];
}
void fast_add(const float* HWY_RESTRICT x, float* HWY_RESTRICT y, i64 n) {
  for (i64 i = 0; i < n; ++i) y[i] += x[i];
}
void fast_scale(float a, float shift, const float* x, float* y, i64 n) {
  for (i64 i = 0; i < n; ++i) y[i] = a * x[i] + shift;
}

// Philox4x32-10 for 16 consecutive counters at once; words[w][l] is word w of counter first + l.
void philox16(std::uint64_t first, std::uint32_t third, std::uint32_t fourth, std::uint64_t key, std::uint32_t words[4][16]) {
  std::uint32_t c0[16], c1[16], c2[16], c3[16];
  for (int l = 0; l < 16; ++l) {
    c0[l] = static_cast<std::uint32_t>(first + static_cast<std::uint64_t>(l));
    c1[l] = static_cast<std::uint32_t>((first + static_cast<std::uint64_t>(l)) >> 32);
    c2[l] = third;
    c3[l] = fourth;
  }
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int l = 0; l < 16; ++l) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c0[l], p1 = std::uint64_t{0xCD9E8D57u} * c2[l];
      c0[l] = static_cast<std::uint32_t>(p1 >> 32) ^ c1[l] ^ k0;
      c1[l] = static_cast<std::uint32_t>(p1);
      c2[l] = static_cast<std::uint32_t>(p0 >> 32) ^ c3[l] ^ k1;
      c3[l] = static_cast<std::uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int l = 0; l < 16; ++l) words[0][l] = c0[l], words[1][l] = c1[l], words[2][l] = c2[l], words[3][l] = c3[l];
}

// One row of dropout: element i takes word i / 16 mod 4 of lane i mod 16 of block i / 64.
void fast_dropout(std::uint32_t threshold, float factor, std::uint64_t key, std::uint64_t id, const float* x, float* y, i64 n) {
  std::uint32_t words[4][16];
  for (i64 base = 0; base < n; base += 64) {
    philox16(static_cast<std::uint64_t>(base / 4), static_cast<std::uint32_t>(id), static_cast<std::uint32_t>(id >> 32) ^ 0x80000000u, key,
             words);
    const std::uint32_t* bits = &words[0][0];
    const i64 m = std::min<i64>(64, n - base);
    for (i64 i = 0; i < m; ++i) y[base + i] = bits[i] >= threshold ? x[base + i] * factor : 0.0f;
  }
}

}  // namespace tapeformer::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tapeformer::kernels {
namespace {
HWY_EXPORT(fast_unary);
HWY_EXPORT(fast_unary_grad);
HWY_EXPORT(fast_binary);
HWY_EXPORT(fast_axpy);
HWY_EXPORT(fast_add);
HWY_EXPORT(fast_scale);
HWY_EXPORT(fast_dropout);
HWY_EXPORT(philox16);

constexpr i64 kGrain = 16384;  // elements a chunk
template <class T>
constexpr bool kFast = std::is_same_v<T, float>;

template <class T>
T sigmoid_of(T x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

}  // namespace

template <class T>
T unary_value(Unary f, T x) {
  const T c = T(0.79788456080286535588);
  switch (f) {
    case Unary::Relu:
      return x <= 0 ? T(0) : x;
    case Unary::Gelu:
      return T(0.5) * x * (1 + std::erf(x * T(0.70710678118654752440)));
    case Unary::GeluTanh:
      return T(0.5) * x * (1 + std::tanh(c * (x + T(0.044715) * x * x * x)));
    case Unary::Silu:
      return x * sigmoid_of(x);
    case Unary::Tanh:
      return std::tanh(x);
    case Unary::Sigmoid:
      return sigmoid_of(x);
    case Unary::Elu:
      return x > 0 ? x : std::expm1(x);
    case Unary::Elu1:
      return x > 0 ? x + 1 : std::exp(x);
    case Unary::Softplus:
      return std::max(x, T(0)) + std::log1p(std::exp(-std::abs(x)));
    case Unary::Exp:
      return std::exp(x);
    case Unary::Log:
      return std::log(x);
    case Unary::Sqrt:
      return std::sqrt(x);
    case Unary::Neg:
      return -x;
    case Unary::Abs:
      return std::abs(x);
    case Unary::Sin:
      return std::sin(x);
    case Unary::Cos:
      return std::cos(x);
  }
  return x;
}

template <class T>
T unary_slope(Unary f, T x) {
  const T c = T(0.79788456080286535588);
  switch (f) {
    case Unary::Relu:
      return x > 0 ? T(1) : T(0);
    case Unary::Gelu:
      return T(0.5) * (1 + std::erf(x * T(0.70710678118654752440))) + x * T(0.39894228040143267794) * std::exp(-x * x / 2);
    case Unary::GeluTanh: {
      if (std::abs(x) > 40) return x > 0 ? T(1) : T(0);
      const T t = std::tanh(c * (x + T(0.044715) * x * x * x));
      return T(0.5) * (1 + t) + T(0.5) * x * (1 - t * t) * c * (1 + 3 * T(0.044715) * x * x);
    }
    case Unary::Silu:
      return sigmoid_of(x) * (1 + x * (1 - sigmoid_of(x)));
    case Unary::Tanh:
      return 1 - std::tanh(x) * std::tanh(x);
    case Unary::Sigmoid:
      return sigmoid_of(x) * (1 - sigmoid_of(x));
    case Unary::Elu:
    case Unary::Elu1:
      return x > 0 ? T(1) : std::exp(x);
    case Unary::Softplus:
      return sigmoid_of(x);
    case Unary::Exp:
      return std::exp(x);
    case Unary::Log:
      return 1 / x;
    case Unary::Sqrt:
      return T(0.5) / std::sqrt(x);
    case Unary::Neg:
      return T(-1);
    case Unary::Abs:
      return T((x > 0) - (x < 0));
    case Unary::Sin:
      return std::cos(x);
    case Unary::Cos:
      return -std::sin(x);
  }
  return 1;
}

template <class T>
void unary(Unary f, const T* x, T* y, i64 n) {
  parallel_for(n, kGrain, [&](i64 begin, i64 end) {
    if constexpr (kFast<T>)
      if (HWY_DYNAMIC_DISPATCH(fast_unary)(f, x + begin, y + begin, end - begin)) return;
    for (i64 i = begin; i < end; ++i) y[i] = unary_value(f, x[i]);
  });
}

template <class T>
void unary_grad(Unary f, const T* x, const T* dy, T* dx, i64 n) {
  parallel_for(n, kGrain, [&](i64 begin, i64 end) {
    if constexpr (kFast<T>)
      if (HWY_DYNAMIC_DISPATCH(fast_unary_grad)(f, x + begin, dy + begin, dx + begin, end - begin)) return;
    for (i64 i = begin; i < end; ++i) dx[i] = dy[i] * unary_slope(f, x[i]);
  });
}

namespace {

template <class T>
void binary_run(Binary f, const T* a, i64 sa, const T* b, i64 sb, T* y, i64 n) {
  if constexpr (kFast<T>) {
    HWY_DYNAMIC_DISPATCH(fast_binary)(f, a, sa, b, sb, y, n);
  } else {
    for (i64 i = 0; i < n; ++i) {
      const T p = a[i * sa], q = b[i * sb];
      switch (f) {
        case Binary::Add:
          y[i] = p + q;
          break;
        case Binary::Sub:
          y[i] = p - q;
          break;
        case Binary::Mul:
          y[i] = p * q;
          break;
        case Binary::Div:
          y[i] = p / q;
          break;
        case Binary::Max:
          y[i] = p < q || q != q ? q : p;
          break;
        case Binary::Min:
          y[i] = p > q || q != q ? q : p;
          break;
      }
    }
  }
}

}  // namespace

template <class T>
void binary(Binary f, const Shape& shape, const T* a, const Shape& sa, const T* b, const Shape& sb, T* y) {
  // Trailing axes that both operands walk like one axis are merged into the inner run.
  int axis = shape.rank() - 1;
  i64 run = axis < 0 ? 1 : shape[axis];
  const i64 step_a = axis < 0 ? 0 : sa[axis], step_b = axis < 0 ? 0 : sb[axis];
  for (; axis > 0; --axis) {
    if (sa[axis - 1] != step_a * run || sb[axis - 1] != step_b * run) break;
    run *= shape[axis - 1];
  }
  if (shape.numel() == 0) return;
  const i64 runs = shape.numel() / run;
  if (runs == 1) {
    return parallel_for(run, kGrain, [&](i64 begin, i64 end) {
      binary_run(f, a + begin * step_a, step_a, b + begin * step_b, step_b, y + begin, end - begin);
    });
  }
  parallel_for(runs, std::max<i64>(1, kGrain / run), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      i64 rest = r, at_a = 0, at_b = 0;
      for (int i = axis - 1; i >= 0; --i) {
        const i64 index = rest % shape[i];
        rest /= shape[i];
        at_a += index * sa[i];
        at_b += index * sb[i];
      }
      binary_run(f, a + at_a, step_a, b + at_b, step_b, y + r * run, run);
    }
  });
}

template <class T>
void add_into(const T* x, T* y, i64 n) {
  parallel_for(n, kGrain, [&](i64 begin, i64 end) {
    if constexpr (kFast<T>)
      HWY_DYNAMIC_DISPATCH(fast_add)(x + begin, y + begin, end - begin);
    else
      for (i64 i = begin; i < end; ++i) y[i] += x[i];
  });
}

template <class T>
void axpy(double a, const T* x, T* y, i64 n) {
  parallel_for(n, kGrain, [&](i64 begin, i64 end) {
    if constexpr (kFast<T>)
      HWY_DYNAMIC_DISPATCH(fast_axpy)(static_cast<float>(a), x + begin, y + begin, end - begin);
    else
      for (i64 i = begin; i < end; ++i) y[i] += static_cast<T>(a) * x[i];
  });
}

template <class T>
void scale(double a, double shift, const T* x, T* y, i64 n) {
  parallel_for(n, kGrain, [&](i64 begin, i64 end) {
    if constexpr (kFast<T>)
      HWY_DYNAMIC_DISPATCH(fast_scale)(static_cast<float>(a), static_cast<float>(shift), x + begin, y + begin, end - begin);
    else
      for (i64 i = begin; i < end; ++i) y[i] = static_cast<T>(a) * x[i] + static_cast<T>(shift);
  });
}

template <class T>
void power(double p, const T* x, T* y, i64 n) {
  parallel_for(n, kGrain, [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) y[i] = p == 2 ? x[i] * x[i] : static_cast<T>(std::pow(x[i], static_cast<T>(p)));
  });
}

template <class T>
void column_sums(const T* x, i64 rows, i64 columns, T* out) {
  constexpr i64 kRows = 256;
  const i64 chunks = (rows + kRows - 1) / kRows;
  std::vector<T> partial(static_cast<std::size_t>(std::max<i64>(chunks, 1) * columns), T(0));
  parallel_for(rows, kRows, [&](i64 begin, i64 end) {
    T* sum = partial.data() + begin / kRows * columns;
    for (i64 r = begin; r < end; ++r) {
      if constexpr (kFast<T>)
        HWY_DYNAMIC_DISPATCH(fast_add)(x + r * columns, sum, columns);
      else
        for (i64 j = 0; j < columns; ++j) sum[j] += x[r * columns + j];
    }
  });
  std::copy_n(partial.begin(), columns, out);
  for (i64 c = 1; c < chunks; ++c)
    for (i64 j = 0; j < columns; ++j) out[j] += partial[static_cast<std::size_t>(c * columns + j)];
}

template <class T>
void row_sums(const T* x, i64 rows, i64 columns, T* out) {
  parallel_for(rows, std::max<i64>(1, kGrain / std::max<i64>(columns, 1)), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      double sum = 0;
      for (i64 j = 0; j < columns; ++j) sum += static_cast<double>(x[r * columns + j]);
      out[r] = static_cast<T>(sum);
    }
  });
}

template <class T>
double sum_of_squares(const T* x, i64 n) {
  return parallel_reduce(
      n, kGrain, 0.0,
      [&](i64 begin, i64 end) {
        double lanes[8] = {};
        i64 i = begin;
        for (; i + 8 <= end; i += 8)
          for (int l = 0; l < 8; ++l) lanes[l] += static_cast<double>(x[i + l]) * static_cast<double>(x[i + l]);
        for (; i < end; ++i) lanes[0] += static_cast<double>(x[i]) * static_cast<double>(x[i]);
        double sum = 0;
        for (double lane : lanes) sum += lane;
        return sum;
      },
      [](double a, double b) { return a + b; });
}

template <class T>
void dropout(double p, RngKey key, const i64* ids, i64 rows, i64 columns, const T* x, T* y) {
  const std::uint32_t threshold = static_cast<std::uint32_t>(std::min(p * 4294967296.0, 4294967295.0));
  const double factor = 1 / (1 - p);
  const i64 parts = (columns + kGrain - 1) / kGrain;  // a long row is split at multiples of 64
  parallel_for(rows * parts, std::max<i64>(1, kGrain / std::max<i64>(columns, 1)), [&](i64 begin, i64 end) {
    std::vector<float> ones, kept;
    for (i64 item = begin; item < end; ++item) {
      const i64 r = item / parts, from = item % parts * kGrain, n = std::min(kGrain, columns - from);
      const std::uint64_t id = static_cast<std::uint64_t>(ids ? ids[r] : r);
      const std::uint64_t part_key = parts == 1 ? key.value() : key.fold_in(static_cast<std::uint64_t>(item % parts)).value();
      if constexpr (kFast<T>) {
        HWY_DYNAMIC_DISPATCH(fast_dropout)
        (threshold, static_cast<float>(factor), part_key, id, x + r * columns + from, y + r * columns + from, n);
      } else {
        ones.assign(static_cast<std::size_t>(n), 1.0f);
        kept.resize(ones.size());
        HWY_DYNAMIC_DISPATCH(fast_dropout)(threshold, 1.0f, part_key, id, ones.data(), kept.data(), n);
        for (i64 i = 0; i < n; ++i)
          y[r * columns + from + i] = kept[static_cast<std::size_t>(i)] != 0 ? static_cast<T>(x[r * columns + from + i] * factor) : T(0);
      }
    }
  });
}

#define INSTANTIATE(T)                                                                            \
  template T unary_value(Unary, T);                                                               \
  template T unary_slope(Unary, T);                                                               \
  template void unary(Unary, const T*, T*, i64);                                                  \
  template void unary_grad(Unary, const T*, const T*, T*, i64);                                   \
  template void binary(Binary, const Shape&, const T*, const Shape&, const T*, const Shape&, T*); \
  template void add_into(const T*, T*, i64);                                                      \
  template void axpy(double, const T*, T*, i64);                                                  \
  template void scale(double, double, const T*, T*, i64);                                         \
  template void power(double, const T*, T*, i64);                                                 \
  template void column_sums(const T*, i64, i64, T*);                                              \
  template void row_sums(const T*, i64, i64, T*);                                                 \
  template double sum_of_squares(const T*, i64);                                                  \
  template void dropout(double, RngKey, const i64*, i64, i64, const T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace tapeformer::kernels
#endif
