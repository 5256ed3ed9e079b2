#include "core/kernels/attention_simd.h"

#include <cmath>
#include <cstring>
#include <numeric>

#define HWY_WANT_SSE4 1
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/attention_simd.cpp"
#include "hwy/foreach_target.h"
// After foreach_target.h:
#include "hwy/highway.h"

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
HWY_NOINLINE void strip(const float* a, i64 a_row, i64 a_col, const float* b, i64 b_row, float* c, i64 c_row, i64 n, i64 k,
                        bool accumulate) {
  i64 j = 0;
  const auto run = [&]<int MR, int NV>() HWY_ATTR {
    for (i64 i = 0; i < kStrip; i += MR) {
      block<MR, NV>(a + i * a_row, a_row, a_col, b + j, b_row, c + i * c_row + j, c_row, k, accumulate);
    }
    j += NV * lanes();
  };
  constexpr bool kWide = lanes() == 16;
  for (i64 left = n / lanes(); left > 0; left = (n - j) / lanes()) {
    if (kWide && left >= 4 && left != 6)
      run.template operator()<4, kWide ? 4 : 1>();
    else if (left >= 3 && left != 4)
      run.template operator()<kWide ? 8 : 4, 3>();
    else if (left >= 2)
      run.template operator()<kWide ? 8 : 4, 2>();
    else
      run.template operator()<kWide ? 8 : 4, 1>();
  }
}

