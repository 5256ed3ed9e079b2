#include "core/kernels/linear_attention.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/kernels/elementwise.h"
#include "core/kernels/gemm.h"
#include "core/parallel.h"
#include "core/tensor.h"

namespace tapeformer::kernels {
namespace {

template <class T>
Tensor scratch(i64 elements) {
  return Tensor::empty({std::max<i64>(elements, 1)}, dtype_of<T>);
}

template <class T>
bool all_real(const LinearAttention<T>& a) {
  return a.mask == nullptr || std::all_of(a.mask, a.mask + a.B * a.N, [](std::uint8_t m) { return m != 0; });
}

// Sums and maxima in lanes of their own, which the compiler keeps in vectors.
constexpr i64 kLanes = 16;
template <class T, class F, class Join>
T in_lanes(i64 n, T start, F&& f, Join&& join) {
  T lane[kLanes];
  std::fill_n(lane, kLanes, start);
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (i64 l = 0; l < kLanes; ++l) lane[l] = join(lane[l], f(i + l));
  for (; i < n; ++i) lane[0] = join(lane[0], f(i));
  for (i64 l = 1; l < kLanes; ++l) lane[0] = join(lane[0], lane[l]);
  return lane[0];
}
template <class T>
T dot(const T* x, const T* y, i64 n) {
  return in_lanes(
      n, T(0), [=](i64 i) { return x[i] * y[i]; }, [](T p, T q) { return p + q; });
}
template <class T>
T total(const T* x, i64 n) {
  return in_lanes(
      n, T(0), [=](i64 i) { return x[i]; }, [](T p, T q) { return p + q; });
}
template <class T>
T highest_sum(const T* x, const T* y, i64 n) {
  return in_lanes(
      n, -std::numeric_limits<T>::infinity(), [=](i64 i) { return x[i] + y[i]; }, [](T p, T q) { return p < q ? q : p; });
}
template <class T>
void add_scaled(T factor, const T* x, T* y, i64 n) {
  for (i64 i = 0; i < n; ++i) y[i] += factor * x[i];
}

template <class T>
constexpr T kNone = -std::numeric_limits<T>::infinity();
// exp(from - to) for from <= to; 0 where there was nothing.
template <class T>
T ratio(T from, T to) {
  return from == to ? T(from != kNone<T>) : from == kNone<T> ? T(0) : std::exp(from - to);
}

// ---- all keys, no padding, features: every product reads the strided heads as they are and writes where the result belongs

template <class T>
struct Whole {
  const LinearAttention<T>& a;

  static MatrixView<const T> rows(RowsView<const T> x) { return {x.p, x.n, 1, x.b, x.h}; }
  static MatrixView<const T> columns(RowsView<const T> x) { return {x.p, 1, x.n, x.b, x.h}; }
  MatrixView<const T> state(const T* p) const { return {p, a.dv, 1, a.H * a.d * a.dv, a.d * a.dv}; }
  MatrixView<const T> state_t(const T* p) const { return {p, 1, a.dv, a.H * a.d * a.dv, a.d * a.dv}; }

  void product(i64 m, i64 n, i64 k, MatrixView<const T> x, MatrixView<const T> y, MatrixView<T> out) const {
    Gemm<T> g;
    g.batch0 = a.B;
    g.batch1 = a.H;
    g.m = m;
    g.n = n;
    g.k = k;
    g.a = x;
    g.b = y;
    g.c = out;
    gemm(g);
  }
  // x^T y over the sequence, [B, H, d, dv].
  void outer(RowsView<const T> x, RowsView<const T> y, T* to) const {
    product(a.d, a.dv, a.N, columns(x), rows(y), {to, a.dv, 1, a.H * a.d * a.dv, a.d * a.dv});
  }
  // sum_i weight_i x_i, [B, H, d]; weight [B, H, N] or null for 1.
  void sums(RowsView<const T> x, const T* weight, T* o) const {
    std::fill_n(o, a.B * a.H * a.d, T(0));
    parallel_for(a.B * a.H, 1, [&](i64 begin, i64 end) {
      for (i64 g = begin; g < end; ++g)
        for (i64 i = 0; i < a.N; ++i)
          add_scaled(weight ? weight[g * a.N + i] : T(1), x.p + g / a.H * x.b + g % a.H * x.h + i * x.n, o + g * a.d, a.d);
    });
  }
  // f(b, h, i, index in [B, H, N])
  template <class F>
  void for_rows(F&& f) const {
    parallel_for(a.B * a.H * a.N, 256, [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) f(r / a.N / a.H, r / a.N % a.H, r % a.N, r);
    });
  }
  T floor() const { return static_cast<T>(a.floor * static_cast<double>(a.N)); }
  T factor(T den) const { return den == 0 ? T(0) : a.normalize ? 1 / den : static_cast<T>(a.scale); }

  void forward(RowsView<T> o, const LinearSaved<T>& saved) const {
    outer(a.k, a.v, saved.S);
    sums(a.k, nullptr, saved.z);
    product(a.N, a.dv, a.d, rows(a.q), state(saved.S), {o.p, o.n, 1, o.b, o.h});
    const T* zp = saved.z;
    T* den = saved.den;
    for_rows([&](i64 b, i64 h, i64 i, i64 r) {
      den[r] = 1;
      if (a.normalize) {
        den[r] = dot(a.q.p + b * a.q.b + h * a.q.h + i * a.q.n, zp + (b * a.H + h) * a.d, a.d);
        den[r] = a.floor >= 0 ? std::max(den[r], floor()) : den[r] + static_cast<T>(a.eps);
      }
      const T f = factor(den[r]);
      T* row = o.p + b * o.b + h * o.h + i * o.n;
      for (i64 j = 0; j < a.dv; ++j) row[j] = f == 0 ? T(0) : row[j] * f;
    });
  }

