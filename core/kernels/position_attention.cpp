#include "core/kernels/position_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/kernels/elementwise.h"
#include "core/kernels/gemm.h"
#include "core/parallel.h"
#include "core/tensor.h"

namespace tapeformer::kernels {
namespace {

constexpr i64 kRows = 64;        // queries of a tile
constexpr i64 kColumns = 512;    // columns of a product, about: (sample, head) pairs are taken together in blocks
constexpr double kNone = -1e30;  // maximum where there is no key
constexpr double kVanished = 1e-30;

template <class T>
const T* row_of(const RowsView<const T>& x, i64 b, i64 h, i64 i) {
  return x.p + b * x.b + h * x.h + i * x.n;
}
template <class T>
T* row_of(const RowsView<T>& x, i64 b, i64 h, i64 i) {
  return x.p + b * x.b + h * x.h + i * x.n;
}

template <class T>
class Scratch {
 public:
  explicit Scratch(i64 elements) : t_(Tensor::empty({std::max<i64>(elements, 1)}, dtype_of<T>)), p_(t_.mut_ptr<T>()) {}
  operator T*() const { return p_; }
  void zero() { t_.fill(0); }

 private:
  Tensor t_;
  T* p_;
};

// The cut: tiles of queries and keys, and blocks of (sample, head) pairs that share a table. X holds for every position the columns
// exp(k - top) v of all pairs of a block, then their exp(k - top), zeros where the key is not real; `top` is the features' maximum over all
// real keys, or with causality over the tile's, so that late large keys do not make the early ones vanish.
template <class T>
class Layout {
 public:
  using Problem = PositionAttention<T>;
  using Table = typename Problem::Table;
  struct Pair {
    i64 b, h;
  };

  const Problem& a;
  const i64 dd, width, keys, q_tiles, k_tiles, pairs, block, blocks, columns;
  const bool running;  // the keys' maximum runs from tile to tile

  explicit Layout(const Problem& p)
      : a(p),
        dd(p.denominators()),
        width(p.d + dd),
        keys(p.table == Table::Full ? 4 * kRows : kRows),
        q_tiles((p.N + kRows - 1) / kRows),
        k_tiles((p.N + keys - 1) / keys),
        pairs(p.B * p.H / p.groups),
        block(std::clamp<i64>(kColumns / width, 1, pairs)),
        blocks((pairs + block - 1) / block),
        columns(block * width),
        running(p.causal && p.k.p != nullptr),
        X(p.groups * blocks * p.N * columns),
        row_top(p.groups * p.N),
        tile_top_(tops()),
        top_(tops()) {
    cut();
    find_row_maxima();
    find_key_maxima();
    fill_keys();
  }

  Scratch<T> X;        // [groups, blocks, N, columns]
  Scratch<T> row_top;  // [groups, N]: maximum of the table's row over what the row may see

  i64 sums() const { return block * a.d; }  // columns of sums; then come the denominators
  i64 pieces() const { return a.groups * blocks; }
  i64 pairs_in(i64 piece) const { return std::min(block, pairs - piece % blocks * block); }
  Pair pair(i64 piece, i64 x) const {
    const i64 at = piece % blocks * block + x;
    return a.groups == 1 ? Pair{at / a.H, at % a.H} : Pair{at, piece / blocks};
  }
  bool real(i64 b, i64 i) const { return a.mask == nullptr || a.mask[b * a.N + i] != 0; }
  i64 row_end(i64 tile) const { return std::min((tile + 1) * kRows, a.N); }
  i64 key_end(i64 tile) const { return std::min((tile + 1) * keys, a.N); }

  // Key tiles [low, high) of a tile of queries need the table; those before low (and behind high, without causality) have w = 0.
  i64 low(i64 q) const { return low_[static_cast<std::size_t>(q)]; }
  i64 high(i64 q) const { return high_[static_cast<std::size_t>(q)]; }
  // The same from the side of the keys: query tiles [first, last).
  i64 first(i64 k) const { return first_[static_cast<std::size_t>(k)]; }
  i64 last(i64 k) const { return last_[static_cast<std::size_t>(k)]; }

