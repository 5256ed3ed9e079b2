// attention_head.h: one head of one sample prepared for the tile engine of attention.cpp: packed operands, which pairs
// of a tile are allowed, and which tiles need computing. Nothing here is vector code.
#pragma once
#include <algorithm>
#include <vector>

#include "core/kernels/attention.h"

namespace tapeformer::kernels::attention_tiles {

inline constexpr i64 kTile = 64;  // queries and keys of a tile
inline constexpr i64 kStrip = 8;  // rows of a tile that are computed together
inline constexpr i64 kStrips = kTile / kStrip;
inline constexpr i64 kPad = 16;  // packed rows are padded with zeros to a multiple of this many floats

inline i64 round_up(i64 n, i64 unit) { return (n + unit - 1) / unit * unit; }
inline i64 tiles_of(i64 n) { return (n + kTile - 1) / kTile; }

struct Sizes {
  i64 N, M, d, dv, dp, dvp, q_tiles, k_tiles;
  explicit Sizes(const Attention<float>& a)
      : N(a.N),
        M(a.M),
        d(a.d),
        dv(a.dv),
        dp(round_up(a.d, kPad)),
        dvp(round_up(a.dv, kPad)),
        q_tiles(tiles_of(a.N)),
        k_tiles(tiles_of(a.M)) {}
  i64 rows(i64 tile) const { return std::min(kTile, N - tile * kTile); }
  i64 keys(i64 tile) const { return std::min(kTile, M - tile * kTile); }
  i64 padded_keys(i64 tile) const { return round_up(keys(tile), kPad); }
};

// Packed operands of one head, in memory the caller owns. Padding, padded queries and padded keys are zero, so that
// what stands in them (NaN included) reaches nothing.
struct Head {
  const Attention<float>* a = nullptr;
  const Sizes* size = nullptr;
  i64 b = 0, h = 0;
  RngKey dropout_key;
  const i64 *query_order = nullptr, *key_order = nullptr;  // row at each place; null = the place's own number
  float* keys_t = nullptr;                                 // per key tile [d, padded keys of the tile], at tile * d * 64
  float* v = nullptr;                                      // forward: [k_tiles * 64, dvp]
  float* q = nullptr;                                      // backward, here and below: [q_tiles * 64, dp]
  float* keys = nullptr;                                   // [k_tiles * 64, dp]
  float* values_t = nullptr;                               // per key tile [dv, padded keys], at tile * dv * 64
  float* d_o = nullptr;                                    // [q_tiles * 64, dvp]
  float* row = nullptr;                                    // three arrays [q_tiles * 64]: maximum, log-sum, sum of o d_o
  std::uint64_t* row_keys = nullptr;                       // [q_tiles * 64], for dropout
  // Pattern only: query tiles that need key tile t are users[starts[t]] ... users[starts[t + 1] - 1], ascending.
  std::vector<i64> starts, users;

  static i64 forward_floats(const Sizes&);
  static i64 backward_floats(const Sizes&);
  void place_forward(float* memory);
  void place_backward(float* memory);
  void pack_query_tile(i64 tile, float* to) const;  // [64, dp]
  void pack_key_tile(i64 tile) const;               // keys_t and v
  void pack_key_tile_backward(i64 tile) const;
  void pack_query_tile_backward(i64 tile, RowsView<const float> o, const float* row_max, const float* row_lse,
                                RowsView<const float> d_o) const;
  void fill_bias(i64 query_tile, i64 key_tile, float* to) const;  // [64, 64]
  void add_outer(i64 query_tile, i64 key_tile, float* to) const;  // the outer product, added to the bias
  void add_outer_grads(i64 query_tile, i64 key_tile, const float* ds, const AttentionGrads<float>& grads) const;
  void key_tiles(i64 query_tile, std::vector<i64>& out) const;
  void find_users();

  bool ordered() const { return query_order != nullptr || key_order != nullptr; }
  i64 query_row(i64 i) const { return query_order ? query_order[i] : i; }
  i64 key_row(i64 j) const { return key_order ? key_order[j] : j; }
  // The row at a place, -1 where it is padding or none.
  i64 real_query(i64 i) const { return real_row(query_row(i), a->query_mask, a->query_rows()); }
  i64 real_key(i64 j) const { return real_row(key_row(j), a->key_mask, a->key_rows()); }
  std::uint64_t row_key(i64 i) const { return dropout_key.fold_in(static_cast<std::uint64_t>(query_row(i))).value(); }

 private:
  i64 real_row(i64 row, const std::uint8_t* mask, i64 rows) const {
    return row < 0 || mask == nullptr || mask[b * rows + row] != 0 ? row : -1;
  }
};

// The allowed pairs of one tile. Strip s is computed for keys [low[s], high[s]) of the tile, multiples of kPad.
struct TileMask {
  bool masked = false;  // false: every pair of the tile is allowed
  i64 low[kStrips], high[kStrips];
  alignas(64) std::uint8_t allowed[kTile * kTile];  // when masked: 1 = allowed, row by row

  bool build(const Head&, i64 query_tile, i64 key_tile);  // false when no pair is allowed
  // Query rows [first, last) of the strips that look at keys [8 s, 8 s + 8).
  void query_range(i64 key_strip, i64 rows, i64& first, i64& last) const;
  i64 pairs(i64 rows, i64 keys) const;

 private:
  void fill(const Head&, i64 q0, i64 k0, i64 rows, i64 keys, bool pattern, bool causal);
  void forget_later_rows(const Head&, i64 q0, i64 k0, i64 rows, i64 keys);
  bool shrink(i64 rows, i64 keys);
};

}  // namespace tapeformer::kernels::attention_tiles
