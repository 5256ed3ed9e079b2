// attention.cpp: the tile engine. Work is cut by shape: with many heads a head is one piece of work, with few heads a piece is one
// tile of queries (forward) or a fixed set of key tiles (backward), whose shares of dq are added in a fixed order.
#include "core/kernels/attention.h"

#include <omp.h>

#include <cmath>
#include <cstring>

#include "core/counters.h"
#include "core/error.h"
#include "core/kernels/attention_head.h"
#include "core/parallel.h"
#include "core/storage.h"

#define HWY_WANT_SSE4 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"

#ifndef TAPEFORMER_ATTENTION_TILE_STATE
#define TAPEFORMER_ATTENTION_TILE_STATE
namespace tapeformer::kernels::attention_tiles {

inline constexpr float kNoKey = -3.402823466e38f;   // maximum of a row that has seen no key

struct Dropout {  // factors of one row are made tile by tile from the row's key
  bool on = false;
  std::int32_t threshold = 0;   // of 24 random bits
  float scale = 1;
};

struct ForwardState {  // of one query tile; lives in scratch memory
  alignas(64) float scores[kTile * kTile];
  alignas(64) float bias[kTile * kTile];
  alignas(64) float sums[kTile * kPad];   // lane by lane, added up at the end
  alignas(64) float factor[kTile];
  float max[kTile];
  TileMask mask;
};

struct BackwardState {  // of one key tile
  alignas(64) float scores[kTile * kTile];   // then dS
  alignas(64) float grads[kTile * kTile];    // dO V^T, then c P
  alignas(64) float bias[kTile * kTile];
  alignas(64) float factor[kTile];
  alignas(64) float bias_grad[kTile];
  TileMask mask;
};

}  // namespace tapeformer::kernels::attention_tiles
#endif

HWY_BEFORE_NAMESPACE();
namespace tapeformer::kernels::attention_tiles {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, kPad>;
using Vec = hn::Vec<Floats>;

HWY_INLINE constexpr i64 lanes() { return static_cast<i64>(hn::MaxLanes(Floats())); }

// c (+)= a b for MR rows and NV vectors of columns. b and c are aligned; a is read one element at a time.
template <int MR, int NV>
HWY_INLINE void block(const float* HWY_RESTRICT a, i64 a_row, i64 a_col, const float* HWY_RESTRICT b, i64 b_row, float* HWY_RESTRICT c,
                      i64 c_row, i64 k, bool accumulate) {
  const Floats f;
  Vec sum[MR][NV];
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) sum[i][j] = accumulate ? hn::Load(f, c + i * c_row + j * lanes()) : hn::Zero(f);
  }
  for (i64 x = 0; x < k; ++x, a += a_col, b += b_row) {
    Vec y[NV];
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) y[j] = hn::Load(f, b + j * lanes());
#pragma GCC unroll 16
    for (int i = 0; i < MR; ++i) {
      const Vec ai = hn::Set(f, a[i * a_row]);
#pragma GCC unroll 16
      for (int j = 0; j < NV; ++j) sum[i][j] = hn::MulAdd(ai, y[j], sum[i][j]);
    }
  }
#pragma GCC unroll 16
  for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < NV; ++j) hn::Store(sum[i][j], f, c + i * c_row + j * lanes());
  }
}

// A strip of kStrip rows and n columns, n a multiple of kPad.
HWY_NOINLINE void strip(const float* a, i64 a_row, i64 a_col, const float* b, i64 b_row, float* c, i64 c_row, i64 n, i64 k, bool accumulate) {
  constexpr int kRows = lanes() == 16 ? kStrip : kStrip / 2;   // as many sums as registers allow
  i64 j = 0;
  const auto run = [&]<int NV>() HWY_ATTR {
    for (i64 i = 0; i < kStrip; i += kRows) {
      block<kRows, NV>(a + i * a_row, a_row, a_col, b + j, b_row, c + i * c_row + j, c_row, k, accumulate);
    }
    j += NV * lanes();
  };
  for (i64 left = n / lanes(); left > 0; left = (n - j) / lanes()) {
    if (left >= 3 && left != 4) run.template operator()<3>();
    else if (left >= 2) run.template operator()<2>();
    else run.template operator()<1>();
  }
}