  T weight(i64 g, i64 i, i64 j) const {
    if (a.table == Table::None || (a.table == Table::Band && std::abs(j - i) > a.reach)) return 0;
    return a.w[g * a.w_group + i * a.w_row + (a.table == Table::Full ? j : j - i + a.reach)];
  }

  // E [rows, keys of the tile] = exp(w - row_top), zeros above the diagonal with causality.
  void exponentials(i64 g, i64 q, i64 k, T* E) const {
    const i64 j0 = k * keys, j1 = key_end(k), n = j1 - j0;
    for (i64 i = q * kRows; i < row_end(q); ++i) {
      T* to = E + (i - q * kRows) * n;
      const T top = row_top[g * a.N + i];
      const T* w = a.w + g * a.w_group + i * a.w_row;
      if (a.table == Table::Full) {
        for (i64 j = 0; j < n; ++j) to[j] = w[j0 + j] - top;
      } else {
        for (i64 j = j0; j < j1; ++j) to[j - j0] = weight(g, i, j) - top;
      }
      unary(Unary::Exp, to, to, n);
      if (a.causal && j1 > i + 1) std::fill(to + std::max<i64>(i + 1 - j0, 0), to + n, T(0));
    }
  }

  const T* keys_of(i64 piece, i64 k) const { return X + (piece * a.N + k * keys) * columns; }

  // exp(top of key tile `from` - top that holds for key tile `to`) for every column of the piece; 1 unless the maximum runs.
  bool rescaling(i64 piece, i64 from, i64 to, T* factor) const {
    if (!running) return false;
    return ratios(tile_top_ + (piece * k_tiles + from) * block * dd, top_ + (piece * k_tiles + to) * block * dd, factor);
  }
  // The same from one running maximum to a later one.
  bool catching_up(i64 piece, i64 from, i64 to, T* factor) const {
    if (!running) return false;
    return ratios(top_ + (piece * k_tiles + from) * block * dd, top_ + (piece * k_tiles + to) * block * dd, factor);
  }
  i64 key_tile_of(i64 q) const { return q * kRows / keys; }  // the last one that a causal tile of queries sees

 private:
  i64 tops() const { return a.groups * blocks * k_tiles * block * dd; }

  void cut() {
    for (i64 q = 0; q < q_tiles; ++q) {
      const i64 i0 = q * kRows, i1 = row_end(q);
      i64 from = 0, to = a.causal ? key_tile_of(q) + 1 : k_tiles;
      if (a.table == Table::Band) {
        from = std::max<i64>(i0 - a.reach, 0) / keys;
        to = std::min(to, (i1 - 1 + a.reach) / keys + 1);
      } else if (a.table == Table::None) {
        if (a.causal)
          from = to - 1;
        else
          to = 0;
      }
      low_.push_back(from);
      high_.push_back(to);
    }
    for (i64 k = 0, from = 0, to = 0; k < k_tiles; ++k) {  // low and high do not decrease
      while (from < q_tiles && high(from) <= k) ++from;
      to = std::max(to, from);
      while (to < q_tiles && low(to) <= k) ++to;
      const bool none = a.table == Table::None && !a.causal;
      first_.push_back(none ? 0 : from);
      last_.push_back(none ? 0 : to);
    }
  }