  void backward(RowsView<const T> o, const LinearSaved<T>& saved, RowsView<const T> d_o, const LinearAttentionGrads<T>& out) const {
    Tensor g = scratch<T>(a.B * a.H * a.N * a.dv), h = scratch<T>(a.B * a.H * a.N);
    T *gp = g.mut_ptr<T>(), *hp = h.mut_ptr<T>();
    const T* den = saved.den;
    for_rows([&](i64 b, i64 head, i64 i, i64 r) {
      const T* up = d_o.p + b * d_o.b + head * d_o.h + i * d_o.n;
      const T f = factor(den[r]);
      for (i64 j = 0; j < a.dv; ++j) gp[r * a.dv + j] = f == 0 ? T(0) : up[j] * f;
      const bool constant = !a.normalize || (a.floor >= 0 && den[r] <= floor());
      hp[r] = constant ? T(0) : -dot(up, o.p + b * o.b + head * o.h + i * o.n, a.dv) * f;
    });
    const RowsView<const T> gv{gp, a.H * a.N * a.dv, a.N * a.dv, a.dv};
    Tensor later = scratch<T>(a.B * a.H * a.d * (a.dv + 1));
    T *R = later.mut_ptr<T>(), *r = R + a.B * a.H * a.d * a.dv;
    outer(a.q, gv, R);
    sums(a.q, hp, r);
    const auto into = [](RowsView<T> x) { return MatrixView<T>{x.p, x.n, 1, x.b, x.h}; };
    product(a.N, a.d, a.dv, rows(gv), state_t(saved.S), into(out.dq));
    if (out.dk.p) product(a.N, a.d, a.dv, rows(a.v), state_t(R), into(out.dk));
    product(a.N, a.dv, a.d, rows(a.k), state(R), into(out.dv));
    for_rows([&](i64 b, i64 head, i64 i, i64 at) {
      const i64 first = (b * a.H + head) * a.d;
      add_scaled(hp[at], saved.z + first, out.dq.p + b * out.dq.b + head * out.dq.h + i * out.dq.n, a.d);
      if (out.dk.p) add_scaled(T(1), r + first, out.dk.p + b * out.dk.b + head * out.dk.h + i * out.dk.n, a.d);
    });
  }
};

// ---- everything else: a sequence is cut into parts that run side by side, a part into chunks, one after the other

constexpr double kMostRise = 60;   // of a key's running maximum in a chunk: beyond, the early rows of the chunk would vanish
constexpr double kMostAbove = 80;  // exponents of queries relative to their top; larger ones meet keys that are 0 or not visible
constexpr i64 kWidth = 128;        // chunk without causality

template <class T>
struct Rows {
  const T* p;
  i64 step;
  const T* operator[](i64 i) const { return p + i * step; }
  MatrixView<const T> view() const { return {p, step, 1}; }
  MatrixView<const T> turned() const { return {p, 1, step}; }
};

template <class T>
class Scan {
 public:
  explicit Scan(const LinearAttention<T>& args)
      : a(args), mask_(all_real(args) ? nullptr : args.mask), relative_(a.form != LinearForm::Features), d(a.d), dv(a.dv), G(a.B * a.H) {
    C = a.causal ? std::min(a.chunk, a.N) : std::min(kWidth, a.N);
    const i64 tasks = a.causal ? 8 : 32;  // with causality each cut costs another sum over its part
    const i64 most = std::clamp<i64>((tasks + G - 1) / G, 1, std::max<i64>(1, a.N / (8 * C)));
    length_ = ((a.N + most - 1) / most + C - 1) / C * C;
    parts_ = (a.N + length_ - 1) / length_;
    prepare_gate();
  }

  void forward(RowsView<T> o, const LinearSaved<T>& rows, T* S_last, T* z_last) {
    sum_up();
    if (!a.causal) exchange_sums(rows, true);
    for_parts([&](const Part& p, Scratch& s) {
      const State st = state(p);
      for (i64 i = p.first; i < p.last;) {
        const i64 n = enter(p, i, st, s);
        attend(p, i, n, st, s, o, rows);
        i += n;
      }
      if (!S_last || !a.causal || p.last < a.N) return;
      std::copy_n(st.S, d * dv, S_last + p.g * d * dv);
      std::copy_n(st.z, d, z_last + p.g * d);
    });
  }

  void backward(RowsView<const T> o, const LinearSaved<T>& rows, RowsView<const T> d_o, const LinearAttentionGrads<T>& out) {
    up_ = {o, d_o, rows, out};
    a.causal ? sum_up() : exchange_sums(rows, false);
    R_ = Tensor::zeros({G * parts_, d * dv}, dtype_of<T>);
    r_ = Tensor::zeros({G * parts_, d}, dtype_of<T>);
    if (a.gate) {
      gain_.assign(static_cast<std::size_t>(G * a.N), 0);
      loss_ = share_ = gain_;
    }
    traces_.resize(static_cast<std::size_t>(G * parts_));
    for_parts([&](const Part& p, Scratch& s) { query_grads(p, s); });
    sum_up_later();
    for_parts([&](const Part& p, Scratch& s) { key_grads(p, s); });
    if (a.gate) gate_grads();
  }

