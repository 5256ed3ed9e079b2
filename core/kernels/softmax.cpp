#include "core/kernels/softmax.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/softmax.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
#include <hwy/contrib/math/math-inl.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "core/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tapeformer::kernels::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// exp(x) for x <= 0; NaN goes through, which the vector library's exponential would turn into a number.
template <class D, class V>
HWY_INLINE V decay(D d, V x) {
  return hn::IfThenElse(hn::Eq(x, x), hn::Exp(d, hn::Max(x, hn::Set(d, -150.0f))), x);
}

// y[i] = exp(x[i] - shift), x[i] <= shift; returns the sum of y.
float exp_row(const float* x, float shift, i64 n, float* y) {
  const hn::ScalableTag<float> d;
  const i64 lanes = static_cast<i64>(hn::Lanes(d));
  const auto s = hn::Set(d, shift);
  auto sum = hn::Zero(d);
  i64 i = 0;
  for (; i + lanes <= n; i += lanes) {
    const auto e = decay(d, hn::Sub(hn::LoadU(d, x + i), s));
    hn::StoreU(e, d, y + i);
    sum = hn::Add(sum, e);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  if (i < n) {
    HWY_ALIGN float buffer[HWY_MAX_BYTES / 4] = {};
    std::memcpy(buffer, x + i, static_cast<std::size_t>(n - i) * 4);
    hn::Store(decay(d, hn::Sub(hn::Load(d, buffer), s)), d, buffer);
    std::memcpy(y + i, buffer, static_cast<std::size_t>(n - i) * 4);
    for (i64 t = 0; t < n - i; ++t) total += buffer[t];
  }
  return total;
}

}  // namespace tapeformer::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tapeformer::kernels {
namespace {
HWY_EXPORT(exp_row);

template <class T>
T exponentials(const T* x, T shift, i64 n, T* y) {
  if constexpr (std::is_same_v<T, float>) return HWY_DYNAMIC_DISPATCH(exp_row)(x, shift, n, y);
  T sum = 0;
  for (i64 i = 0; i < n; ++i) sum += y[i] = std::exp(x[i] - shift);
  return sum;
}

template <class F>
void for_rows(i64 rows, i64 columns, F&& f) {
  parallel_for(rows, std::max<i64>(1, 8192 / std::max<i64>(columns, 1)), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) f(r);
  });
}

template <class T>
void kept_row(const T* x, const std::uint8_t* keep, i64 n, T* y) {
  T high = -std::numeric_limits<T>::infinity();
  for (i64 j = 0; j < n; ++j)
    if (keep[j]) high = std::max(high, x[j]);
  T sum = 0;
  for (i64 j = 0; j < n; ++j) sum += y[j] = keep[j] ? std::exp(x[j] - high) : T(0);
  for (i64 j = 0; j < n; ++j) y[j] = keep[j] ? y[j] / sum : T(0);
}

template <class T>
void kept_log_row(const T* x, const std::uint8_t* keep, i64 n, T* y) {
  T high = -std::numeric_limits<T>::infinity();
  for (i64 j = 0; j < n; ++j)
    if (keep[j]) high = std::max(high, x[j]);
  T sum = 0;
  for (i64 j = 0; j < n; ++j)
    if (keep[j]) sum += std::exp(x[j] - high);
  const T log_sum = std::log(sum);
  for (i64 j = 0; j < n; ++j) y[j] = keep[j] ? x[j] - high - log_sum : T(0);
}

}  // namespace

template <class T>
void softmax(const T* x, const std::uint8_t* keep, i64 rows, i64 columns, T* y) {
  if (columns == 0) return;
  for_rows(rows, columns, [&](i64 r) {
    const T* in = x + r * columns;
    T* out = y + r * columns;
    if (keep) return kept_row(in, keep + r * columns, columns, out);
    const T inverse = 1 / exponentials(in, *std::max_element(in, in + columns), columns, out);
    for (i64 j = 0; j < columns; ++j) out[j] *= inverse;
  });
}

template <class T>
void softmax_grad(const T* y, const T* dy, i64 rows, i64 columns, T* dx) {
  for_rows(rows, columns, [&](i64 r) {
    const i64 at = r * columns;
    double dot = 0;
    for (i64 j = 0; j < columns; ++j) dot += static_cast<double>(y[at + j]) * static_cast<double>(dy[at + j]);
    for (i64 j = 0; j < columns; ++j) dx[at + j] = y[at + j] * (dy[at + j] - static_cast<T>(dot));
  });
}

template <class T>
void log_softmax(const T* x, const std::uint8_t* keep, i64 rows, i64 columns, T* y) {
  if (columns == 0) return;
  for_rows(rows, columns, [&](i64 r) {
    const T* in = x + r * columns;
    T* out = y + r * columns;
    if (keep) return kept_log_row(in, keep + r * columns, columns, out);
    const T high = *std::max_element(in, in + columns);
    const T log_sum = std::log(exponentials(in, high, columns, out));
    for (i64 j = 0; j < columns; ++j) out[j] = in[j] - high - log_sum;
  });
}

template <class T>
void log_softmax_grad(const T* y, const std::uint8_t* keep, const T* dy, i64 rows, i64 columns, T* dx) {
  for_rows(rows, columns, [&](i64 r) {
    const i64 at = r * columns;
    const auto kept = [&](i64 j) { return !keep || keep[at + j]; };
    double sum = 0;
    for (i64 j = 0; j < columns; ++j)
      if (kept(j)) sum += static_cast<double>(dy[at + j]);
    exponentials(y + at, T(0), columns, dx + at);
    for (i64 j = 0; j < columns; ++j) dx[at + j] = kept(j) ? dy[at + j] - dx[at + j] * static_cast<T>(sum) : T(0);
  });
}

#define INSTANTIATE(T)                                                    \
  template void softmax(const T*, const std::uint8_t*, i64, i64, T*);     \
  template void softmax_grad(const T*, const T*, i64, i64, T*);           \
  template void log_softmax(const T*, const std::uint8_t*, i64, i64, T*); \
  template void log_softmax_grad(const T*, const std::uint8_t*, const T*, i64, i64, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace tapeformer::kernels
#endif