  void find_row_maxima() {
    parallel_for(a.groups * a.N, 64, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        const i64 g = x / a.N, i = x % a.N, stop = a.causal ? i + 1 : a.N;
        T top = 0;
        if (a.table == Table::Full) {
          const T* w = a.w + g * a.w_group + i * a.w_row;
          top = *std::max_element(w, w + stop);
        } else if (a.table == Table::Band) {
          const i64 from = std::max<i64>(i - a.reach, 0), to = std::min(i + a.reach + 1, stop);
          const T* w = a.w + g * a.w_group + i * a.w_row - i + a.reach;
          top = *std::max_element(w + from, w + to);
          if (from > 0 || to < stop) top = std::max(top, T(0));
        }
        row_top[x] = top;
      }
    });
  }

  void find_key_maxima() {
    if (a.k.p == nullptr) return;
    const i64 size = block * dd;
    parallel_for(pieces() * k_tiles, 1, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        const i64 piece = x / k_tiles, t = x % k_tiles;
        T* top = tile_top_ + x * size;
        std::fill_n(top, size, static_cast<T>(kNone));
        for (i64 p = 0; p < pairs_in(piece); ++p) {
          const auto [b, h] = pair(piece, p);
          for (i64 j = t * keys; j < key_end(t); ++j) {
            if (!real(b, j)) continue;
            const T* k = row_of(a.k, b, h, j);
            for (i64 f = 0; f < dd; ++f) top[p * dd + f] = std::max(top[p * dd + f], k[f]);
          }
        }
      }
    });
    for (i64 piece = 0; piece < pieces(); ++piece) {
      for (i64 t = 0; t < k_tiles; ++t) {
        T* top = top_ + (piece * k_tiles + t) * size;
        std::copy_n(tile_top_ + (piece * k_tiles + t) * size, size, top);
        for (i64 x = 0; t > 0 && x < size; ++x) top[x] = std::max(top[x], top[x - size]);
      }
      const T* all = top_ + (piece * k_tiles + k_tiles - 1) * size;
      for (i64 t = 0; !running && t < k_tiles; ++t) std::copy_n(all, size, tile_top_ + (piece * k_tiles + t) * size);
    }
  }

  void fill_keys() {
    parallel_for(pieces() * a.N, 64, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        const i64 piece = x / a.N, j = x % a.N;
        T *to = X + x * columns, *e = to + sums();
        std::fill_n(to, columns, T(0));
        const T* top = tile_top_ + (piece * k_tiles + j / keys) * block * dd;
        for (i64 p = 0; a.k.p && p < pairs_in(piece); ++p) {
          const auto [b, h] = pair(piece, p);
          if (!real(b, j)) continue;
          const T* k = row_of(a.k, b, h, j);
          for (i64 f = 0; f < dd; ++f) e[p * dd + f] = k[f] - top[p * dd + f];
        }
        unary(Unary::Exp, e, e, block * dd);
        for (i64 p = 0; p < block; ++p, to += a.d, e += dd) {
          const auto [b, h] = pair(piece, p);
          if (p >= pairs_in(piece) || !real(b, j)) {
            std::fill_n(e, dd, T(0));
            continue;
          }
          const T* v = row_of(a.v, b, h, j);
          for (i64 f = 0; f < a.d; ++f) to[f] = v[f] * e[dd == 1 ? 0 : f];
        }
      }
    });
  }

  bool ratios(const T* from, const T* to, T* factor) const {
    for (i64 c = 0; c < sums(); ++c) factor[c] = from[c] - to[c];
    unary(Unary::Exp, factor, factor, sums());
    std::copy_n(factor, sums(), factor + sums());
    return true;
  }

  std::vector<i64> low_, high_, first_, last_;
  Scratch<T> tile_top_, top_;  // [groups, blocks, k_tiles, block, denominators]
};

template <class T>
void add_scaled(const T* x, const T* factor, T* y, i64 rows, i64 n) {  // y += x factor, column by column; factor null = 1
  for (i64 i = 0; i < rows; ++i, x += n, y += n)
    for (i64 c = 0; c < n; ++c) y[c] += factor ? x[c] * factor[c] : x[c];
}