// e^x for x <= 0 within 1.5 units in the last place; below -86 it stays at e^-86. NaN stays NaN.
HWY_INLINE Vec fast_exp(Vec x) {
  const Floats f;
  const hn::RebindToSigned<Floats> ints;
  x = hn::Max(hn::Set(f, -86.0f), x);
  const Vec magic = hn::Set(f, 12582912.0f);   // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Vec shifted = hn::MulAdd(x, hn::Set(f, 1.44269504f), magic);
  const Vec n = hn::Sub(shifted, magic);
  Vec r = hn::NegMulAdd(n, hn::Set(f, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(f, -2.12194440e-4f), r);
  Vec p = hn::Set(f, 1.9875691500e-4f);   // Cephes expf
  p = hn::MulAdd(p, r, hn::Set(f, 1.3981999507e-3f));
  p = hn::MulAdd(p, r, hn::Set(f, 8.3334519073e-3f));
  p = hn::MulAdd(p, r, hn::Set(f, 4.1665795894e-2f));
  p = hn::MulAdd(p, r, hn::Set(f, 1.6666665459e-1f));
  p = hn::MulAdd(p, r, hn::Set(f, 5.0000001201e-1f));
  p = hn::MulAdd(p, hn::Mul(r, r), hn::Add(r, hn::Set(f, 1.0f)));
  return hn::BitCast(f, hn::Add(hn::BitCast(ints, p), hn::ShiftLeft<23>(hn::BitCast(ints, shifted))));
}

HWY_INLINE hn::Mask<Floats> allowed_lanes(const std::uint8_t* allowed) {
  const Floats f;
  const hn::RebindToSigned<Floats> ints;
  const hn::Rebind<std::uint8_t, Floats> bytes;
  return hn::RebindMask(f, hn::Ne(hn::PromoteTo(ints, hn::LoadU(bytes, allowed)), hn::Zero(ints)));
}

// factor[x] for keys first + x, x < kTile: bits32 of the row's key (rng.h), four keys to one Philox block.
#if HWY_TARGET == HWY_SCALAR
void dropout_factors(const Dropout& dropout, std::uint64_t row_key, i64 first, float* factor) {
  for (i64 x = 0; x < kTile; ++x) {
    const auto bits = RngKey(row_key).bits32(static_cast<std::uint64_t>(first + x)) >> 8;
    factor[x] = static_cast<std::int32_t>(bits) < dropout.threshold ? 0.0f : dropout.scale;
  }
}
#else
HWY_NOINLINE void dropout_factors(const Dropout& dropout, std::uint64_t row_key, i64 first, float* factor) {
  const Floats f;
  const hn::RebindToUnsigned<Floats> u32;
  const hn::RebindToSigned<Floats> i32;
  const hn::Repartition<std::uint64_t, decltype(u32)> u64;
  using U = hn::Vec<decltype(u32)>;
  const auto multiply = [&](U x, std::uint32_t m, U& high, U& low) HWY_ATTR {
    const auto even = hn::MulEven(x, hn::Set(u32, m));
    const auto odd = hn::MulEven(hn::BitCast(u32, hn::ShiftRight<32>(hn::BitCast(u64, x))), hn::Set(u32, m));
    low = hn::OddEven(hn::BitCast(u32, hn::ShiftLeft<32>(odd)), hn::BitCast(u32, even));
    high = hn::OddEven(hn::BitCast(u32, odd), hn::BitCast(u32, hn::ShiftRight<32>(even)));
  };
  alignas(64) std::uint32_t words[4 * kPad];
  const Vec scale = hn::Set(f, dropout.scale);
  const auto threshold = hn::Set(i32, dropout.threshold);
  for (i64 x = 0; x < kTile; x += 4 * lanes()) {
    U c0 = hn::Iota(u32, static_cast<std::uint32_t>((first + x) >> 2)), c1 = hn::Zero(u32), c2 = hn::Set(u32, 3u), c3 = c1;
    auto k0 = static_cast<std::uint32_t>(row_key), k1 = static_cast<std::uint32_t>(row_key >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
      U high0, low0, high1, low1;
      multiply(c0, 0xD2511F53u, high0, low0);
      multiply(c2, 0xCD9E8D57u, high1, low1);
      c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(u32, k0));
      c1 = low1;
      c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(u32, k1));
      c3 = low0;
    }
    hn::StoreInterleaved4(c0, c1, c2, c3, u32, words);
    for (i64 w = 0; w < 4 * lanes(); w += lanes()) {
      const auto bits = hn::BitCast(i32, hn::ShiftRight<8>(hn::Load(u32, words + w)));
      hn::Store(hn::IfThenZeroElse(hn::RebindMask(f, hn::Lt(bits, threshold)), scale), f, factor + x + w);
    }
  }
}
#endif

// ---- forward

