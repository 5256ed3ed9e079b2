#include "core/kernels/linear_attention.h"

#include <algorithm>

#include "core/kernels/gemm.h"
#include "core/parallel.h"
#include "core/tensor.h"

namespace tapeformer::kernels {
namespace {

template <class T>
Tensor scratch(i64 elements) {
  return Tensor::empty({std::max<i64>(elements, 1)}, dtype_of<T>);
}

// The sequence as [G = B H, n chunks, C, width] with zero rows behind the end: one group of matrix products for all chunks at once.
template <class T>
struct Chunks {
  const LinearAttention<T>& a;
  i64 G, C, n;
  explicit Chunks(const LinearAttention<T>& args) : a(args), G(args.B * args.H), C(args.causal ? std::min(args.chunk, args.N) : args.N) {
    n = (a.N + C - 1) / C;
  }

  // Copies rows into chunks; rows of padding and behind the end become 0.
  Tensor pack(RowsView<const T> x, i64 width) const {
    Tensor out = scratch<T>(G * n * C * width);
    T* p = out.mut_ptr<T>();
    parallel_for(G * n * C, 256, [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const i64 g = r / (n * C), i = r % (n * C), b = g / a.H, h = g % a.H;
        T* row = p + r * width;
        if (i >= a.N || (a.mask && !a.mask[b * a.N + i]))
          std::fill_n(row, width, T(0));
        else
          std::copy_n(x.p + b * x.b + h * x.h + i * x.n, width, row);
      }
    });
    return out;
  }

  // C = A B per (group, chunk); strides of the chunk matrices in elements.
  void product(i64 m, i64 n_, i64 k, MatrixView<const T> x, MatrixView<const T> y, T* out, bool accumulate) const {
    Gemm<T> g;
    g.batch0 = G;
    g.batch1 = n;
    g.m = m;
    g.n = n_;
    g.k = k;
    g.a = x;
    g.b = y;
    g.c = {out, n_, 1, n * m * n_, m * n_};
    g.accumulate = accumulate;
    gemm(g);
  }
  MatrixView<const T> rows(const T* p, i64 width) const { return {p, width, 1, n * C * width, C * width}; }     // [C, width]
  MatrixView<const T> columns(const T* p, i64 width) const { return {p, 1, width, n * C * width, C * width}; }  // its transpose
  MatrixView<const T> state(const T* p, i64 r, i64 c) const { return {p, c, 1, n * r * c, r * c}; }             // [r, c] a chunk
  MatrixView<const T> state_t(const T* p, i64 r, i64 c) const { return {p, 1, c, n * r * c, r * c}; }

  // states[g][c] <- sum of states of the chunks before (from_end: after) c, plus `first`; the total goes to `last`.
  void prefix(T* states, i64 size, const T* first, T* last, bool from_end) const {
    parallel_for(G, 1, [&](i64 begin, i64 end) {
      std::vector<T> sum(static_cast<std::size_t>(size)), own(sum.size());
      for (i64 g = begin; g < end; ++g) {
        if (first)
          std::copy_n(first + g * size, size, sum.begin());
        else
          std::fill(sum.begin(), sum.end(), T(0));
        for (i64 c = 0; c < n; ++c) {
          T* p = states + (g * n + (from_end ? n - 1 - c : c)) * size;
          std::copy_n(p, size, own.begin());
          std::copy(sum.begin(), sum.end(), p);
          for (i64 i = 0; i < size; ++i) sum[static_cast<std::size_t>(i)] += own[static_cast<std::size_t>(i)];
        }
        if (last) std::copy(sum.begin(), sum.end(), last + g * size);
      }
    });
  }

  // Sums of the rows of each chunk: [G, n, width]. weight: per row [G, n, C], or null for 1.
  Tensor row_sums(const Tensor& x, i64 width, const T* weight) const {
    Tensor out = scratch<T>(G * n * width);
    T* o = out.mut_ptr<T>();
    const T* p = x.ptr<T>();
    parallel_for(G * n, 1, [&](i64 begin, i64 end) {
      for (i64 c = begin; c < end; ++c) {
        T* sum = o + c * width;
        std::fill_n(sum, width, T(0));
        for (i64 i = 0; i < C; ++i) {
          const T w = weight ? weight[c * C + i] : T(1);
          const T* row = p + (c * C + i) * width;
          for (i64 j = 0; j < width; ++j) sum[j] += w * row[j];
        }
      }
    });
    return out;
  }