// sums[t] = of the tiles before t (or behind it, from the end), each piece apart: [pieces, tiles + 1, columns]. `own` gives a tile's sum,
// `factor` what the sum so far is multiplied with on the way to tile t (false = 1).
template <class T, class Own, class Factor>
void running_sums(i64 pieces, i64 tiles, i64 columns, bool from_end, const Scratch<T>& sums, Own&& own, Factor&& factor) {
  parallel_for(pieces, 1, [&](i64 begin, i64 end) {
    std::vector<T> by(static_cast<std::size_t>(columns));
    for (i64 piece = begin; piece < end; ++piece) {
      T* all = sums + piece * (tiles + 1) * columns;
      const auto at = [&](i64 t) { return all + (from_end ? tiles - t : t) * columns; };
      std::fill_n(at(0), columns, T(0));
      for (i64 n = 0; n < tiles; ++n) {
        const i64 tile = from_end ? tiles - 1 - n : n;
        T *to = at(n + 1), *before = at(n);
        std::copy_n(before, columns, to);
        if (factor(piece, tile, by.data()))
          for (i64 c = 0; c < columns; ++c) to[c] *= by[static_cast<std::size_t>(c)];
        own(piece, tile, to);
      }
    }
  });
}

// Row i of pair (b, h), feature f, by its own maximum: visit(j, normalised weight).
template <class T, class Visit>
void exact_row(const Layout<T>& l, i64 b, i64 h, i64 i, i64 f, Visit&& visit) {
  const auto& a = l.a;
  const i64 g = a.groups == 1 ? 0 : h, stop = a.causal ? i + 1 : a.N;
  const auto score = [&](i64 j) {
    return static_cast<double>(l.weight(g, i, j)) + (a.k.p ? static_cast<double>(row_of(a.k, b, h, j)[f]) : 0);
  };
  double top = -HUGE_VAL, sum = 0;
  for (i64 j = 0; j < stop; ++j)
    if (l.real(b, j)) top = std::max(top, score(j));
  for (i64 j = 0; j < stop; ++j)
    if (l.real(b, j)) sum += std::exp(score(j) - top);
  for (i64 j = 0; j < stop; ++j)
    if (l.real(b, j)) visit(j, std::exp(score(j) - top) / sum);
}

template <class T>
class Forward {
 public:
  Forward(const PositionAttention<T>& a, RowsView<T> y, T* den) : l_(a), a_(a), y_(y), den_(den) {}

  void run() {
    const bool outside = a_.table != PositionAttention<T>::Table::Full;
    Scratch<T> before(outside ? l_.pieces() * (l_.k_tiles + 1) * l_.columns : 0),
        behind(outside && !a_.causal ? l_.pieces() * (l_.k_tiles + 1) * l_.columns : 0);
    if (outside) sums(before, behind);
    parallel_for(l_.pieces() * l_.q_tiles, 1, [&](i64 begin, i64 end) {
      Scratch<T> E(kRows * l_.keys), sum(kRows * l_.columns), part(kRows * l_.columns), factor(l_.columns);
      for (i64 x = begin; x < end; ++x) {
        const i64 piece = x / l_.q_tiles, q = x % l_.q_tiles;
        sum.zero();
        if (outside) {
          add_outside(piece, q, l_.low(q), before, sum, factor);
          if (!a_.causal) add_outside(piece, q, l_.high(q), behind, sum, factor);
        }
        for (i64 k = l_.low(q); k < l_.high(q); ++k) add_tile(piece, q, k, E, sum, part, factor);
        finish(piece, q, sum);
      }
    });
  }