struct RowTile {  // one row of a tile of scores
  float* scores;
  const float* bias;             // null = none
  const std::uint8_t* allowed;   // null = all
  const float* factor;           // dropout; null = none
  i64 low, high;
};

template <bool kBias> HWY_INLINE Vec scaled_score(const RowTile& t, Vec scale, i64 j, Vec minus) {
  const Floats f;
  const Vec s = hn::Load(f, t.scores + j);
  if constexpr (kBias) return hn::Sub(hn::MulAdd(scale, s, hn::Load(f, t.bias + j)), minus);
  return hn::MulSub(scale, s, minus);
}

template <bool kBias, bool kMasked> HWY_INLINE float row_maximum(const RowTile& t, Vec scale) {
  const Floats f;
  Vec top = hn::Set(f, kNoKey);
  for (i64 j = t.low; j < t.high; j += lanes()) {
    Vec s = scaled_score<kBias>(t, scale, j, hn::Zero(f));
    if constexpr (kMasked) s = hn::IfThenElse(allowed_lanes(t.allowed + j), s, hn::Set(f, kNoKey));
    top = hn::Max(top, s);
  }
  return hn::GetLane(hn::MaxOfLanes(f, top));
}

template <bool kBias, bool kMasked> HWY_INLINE void row_probabilities(const RowTile& t, Vec scale, float max, float* sums) {
  const Floats f;
  const Vec minus = hn::Set(f, max);
  Vec sum = hn::Load(f, sums);
  for (i64 j = t.low; j < t.high; j += lanes()) {
    Vec p = fast_exp(scaled_score<kBias>(t, scale, j, minus));
    if constexpr (kMasked) p = hn::IfThenElseZero(allowed_lanes(t.allowed + j), p);
    sum = hn::Add(sum, p);
    if (t.factor != nullptr) p = hn::Mul(p, hn::Load(f, t.factor + j));
    hn::Store(p, f, t.scores + j);
  }
  hn::Store(sum, f, sums);
}

HWY_INLINE void rescale(float* x, i64 n, float by) {
  const Floats f;
  for (i64 c = 0; c < n; c += lanes()) hn::Store(hn::Mul(hn::Load(f, x + c), hn::Set(f, by)), f, x + c);
}

template <bool kBias, bool kMasked> HWY_INLINE void softmax_row(const RowTile& t, float scale, float& max, float* sums, float* o, i64 n) {
  const Floats f;
  const float top = row_maximum<kBias, kMasked>(t, hn::Set(f, scale));
  if (kMasked && top == kNoKey) {
    for (i64 j = t.low; j < t.high; j += lanes()) hn::Store(hn::Zero(f), f, t.scores + j);
    return;
  }
  if (!(top <= max)) {
    if (max != kNoKey) {
      const float by = std::exp(max - top);
      rescale(sums, kPad, by);
      rescale(o, n, by);
    }
    max = top;
  }
  row_probabilities<kBias, kMasked>(t, hn::Set(f, scale), max, sums);
}

template <bool kBias>
HWY_NOINLINE void softmax_rows(const Head& head, const Dropout& dropout, ForwardState& state, i64 q0, i64 k0, i64 rows, float* o) {
  for (i64 i = 0; i < rows; ++i) {
    const i64 s = i / kStrip;
    if (state.mask.high[s] == 0) continue;
    if (dropout.on) dropout_factors(dropout, head.dropout_key.fold_in(static_cast<std::uint64_t>(q0 + i)).value(), k0, state.factor);
    const RowTile t{state.scores + i * kTile, state.bias + i * kTile,  state.mask.allowed + i * kTile,
                    dropout.on ? state.factor : nullptr, state.mask.low[s], state.mask.high[s]};
    const auto run = state.mask.masked ? softmax_row<kBias, true> : softmax_row<kBias, false>;
    run(t, static_cast<float>(head.a->scale), state.max[i], state.sums + i * kPad, o + i * head.size->dvp, head.size->dvp);
  }
}

HWY_INLINE void finish_row(const Sizes& size, ForwardState& state, i64 i, const float* sum, float* out, float* row_max, float* row_lse) {
  if (state.max[i] == kNoKey) {
    std::fill(out, out + size.dv, 0.0f);
    *row_max = *row_lse = 0.0f;
    return;
  }
  float total = 0;
  for (i64 lane = 0; lane < kPad; ++lane) total += state.sums[i * kPad + lane];
  const float by = 1.0f / total;
  for (i64 c = 0; c < size.dv; ++c) out[c] = sum[c] * by;
  *row_max = state.max[i];
  *row_lse = std::log(total);
}

