#include "core/kernels/recurrent.h"

#include <algorithm>
#include <vector>

#include "core/counters.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/gemm.h"
#include "core/parallel.h"
#include "core/storage.h"

namespace tapeformer::kernels {

i64 gates_of(Cell c) { return c == Cell::Lstm ? 4 : c == Cell::Gru ? 3 : 1; }
i64 kept_blocks(Cell c) { return c == Cell::Lstm ? 5 : c == Cell::Gru ? 4 : 0; }

namespace {

constexpr i64 kSamples = 8;  // that step together: rows of the product of a step

template <class T>
class Buffer {
 public:
  explicit Buffer(i64 n) : storage_(static_cast<std::size_t>(n) * sizeof(T)) {}
  T* data() { return reinterpret_cast<T*>(storage_.data()); }

 private:
  Storage storage_;
};

// a <- the activated gates of one row, c and h <- their next values. kept: lstm i, f, g, o, c'; gru r, z, n, gh_n.
template <class T>
void step(Cell cell, i64 H, const T* gi, const T* gh, T* a, T* c, T* h, T* kept) {
  if (cell == Cell::Rnn) {
    for (i64 j = 0; j < H; ++j) a[j] = gi[j] + gh[j];
    return unary(Unary::Tanh, a, h, H);
  }
  const i64 plain = cell == Cell::Lstm ? 4 * H : 2 * H;
  for (i64 j = 0; j < plain; ++j) a[j] = gi[j] + gh[j];
  unary(Unary::Sigmoid, a, a, 2 * H);
  if (cell == Cell::Lstm) {
    unary(Unary::Tanh, a + 2 * H, a + 2 * H, H);
    unary(Unary::Sigmoid, a + 3 * H, a + 3 * H, H);
    for (i64 j = 0; j < H; ++j) c[j] = a[H + j] * c[j] + a[j] * a[2 * H + j];
    unary(Unary::Tanh, c, h, H);
    for (i64 j = 0; j < H; ++j) h[j] *= a[3 * H + j];
    if (kept) std::copy_n(c, H, std::copy_n(a, 4 * H, kept));
    return;
  }
  for (i64 j = 0; j < H; ++j) a[2 * H + j] = gi[2 * H + j] + a[j] * gh[2 * H + j];
  unary(Unary::Tanh, a + 2 * H, a + 2 * H, H);
  for (i64 j = 0; j < H; ++j) h[j] = (1 - a[H + j]) * a[2 * H + j] + a[H + j] * h[j];
  if (kept) std::copy_n(gh + 2 * H, H, std::copy_n(a, 3 * H, kept));
}

// One row backwards: from dh (of h') and dc (of c') to dgi and dgh, which are the same memory but for gru; dc becomes that of c, carry the
// part of h's that does not come through dgh. h_before, c_before: null = zeros.
template <class T>
void step_grad(Cell cell, i64 H, const T* h, const T* kept, const T* h_before, const T* c_before, const T* dh, T* carry, T* dc, T* tanh_c,
               T* dgi, T* dgh) {
  std::fill_n(carry, H, T(0));
  if (cell == Cell::Rnn) {
    for (i64 j = 0; j < H; ++j) dgi[j] = dh[j] * (1 - h[j] * h[j]);
  } else if (cell == Cell::Lstm) {
    const T *i = kept, *f = kept + H, *g = kept + 2 * H, *o = kept + 3 * H;
    unary(Unary::Tanh, kept + 4 * H, tanh_c, H);
    for (i64 j = 0; j < H; ++j) {
      const T t = tanh_c[j], dcell = dc[j] + dh[j] * o[j] * (1 - t * t);
      dgi[j] = dcell * g[j] * i[j] * (1 - i[j]);
      dgi[H + j] = c_before ? dcell * c_before[j] * f[j] * (1 - f[j]) : T(0);
      dgi[2 * H + j] = dcell * i[j] * (1 - g[j] * g[j]);
      dgi[3 * H + j] = dh[j] * t * o[j] * (1 - o[j]);
      dc[j] = dcell * f[j];
    }
  } else {
    const T *r = kept, *z = kept + H, *n = kept + 2 * H, *gh_n = kept + 3 * H;
    for (i64 j = 0; j < H; ++j) {
      const T dn = dh[j] * (1 - z[j]) * (1 - n[j] * n[j]);
      dgi[j] = dgh[j] = dn * gh_n[j] * r[j] * (1 - r[j]);
      dgi[H + j] = dgh[H + j] = dh[j] * ((h_before ? h_before[j] : T(0)) - n[j]) * z[j] * (1 - z[j]);
      dgi[2 * H + j] = dn;
      dgh[2 * H + j] = dn * r[j];
      carry[j] = dh[j] * z[j];
    }
  }
}

struct Walk {  // positions in the order of the steps
  const Recurrent& r;
  i64 position(i64 s) const { return r.reverse ? r.N - 1 - s : s; }
  bool real(i64 b, i64 t) const { return r.mask == nullptr || r.mask[b * r.N + t] != 0; }
};

// before[b N + t]: the real position before t in the walk, or -1.
std::vector<i64> positions_before(const Recurrent& r) {
  const Walk walk{r};
  std::vector<i64> before(static_cast<std::size_t>(r.B * r.N));
  for (i64 b = 0; b < r.B; ++b) {
    i64 last = -1;
    for (i64 s = 0; s < r.N; ++s) {
      const i64 t = walk.position(s);
      before[b * r.N + t] = last;
      if (walk.real(b, t)) last = t;
    }
  }
  return before;
}

template <class T>
void forward_samples(const Recurrent& r, i64 first, i64 last, const T* gi, const T* w_turned, const T* bias, T* h, T* kept) {
  const i64 H = r.hidden, G = gates_of(r.cell) * H, K = kept_blocks(r.cell) * H, rows = last - first;
  Buffer<T> state(2 * rows * H), gh(rows * G), gates(G);
  std::fill_n(state.data(), 2 * rows * H, T(0));
  const Walk walk{r};
  for (i64 s = 0; s < r.N; ++s) {
    const i64 t = walk.position(s);
    gemm<T>({.m = rows, .n = G, .k = H, .a = {state.data(), H}, .b = {w_turned, G}, .c = {gh.data(), G}, .bias = bias});
    for (i64 b = first; b < last; ++b) {
      const i64 at = b * r.N + t, row = b - first;
      if (!walk.real(b, t)) {
        std::fill_n(h + at * H, H, T(0));
        if (kept) std::fill_n(kept + at * K, K, T(0));
        continue;
      }
      T* now = state.data() + row * H;
      step(r.cell, H, gi + at * G, gh.data() + row * G, gates.data(), now + rows * H, now, kept ? kept + at * K : nullptr);
      std::copy_n(now, H, h + at * H);
    }
  }
}

template <class T>
void backward_samples(const Recurrent& r, i64 first, i64 last, const std::vector<i64>& before, const T* w, const T* h, const T* kept,
                      const T* dh, T* dgi, T* dgh) {
  const i64 H = r.hidden, G = gates_of(r.cell) * H, K = kept_blocks(r.cell) * H, rows = last - first;
  Buffer<T> state(2 * rows * H), scratch(2 * H);  // dL/dh and dL/dc that come from later steps
  std::fill_n(state.data(), 2 * rows * H, T(0));
  T *carries = state.data(), *cells = carries + rows * H, *total = scratch.data();
  const Walk walk{r};
  for (i64 s = r.N; s-- > 0;) {
    const i64 t = walk.position(s);
    for (i64 b = first; b < last; ++b) {
      const i64 at = b * r.N + t, row = b - first;
      if (!walk.real(b, t)) {
        std::fill_n(dgi + at * G, G, T(0));
        std::fill_n(dgh + at * G, G, T(0));
        continue;
      }
      const i64 past = before[at] < 0 ? -1 : b * r.N + before[at];
      for (i64 j = 0; j < H; ++j) total[j] = dh[at * H + j] + carries[row * H + j];
      const T* h_before = past < 0 ? nullptr : h + past * H;
      const T* c_before = past < 0 || r.cell != Cell::Lstm ? nullptr : kept + past * K + 4 * H;
      step_grad(r.cell, H, h + at * H, kept + at * K, h_before, c_before, total, carries + row * H, cells + row * H, total + H,
                dgi + at * G, dgh + at * G);
    }
    gemm<T>({.m = rows, .n = H, .k = G, .a = {dgh + (first * r.N + t) * G, r.N * G}, .b = {w, H}, .c = {carries, H}, .accumulate = true});
  }
}

template <class T>
void turn(const T* w, i64 rows, i64 columns, T* out) {
  for (i64 i = 0; i < rows; ++i)
    for (i64 j = 0; j < columns; ++j) out[j * rows + i] = w[i * columns + j];
}

}  // namespace

template <class T>
void recurrent(const Recurrent& r, const T* gi, const T* w, const T* b, T* h, T* kept) {
  const i64 H = r.hidden, G = gates_of(r.cell) * H;
  Buffer<T> w_turned(G * H);
  turn(w, G, H, w_turned.data());
  parallel_for(r.B, kSamples,
               [&](i64 first, i64 last) { forward_samples(r, first, last, gi, static_cast<const T*>(w_turned.data()), b, h, kept); });
}

template <class T>
void recurrent_grad(const Recurrent& r, const T* w, const T* h, const T* kept, const T* dh, const RecurrentGrads<T>& d) {
  const i64 H = r.hidden, G = gates_of(r.cell) * H, positions = r.B * r.N;
  Buffer<T> own(r.cell == Cell::Gru ? positions * G : 0), h_before(positions * H);
  T* dgh = r.cell == Cell::Gru ? own.data() : d.gi;
  const std::vector<i64> before = positions_before(r);
  parallel_for(r.B, kSamples, [&](i64 first, i64 last) {
    backward_samples(r, first, last, before, w, h, kept, dh, d.gi, dgh);
    for (i64 at = first * r.N; at < last * r.N; ++at) {
      if (before[at] < 0)
        std::fill_n(h_before.data() + at * H, H, T(0));
      else
        std::copy_n(h + (at / r.N * r.N + before[at]) * H, H, h_before.data() + at * H);
    }
  });
  gemm<T>({.m = G, .n = H, .k = positions, .a = {dgh, 1, G}, .b = {h_before.data(), H}, .c = {d.w, H}});
  column_sums(static_cast<const T*>(dgh), positions, G, d.b);
}

template void recurrent(const Recurrent&, const float*, const float*, const float*, float*, float*);
template void recurrent(const Recurrent&, const double*, const double*, const double*, double*, double*);
template void recurrent_grad(const Recurrent&, const float*, const float*, const float*, const float*, const RecurrentGrads<float>&);
template void recurrent_grad(const Recurrent&, const double*, const double*, const double*, const double*, const RecurrentGrads<double>&);

}  // namespace tapeformer::kernels