 private:
  void sums(const Scratch<T>& before, const Scratch<T>& behind) const {
    const auto own = [&](i64 piece, i64 tile, T* to) {
      const T* x = l_.keys_of(piece, tile);
      for (i64 j = tile * l_.keys; j < l_.key_end(tile); ++j, x += l_.columns)
        for (i64 c = 0; c < l_.columns; ++c) to[c] += x[c];
    };
    if (l_.running) {  // in units of the running maximum: the tile's own sum changes units too
      const auto scaled = [&](i64 piece, i64 tile, T* to) {
        std::vector<T> sum(static_cast<std::size_t>(l_.columns), T(0)), by(sum.size());
        own(piece, tile, sum.data());
        l_.rescaling(piece, tile, tile, by.data());
        add_scaled(sum.data(), by.data(), to, 1, l_.columns);
      };
      running_sums(l_.pieces(), l_.k_tiles, l_.columns, false, before, scaled,
                   [&](i64 piece, i64 tile, T* by) { return tile > 0 && l_.catching_up(piece, tile - 1, tile, by); });
      return;
    }
    const auto as_is = [](i64, i64, T*) { return false; };
    running_sums(l_.pieces(), l_.k_tiles, l_.columns, false, before, own, as_is);
    if (!a_.causal) running_sums(l_.pieces(), l_.k_tiles, l_.columns, true, behind, own, as_is);
  }

  // The tiles before (behind) number t, where w = 0.
  void add_outside(i64 piece, i64 q, i64 t, const Scratch<T>& sums, const Scratch<T>& sum, const Scratch<T>& factor) const {
    const T* outside = sums + (piece * (l_.k_tiles + 1) + t) * l_.columns;
    const bool scaled = t > 0 && l_.catching_up(piece, t - 1, l_.key_tile_of(q), factor);
    const i64 g = piece / l_.blocks;
    for (i64 i = q * kRows; i < l_.row_end(q); ++i) {
      const T weight = std::exp(-std::max(l_.row_top[g * a_.N + i], T(0)));
      T* to = sum + (i - q * kRows) * l_.columns;
      for (i64 c = 0; c < l_.columns; ++c) to[c] += weight * (scaled ? factor[c] * outside[c] : outside[c]);
    }
  }

  void add_tile(i64 piece, i64 q, i64 k, const Scratch<T>& E, const Scratch<T>& sum, const Scratch<T>& part,
                const Scratch<T>& factor) const {
    const i64 rows = l_.row_end(q) - q * kRows, n = l_.key_end(k) - k * l_.keys;
    l_.exponentials(piece / l_.blocks, q, k, E);
    const bool scaled = l_.rescaling(piece, k, l_.key_tile_of(q), factor);
    product<T>(rows, l_.columns, n, {E, n, 1}, {l_.keys_of(piece, k), l_.columns, 1}, scaled ? part : sum, l_.columns, !scaled);
    if (scaled) add_scaled<T>(part, factor, sum, rows, l_.columns);
  }

  void finish(i64 piece, i64 q, const Scratch<T>& sum) const {
    for (i64 p = 0; p < l_.pairs_in(piece); ++p) {
      const auto [b, h] = l_.pair(piece, p);
      i64 seen = 0;
      for (i64 j = 0; j < (a_.causal ? q * kRows : a_.N); ++j) seen += l_.real(b, j);
      for (i64 i = q * kRows; i < l_.row_end(q); ++i) {
        if (a_.causal) seen += l_.real(b, i);
        const T *row = sum + (i - q * kRows) * l_.columns, *from = row + p * a_.d, *from_den = row + l_.sums() + p * l_.dd;
        T *y = row_of(y_, b, h, i), *den = den_ + ((b * a_.H + h) * a_.N + i) * l_.dd;
        if (!l_.real(b, i) || seen == 0) {
          std::fill_n(y, a_.d, T(0));
          std::fill_n(den, l_.dd, T(0));
          continue;
        }
        for (i64 c = 0; c < l_.dd; ++c) den[c] = from_den[c] < kVanished ? T(-1) : from_den[c];
        for (i64 f = 0; f < a_.d; ++f) {
          const T sum_f = den[l_.dd == 1 ? 0 : f];
          y[f] = sum_f > 0 ? from[f] / sum_f : exact(b, h, i, f);
        }
      }
    }
  }