// One tile of queries against all keys they see. o: [64, dvp] scratch. Returns the pairs computed.
i64 forward_tile(const Head& head, const Dropout& dropout, i64 tile, const std::vector<i64>& key_tiles, ForwardState& state, float* o,
                 float* out, i64 out_row, float* row_max, float* row_lse) {
  const Sizes& size = *head.size;
  const i64 rows = size.rows(tile), q0 = tile * kTile;
  const bool bias = head.a->key_bias != nullptr || head.a->pair_bias.p != nullptr;
  std::fill(state.max, state.max + kTile, kNoKey);
  std::memset(state.sums, 0, sizeof state.sums);
  std::memset(o, 0, static_cast<std::size_t>(kTile * size.dvp) * sizeof(float));
  i64 pairs = 0;
  for (i64 key_tile : key_tiles) {
    if (!state.mask.build(head, tile, key_tile)) continue;
    const TileMask& m = state.mask;
    const i64 k0 = key_tile * kTile, padded = size.padded_keys(key_tile);
    pairs += m.pairs(rows, size.keys(key_tile));
    for (i64 s = 0; s < kStrips; ++s) {
      const i64 r = s * kStrip;
      strip(head.q + (q0 + r) * size.dp, size.dp, 1, head.keys_t + k0 * size.d + m.low[s], padded,
            state.scores + r * kTile + m.low[s], kTile, m.high[s] - m.low[s], size.d, false);
    }
    if (bias) {
      head.fill_bias(tile, key_tile, state.bias);
      softmax_rows<true>(head, dropout, state, q0, k0, rows, o);
    } else {
      softmax_rows<false>(head, dropout, state, q0, k0, rows, o);
    }
    for (i64 s = 0; s < kStrips; ++s) {
      const i64 r = s * kStrip;
      if (m.high[s] == 0) continue;
      strip(state.scores + r * kTile + m.low[s], kTile, 1, head.v + (k0 + m.low[s]) * size.dvp, size.dvp, o + r * size.dvp,
            size.dvp, size.dvp, m.high[s] - m.low[s], true);
    }
  }
  for (i64 i = 0; i < rows; ++i) finish_row(size, state, i, o + i * size.dvp, out + i * out_row, row_max + i, row_lse + i);
  return pairs;
}

// ---- backward

template <bool kBias, bool kMasked>
HWY_INLINE void gradient_row(const RowTile& t, float* grads, float scale, const float* stats, i64 all, float* bias_grad) {
  const Floats f;
  const Vec max = hn::Set(f, stats[0]), lse = hn::Set(f, stats[all]), through = hn::Set(f, stats[2 * all]), by = hn::Set(f, scale);
  for (i64 j = t.low; j < t.high; j += lanes()) {
    Vec p = fast_exp(hn::Sub(scaled_score<kBias>(t, by, j, max), lse));
    if constexpr (kMasked) p = hn::IfThenElseZero(allowed_lanes(t.allowed + j), p);
    const Vec g = hn::Load(f, grads + j);
    Vec kept = p, ds;
    if (t.factor != nullptr) {
      const Vec factor = hn::Load(f, t.factor + j);
      kept = hn::Mul(p, factor);
      ds = hn::Mul(p, hn::MulSub(factor, g, through));
    } else {
      ds = hn::Mul(p, hn::Sub(g, through));
    }
    hn::Store(kept, f, grads + j);
    hn::Store(ds, f, t.scores + j);
    if (bias_grad != nullptr) hn::Store(hn::Add(hn::Load(f, bias_grad + j), ds), f, bias_grad + j);
  }
}

template <bool kBias>
HWY_NOINLINE void gradient_strip(const Head& head, const Dropout& dropout, BackwardState& state, i64 tile, i64 k0, i64 s, i64 padded,
                                 float* bias_grad) {
  const i64 q0 = tile * kTile, end = std::min((s + 1) * kStrip, head.size->rows(tile)), all = kTile * head.size->q_tiles;
  const i64 low = state.mask.low[s], high = state.mask.high[s];
  const Floats f;
  for (i64 i = s * kStrip; i < end; ++i) {
    float *ds = state.scores + i * kTile, *p = state.grads + i * kTile;
    for (i64 j = 0; j < padded; j += lanes()) {  // what lies outside of the strip's keys counts as zero below
      if (j >= low && j < high) continue;
      hn::Store(hn::Zero(f), f, ds + j);
      hn::Store(hn::Zero(f), f, p + j);
    }
    if (high == 0) continue;
    if (dropout.on) dropout_factors(dropout, head.dropout_key.fold_in(static_cast<std::uint64_t>(q0 + i)).value(), k0, state.factor);
    const RowTile t{ds, state.bias + i * kTile, state.mask.allowed + i * kTile, dropout.on ? state.factor : nullptr, low, high};
    const auto run = state.mask.masked ? gradient_row<kBias, true> : gradient_row<kBias, false>;
    run(t, p, static_cast<float>(head.a->scale), head.row + q0 + i, all, bias_grad);
  }
}