// e^x for x <= 0 within 1.5 units in the last place; below -86 it stays at e^-86. NaN stays NaN.
HWY_INLINE Vec fast_exp(Vec x) {
  const Floats f;
  const hn::RebindToSigned<Floats> ints;
  x = hn::Max(hn::Set(f, -86.0f), x);
  const Vec magic = hn::Set(f, 12582912.0f);  // 1.5 * 2^23: adding it leaves the nearest integer in the low bits
  const Vec shifted = hn::MulAdd(x, hn::Set(f, 1.44269504f), magic);
  const Vec n = hn::Sub(shifted, magic);
  Vec r = hn::NegMulAdd(n, hn::Set(f, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(f, -2.12194440e-4f), r);
  Vec p = hn::Set(f, 1.9875691500e-4f);  // Cephes expf
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

// factor[x] for the keys at places first + x, x < kTile. Key j takes 16 bits of bits32(j / 2) of the row's key (rng.h): eight keys to
// one Philox block, whose four words stand in the low halves of 64-bit lanes. Where keys have an order, each has a block of its own.
void scattered_dropout_factors(const Dropout& dropout, std::uint64_t row_key, const i64* rows, i64 keys, float* factor) {
  for (i64 x = 0; x < kTile; ++x) {
    const auto j = static_cast<std::uint64_t>(x < keys ? rows[x] : 0);
    const auto bits = RngKey(row_key).bits32(j >> 1) >> (16 * (j & 1)) & 0xffffu;
    factor[x] = static_cast<std::int32_t>(bits) < dropout.threshold ? 0.0f : dropout.scale;
  }
}

HWY_NOINLINE void dropout_factors(const Dropout& dropout, std::uint64_t row_key, const Head& head, i64 first, float* factor) {
  const i64 keys = std::min(kTile, head.size->M - first);
  if (head.key_order != nullptr) return scattered_dropout_factors(dropout, row_key, head.key_order + first, keys, factor);
#if HWY_TARGET == HWY_SCALAR
  i64 rows[kTile];
  std::iota(rows, rows + kTile, first);
  scattered_dropout_factors(dropout, row_key, rows, keys, factor);
#else
  const Floats f;
  const hn::RebindToSigned<Floats> i32;
  const hn::RebindToUnsigned<Floats> u32;
  const hn::Repartition<std::uint64_t, Floats> u64;
  const hn::Rebind<std::uint16_t, Floats> u16;
  const auto multiply = [&](auto x, std::uint32_t m) HWY_ATTR { return hn::MulEven(hn::BitCast(u32, x), hn::Set(u32, m)); };
  alignas(64) std::uint64_t words[kTile / 4];
  const i64 blocks = lanes() / 2;
  for (i64 x = 0; x < kTile / 8; x += blocks) {
    auto c0 = hn::Iota(u64, static_cast<std::uint64_t>((first >> 3) + x)), c1 = hn::Zero(u64), c2 = hn::Set(u64, std::uint64_t{3}), c3 = c1;
    auto k0 = static_cast<std::uint32_t>(row_key), k1 = static_cast<std::uint32_t>(row_key >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {  // high halves may hold anything
      const auto p0 = multiply(c0, 0xD2511F53u), p1 = multiply(c2, 0xCD9E8D57u);
      c0 = hn::Xor(hn::ShiftRight<32>(p1), hn::Xor(c1, hn::Set(u64, std::uint64_t{k0})));
      c2 = hn::Xor(hn::ShiftRight<32>(p0), hn::Xor(c3, hn::Set(u64, std::uint64_t{k1})));
      c1 = p1;
      c3 = p0;
    }
    const auto low = hn::Set(u64, std::uint64_t{0xffffffffu});
    const auto join = [&](auto a, auto b) HWY_ATTR { return hn::Or(hn::And(a, low), hn::ShiftLeft<32>(b)); };
    hn::StoreInterleaved2(join(c0, c1), join(c2, c3), u64, words + 2 * x);
  }
  const auto* bits = reinterpret_cast<const std::uint16_t*>(words);
  const Vec scale = hn::Set(f, dropout.scale);
  const auto threshold = hn::Set(i32, dropout.threshold);
  for (i64 x = 0; x < kTile; x += lanes()) {
    const auto drop = hn::Lt(hn::PromoteTo(i32, hn::LoadU(u16, bits + x)), threshold);
    hn::Store(hn::IfThenZeroElse(hn::RebindMask(f, drop), scale), f, factor + x);
  }
#endif
}

// ---- forward

struct RowTile {  // one row of a tile of scores
  float* scores;
  const float* bias;            // null = none
  const std::uint8_t* allowed;  // null = all
  const float* factor;          // dropout; null = none
  i64 low, high;
};

template <bool kBias>
HWY_INLINE Vec scaled_score(const RowTile& t, Vec scale, i64 j, Vec minus) {
  const Floats f;
  const Vec s = hn::Load(f, t.scores + j);
  if constexpr (kBias) return hn::Sub(hn::MulAdd(scale, s, hn::Load(f, t.bias + j)), minus);
  return hn::MulSub(scale, s, minus);
}

template <bool kBias, bool kMasked>
HWY_INLINE float row_maximum(const RowTile& t, Vec scale) {
  const Floats f;
  Vec top = hn::Set(f, kEmptyRow);
  for (i64 j = t.low; j < t.high; j += lanes()) {
    Vec s = scaled_score<kBias>(t, scale, j, hn::Zero(f));
    if constexpr (kMasked) s = hn::IfThenElse(allowed_lanes(t.allowed + j), s, hn::Set(f, kEmptyRow));
    top = hn::Max(top, s);
  }
  return hn::GetLane(hn::MaxOfLanes(f, top));
}

template <bool kBias, bool kMasked>
HWY_INLINE void row_probabilities(const RowTile& t, Vec scale, float max, float* sums) {
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

template <bool kBias, bool kMasked>
HWY_INLINE void softmax_row(const RowTile& t, float scale, float& max, float* sums, float* o, i64 n) {
  const Floats f;
  const float top = row_maximum<kBias, kMasked>(t, hn::Set(f, scale));
  if (kMasked && top == kEmptyRow) {
    for (i64 j = t.low; j < t.high; j += lanes()) hn::Store(hn::Zero(f), f, t.scores + j);
    return;
  }
  if (!(top <= max)) {
    if (max != kEmptyRow) {
      const float by = std::exp(max - top);
      rescale(sums, kPad, by);
      rescale(o, n, by);
    }
    max = top;
  }
  row_probabilities<kBias, kMasked>(t, hn::Set(f, scale), max, sums);
}

template <bool kBias>
HWY_NOINLINE void softmax_strip(const Head& head, const Dropout& dropout, ForwardState& state, i64 q0, i64 k0, i64 s, i64 rows, float* o) {
  const i64 n = head.size->dvp, end = std::min((s + 1) * kStrip, rows);
  const auto run = state.mask.masked ? softmax_row<kBias, true> : softmax_row<kBias, false>;
  for (i64 i = s * kStrip; i < end; ++i) {
    if (dropout.on) dropout_factors(dropout, state.row_keys[i], head, k0, state.factor);
    const RowTile t{state.scores + i * kTile, state.bias + i * kTile, state.mask.allowed + i * kTile, dropout.on ? state.factor : nullptr,
                    state.mask.low[s],        state.mask.high[s]};
    run(t, static_cast<float>(head.a->scale), state.max[i], state.sums + i * kPad, o + i * n, n);
  }
}

HWY_INLINE void finish_row(const Sizes& size, ForwardState& state, i64 i, const float* sum, float* out, float* row_max, float* row_lse) {
  if (state.max[i] == kEmptyRow) {
    std::fill(out, out + size.dv, 0.0f);
    *row_max = kEmptyRow;
    *row_lse = 0.0f;
    return;
  }
  float total = 0;
  for (i64 lane = 0; lane < kPad; ++lane) total += state.sums[i * kPad + lane];
  const float by = 1.0f / total;
  for (i64 c = 0; c < size.dv; ++c) out[c] = sum[c] * by;
  *row_max = state.max[i];
  *row_lse = std::log(total);
}

i64 forward_tile(const Head& head, const Dropout& dropout, i64 tile, const std::vector<i64>& key_tiles, ForwardState& state, float* q,
                 float* o, float* out, i64 out_row, float* row_max, float* row_lse) {
  const Sizes& size = *head.size;
  const i64 rows = size.rows(tile), q0 = tile * kTile;
  const bool bias = head.a->biased();
  std::fill(state.max, state.max + kTile, kEmptyRow);
  std::memset(state.sums, 0, sizeof state.sums);
  std::memset(o, 0, static_cast<std::size_t>(kTile * size.dvp) * sizeof(float));
  for (i64 i = 0; dropout.on && i < rows; ++i) state.row_keys[i] = head.row_key(q0 + i);
  head.pack_query_tile(tile, q);
  i64 pairs = 0;
  for (i64 key_tile : key_tiles) {
    if (!state.mask.build(head, tile, key_tile)) continue;
    const TileMask& m = state.mask;
    const i64 k0 = key_tile * kTile, padded = size.padded_keys(key_tile);
    pairs += m.pairs(rows, size.keys(key_tile));
    if (bias) head.fill_bias(tile, key_tile, state.bias);
    const auto softmax = bias ? softmax_strip<true> : softmax_strip<false>;
    for (i64 s = 0; s < kStrips; ++s) {
      const i64 r = s * kStrip, low = m.low[s], n = m.high[s] - low;
      if (n == 0) continue;
      float* scores = state.scores + r * kTile + low;
      strip(q + r * size.dp, size.dp, 1, head.keys_t + k0 * size.d + low, padded, scores, kTile, n, size.d, false);
      softmax(head, dropout, state, q0, k0, s, rows, o);
      strip(scores, kTile, 1, head.v + (k0 + low) * size.dvp, size.dvp, o + r * size.dvp, size.dvp, size.dvp, n, true);
    }
  }
  for (i64 i = 0; i < rows; ++i)
    if (const i64 row = head.query_row(q0 + i); row >= 0)
      finish_row(size, state, i, o + i * size.dvp, out + row * out_row, row_max + row, row_lse + row);
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
    if (dropout.on) dropout_factors(dropout, head.row_keys[q0 + i], head, k0, state.factor);
    const RowTile t{ds, state.bias + i * kTile, state.mask.allowed + i * kTile, dropout.on ? state.factor : nullptr, low, high};
    const auto run = state.mask.masked ? gradient_row<kBias, true> : gradient_row<kBias, false>;
    run(t, p, static_cast<float>(head.a->scale), head.row + q0 + i, all, bias_grad);
  }
}

i64 backward_tile(const Head& head, const Dropout& dropout, i64 tile, i64 key_tile, BackwardState& state, float* dk, float* dv, float* dq,
                  bool bias_grad) {
  if (!state.mask.build(head, tile, key_tile)) return 0;
  const Sizes& size = *head.size;
  const TileMask& m = state.mask;
  const i64 rows = size.rows(tile), q0 = tile * kTile, k0 = key_tile * kTile, padded = size.padded_keys(key_tile);
  const bool bias = head.a->biased();
  if (bias) head.fill_bias(tile, key_tile, state.bias);
  for (i64 s = 0; s < kStrips; ++s) {
    const i64 r = s * kStrip, low = m.low[s], n = m.high[s] - low;
    strip(head.q + (q0 + r) * size.dp, size.dp, 1, head.keys_t + k0 * size.d + low, padded, state.scores + r * kTile + low, kTile, n,
          size.d, false);
    strip(head.d_o + (q0 + r) * size.dvp, size.dvp, 1, head.values_t + k0 * size.dv + low, padded, state.grads + r * kTile + low, kTile, n,
          size.dv, false);
    const auto run = bias ? gradient_strip<true> : gradient_strip<false>;
    run(head, dropout, state, tile, k0, s, padded, bias_grad ? state.bias_grad : nullptr);
  }
  for (i64 s = 0; s < kStrips; ++s) {
    const i64 r = s * kStrip, low = m.low[s];
    if (m.high[s] == 0) continue;
    strip(state.scores + r * kTile + low, kTile, 1, head.keys + (k0 + low) * size.dp, size.dp, dq + (q0 + r) * size.dp, size.dp, size.dp,
          m.high[s] - low, true);
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
namespace tapeformer::kernels::attention_tiles {

HWY_EXPORT(forward_tile);
HWY_EXPORT(backward_tile);

i64 forward_tile(const Head& head, const Dropout& dropout, i64 tile, const std::vector<i64>& key_tiles, ForwardState& state, float* q,
                 float* o, float* out, i64 out_row, float* row_max, float* row_lse) {
  return HWY_DYNAMIC_DISPATCH(forward_tile)(head, dropout, tile, key_tiles, state, q, o, out, out_row, row_max, row_lse);
}

i64 backward_tile(const Head& head, const Dropout& dropout, i64 tile, i64 key_tile, BackwardState& state, float* dk, float* dv, float* dq,
                  bool bias_grad) {
  return HWY_DYNAMIC_DISPATCH(backward_tile)(head, dropout, tile, key_tile, state, dk, dv, dq, bias_grad);
}

}  // namespace tapeformer::kernels::attention_tiles
#endif  // HWY_ONCE