  // Zeroes j > i of every [C, C] chunk matrix.
  void lower(T* p) const {
    parallel_for(G * n, 1, [&](i64 begin, i64 end) {
      for (i64 c = begin; c < end; ++c)
        for (i64 i = 0; i < C; ++i) std::fill_n(p + (c * C + i) * C + i + 1, C - i - 1, T(0));
    });
  }

  // f(row index in the chunk layout, b, h, position) over real positions of the sequence.
  template <class F>
  void for_positions(F&& f) const {
    parallel_for(G * a.N, 256, [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const i64 g = r / a.N, i = r % a.N;
        f(g * n * C + i, g / a.H, g % a.H, i);
      }
    });
  }
};

template <class T>
void unpack(const Chunks<T>& ch, const Tensor& x, i64 width, RowsView<T> to) {
  const T* p = x.ptr<T>();
  ch.for_positions([&](i64 at, i64 b, i64 h, i64 i) { std::copy_n(p + at * width, width, to.p + b * to.b + h * to.h + i * to.n); });
}

// States before each chunk: S [G, n, d, dv] and z [G, n, d]; without causality every chunk (there is one) gets the total.
template <class T>
void states(const Chunks<T>& ch, const Tensor& k, const Tensor& v, Tensor& S, Tensor& z, T* S_last, T* z_last) {
  const auto& a = ch.a;
  S = scratch<T>(ch.G * ch.n * a.d * a.dv);
  ch.product(a.d, a.dv, ch.C, ch.columns(k.ptr<T>(), a.d), ch.rows(v.ptr<T>(), a.dv), S.mut_ptr<T>(), false);
  z = ch.row_sums(k, a.d, nullptr);
  if (!a.causal) {
    if (S_last) std::copy_n(S.ptr<T>(), ch.G * a.d * a.dv, S_last);
    if (z_last) std::copy_n(z.ptr<T>(), ch.G * a.d, z_last);
    return;
  }
  ch.prefix(S.mut_ptr<T>(), a.d * a.dv, a.S0, S_last, false);
  ch.prefix(z.mut_ptr<T>(), a.d, a.z0, z_last, false);
}

template <class T>
T dot(const T* x, const T* y, i64 n) {
  T s = 0;
  for (i64 i = 0; i < n; ++i) s += x[i] * y[i];
  return s;
}

// ---- all keys, no padding: every product reads the strided heads as they are and writes where the result belongs

template <class T>
bool all_real(const LinearAttention<T>& a) {
  return a.mask == nullptr || std::all_of(a.mask, a.mask + a.B * a.N, [](std::uint8_t m) { return m != 0; });
}

template <class T>
struct Whole {
  const LinearAttention<T>& a;