 private:
  struct Part {
    i64 index, g, b, h, first, last;
  };
  struct State {  // of everything before: S [d, dv], z [d]; c [d]: the largest key so far, to which S and z are relative
    T *S, *z, *c;
  };
  struct Trace {  // the chunks of a part, and the state's c and z at each
    std::vector<i64> first, n;
    std::vector<T> c, z;
  };
  struct Scratch {                      // of a thread
    T *q, *k, *moved, *work, *inverse;  // [C, d]
    T *v, *g, *faded;                   // [C, dv]
    T *A, *W;                           // [C, C]
    T *decay, *h;                       // [C]
    T *before, *run, *factor;           // [d]
    explicit Scratch(T* p, i64 C, i64 d, i64 dv) {
      for (T** x : {&q, &k, &moved, &work, &inverse}) *x = std::exchange(p, p + C * d);
      for (T** x : {&v, &g, &faded}) *x = std::exchange(p, p + C * dv);
      for (T** x : {&A, &W}) *x = std::exchange(p, p + C * C);
      for (T** x : {&decay, &h}) *x = std::exchange(p, p + C);
      for (T** x : {&before, &run, &factor}) *x = std::exchange(p, p + d);
    }
    static i64 size(i64 C, i64 d, i64 dv) { return C * (5 * d + 3 * dv + 2 * C + 2) + 3 * d; }
  };

  template <class F>
  void for_parts(F&& f) {
    const i64 size = Scratch::size(C, d, dv);
    Tensor memory = scratch<T>(thread_count() * size);
    T* base = memory.mut_ptr<T>();
    parallel_for(G * parts_, 1, [&](i64 begin, i64 end) {
      const PrecisionScope f32(Math::F32);  // the same on every thread
      Scratch s(base + parallel_member() * size, C, d, dv);
      for (i64 x = begin; x < end; ++x) {
        const i64 g = x / parts_, first = x % parts_ * length_;
        f(Part{x, g, g / a.H, g % a.H, first, std::min(a.N, first + length_)}, s);
      }
    });
  }
  State state(const Part& p) {
    const i64 at = a.causal ? p.index : p.g * parts_;
    return {S_.mut_ptr<T>() + at * d * dv, z_.mut_ptr<T>() + at * d, relative_ ? c_.mut_ptr<T>() + at * d : nullptr};
  }
  bool real(const Part& p, i64 i) const { return !mask_ || mask_[p.b * a.N + i]; }
  static const T* row(RowsView<const T> x, const Part& p, i64 i) { return x.p + p.b * x.b + p.h * x.h + i * x.n; }
  static T* row(RowsView<T> x, const Part& p, i64 i) { return x.p + p.b * x.b + p.h * x.h + i * x.n; }
  T* decay(Scratch& s) const { return a.gate ? s.decay : nullptr; }
  static T* top(const LinearSaved<T>& rows, i64 at) { return rows.top ? rows.top + at : nullptr; }

  // ---- the gate and the number of visible keys

  void prepare_gate() {
    if (a.gate) {
      log_gate_.resize(static_cast<std::size_t>(G * a.N));
      in_.resize(log_gate_.size());
    }
    if (a.floor >= 0) count_.resize(static_cast<std::size_t>(G * a.N));
    if (!a.gate && a.floor < 0) return;
    parallel_for(G, 1, [&](i64 begin, i64 end) {
      for (i64 g = begin; g < end; ++g) {
        double n = 0;
        for (i64 i = 0; i < a.N; ++i) {
          const std::size_t at = static_cast<std::size_t>(g * a.N + i);
          const bool counts = !mask_ || mask_[g / a.H * a.N + i];
          double log_keep = 0, in = counts;
          if (a.gate) {
            const double x = static_cast<double>(a.gate[at]), e = std::exp(-std::abs(x));
            if (counts) {
              log_keep = std::min(x, 0.0) - std::log1p(e);
              in = (x < 0 ? 1 : e) / (1 + e);
            }
            log_gate_[at] = static_cast<T>(log_keep);
            in_[at] = static_cast<T>(in);
          }
          n = n * std::exp(log_keep) + in;
          if (a.floor >= 0) count_[at] = static_cast<T>(n);
        }
        if (a.floor >= 0 && !a.causal) std::fill_n(count_.begin() + g * a.N, a.N, static_cast<T>(n));
      }
    });
  }
  T log_decay_of_part(i64 g, i64 part) const {
    T sum = 0;
    for (i64 i = part * length_; a.gate && i < std::min(a.N, (part + 1) * length_); ++i)
      sum += log_gate_[static_cast<std::size_t>(g * a.N + i)];
    return sum;
  }

  // ---- a chunk's operands

  void add_up_gates(const Part& p, i64 first, i64 n, Scratch& s) const {
    T sum = 0;
    for (i64 i = 0; a.gate && i < n; ++i) s.decay[i] = sum += log_gate_[static_cast<std::size_t>(p.g * a.N + first + i)];
  }