// The products of one tile: dk and dv of the key tile, and dq (all rows of the head), are added to. Returns the pairs computed.
i64 backward_tile(const Head& head, const Dropout& dropout, i64 tile, i64 key_tile, BackwardState& state, float* dk, float* dv, float* dq,
                  bool bias_grad) {
  if (!state.mask.build(head, tile, key_tile)) return 0;
  const Sizes& size = *head.size;
  const TileMask& m = state.mask;
  const i64 rows = size.rows(tile), q0 = tile * kTile, k0 = key_tile * kTile, padded = size.padded_keys(key_tile);
  const bool bias = head.a->key_bias != nullptr || head.a->pair_bias.p != nullptr;
  if (bias) head.fill_bias(tile, key_tile, state.bias);
  for (i64 s = 0; s < kStrips; ++s) {
    const i64 r = s * kStrip, low = m.low[s], n = m.high[s] - low;
    strip(head.q + (q0 + r) * size.dp, size.dp, 1, head.keys_t + k0 * size.d + low, padded, state.scores + r * kTile + low, kTile, n,
          size.d, false);
    strip(head.d_o + (q0 + r) * size.dvp, size.dvp, 1, head.values_t + k0 * size.dv + low, padded, state.grads + r * kTile + low, kTile,
          n, size.dv, false);
    const auto run = bias ? gradient_strip<true> : gradient_strip<false>;
    run(head, dropout, state, tile, k0, s, padded, bias_grad ? state.bias_grad : nullptr);
    if (n == 0) continue;
    strip(state.scores + r * kTile + low, kTile, 1, head.keys + (k0 + low) * size.dp, size.dp, dq + (q0 + r) * size.dp, size.dp, size.dp,
          n, true);
  }
  for (i64 s = 0; s * kStrip < padded; ++s) {
    i64 first, last;
    m.query_range(s, rows, first, last);
    if (first == last) continue;
    const i64 r = s * kStrip, at = first * kTile + r;
    strip(state.grads + at, 1, kTile, head.d_o + (q0 + first) * size.dvp, size.dvp, dv + r * size.dvp, size.dvp, size.dvp, last - first,
          true);
    strip(state.scores + at, 1, kTile, head.q + (q0 + first) * size.dp, size.dp, dk + r * size.dp, size.dp, size.dp, last - first, true);
  }
  return m.pairs(rows, size.keys(key_tile));
}

}  // namespace HWY_NAMESPACE
}  // namespace tapeformer::kernels::attention_tiles
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tapeformer::kernels {
namespace attention_tiles {
namespace {

HWY_EXPORT(forward_tile);
HWY_EXPORT(backward_tile);

constexpr i64 kEnoughPieces = 16;

// Scratch of one call, one equal part for every thread that may work on it.
class Scratch {
 public:
  Scratch(i64 pieces, std::size_t bytes)
      : bytes_((bytes + 4095) / 4096 * 4096),
        nested_(omp_in_parallel()),
        storage_(bytes_ * static_cast<std::size_t>(nested_ ? 1 : std::min<i64>(thread_count(), pieces))) {}
  std::byte* mine() { return storage_.data() + (nested_ ? 0 : static_cast<std::size_t>(omp_get_thread_num()) * bytes_); }

 private:
  std::size_t bytes_;
  bool nested_;
  Storage storage_;
};

Dropout dropout_of(const Attention<float>& a) {
  if (a.dropout <= 0) return {};
  return {true, static_cast<std::int32_t>(std::lround(a.dropout * 0x1.0p24)), static_cast<float>(1 / (1 - a.dropout))};
}

Head make_head(const Attention<float>& a, const Sizes& size, i64 index) {
  Head head;
  head.a = &a;
  head.size = &size;
  head.b = index / a.H;
  head.h = index % a.H;
  if (a.dropout > 0) {
    const i64 sample = a.rows != nullptr ? a.rows[head.b] : head.b;
    head.dropout_key = a.dropout_key.fold_in(static_cast<std::uint64_t>(sample)).fold_in(static_cast<std::uint64_t>(head.h));
  }
  return head;
}

// Heads taken together as one piece of work, so that tiny heads do not cost a piece each.
i64 heads_per_piece(const Sizes& s) { return std::max<i64>(1, (i64{1} << 20) / std::max<i64>(1, s.N * s.M * (s.d + s.dv))); }

class Forward {
 public:
  Forward(const Attention<float>& a, RowsView<float> o, float* row_max, float* row_lse)
      : a_(a), o_(o), row_max_(row_max), row_lse_(row_lse), size_(a), dropout_(dropout_of(a)) {}

  void run() {
    if (a_.B * a_.H >= kEnoughPieces) whole_heads();
    else query_tiles();
  }

 private:
  static constexpr std::size_t kFloat = sizeof(float);
  std::size_t state_bytes() const { return sizeof(ForwardState) + static_cast<std::size_t>(kTile * size_.dvp) * kFloat; }

  void whole_heads() {
    const i64 heads = a_.B * a_.H, grain = heads_per_piece(size_);
    Scratch scratch(heads, state_bytes() + static_cast<std::size_t>(Head::forward_floats(size_)) * kFloat);
    parallel_for(heads, grain, [&](i64 begin, i64 end) {
      std::byte* mine = scratch.mine();
      for (i64 x = begin; x < end; ++x) {
        Head head = make_head(a_, size_, x);
        head.place_forward(reinterpret_cast<float*>(mine + state_bytes()));
        for (i64 t = 0; t < size_.q_tiles; ++t) head.pack_query_tile(t);
        for (i64 t = 0; t < size_.k_tiles; ++t) head.pack_key_tile(t);
        for (i64 t = 0; t < size_.q_tiles; ++t) tile(head, t, mine);
      }
    });
  }

  void query_tiles() {
    const i64 heads = a_.B * a_.H, floats = Head::forward_floats(size_);
    Storage packed(static_cast<std::size_t>(heads * floats) * kFloat);
    std::vector<Head> all;
    for (i64 x = 0; x < heads; ++x) {
      all.push_back(make_head(a_, size_, x));
      all.back().place_forward(reinterpret_cast<float*>(packed.data()) + x * floats);
    }
    const i64 both = size_.q_tiles + size_.k_tiles;
    parallel_for(heads * both, 4, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        const i64 t = x % both;
        if (t < size_.q_tiles) all[x / both].pack_query_tile(t);
        else all[x / both].pack_key_tile(t - size_.q_tiles);
      }
    });
    Scratch scratch(heads * size_.q_tiles, state_bytes());
    parallel_for(heads * size_.q_tiles, 1, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) tile(all[x / size_.q_tiles], x % size_.q_tiles, scratch.mine());
    });
  }

  void tile(const Head& head, i64 t, std::byte* memory) {
    thread_local std::vector<i64> key_tiles;
    auto* state = new (memory) ForwardState;
    head.key_tiles(t, key_tiles);
    const i64 i = t * kTile, stats = (head.b * a_.H + head.h) * a_.N + i;
    const i64 pairs = HWY_DYNAMIC_DISPATCH(forward_tile)(
        head, dropout_, t, key_tiles, *state, reinterpret_cast<float*>(memory + sizeof(ForwardState)),
        o_.p + head.b * o_.b + head.h * o_.h + i * o_.n, o_.n, row_max_ + stats, row_lse_ + stats);
    counters::add_attention(2 * pairs * (a_.d + a_.dv), pairs);
  }

  const Attention<float>& a_;
  RowsView<float> o_;
  float *row_max_, *row_lse_;
  Sizes size_;
  Dropout dropout_;
};

