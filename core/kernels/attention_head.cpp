#include "core/kernels/attention_head.h"

#include <algorithm>
#include <cstring>

namespace tapeformer::kernels {

void Pattern::key_tiles(i64 b, i64 h, i64 q0, i64 q1, i64 keys, i64 tile, std::vector<i64>& out) const {
  for (i64 k0 = 0; k0 < keys; k0 += tile) {
    if (cover(b, h, q0, q1, k0, std::min(k0 + tile, keys)) != Cover::None) out.push_back(k0 / tile);
  }
}

Pattern::Cover IntervalPattern::cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const {
  const Range top = keys(b, h, q0), bottom = keys(b, h, q1 - 1);
  if (k1 <= top.first || k0 >= bottom.last) return Cover::None;
  return bottom.first <= k0 && k1 <= top.last ? Cover::Full : Cover::Partial;
}

void IntervalPattern::row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const {
  const Range range = keys(b, h, i);
  const i64 first = std::clamp(range.first, k0, k1), last = std::clamp(range.last, first, k1);
  std::fill(allowed, allowed + (first - k0), std::uint8_t{0});
  std::fill(allowed + (last - k0), allowed + (k1 - k0), std::uint8_t{0});
}

void IntervalPattern::key_tiles(i64 b, i64 h, i64 q0, i64 q1, i64 keys_, i64 tile, std::vector<i64>& out) const {
  const i64 first = std::max<i64>(keys(b, h, q0).first, 0), last = std::min(keys(b, h, q1 - 1).last, keys_);
  for (i64 t = first / tile; t * tile < last; ++t) out.push_back(t);
}

namespace attention_tiles {
namespace {

// Rows of a head lie far apart in a [B, N, H d] tensor, where the hardware does not see the next one coming.
void prefetch_row(const float* x, i64 d) {
  for (i64 c = 0; c < d; c += 16) __builtin_prefetch(x + c);
}
constexpr i64 kAhead = 8;

// The rows of x at `rows` places, zeros where row(i) is -1, then zeros up to kTile rows.
template <class Row>
void pack_rows(float* to, const float* x, i64 stride, i64 rows, i64 d, i64 dp, Row&& row) {
  for (i64 i = 0; i < kTile; ++i, to += dp) {
    const i64 at = i < rows ? row(i) : -1, ahead = i + kAhead < rows ? row(i + kAhead) : -1;
    if (ahead >= 0) prefetch_row(x + ahead * stride, d);
    if (at >= 0) std::copy(x + at * stride, x + at * stride + d, to);
    std::fill(to + (at >= 0 ? d : 0), to + dp, 0.0f);
  }
}

template <class Row>
void pack_transposed(float* to, const float* x, i64 stride, i64 keys, i64 padded, i64 d, Row&& row) {
  for (i64 j = 0; j < padded; ++j) {
    const i64 at = j < keys ? row(j) : -1, ahead = j + kAhead < keys ? row(j + kAhead) : -1;
    if (ahead >= 0) prefetch_row(x + ahead * stride, d);
    const float* from = x + at * stride;
    for (i64 c = 0; c < d; ++c) to[c * padded + j] = at >= 0 ? from[c] : 0.0f;
  }
}

float dot(const float* x, const float* y, i64 n) {  // in sixteen sums, so that the compiler may use vectors
  float part[16] = {};
  i64 c = 0;
  for (; c + 16 <= n; c += 16)
    for (int lane = 0; lane < 16; ++lane) part[lane] += x[c + lane] * y[c + lane];
  for (int lane = 0; c + lane < n; ++lane) part[lane] += x[c + lane] * y[c + lane];
  for (int half = 8; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) part[lane] += part[lane + half];
  return part[0];
}

const float* head_rows(const RowsView<const float>& x, i64 b, i64 h) { return x.p + b * x.b + h * x.h; }

}  // namespace

i64 Head::forward_floats(const Sizes& s) { return kTile * s.k_tiles * (s.d + s.dvp); }

i64 Head::backward_floats(const Sizes& s) { return kTile * (s.q_tiles * (s.dp + s.dvp + 5) + s.k_tiles * (s.d + s.dp + s.dv)); }

void Head::place_forward(float* memory) {
  v = memory;
  keys_t = v + kTile * size->k_tiles * size->dvp;
}

void Head::place_backward(float* memory) {
  q = memory;
  d_o = q + kTile * size->q_tiles * size->dp;
  row = d_o + kTile * size->q_tiles * size->dvp;
  row_keys = reinterpret_cast<std::uint64_t*>(row + 3 * kTile * size->q_tiles);
  keys = row + 5 * kTile * size->q_tiles;
  keys_t = keys + kTile * size->k_tiles * size->dp;
  values_t = keys_t + kTile * size->k_tiles * size->d;
}

void Head::pack_query_tile(i64 tile, float* to) const {
  const i64 i0 = tile * kTile;
  pack_rows(to, head_rows(a->q, b, h), a->q.n, size->rows(tile), size->d, size->dp, [&](i64 i) { return real_query(i0 + i); });
}

void Head::pack_key_tile(i64 tile) const {
  const i64 j0 = tile * kTile;
  const auto row = [&](i64 j) { return real_key(j0 + j); };
  pack_transposed(keys_t + j0 * size->d, head_rows(a->k, b, h), a->k.n, size->keys(tile), size->padded_keys(tile), size->d, row);
  pack_rows(v + j0 * size->dvp, head_rows(a->v, b, h), a->v.n, size->keys(tile), size->dv, size->dvp, row);
}

void Head::pack_key_tile_backward(i64 tile) const {
  const i64 j0 = tile * kTile, count = size->keys(tile), padded = size->padded_keys(tile);
  const auto row = [&](i64 j) { return real_key(j0 + j); };
  const float *k = head_rows(a->k, b, h), *values = head_rows(a->v, b, h);
  pack_rows(keys + j0 * size->dp, k, a->k.n, count, size->d, size->dp, row);
  pack_transposed(keys_t + j0 * size->d, k, a->k.n, count, padded, size->d, row);
  pack_transposed(values_t + j0 * size->dv, values, a->v.n, count, padded, size->dv, row);
}

void Head::pack_query_tile_backward(i64 tile, RowsView<const float> o, const float* row_max, const float* row_lse,
                                    RowsView<const float> grad) const {
  const i64 i0 = tile * kTile, count = size->rows(tile), all = kTile * size->q_tiles;
  pack_query_tile(tile, q + i0 * size->dp);
  for (i64 i = 0; i < count && a->dropout > 0; ++i) row_keys[i0 + i] = row_key(i0 + i);
  const float *g = head_rows(grad, b, h), *out_rows = head_rows(o, b, h);
  pack_rows(d_o + i0 * size->dvp, g, grad.n, count, size->dv, size->dvp, [&](i64 i) { return real_query(i0 + i); });
  const i64 stats = (b * a->H + h) * a->query_rows();
  for (i64 i = 0; i < kTile; ++i) {
    float* out = row + i0 + i;
    const i64 r = i < count ? real_query(i0 + i) : -1;
    if (r < 0) {
      out[0] = out[all] = out[2 * all] = 0.0f;
      continue;
    }
    out[0] = row_max[stats + r];
    out[all] = row_lse[stats + r];
    out[2 * all] = dot(out_rows + r * o.n, g + r * grad.n, size->dv);
  }
}

void Head::fill_bias(i64 query_tile, i64 key_tile, float* to) const {
  const i64 q0 = query_tile * kTile, k0 = key_tile * kTile, keys = size->keys(key_tile);
  const float* by_key = a->key_bias ? a->key_bias + b * a->key_bias_b + h * a->key_bias_h : nullptr;
  for (i64 i = 0; i < size->rows(query_tile); ++i, to += kTile) {
    const i64 r = query_row(q0 + i);
    const float* pair = a->pair_bias.p && r >= 0 ? head_rows(a->pair_bias, b, h) + r * a->pair_bias.n : nullptr;
    const auto bias = [&](i64 at) { return (pair ? pair[at] : 0.0f) + (by_key ? by_key[at] : 0.0f); };
    if (key_order == nullptr) {
      for (i64 j = 0; j < keys; ++j) to[j] = bias(k0 + j);
    } else {
      for (i64 j = 0; j < keys; ++j) to[j] = key_order[k0 + j] < 0 ? 0.0f : bias(key_order[k0 + j]);
    }
    std::fill(to + keys, to + kTile, 0.0f);
  }
  if (a->left.p != nullptr) add_outer(query_tile, key_tile, to - size->rows(query_tile) * kTile);
}

namespace {

// f(first key of the tile, left index, right index, count) for keys [k0, k0 + keys), in runs that share the left index.
template <class F>
void runs(i64 k0, i64 keys, i64 period, F&& f) {
  for (i64 j = 0; j < keys;) {
    const i64 right = (k0 + j) % period, n = std::min(period - right, keys - j);
    f(j, (k0 + j) / period, right, n);
    j += n;
  }
}

}  // namespace

void Head::add_outer(i64 query_tile, i64 key_tile, float* to) const {
  for (i64 i = 0; i < size->rows(query_tile); ++i, to += kTile) {
    const i64 r = real_query(query_tile * kTile + i);
    if (r < 0) continue;
    const float *left = head_rows(a->left, b, h) + r * a->left.n, *right = head_rows(a->right, b, h) + r * a->right.n;
    runs(key_tile * kTile, size->keys(key_tile), a->period, [&](i64 j, i64 u, i64 w, i64 n) {
      for (i64 x = 0; x < n; ++x) to[j + x] += left[u] * right[w + x];
    });
  }
}

void Head::add_outer_grads(i64 query_tile, i64 key_tile, const float* ds, const AttentionGrads<float>& grads) const {
  for (i64 i = 0; i < size->rows(query_tile); ++i, ds += kTile) {
    const i64 r = real_query(query_tile * kTile + i);
    if (r < 0) continue;
    const float *left = head_rows(a->left, b, h) + r * a->left.n, *right = head_rows(a->right, b, h) + r * a->right.n;
    float* dleft = grads.dleft.p + b * grads.dleft.b + h * grads.dleft.h + r * grads.dleft.n;
    float* dright = grads.dright.p + b * grads.dright.b + h * grads.dright.h + r * grads.dright.n;
    runs(key_tile * kTile, size->keys(key_tile), a->period, [&](i64 j, i64 u, i64 w, i64 n) {
      dleft[u] += dot(ds + j, right + w, n);
      for (i64 x = 0; x < n; ++x) dright[w + x] += left[u] * ds[j + x];
    });
  }
}

void Head::key_tiles(i64 query_tile, std::vector<i64>& out) const {
  const i64 q0 = query_tile * kTile, q1 = q0 + size->rows(query_tile);
  const i64 seen = a->causal && !ordered() ? std::min(size->M, q1) : size->M;
  out.clear();
  if (a->pattern != nullptr) {
    a->pattern->key_tiles(b, h, q0, q1, size->M, kTile, out);
    while (!out.empty() && out.back() >= tiles_of(seen)) out.pop_back();
    return;
  }
  out.resize(static_cast<std::size_t>(tiles_of(seen)));
  for (std::size_t t = 0; t < out.size(); ++t) out[t] = static_cast<i64>(t);
}

void Head::find_users() {
  std::vector<std::vector<i64>> seen(static_cast<std::size_t>(size->q_tiles));
  starts.assign(static_cast<std::size_t>(size->k_tiles + 1), 0);
  for (i64 t = 0; t < size->q_tiles; ++t) {
    key_tiles(t, seen[t]);
    for (i64 k : seen[t]) ++starts[k + 1];
  }
  for (i64 k = 0; k < size->k_tiles; ++k) starts[k + 1] += starts[k];
  users.resize(static_cast<std::size_t>(starts.back()));
  std::vector<i64> next(starts.begin(), starts.end() - 1);
  for (i64 t = 0; t < size->q_tiles; ++t) {
    for (i64 k : seen[t]) users[next[k]++] = t;
  }
}

bool TileMask::build(const Head& head, i64 query_tile, i64 key_tile) {
  const i64 q0 = query_tile * kTile, k0 = key_tile * kTile, rows = head.size->rows(query_tile), keys = head.size->keys(key_tile);
  const auto* a = head.a;
  if (a->causal && !head.ordered() && k0 > q0 + rows - 1) return false;
  const bool causal = a->causal && (head.ordered() || k0 + keys - 1 > q0);
  auto cover = Pattern::Cover::Full;
  if (a->pattern != nullptr) cover = a->pattern->cover(head.b, head.h, q0, q0 + rows, k0, k0 + keys);
  if (cover == Pattern::Cover::None) return false;
  bool padding = keys % kPad != 0;
  for (i64 i = 0; i < rows && !padding && (a->query_mask || head.query_order); ++i) padding = head.real_query(q0 + i) < 0;
  for (i64 j = 0; j < keys && !padding && (a->key_mask || head.key_order); ++j) padding = head.real_key(k0 + j) < 0;
  masked = causal || padding || cover == Pattern::Cover::Partial;
  if (!masked) {
    for (i64 s = 0; s < kStrips; ++s) {
      low[s] = 0;
      high[s] = s * kStrip < rows ? keys : 0;
    }
    return true;
  }
  fill(head, q0, k0, rows, keys, cover == Pattern::Cover::Partial, causal && !head.ordered());
  if (causal && head.ordered()) forget_later_rows(head, q0, k0, rows, keys);
  return shrink(rows, keys);
}

void TileMask::fill(const Head& head, i64 q0, i64 k0, i64 rows, i64 keys, bool pattern, bool causal) {
  alignas(64) std::uint8_t real[kTile];
  for (i64 j = 0; j < kTile; ++j) real[j] = j < keys && head.real_key(k0 + j) >= 0;
  std::memset(allowed + rows * kTile, 0, static_cast<std::size_t>((kTile - rows) * kTile));
  for (i64 i = 0; i < rows; ++i) {
    std::uint8_t* row = allowed + i * kTile;
    const i64 seen = causal ? std::clamp<i64>(q0 + i + 1 - k0, 0, keys) : keys;
    if (head.real_query(q0 + i) < 0 || seen == 0) {
      std::memset(row, 0, kTile);
      continue;
    }
    if (pattern) {
      std::memset(row, 1, kTile);
      head.a->pattern->row(head.b, head.h, q0 + i, k0, k0 + keys, row);
      for (i64 j = 0; j < kTile; ++j) row[j] = row[j] & real[j];
    } else {
      std::memcpy(row, real, kTile);
    }
    std::memset(row + seen, 0, static_cast<std::size_t>(kTile - seen));
  }
}

void TileMask::forget_later_rows(const Head& head, i64 q0, i64 k0, i64 rows, i64 keys) {
  i64 row[kTile];
  for (i64 j = 0; j < keys; ++j) row[j] = head.key_row(k0 + j);
  for (i64 i = 0; i < rows; ++i) {
    const i64 own = head.query_row(q0 + i);
    for (i64 j = 0; j < keys; ++j) allowed[i * kTile + j] &= row[j] <= own;
  }
}

// Finds for each strip the keys that any of its rows may look at.
bool TileMask::shrink(i64 rows, i64 keys) {
  bool any = false;
  for (i64 s = 0; s < kStrips; ++s) {
    low[s] = high[s] = 0;
    if (s * kStrip >= rows) continue;
    std::uint64_t seen[kTile / 8] = {};
    for (i64 i = s * kStrip; i < (s + 1) * kStrip; ++i) {
      for (i64 w = 0; w < kTile / 8; ++w) {
        std::uint64_t word;
        std::memcpy(&word, allowed + i * kTile + w * 8, 8);
        seen[w] |= word;
      }
    }
    i64 first = 0, last = round_up(keys, kPad) / kPad;
    const auto empty = [&](i64 block) { return (seen[2 * block] | seen[2 * block + 1]) == 0; };
    while (first < last && empty(first)) ++first;
    while (first < last && empty(last - 1)) --last;
    if (first == last) continue;
    low[s] = first * kPad;
    high[s] = last * kPad;
    any = true;
  }
  return any;
}

void TileMask::query_range(i64 key_strip, i64 rows, i64& first, i64& last) const {
  first = last = 0;
  for (i64 s = 0; s < kStrips; ++s) {
    if (high[s] <= key_strip * kStrip || low[s] >= (key_strip + 1) * kStrip) continue;
    if (last == 0) first = s * kStrip;
    last = std::min(rows, (s + 1) * kStrip);
  }
}

i64 TileMask::pairs(i64 rows, i64 keys) const {
  i64 n = 0;
  for (i64 s = 0; s * kStrip < rows; ++s) n += std::min(kStrip, rows - s * kStrip) * (std::min(high[s], keys) - low[s]);
  return n;
}

}  // namespace attention_tiles
}  // namespace tapeformer::kernels