  // Where the chunk from `first` ends, and the state relative to the largest key up to there.
  i64 enter(const Part& p, i64 first, const State& st, Scratch& s) const {
    i64 n = std::min(C, p.last - first);
    add_up_gates(p, first, n, s);
    if (!relative_) return n;
    std::copy_n(st.c, d, s.before);
    if (!a.causal) return n;
    for (;; n = (n + 1) / 2) {
      std::copy_n(s.before, d, st.c);
      const T* start = nullptr;
      for (i64 i = first; i < first + n; ++i) {
        if (!real(p, i)) continue;
        const T* key = row(a.k, p, i);
        if (!start) start = key;
        for (i64 r = 0; r < d; ++r) st.c[r] = st.c[r] < key[r] ? key[r] : st.c[r];
      }
      if (!start) return n;
      bool steep = false;
      for (i64 r = 0; r < d; ++r) {
        const T low = std::max(s.before[r], start[r]);
        steep |= low != kNone<T> && st.c[r] - low > T(kMostRise);
      }
      if (!steep || n == 1) break;
    }
    for (i64 r = 0; r < d; ++r) {
      if (s.before[r] == st.c[r]) continue;
      const T f = ratio(s.before[r], st.c[r]);
      st.z[r] *= f;
      for (i64 j = 0; j < dv; ++j) st.S[r * dv + j] *= f;
    }
    return n;
  }

  // Copies rows, 0 at padding; in place where there is none.
  Rows<T> plain(RowsView<const T> x, i64 width, const Part& p, i64 first, i64 n, T* to) const {
    if (!mask_) return {row(x, p, first), x.n};
    for (i64 i = 0; i < n; ++i) {
      if (real(p, first + i))
        std::copy_n(row(x, p, first + i), width, to + i * width);
      else
        std::fill_n(to + i * width, width, T(0));
    }
    return {to, width};
  }

  Rows<T> keys(const Part& p, i64 first, i64 n, const T* c, T* to) const {
    if (!relative_ && !a.gate) return plain(a.k, d, p, first, n, to);
    for (i64 i = 0; i < n; ++i) {
      const T *from = row(a.k, p, first + i), in = a.gate ? in_[static_cast<std::size_t>(p.g * a.N + first + i)] : T(1);
      T* key = to + i * d;
      if (!real(p, first + i))
        std::fill_n(key, d, relative_ ? kNone<T> : T(0));
      else if (relative_)
        for (i64 r = 0; r < d; ++r) key[r] = from[r] - (c[r] == kNone<T> ? T(0) : c[r]);
      else
        for (i64 r = 0; r < d; ++r) key[r] = from[r] * in;
    }
    if (relative_) unary(Unary::Exp, to, to, n * d);
    return {to, d};
  }

  // Features of the queries. `find_top`: the tops are found, else they are given. PerFeature leaves 1 / z_i in s.inverse.
  Rows<T> queries(const Part& p, i64 first, i64 n, const State& st, Rows<T> K, T* top, bool find_top, Scratch& s) const {
    if (!relative_) return plain(a.q, d, p, first, n, s.q);
    if (find_top || a.form == LinearForm::PerFeature) std::copy_n(a.form == LinearForm::PerFeature ? st.z : s.before, d, s.run);
    for (i64 i = 0; i < n; ++i) {
      const T* from = row(a.q, p, first + i);
      T *query = s.q + i * d, *inverse = s.inverse + i * d;
      if (!real(p, first + i)) {
        std::fill_n(query, d, T(0));
        std::fill_n(inverse, d, T(0));
      } else if (a.form == LinearForm::PerFeature) {
        if (a.causal) add_scaled(T(1), K[i], s.run, d);
        for (i64 r = 0; r < d; ++r) inverse[r] = s.run[r] > 0 ? 1 / s.run[r] : T(0);
        for (i64 r = 0; r < d; ++r) query[r] = from[r] * inverse[r];
      } else {
        const T* key = row(a.k, p, first + i);
        if (find_top) {
          for (i64 r = 0; r < d && a.causal; ++r) s.run[r] = s.run[r] < key[r] ? key[r] : s.run[r];
          top[i] = highest_sum(from, s.run, d);
        }
        for (i64 r = 0; r < d; ++r) query[r] = std::min(from[r] + st.c[r] - top[i], T(kMostAbove));
      }
    }
    if (a.form == LinearForm::PerFeature) return {s.q, d};
    unary(Unary::Exp, s.q, s.q, n * d);
    for (i64 i = 0; mask_ && i < n; ++i)
      if (!real(p, first + i)) std::fill_n(s.q + i * d, d, T(0));
    return {s.q, d};
  }

  // Pairs of the chunk: j > i become 0, the others fade by the gates between them.
  void keep_past(T* pairs, i64 n, const T* decay) const {
    for (i64 i = 0; i < n; ++i) {
      for (i64 j = 0; decay && j < i; ++j) pairs[i * n + j] *= std::exp(decay[i] - decay[j]);
      std::fill_n(pairs + i * n + i + 1, n - i - 1, T(0));
    }
  }
  // Rows times exp(decay_i), or times exp(decay_last - decay_i).
  static Rows<T> fade(Rows<T> x, i64 width, i64 n, const T* decay, bool to_end, T* to) {
    if (!decay) return x;
    for (i64 i = 0; i < n; ++i) {
      const T f = std::exp(to_end ? decay[n - 1] - decay[i] : decay[i]);
      for (i64 j = 0; j < width; ++j) to[i * width + j] = x[i][j] * f;
    }
    return {to, width};
  }

  // S <- decay S + K^T V, z likewise.
  void absorb(i64 n, Rows<T> K, Rows<T> V, const State& st, Scratch& s) const {
    const T* fading = decay(s);
    const Rows<T> k = fade(K, d, n, fading, true, s.moved);
    if (fading) {
      const T f = std::exp(fading[n - 1]);
      for (i64 j = 0; j < d * dv; ++j) st.S[j] *= f;
      for (i64 r = 0; r < d; ++r) st.z[r] *= f;
    }
    product(d, dv, n, k.turned(), V.view(), st.S, dv, true);
    std::fill_n(s.factor, d, T(0));
    for (i64 i = 0; i < n; ++i) add_scaled(T(1), k[i], s.factor, d);
    add_scaled(T(1), s.factor, st.z, d);
  }