class Backward {
 public:
  Backward(const Attention<float>& a, RowsView<const float> o, const float* row_max, const float* row_lse, RowsView<const float> d_o,
           const AttentionGrads<float>& grads)
      : a_(a), o_(o), row_max_(row_max), row_lse_(row_lse), d_o_(d_o), grads_(grads), size_(a), dropout_(dropout_of(a)) {}

  void run(i64 first, i64 heads) {  // of the B * H heads
    if (heads >= kEnoughPieces) whole_heads(first, heads);
    else key_groups(first, heads);
  }

 private:
  static constexpr std::size_t kFloat = sizeof(float);
  i64 dq_floats() const { return kTile * size_.q_tiles * size_.dp; }
  std::size_t state_bytes() const {
    return sizeof(BackwardState) + static_cast<std::size_t>(kTile * (size_.dp + size_.dvp)) * kFloat;
  }
  void pack_query(const Head& head, i64 t) const { head.pack_query_tile_backward(t, o_, row_max_, row_lse_, d_o_); }

  void whole_heads(i64 first, i64 heads) {
    const i64 floats = Head::backward_floats(size_);
    Scratch scratch(heads, state_bytes() + static_cast<std::size_t>(floats + dq_floats()) * kFloat);
    parallel_for(heads, heads_per_piece(size_), [&](i64 begin, i64 end) {
      std::byte* mine = scratch.mine();
      float* packed = reinterpret_cast<float*>(mine + state_bytes());
      float* dq = packed + floats;
      for (i64 x = begin; x < end; ++x) {
        Head head = make_head(a_, size_, first + x);
        head.place_backward(packed);
        if (a_.pattern != nullptr) head.find_users();
        for (i64 t = 0; t < size_.q_tiles; ++t) pack_query(head, t);
        for (i64 t = 0; t < size_.k_tiles; ++t) head.pack_key_tile_backward(t);
        std::fill(dq, dq + dq_floats(), 0.0f);
        for (i64 t = 0; t < size_.k_tiles; ++t) key_tile(head, t, dq, mine);
        for (i64 t = 0; t < size_.q_tiles; ++t) write_dq(head, t, dq, 1);
      }
    });
  }