  static MatrixView<const T> rows(RowsView<const T> x) { return {x.p, x.n, 1, x.b, x.h}; }
  static MatrixView<const T> columns(RowsView<const T> x) { return {x.p, 1, x.n, x.b, x.h}; }
  MatrixView<const T> state(const Tensor& t) const { return {t.ptr<T>(), a.dv, 1, a.H * a.d * a.dv, a.d * a.dv}; }
  MatrixView<const T> state_t(const Tensor& t) const { return {t.ptr<T>(), 1, a.dv, a.H * a.d * a.dv, a.d * a.dv}; }

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
  Tensor outer(RowsView<const T> x, RowsView<const T> y) const {
    Tensor s = scratch<T>(a.B * a.H * a.d * a.dv);
    product(a.d, a.dv, a.N, columns(x), rows(y), {s.mut_ptr<T>(), a.dv, 1, a.H * a.d * a.dv, a.d * a.dv});
    return s;
  }
  // sum_i weight_i x_i, [B, H, d]; weight [B, H, N] or null for 1.
  Tensor sums(RowsView<const T> x, const T* weight) const {
    Tensor out = Tensor::zeros({a.B * a.H, a.d}, dtype_of<T>);
    T* o = out.mut_ptr<T>();
    parallel_for(a.B * a.H, 1, [&](i64 begin, i64 end) {
      for (i64 g = begin; g < end; ++g)
        for (i64 i = 0; i < a.N; ++i) {
          const T w = weight ? weight[g * a.N + i] : T(1);
          const T* row = x.p + g / a.H * x.b + g % a.H * x.h + i * x.n;
          for (i64 j = 0; j < a.d; ++j) o[g * a.d + j] += w * row[j];
        }
    });
    return out;
  }
  // f(b, h, i, index in [B, H, N])
  template <class F>
  void for_rows(F&& f) const {
    parallel_for(a.B * a.H * a.N, 256, [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) f(r / a.N / a.H, r / a.N % a.H, r % a.N, r);
    });
  }

  void forward(RowsView<T> o, T* den, T* S_last, T* z_last) const {
    const Tensor S = outer(a.k, a.v), z = sums(a.k, nullptr);
    if (S_last) std::copy_n(S.ptr<T>(), a.B * a.H * a.d * a.dv, S_last);
    if (z_last) std::copy_n(z.ptr<T>(), a.B * a.H * a.d, z_last);
    product(a.N, a.dv, a.d, rows(a.q), state(S), {o.p, o.n, 1, o.b, o.h});
    const T* zp = z.ptr<T>();
    for_rows([&](i64 b, i64 h, i64 i, i64 r) {
      den[r] = a.normalize ? dot(a.q.p + b * a.q.b + h * a.q.h + i * a.q.n, zp + (b * a.H + h) * a.d, a.d) + static_cast<T>(a.eps) : T(1);
      const T factor = den[r] == 0 ? T(0) : a.normalize ? 1 / den[r] : static_cast<T>(a.scale);
      T* row = o.p + b * o.b + h * o.h + i * o.n;
      for (i64 j = 0; j < a.dv; ++j) row[j] = factor == 0 ? T(0) : row[j] * factor;
    });
  }

  void backward(RowsView<const T> o, const T* den, RowsView<const T> d_o, const LinearAttentionGrads<T>& out) const {
    Tensor g = scratch<T>(a.B * a.H * a.N * a.dv), h = scratch<T>(a.B * a.H * a.N);
    T *gp = g.mut_ptr<T>(), *hp = h.mut_ptr<T>();
    for_rows([&](i64 b, i64 head, i64 i, i64 r) {
      const T* up = d_o.p + b * d_o.b + head * d_o.h + i * d_o.n;
      const T factor = den[r] == 0 ? T(0) : a.normalize ? 1 / den[r] : static_cast<T>(a.scale);
      for (i64 j = 0; j < a.dv; ++j) gp[r * a.dv + j] = factor == 0 ? T(0) : up[j] * factor;
      hp[r] = a.normalize ? -dot(up, o.p + b * o.b + head * o.h + i * o.n, a.dv) * factor : T(0);
    });
    const RowsView<const T> gv{gp, a.H * a.N * a.dv, a.N * a.dv, a.dv};
    const Tensor S = outer(a.k, a.v), R = outer(a.q, gv), z = sums(a.k, nullptr), r = sums(a.q, hp);
    const auto into = [](RowsView<T> x) { return MatrixView<T>{x.p, x.n, 1, x.b, x.h}; };
    product(a.N, a.d, a.dv, rows(gv), state_t(S), into(out.dq));
    product(a.N, a.d, a.dv, rows(a.v), state_t(R), into(out.dk));
    product(a.N, a.dv, a.d, rows(a.k), state(R), into(out.dv));
    const T *zp = z.ptr<T>(), *rp = r.ptr<T>();
    for_rows([&](i64 b, i64 head, i64 i, i64 at) {
      const i64 first = (b * a.H + head) * a.d;
      T *dq = out.dq.p + b * out.dq.b + head * out.dq.h + i * out.dq.n, *dk = out.dk.p + b * out.dk.b + head * out.dk.h + i * out.dk.n;
      for (i64 j = 0; j < a.d; ++j) dq[j] += hp[at] * zp[first + j];
      for (i64 j = 0; j < a.d; ++j) dk[j] += rp[first + j];
    });
  }
};

}  // namespace