  // ---- the state before each part; without causality that of all parts

  void start_sums() {
    S_ = Tensor::zeros({G * parts_, d * dv}, dtype_of<T>);
    z_ = Tensor::zeros({G * parts_, d}, dtype_of<T>);
    if (relative_) c_ = Tensor::full({G * parts_, d}, static_cast<double>(kNone<T>), dtype_of<T>);
  }

  // The sums over all keys, to be kept for backward, and from there.
  void exchange_sums(const LinearSaved<T>& saved, bool keep) {
    if (!keep) start_sums();
    const auto copy = [&](Tensor& own, T* kept, i64 size) {
      for (i64 g = 0; g < G; ++g) {
        T *here = own.mut_ptr<T>() + g * parts_ * size, *there = kept + g * size;
        std::copy_n(keep ? here : there, size, keep ? there : here);
      }
    };
    copy(S_, saved.S, d * dv);
    copy(z_, saved.z, d);
    if (relative_) copy(c_, saved.c, d);
  }

  void sum_up() {
    start_sums();
    if (!a.causal || parts_ > 1)
      for_parts([&](const Part& p, Scratch& s) {
        if (a.causal && p.last == a.N) return;
        const State own{S_.mut_ptr<T>() + p.index * d * dv, z_.mut_ptr<T>() + p.index * d,
                        relative_ ? c_.mut_ptr<T>() + p.index * d : nullptr};
        for (i64 i = p.first; relative_ && i < p.last; ++i) {
          const T* key = row(a.k, p, i);
          for (i64 r = 0; real(p, i) && r < d; ++r) own.c[r] = own.c[r] < key[r] ? key[r] : own.c[r];
        }
        for (i64 i = p.first; i < p.last; i += C) {
          const i64 n = std::min(C, p.last - i);
          add_up_gates(p, i, n, s);
          absorb(n, keys(p, i, n, own.c, s.k), plain(a.v, dv, p, i, n, s.v), own, s);
        }
      });
    parallel_for(G, 1, [&](i64 begin, i64 end) {
      std::vector<T> sum(static_cast<std::size_t>(d * dv + 2 * d));
      for (i64 g = begin; g < end; ++g) add_parts(g, {sum.data(), sum.data() + d * dv, sum.data() + d * dv + d});
    });
    if (relative_) starts_ = c_.clone();
  }

  void add_parts(i64 g, const State& sum) {
    std::fill_n(sum.S, d * dv, T(0));
    std::fill_n(sum.z, d, T(0));
    std::fill_n(sum.c, d, kNone<T>);
    if (a.S0) {
      std::copy_n(a.S0 + g * d * dv, d * dv, sum.S);
      std::copy_n(a.z0 + g * d, d, sum.z);
    }
    for (i64 part = 0; part < parts_; ++part) {
      const i64 at = g * parts_ + part;
      T *S = S_.mut_ptr<T>() + at * d * dv, *z = z_.mut_ptr<T>() + at * d, *c = relative_ ? c_.mut_ptr<T>() + at * d : nullptr;
      const T keep = std::exp(log_decay_of_part(g, part));
      for (i64 r = 0; r < d; ++r) {
        T old = keep, own = 1, highest = 0;
        if (relative_) {
          highest = std::max(sum.c[r], c[r]);
          old = ratio(sum.c[r], highest);
          own = ratio(c[r], highest);
          c[r] = std::exchange(sum.c[r], highest);
        }
        const auto next = [&](T& before, T& mine) { mine = std::exchange(before, before * old + mine * own); };
        next(sum.z[r], z[r]);
        for (i64 j = 0; j < dv; ++j) next(sum.S[r * dv + j], S[r * dv + j]);
      }
    }
    if (a.causal) return;
    std::copy_n(sum.S, d * dv, S_.mut_ptr<T>() + g * parts_ * d * dv);
    std::copy_n(sum.z, d, z_.mut_ptr<T>() + g * parts_ * d);
    if (relative_) std::copy_n(sum.c, d, c_.mut_ptr<T>() + g * parts_ * d);
  }

  // ---- forward

  T lowest(i64 at) const { return a.floor >= 0 ? static_cast<T>(a.floor) * count_[static_cast<std::size_t>(at)] : T(0); }
  T factor(T den) const { return den == 0 ? T(0) : a.normalize ? 1 / den : static_cast<T>(a.scale); }

  void attend(const Part& p, i64 first, i64 n, const State& st, Scratch& s, RowsView<T> o, const LinearSaved<T>& rows) const {
    const i64 at = p.g * a.N + first;
    Rows<T> K{nullptr, 0}, V{nullptr, 0};
    if (a.causal) {
      K = keys(p, first, n, st.c, s.k);
      V = plain(a.v, dv, p, first, n, s.v);
    }
    const Rows<T> U = queries(p, first, n, st, K, top(rows, at), true, s), past = fade(U, d, n, decay(s), false, s.moved);
    product(n, dv, d, past.view(), {st.S, dv, 1}, row(o, p, first), o.n);
    if (a.causal) {
      product(n, n, d, U.view(), K.turned(), s.A, n);
      keep_past(s.A, n, decay(s));
      product(n, dv, n, {s.A, n, 1}, V.view(), row(o, p, first), o.n, true);
    }
    const bool divide = a.normalize && a.form != LinearForm::PerFeature;
    for (i64 i = 0; i < n; ++i) {
      T den = 1;
      if (divide) {
        den = dot(past[i], st.z, d) + (a.causal ? total(s.A + i * n, i + 1) : T(0));
        if (a.form == LinearForm::Features) den = a.floor >= 0 ? std::max(den, lowest(at + i)) : den + static_cast<T>(a.eps);
      }
      rows.den[at + i] = den;
      const T f = !real(p, first + i) ? T(0) : a.form == LinearForm::PerFeature ? T(1) : factor(den);
      T* out = row(o, p, first + i);
      for (i64 j = 0; j < dv; ++j) out[j] = f == 0 ? T(0) : out[j] * f;
    }
    if (a.causal) absorb(n, K, V, st, s);
  }