  // Key tiles g, g + groups, g + 2 groups ... of a head form group g, which has its own dq.
  void key_groups(i64 first, i64 heads) {
    const i64 floats = Head::backward_floats(size_);
    const i64 groups = std::clamp<i64>((kEnoughPieces + heads - 1) / heads, 1, std::max<i64>(size_.k_tiles, 1));
    Storage memory(static_cast<std::size_t>(heads * (floats + groups * dq_floats())) * kFloat);
    float* packed = reinterpret_cast<float*>(memory.data());
    float* dq = packed + heads * floats;
    std::vector<Head> all;
    for (i64 x = 0; x < heads; ++x) {
      all.push_back(make_head(a_, size_, first + x));
      all.back().place_backward(packed + x * floats);
    }
    pack_all(all);
    Scratch scratch(heads * groups, state_bytes());
    parallel_for(heads * groups, 1, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        std::fill(dq + x * dq_floats(), dq + (x + 1) * dq_floats(), 0.0f);
        for (i64 t = x % groups; t < size_.k_tiles; t += groups) key_tile(all[x / groups], t, dq + x * dq_floats(), scratch.mine());
      }
    });
    parallel_for(heads * size_.q_tiles, 4, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        const i64 head = x / size_.q_tiles;
        write_dq(all[head], x % size_.q_tiles, dq + head * groups * dq_floats(), groups);
      }
    });
  }

  void pack_all(std::vector<Head>& all) const {
    const i64 both = size_.q_tiles + size_.k_tiles;
    parallel_for(static_cast<i64>(all.size()) * both, 4, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) {
        const i64 t = x % both;
        if (t < size_.q_tiles) pack_query(all[x / both], t);
        else all[x / both].pack_key_tile_backward(t - size_.q_tiles);
      }
    });
    if (a_.pattern == nullptr) return;
    parallel_for(static_cast<i64>(all.size()), 1, [&](i64 begin, i64 end) {
      for (i64 x = begin; x < end; ++x) all[x].find_users();
    });
  }

  void key_tile(const Head& head, i64 t, float* dq, std::byte* memory) {
    auto* state = new (memory) BackwardState;
    float* dk = reinterpret_cast<float*>(memory + sizeof(BackwardState));
    float* dv = dk + kTile * size_.dp;
    std::fill(dk, dv + kTile * size_.dvp, 0.0f);
    std::fill(state->bias_grad, state->bias_grad + kTile, 0.0f);
    i64 pairs = 0;
    const auto add = [&](i64 query_tile) {
      const i64 done = HWY_DYNAMIC_DISPATCH(backward_tile)(head, dropout_, query_tile, t, *state, dk, dv, dq, grads_.dkey_bias != nullptr);
      if (done > 0 && grads_.dpair_bias.p != nullptr) add_pair_bias(head, query_tile, t, *state);
      pairs += done;
    };
    if (a_.pattern != nullptr) {
      for (i64 u = head.starts[t]; u < head.starts[t + 1]; ++u) add(head.users[u]);
    } else {
      for (i64 q = a_.causal ? t : 0; q < size_.q_tiles; ++q) add(q);
    }
    write_keys(head, t, dk, dv, state->bias_grad);
    counters::add_attention(2 * pairs * (3 * a_.d + 2 * a_.dv), 0);
  }

  void add_pair_bias(const Head& head, i64 query_tile, i64 key_tile, const BackwardState& state) const {
    const auto& out = grads_.dpair_bias;
    for (i64 i = 0; i < size_.rows(query_tile); ++i) {
      float* to = out.p + head.b * out.b + head.h * out.h + (query_tile * kTile + i) * out.n + key_tile * kTile;
      const float* from = state.scores + i * kTile;
      for (i64 j = 0; j < size_.keys(key_tile); ++j) to[j] += from[j];
    }
  }

  void write_keys(const Head& head, i64 t, const float* dk, const float* dv, const float* bias_grad) const {
    const auto scale = static_cast<float>(a_.scale);
    for (i64 j = 0; j < size_.keys(t); ++j) {
      const i64 row = t * kTile + j;
      if (grads_.dk.p != nullptr) {
        float* to = grads_.dk.p + head.b * grads_.dk.b + head.h * grads_.dk.h + row * grads_.dk.n;
        for (i64 c = 0; c < size_.d; ++c) to[c] = scale * dk[j * size_.dp + c];
      }
      if (grads_.dv.p != nullptr) {
        float* to = grads_.dv.p + head.b * grads_.dv.b + head.h * grads_.dv.h + row * grads_.dv.n;
        std::copy(dv + j * size_.dvp, dv + j * size_.dvp + size_.dv, to);
      }
      if (grads_.dkey_bias != nullptr) grads_.dkey_bias[(head.b * a_.H + head.h) * a_.M + row] = bias_grad[j];
    }
  }

  void write_dq(const Head& head, i64 t, const float* dq, i64 groups) const {
    if (grads_.dq.p == nullptr) return;
    const auto scale = static_cast<float>(a_.scale);
    for (i64 i = t * kTile; i < t * kTile + size_.rows(t); ++i) {
      float* to = grads_.dq.p + head.b * grads_.dq.b + head.h * grads_.dq.h + i * grads_.dq.n;
      std::copy(dq + i * size_.dp, dq + i * size_.dp + size_.d, to);
      for (i64 g = 1; g < groups; ++g) {
        const float* more = dq + g * dq_floats() + i * size_.dp;
        for (i64 c = 0; c < size_.d; ++c) to[c] += more[c];
      }
      for (i64 c = 0; c < size_.d; ++c) to[c] *= scale;
    }
  }

  const Attention<float>& a_;
  RowsView<const float> o_;
  const float *row_max_, *row_lse_;
  RowsView<const float> d_o_;
  const AttentionGrads<float>& grads_;
  Sizes size_;
  Dropout dropout_;
};