template <class T>
void linear_attention(const LinearAttention<T>& a, RowsView<T> o, T* den, T* S_last, T* z_last) {
  if (a.B * a.H * a.N == 0) return;
  if (!a.causal && all_real(a)) return Whole<T>{a}.forward(o, den, S_last, z_last);
  const Chunks<T> ch(a);
  const Tensor q = ch.pack(a.q, a.d), k = ch.pack(a.k, a.d), v = ch.pack(a.v, a.dv);
  Tensor S, z;
  states(ch, k, v, S, z, S_last, z_last);
  Tensor num = scratch<T>(ch.G * ch.n * ch.C * a.dv), A;
  ch.product(ch.C, a.dv, a.d, ch.rows(q.ptr<T>(), a.d), ch.state(S.ptr<T>(), a.d, a.dv), num.mut_ptr<T>(), false);
  if (a.causal) {
    A = scratch<T>(ch.G * ch.n * ch.C * ch.C);
    ch.product(ch.C, ch.C, a.d, ch.rows(q.ptr<T>(), a.d), ch.columns(k.ptr<T>(), a.d), A.mut_ptr<T>(), false);
    ch.lower(A.mut_ptr<T>());
    ch.product(ch.C, a.dv, ch.C, ch.rows(A.ptr<T>(), ch.C), ch.rows(v.ptr<T>(), a.dv), num.mut_ptr<T>(), true);
  }
  const T *qp = q.ptr<T>(), *zp = z.ptr<T>(), *np = num.ptr<T>(), *Ap = A.defined() ? A.ptr<T>() : nullptr;
  ch.for_positions([&](i64 at, i64 b, i64 h, i64 i) {
    T* row = o.p + b * o.b + h * o.h + i * o.n;
    T& denominator = den[(b * a.H + h) * a.N + i];
    denominator = 1;
    if (a.normalize) {
      denominator = dot(qp + at * a.d, zp + at / ch.C * a.d, a.d);
      for (i64 j = 0; Ap && j <= at % ch.C; ++j) denominator += Ap[at * ch.C + j];
      denominator += static_cast<T>(a.eps);
    }
    const bool real = !a.mask || a.mask[b * a.N + i];
    const T factor = !real || denominator == 0 ? T(0) : a.normalize ? 1 / denominator : static_cast<T>(a.scale);
    for (i64 j = 0; j < a.dv; ++j) row[j] = factor == 0 ? T(0) : np[at * a.dv + j] * factor;
  });
}