  // ---- backward

  struct Upstream {
    RowsView<const T> o, d_o;
    LinearSaved<T> rows;
    LinearAttentionGrads<T> out;
  };

  // g_i = dO_i / den_i into s.g and h_i = -(dO_i.o_i) / den_i into s.h: the gradients of the numerator and of z.q; 0 at padding.
  void arrive(const Part& p, i64 first, i64 n, Scratch& s) {
    for (i64 i = 0; i < n; ++i) {
      const i64 at = p.g * a.N + first + i;
      const T den = up_.rows.den[at];
      const T f = !real(p, first + i) ? T(0) : a.form == LinearForm::PerFeature ? T(1) : factor(den);
      s.h[i] = 0;
      if (f == 0) {
        std::fill_n(s.g + i * dv, dv, T(0));
        continue;
      }
      const T* up = row(up_.d_o, p, first + i);
      for (i64 j = 0; j < dv; ++j) s.g[i * dv + j] = up[j] * f;
      if (!a.normalize || a.form == LinearForm::PerFeature) continue;
      const T h = -dot(up, row(up_.o, p, first + i), dv) * f;
      if (a.floor < 0 || den > lowest(at))
        s.h[i] = h;
      else if (a.gate)
        share_[static_cast<std::size_t>(at)] = static_cast<double>(h * static_cast<T>(a.floor));
    }
  }

  // What pairs of the chunk send to phi(q) and phi(k): tril(g v^T + h), faded, into s.W.
  void pair_grads(i64 n, Rows<T> V, Scratch& s) const {
    product(n, n, dv, {s.g, dv, 1}, V.turned(), s.W, n);
    for (i64 i = 0; i < n; ++i)
      for (i64 j = 0; j <= i; ++j) s.W[i * n + j] += s.h[i];
    keep_past(s.W, n, decay(s));
  }

  void query_grads(const Part& p, Scratch& s) {
    const State st = state(p);
    const bool collect = !a.causal || parts_ > 1;
    T faded = 0;  // log of the gates from the part's start to the chunk
    for (i64 first = p.first; first < p.last;) {
      const i64 n = enter(p, first, st, s);
      Trace& trace = traces_[static_cast<std::size_t>(p.index)];
      trace.first.push_back(first);
      trace.n.push_back(n);
      if (relative_) trace.c.insert(trace.c.end(), st.c, st.c + d);
      if (a.form == LinearForm::PerFeature) trace.z.insert(trace.z.end(), st.z, st.z + d);
      arrive(p, first, n, s);
      Rows<T> K{nullptr, 0}, V{nullptr, 0};
      if (a.causal) {
        K = keys(p, first, n, st.c, s.k);
        V = plain(a.v, dv, p, first, n, s.v);
      }
      const Rows<T> U = queries(p, first, n, st, K, top(up_.rows, p.g * a.N + first), false, s);
      T* out = relative_ ? s.work : row(up_.out.dq, p, first);
      const i64 step = relative_ ? d : up_.out.dq.n;
      product(n, d, dv, fade({s.g, dv}, dv, n, decay(s), false, s.faded).view(), {st.S, 1, dv}, out, step);
      for (i64 i = 0; i < n; ++i) add_scaled(a.gate ? s.h[i] * std::exp(s.decay[i]) : s.h[i], st.z, out + i * step, d);
      if (a.causal) {
        pair_grads(n, V, s);
        product(n, d, n, {s.W, n, 1}, K.view(), out, step, true);
      }
      leave_queries(p, first, n, U, {out, step}, s);
      if (collect) collect_later(p, first, n, U, faded, st.c, s);
      if (a.gate) faded += s.decay[n - 1];
      if (a.causal) absorb(n, K, V, st, s);
      first += n;
    }
  }

  // From the gradient of phi(q) to that of q.
  void leave_queries(const Part& p, i64 first, i64 n, Rows<T> U, Rows<T> grad, Scratch& s) {
    for (i64 i = 0; i < n; ++i) {
      T* dq = row(up_.out.dq, p, first + i);
      if (!real(p, first + i)) {
        std::fill_n(dq, d, T(0));
        continue;
      }
      if (a.gate) gain_[static_cast<std::size_t>(p.g * a.N + first + i)] = static_cast<double>(dot(U[i], grad[i], d));
      if (!relative_) continue;
      const T* slope = a.form == LinearForm::PerFeature ? s.inverse + i * d : U[i];
      for (i64 r = 0; r < d; ++r) dq[r] = grad[i][r] * slope[r];
    }
  }