  T exact(i64 b, i64 h, i64 i, i64 f) const {
    double sum = 0;
    exact_row(l_, b, h, i, f, [&](i64 j, double weight) { sum += weight * static_cast<double>(row_of(a_.v, b, h, j)[f]); });
    return static_cast<T>(sum);
  }

  Layout<T> l_;
  const PositionAttention<T>& a_;
  RowsView<T> y_;
  T* den_;
};

template <class T>
class Backward {
 public:
  Backward(const PositionAttention<T>& a, RowsView<const T> y, const T* den, RowsView<const T> dy, const PositionAttentionGrads<T>& out)
      : l_(a), a_(a), y_(y), den_(den), dy_(dy), out_(out), G_(l_.pieces() * a.N * l_.columns) {}

  void run() {
    fill_queries();
    keys();
    if (out_.dw) table();
    vanished();
  }

 private:
  using Table = typename PositionAttention<T>::Table;

  // G beside X: [dy / den (d), -dy y / den (denominators)], so that X's gradient is E^T G and that of E is G X^T.
  void fill_queries() {
    parallel_for(l_.pieces() * a_.N, 64, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        const i64 piece = x / a_.N, i = x % a_.N;
        T *to = G_ + x * l_.columns, *to_den = to + l_.sums();
        std::fill_n(to, l_.columns, T(0));
        for (i64 p = 0; p < l_.pairs_in(piece); ++p, to += a_.d, to_den += l_.dd) {
          const auto [b, h] = l_.pair(piece, p);
          const T* den = den_ + ((b * a_.H + h) * a_.N + i) * l_.dd;
          if (!l_.real(b, i)) continue;
          const T *dy = row_of(dy_, b, h, i), *y = row_of(y_, b, h, i);
          for (i64 f = 0; f < a_.d; ++f) {
            const i64 c = l_.dd == 1 ? 0 : f;
            if (!(den[c] > 0)) continue;
            to[f] = dy[f] / den[c];
            to_den[c] -= to[f] * y[f];
          }
        }
      }
    });
  }

  const T* queries_of(i64 piece, i64 q) const { return G_ + (piece * a_.N + q * kRows) * l_.columns; }

  void keys() {
    const bool outside = a_.table != Table::Full;
    Scratch<T> behind(outside ? l_.pieces() * (l_.q_tiles + 1) * l_.columns : 0),
        before(outside && !a_.causal ? l_.pieces() * (l_.q_tiles + 1) * l_.columns : 0);
    if (outside) sums(before, behind);
    parallel_for(l_.pieces() * l_.k_tiles, 1, [&](i64 begin, i64 end) {
      Scratch<T> E(kRows * l_.keys), sum(l_.keys * l_.columns), part(l_.keys * l_.columns), factor(l_.columns);
      for (i64 x = begin; x < end; ++x) {
        const i64 piece = x / l_.k_tiles, k = x % l_.k_tiles, n = l_.key_end(k) - k * l_.keys;
        sum.zero();
        if (outside) {
          add_outside(piece, k, l_.last(k), behind, sum, factor);
          if (!a_.causal) add_outside(piece, k, l_.first(k), before, sum, factor);
        }
        for (i64 q = l_.first(k); q < l_.last(k); ++q) {
          const i64 rows = l_.row_end(q) - q * kRows;
          l_.exponentials(piece / l_.blocks, q, k, E);
          const bool scaled = l_.rescaling(piece, k, l_.key_tile_of(q), factor);
          product<T>(n, l_.columns, rows, {E, 1, n}, {queries_of(piece, q), l_.columns, 1}, scaled ? part : sum, l_.columns, !scaled);
          if (scaled) add_scaled<T>(part, factor, sum, n, l_.columns);
        }
        write_keys(piece, k, sum);
      }
    });
  }

  // Sums over tiles of queries of exp(-row_top) G; with a running maximum the later ones count in units of the earlier tile's.
  void sums(const Scratch<T>& before, const Scratch<T>& behind) const {
    const auto own = [&](i64 piece, i64 q, T* to) {
      const T* x = queries_of(piece, q);
      for (i64 i = q * kRows; i < l_.row_end(q); ++i, x += l_.columns) {
        const T weight = std::exp(-std::max(l_.row_top[piece / l_.blocks * a_.N + i], T(0)));
        for (i64 c = 0; c < l_.columns; ++c) to[c] += weight * x[c];
      }
    };
    running_sums(l_.pieces(), l_.q_tiles, l_.columns, true, behind, own, [&](i64 piece, i64 q, T* by) {
      return q + 1 < l_.q_tiles && l_.catching_up(piece, l_.key_tile_of(q), l_.key_tile_of(q + 1), by);
    });
    if (!a_.causal) running_sums(l_.pieces(), l_.q_tiles, l_.columns, false, before, own, [](i64, i64, T*) { return false; });
  }

  void add_outside(i64 piece, i64 k, i64 q, const Scratch<T>& sums, const Scratch<T>& sum, const Scratch<T>& factor) const {
    const T* outside = sums + (piece * (l_.q_tiles + 1) + q) * l_.columns;
    const T* by = q < l_.q_tiles && l_.rescaling(piece, k, l_.key_tile_of(q), factor) ? static_cast<T*>(factor) : nullptr;
    for (i64 j = 0; j < l_.key_end(k) - k * l_.keys; ++j) add_scaled<T>(outside, by, sum + j * l_.columns, 1, l_.columns);
  }

  void write_keys(i64 piece, i64 k, const Scratch<T>& sum) const {
    for (i64 p = 0; p < l_.pairs_in(piece); ++p) {
      const auto [b, h] = l_.pair(piece, p);
      for (i64 j = k * l_.keys; j < l_.key_end(k); ++j) {
        T *dv = row_of(out_.dv, b, h, j), *dk = out_.dk.p ? row_of(out_.dk, b, h, j) : nullptr;
        if (!l_.real(b, j)) {
          std::fill_n(dv, a_.d, T(0));
          if (dk) std::fill_n(dk, a_.d, T(0));
          continue;
        }
        const T *s = sum + (j - k * l_.keys) * l_.columns + p * a_.d, *s_den = sum + (j - k * l_.keys) * l_.columns + l_.sums() + p * l_.dd;
        const T* e = l_.X + (piece * a_.N + j) * l_.columns + l_.sums() + p * l_.dd;
        const T* v = row_of(a_.v, b, h, j);
        for (i64 f = 0; f < a_.d; ++f) {
          const i64 c = l_.dd == 1 ? 0 : f;
          dv[f] = e[c] * s[f];
          if (dk) dk[f] = e[c] * (v[f] * s[f] + s_den[c]);
        }
      }
    }
  }

  void table() {
    const bool by_distance = a_.table == Table::Band && out_.dw_row == 0;
    const i64 band = 2 * a_.reach + 1;
    Scratch<T> shares(by_distance ? a_.groups * l_.q_tiles * band : 0);
    if (by_distance) shares.zero();
    parallel_for(a_.groups * l_.q_tiles, 1, [&](i64 begin, i64 end) {
      Scratch<T> E(kRows * l_.keys), S(kRows * l_.keys), scaled(kRows * l_.columns), factor(l_.columns);
      for (i64 x = begin; x < end; ++x) {
        const i64 g = x / l_.q_tiles, q = x % l_.q_tiles, rows = l_.row_end(q) - q * kRows;
        for (i64 k = l_.low(q); k < l_.high(q); ++k) {
          const i64 n = l_.key_end(k) - k * l_.keys;
          l_.exponentials(g, q, k, E);
          for (i64 c = 0; c < l_.blocks; ++c) {
            const i64 piece = g * l_.blocks + c;
            const T* G = queries_of(piece, q);
            if (l_.rescaling(piece, k, l_.key_tile_of(q), factor)) {
              scaled.zero();
              add_scaled<T>(G, factor, scaled, rows, l_.columns);
              G = scaled;
            }
            product<T>(rows, n, l_.columns, {G, l_.columns, 1}, {l_.keys_of(piece, k), 1, l_.columns}, S, n, c > 0);
          }
          T* dw = by_distance ? shares + x * band : out_.dw + g * out_.dw_group;
          for (i64 i = 0; i < rows; ++i) add_row(q * kRows + i, k * l_.keys, n, E + i * n, S + i * n, dw);
        }
      }
    });
    for (i64 x = 0; by_distance && x < a_.groups * l_.q_tiles; ++x)
      add_into(shares + x * band, out_.dw + x / l_.q_tiles * out_.dw_group, band);
  }

  void add_row(i64 i, i64 j0, i64 n, const T* E, const T* S, T* dw) const {
    const bool full = a_.table == Table::Full;
    T* to = dw + i * out_.dw_row + (full ? 0 : a_.reach - i);
    const i64 from = full ? j0 : std::max(j0, i - a_.reach), end = full ? j0 + n : std::min(j0 + n, i + a_.reach + 1);
    for (i64 j = from; j < end; ++j) to[j] += E[j - j0] * S[j - j0];
  }

  // In the order of rows, on one thread: there are few of them.
  void vanished() {
    for (i64 x = 0; x < a_.B * a_.H * a_.N; ++x) {
      const i64 b = x / a_.N / a_.H, h = x / a_.N % a_.H, i = x % a_.N, g = a_.groups == 1 ? 0 : h;
      for (i64 f = 0; f < a_.d; ++f) {
        if (den_[x * l_.dd + (l_.dd == 1 ? 0 : f)] >= 0) continue;
        const double up = static_cast<double>(row_of(dy_, b, h, i)[f]), mean = static_cast<double>(row_of(y_, b, h, i)[f]);
        exact_row(l_, b, h, i, f, [&](i64 j, double weight) {
          const double score = weight * up * (static_cast<double>(row_of(a_.v, b, h, j)[f]) - mean);
          row_of(out_.dv, b, h, j)[f] += static_cast<T>(weight * up);
          if (out_.dk.p) row_of(out_.dk, b, h, j)[f] += static_cast<T>(score);
          if (out_.dw && (a_.table == Table::Full || std::abs(j - i) <= a_.reach))
            out_.dw[g * out_.dw_group + i * out_.dw_row + (a_.table == Table::Full ? j : j - i + a_.reach)] += static_cast<T>(score);
        });
      }
    }
  }

  Layout<T> l_;
  const PositionAttention<T>& a_;
  RowsView<const T> y_;
  const T* den_;
  RowsView<const T> dy_;
  const PositionAttentionGrads<T>& out_;
  Scratch<T> G_;
};

}  // namespace

template <class T>
void position_attention(const PositionAttention<T>& a, RowsView<T> y, T* den) {
  if (a.B * a.H * a.N * a.d > 0) Forward<T>(a, y, den).run();
}

template <class T>
void position_attention_grad(const PositionAttention<T>& a, RowsView<const T> y, const T* den, RowsView<const T> dy,
                             const PositionAttentionGrads<T>& out) {
  if (a.B * a.H * a.N * a.d > 0) Backward<T>(a, y, den, dy, out).run();
}

#define INSTANTIATE(T)                                                                                               \
  template void position_attention(const PositionAttention<T>&, RowsView<T>, T*);                                    \
  template void position_attention_grad(const PositionAttention<T>&, RowsView<const T>, const T*, RowsView<const T>, \
                                        const PositionAttentionGrads<T>&);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace tapeformer::kernels