// A pair bias shared between samples or heads gets its shares in their order, so those do not run at the same time.
i64 heads_at_a_time(const Attention<float>& a, const RowsView<float>& pair) {
  if (pair.p == nullptr) return a.B * a.H;
  if (a.H > 1 && pair.h == 0) return 1;
  return a.B > 1 && pair.b == 0 ? a.H : a.B * a.H;
}

}  // namespace
}  // namespace attention_tiles

template <> void attention_forward(const Attention<float>& a, RowsView<float> o, float* row_max, float* row_lse) {
  if (a.B * a.H * a.N == 0) return;
  TAPEFORMER_ASSERT(!a.causal || a.M >= a.N, "causal attention needs at least as many keys as queries");
  const counters::Timed timed;
  attention_tiles::Forward(a, o, row_max, row_lse).run();
}

template <> void attention_backward(const Attention<float>& a, RowsView<const float> o, const float* row_max, const float* row_lse,
                                    RowsView<const float> d_o, const AttentionGrads<float>& grads) {
  const i64 heads = a.B * a.H, step = attention_tiles::heads_at_a_time(a, grads.dpair_bias);
  const counters::Timed timed;
  attention_tiles::Backward backward(a, o, row_max, row_lse, d_o, grads);
  for (i64 first = 0; first < heads; first += step) backward.run(first, step);
}

template <> void attention_forward(const Attention<double>& a, RowsView<double> o, double* row_max, double* row_lse) {
  const counters::Timed timed;
  attention_forward_reference(a, o, row_max, row_lse);
}

template <> void attention_backward(const Attention<double>& a, RowsView<const double> o, const double* row_max, const double* row_lse,
                                    RowsView<const double> d_o, const AttentionGrads<double>& grads) {
  const counters::Timed timed;
  attention_backward_reference(a, o, row_max, row_lse, d_o, grads);
}

}  // namespace tapeformer::kernels
#endif  // HWY_ONCE