  // R += sum of phi(q) g^T and r += sum of h phi(q) of a part, as seen from its start.
  void collect_later(const Part& p, i64 first, i64 n, Rows<T> U, T faded, const T* c, Scratch& s) {
    T *R = R_.mut_ptr<T>() + p.index * d * dv, *r = r_.mut_ptr<T>() + p.index * d;
    const T* start = relative_ && a.causal ? starts_.ptr<T>() + p.index * d : nullptr;
    if (start)
      for (i64 f = 0; f < d; ++f) s.factor[f] = ratio(start[f], c[f]);
    Rows<T> seen = U;
    if (start || a.gate) {
      for (i64 i = 0; i < n; ++i) {
        const T f = a.gate ? std::exp(faded + s.decay[i]) : T(1);
        for (i64 x = 0; x < d; ++x) s.moved[i * d + x] = U[i][x] * (start ? s.factor[x] : f);
      }
      seen = {s.moved, d};
    }
    product(d, dv, n, seen.turned(), {s.g, dv, 1}, R, dv, true);
    for (i64 i = 0; i < n; ++i) {
      if (a.form == LinearForm::PerFeature) {
        const T* dq = row(up_.out.dq, p, first + i);
        for (i64 f = 0; f < d; ++f) r[f] -= seen[i][f] * dq[f];
      } else {
        add_scaled(s.h[i], seen[i], r, d);
      }
    }
  }

  // Each part's R and r become those of the parts behind it, relative to the keys at its end; without causality, of all parts.
  void sum_up_later() {
    if (parts_ == 1) return;
    parallel_for(G, 1, [&](i64 begin, i64 end) {
      std::vector<T> sum(static_cast<std::size_t>(d * dv + d));
      for (i64 g = begin; g < end; ++g) {
        std::fill(sum.begin(), sum.end(), T(0));
        for (i64 part = parts_ - 1; part >= 0; --part) {
          const i64 at = g * parts_ + part;
          const T keep = std::exp(log_decay_of_part(g, part));
          for (i64 x = 0; x < d; ++x) {
            T f = keep;
            if (relative_ && a.causal && part + 1 < parts_) f = ratio(starts_.ptr<T>()[at * d + x], starts_.ptr<T>()[(at + 1) * d + x]);
            const auto next = [&](T& before, T& mine) { mine = std::exchange(before, before * f + mine); };
            next(sum[static_cast<std::size_t>(d * dv + x)], r_.mut_ptr<T>()[at * d + x]);
            for (i64 j = 0; j < dv; ++j) next(sum[static_cast<std::size_t>(x * dv + j)], R_.mut_ptr<T>()[(at * d + x) * dv + j]);
          }
        }
        for (i64 part = 0; !a.causal && part < parts_; ++part) {
          std::copy_n(sum.begin(), d * dv, R_.mut_ptr<T>() + (g * parts_ + part) * d * dv);
          std::copy_n(sum.begin() + d * dv, d, r_.mut_ptr<T>() + (g * parts_ + part) * d);
        }
      }
    });
  }

  void key_grads(const Part& p, Scratch& s) {
    Trace& trace = traces_[static_cast<std::size_t>(p.index)];
    T *R = R_.mut_ptr<T>() + p.index * d * dv, *r = r_.mut_ptr<T>() + p.index * d;
    for (i64 x = static_cast<i64>(trace.first.size()) - 1; x >= 0; --x) {
      const i64 first = trace.first[static_cast<std::size_t>(x)], n = trace.n[static_cast<std::size_t>(x)];
      const auto entry = [&](std::vector<T>& of) { return of.empty() ? nullptr : of.data() + x * d; };
      const State st{nullptr, entry(trace.z), entry(trace.c)};
      add_up_gates(p, first, n, s);
      const Rows<T> K = keys(p, first, n, st.c, s.k), V = plain(a.v, dv, p, first, n, s.v);
      const bool wanted = up_.out.dk.p != nullptr, direct = wanted && !relative_ && !a.gate;
      T* out = direct ? row(up_.out.dk, p, first) : s.work;
      const i64 step = direct ? up_.out.dk.n : d;
      if (wanted) product(n, d, dv, V.view(), {R, 1, dv}, out, step);
      for (i64 i = 0; wanted && i < n; ++i) {
        const T f = a.gate ? std::exp(s.decay[n - 1] - s.decay[i]) : T(1);
        for (i64 j = 0; j < d; ++j) out[i * step + j] = (out[i * step + j] + r[j]) * f;
      }
      product(n, dv, d, fade(K, d, n, decay(s), true, s.moved).view(), {R, dv, 1}, row(up_.out.dv, p, first), up_.out.dv.n);
      if (a.causal) {
        arrive(p, first, n, s);
        const Rows<T> U = queries(p, first, n, st, K, top(up_.rows, p.g * a.N + first), false, s);
        product(n, n, d, U.view(), K.turned(), s.A, n);
        keep_past(s.A, n, decay(s));
        if (wanted) pair_grads(n, V, s);
        if (wanted) product(n, d, n, {s.W, 1, n}, U.view(), out, step, true);
        product(n, dv, n, {s.A, 1, n}, {s.g, dv, 1}, row(up_.out.dv, p, first), up_.out.dv.n, true);
        if (a.form == LinearForm::PerFeature) {  // the sums behind each key's own sum
          std::fill_n(s.run, d, T(0));
          for (i64 i = n - 1; i >= 0; --i) {
            const T* dq = row(up_.out.dq, p, first + i);
            for (i64 j = 0; j < d; ++j) s.run[j] -= U[i][j] * dq[j];
            add_scaled(T(1), s.run, out + i * step, d);
          }
        }
        step_back(n, U, R, r, s);
        if (relative_ && x > 0)
          for (i64 f = 0; f < d; ++f) {
            const T before = st.c[f - d], down = ratio(before, st.c[f]);
            if (before == st.c[f]) continue;
            r[f] *= down;
            for (i64 j = 0; j < dv; ++j) R[f * dv + j] *= down;
          }
      }
      leave_keys(p, first, n, K, {out, step});
    }
    if (p.first > 0) return;
    if (up_.out.dS0) std::copy_n(R, d * dv, up_.out.dS0 + p.g * d * dv);
    if (up_.out.dz0) std::copy_n(r, d, up_.out.dz0 + p.g * d);
  }