template <class T>
void linear_attention_grad(const LinearAttention<T>& a, RowsView<const T> o, const T* den, RowsView<const T> d_o,
                           const LinearAttentionGrads<T>& out) {
  if (a.B * a.H * a.N == 0) return;
  if (!a.causal && all_real(a)) return Whole<T>{a}.backward(o, den, d_o, out);
  const Chunks<T> ch(a);
  const i64 rows = ch.G * ch.n * ch.C, d = a.d, dv = a.dv;
  const Tensor q = ch.pack(a.q, d), k = ch.pack(a.k, d), v = ch.pack(a.v, dv);
  // g_i = dO_i / den_i, h_i = -(dO_i . o_i) / den_i; padded rows 0.
  Tensor g = scratch<T>(rows * dv), h = scratch<T>(rows);
  g.fill(0);
  h.fill(0);
  T *gp = g.mut_ptr<T>(), *hp = h.mut_ptr<T>();
  ch.for_positions([&](i64 at, i64 b, i64 head, i64 i) {
    const T denominator = den[(b * a.H + head) * a.N + i];
    if ((a.mask && !a.mask[b * a.N + i]) || denominator == 0) return;
    const T* up = d_o.p + b * d_o.b + head * d_o.h + i * d_o.n;
    const T factor = a.normalize ? 1 / denominator : static_cast<T>(a.scale);
    for (i64 j = 0; j < dv; ++j) gp[at * dv + j] = up[j] * factor;
    if (a.normalize) hp[at] = -dot(up, o.p + b * o.b + head * o.h + i * o.n, dv) * factor;
  });

  Tensor S, z;
  states<T>(ch, k, v, S, z, nullptr, nullptr);
  // R = sum over later rows of q g^T, r = sum of h q; without causality over all rows.
  Tensor R = scratch<T>(ch.G * ch.n * d * dv), r = ch.row_sums(q, d, hp);
  ch.product(d, dv, ch.C, ch.columns(q.ptr<T>(), d), ch.rows(gp, dv), R.mut_ptr<T>(), false);
  if (a.causal) {
    ch.prefix(R.mut_ptr<T>(), d * dv, nullptr, out.dS0, true);
    ch.prefix(r.mut_ptr<T>(), d, nullptr, out.dz0, true);
  }

  Tensor dq = scratch<T>(rows * d), dk = scratch<T>(rows * d), dvv = scratch<T>(rows * dv);
  ch.product(ch.C, d, dv, ch.rows(gp, dv), ch.state_t(S.ptr<T>(), d, dv), dq.mut_ptr<T>(), false);
  ch.product(ch.C, d, dv, ch.rows(v.ptr<T>(), dv), ch.state_t(R.ptr<T>(), d, dv), dk.mut_ptr<T>(), false);
  ch.product(ch.C, dv, d, ch.rows(k.ptr<T>(), d), ch.state(R.ptr<T>(), d, dv), dvv.mut_ptr<T>(), false);
  if (a.causal) {
    const i64 C = ch.C;
    Tensor A = scratch<T>(rows * C), t = scratch<T>(rows * C);
    ch.product(C, C, d, ch.rows(q.ptr<T>(), d), ch.columns(k.ptr<T>(), d), A.mut_ptr<T>(), false);
    ch.lower(A.mut_ptr<T>());
    ch.product(C, C, dv, ch.rows(gp, dv), ch.columns(v.ptr<T>(), dv), t.mut_ptr<T>(), false);
    T* tp = t.mut_ptr<T>();
    parallel_for(rows, 256, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i)
        for (i64 j = 0; j < C; ++j) tp[i * C + j] = j <= i % C ? tp[i * C + j] + hp[i] : T(0);
    });
    ch.product(C, d, C, ch.rows(tp, C), ch.rows(k.ptr<T>(), d), dq.mut_ptr<T>(), true);
    ch.product(C, d, C, ch.columns(tp, C), ch.rows(q.ptr<T>(), d), dk.mut_ptr<T>(), true);
    ch.product(C, dv, C, ch.columns(A.ptr<T>(), C), ch.rows(gp, dv), dvv.mut_ptr<T>(), true);
  }
  const T *zp = z.ptr<T>(), *rp = r.ptr<T>();
  T *dqp = dq.mut_ptr<T>(), *dkp = dk.mut_ptr<T>(), *dvp = dvv.mut_ptr<T>();
  ch.for_positions([&](i64 at, i64 b, i64, i64 i) {
    const bool real = !a.mask || a.mask[b * a.N + i];
    const i64 c = at / ch.C;
    for (i64 j = 0; j < d; ++j) {
      dqp[at * d + j] = real ? dqp[at * d + j] + hp[at] * zp[c * d + j] : T(0);
      dkp[at * d + j] = real ? dkp[at * d + j] + rp[c * d + j] : T(0);
    }
    if (!real) std::fill_n(dvp + at * dv, dv, T(0));
  });
  unpack(ch, dq, d, out.dq);
  unpack(ch, dk, d, out.dk);
  unpack(ch, dvv, dv, out.dv);
}

#define INSTANTIATE(T)                                                                                           \
  template void linear_attention(const LinearAttention<T>&, RowsView<T>, T*, T*, T*);                            \
  template void linear_attention_grad(const LinearAttention<T>&, RowsView<const T>, const T*, RowsView<const T>, \
                                      const LinearAttentionGrads<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace tapeformer::kernels