  // R and r from behind a chunk to before it.
  void step_back(i64 n, Rows<T> U, T* R, T* r, Scratch& s) const {
    const T* fading = decay(s);
    const Rows<T> past = fade(U, d, n, fading, false, s.moved);
    if (fading) {
      const T f = std::exp(fading[n - 1]);
      for (i64 j = 0; j < d * dv; ++j) R[j] *= f;
      for (i64 j = 0; j < d; ++j) r[j] *= f;
    }
    product(d, dv, n, past.turned(), {s.g, dv, 1}, R, dv, true);
    if (a.form == LinearForm::PerFeature)
      add_scaled(T(1), s.run, r, d);
    else
      for (i64 i = 0; i < n; ++i) add_scaled(s.h[i], past[i], r, d);
  }

  // From the gradient of phi(k) to that of k.
  void leave_keys(const Part& p, i64 first, i64 n, Rows<T> K, Rows<T> grad) {
    for (i64 i = 0; i < n; ++i) {
      T* dk = up_.out.dk.p ? row(up_.out.dk, p, first + i) : nullptr;
      if (!real(p, first + i)) {
        std::fill_n(dk, dk ? d : 0, T(0));
        std::fill_n(row(up_.out.dv, p, first + i), dv, T(0));
        continue;
      }
      if (!dk) continue;
      if (relative_) {
        for (i64 r = 0; r < d; ++r) dk[r] = grad[i][r] * K[i][r];
      } else if (a.gate) {
        const std::size_t at = static_cast<std::size_t>(p.g * a.N + first + i);
        loss_[at] = static_cast<double>(dot(row(a.k, p, first + i), grad[i], d));
        for (i64 r = 0; r < d; ++r) dk[r] = grad[i][r] * in_[at];
      }
    }
  }

  // With X_ij what the pair (i, j) adds to the loss' differential of its weight: d log g_t = sum over j < t <= i of X_ij, as the sum over
  // rows from t on less the sum over keys from t on. The same for the counts n, whose gradients are in share_.
  void gate_grads() {
    parallel_for(G, 1, [&](i64 begin, i64 end) {
      for (i64 g = begin; g < end; ++g) {
        double behind = 0, dn = 0;
        for (i64 i = a.N - 1; i >= 0; --i) {
          const std::size_t at = static_cast<std::size_t>(g * a.N + i);
          const bool counts = !mask_ || mask_[g / a.H * a.N + i];
          up_.out.dgate[at] = 0;
          if (!counts) continue;
          const double keep = std::exp(static_cast<double>(log_gate_[at])), in = static_cast<double>(in_[at]);
          dn += share_[at];
          const double e = loss_[at] + dn;
          behind += gain_[at] - in * e;
          if (a.floor >= 0) behind += share_[at] * static_cast<double>(count_[at]);
          up_.out.dgate[at] = static_cast<T>(in * behind - keep * in * e);
          dn *= keep;
        }
      }
    });
  }

  const LinearAttention<T>& a;
  const std::uint8_t* mask_;
  bool relative_;
  i64 d, dv, G, C = 0, length_ = 0, parts_ = 0;
  std::vector<T> log_gate_, in_, count_;  // [G, N]: log g, 1 - g, n
  Tensor S_, z_, c_, starts_, R_, r_;     // [G, parts, ...]
  Upstream up_{};
  std::vector<Trace> traces_;
  std::vector<double> gain_, loss_, share_;  // [G, N]: q.dq, k.d(weighted k), dn
};

}  // namespace

template <class T>
void linear_attention(const LinearAttention<T>& a, RowsView<T> o, const LinearSaved<T>& saved, T* S_last, T* z_last) {
  if (a.B * a.H * a.N == 0) return;
  if (a.form == LinearForm::Features && !a.causal && all_real(a))
    Whole<T>{a}.forward(o, saved);
  else
    Scan<T>(a).forward(o, saved, S_last, z_last);
  if (!S_last || a.causal) return;
  std::copy_n(saved.S, a.B * a.H * a.d * a.dv, S_last);
  std::copy_n(saved.z, a.B * a.H * a.d, z_last);
}

template <class T>
void linear_attention_grad(const LinearAttention<T>& a, RowsView<const T> o, const LinearSaved<T>& saved, RowsView<const T> d_o,
                           const LinearAttentionGrads<T>& out) {
  if (a.B * a.H * a.N == 0) return;
  if (a.form == LinearForm::Features && !a.causal && all_real(a)) return Whole<T>{a}.backward(o, saved, d_o, out);
  Scan<T>(a).backward(o, saved, d_o, out);
}

#define INSTANTIATE(T)                                                                                                        \
  template void linear_attention(const LinearAttention<T>&, RowsView<T>, const LinearSaved<T>&, T*, T*);                      \
  template void linear_attention_grad(const LinearAttention<T>&, RowsView<const T>, const LinearSaved<T>&, RowsView<const T>, \
                                      const LinearAttentionGrads<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace tapeformer::kernels
