// attention_simd.h: the arithmetic of one tile, in vector code chosen at run time for the CPU.
#pragma once
#include <vector>

#include "core/kernels/attention_head.h"

namespace tapeformer::kernels::attention_tiles {

struct Dropout {  // factors of one row are made tile by tile from the row's key
  bool on = false;
  std::int32_t threshold = 0;  // of 16 random bits
  float scale = 1;
};

struct ForwardState {  // of one query tile; lives in scratch memory
  alignas(64) float scores[kTile * kTile];
  alignas(64) float bias[kTile * kTile];
  alignas(64) float sums[kTile * kPad];  // lane by lane, added up at the end
  alignas(64) float factor[kTile];
  float max[kTile];
  std::uint64_t row_keys[kTile];  // dropout
  TileMask mask;
};

struct BackwardState {                      // of one key tile
  alignas(64) float scores[kTile * kTile];  // then dS
  alignas(64) float grads[kTile * kTile];   // dO V^T, then c P
  alignas(64) float bias[kTile * kTile];
  alignas(64) float factor[kTile];
  alignas(64) float bias_grad[kTile];
  TileMask mask;
};

// One tile of queries against all keys they see. q: [64, dp] and o: [64, dvp] are scratch; out, row_max and row_lse are the head's, by
// row. Returns the pairs computed.
i64 forward_tile(const Head& head, const Dropout& dropout, i64 tile, const std::vector<i64>& key_tiles, ForwardState& state, float* q,
                 float* o, float* out, i64 out_row, float* row_max, float* row_lse);

// The products of one tile: dk and dv of the key tile, and dq (all rows of the head), are added to. Returns the pairs
// computed; when there are any, state.scores holds dS.
i64 backward_tile(const Head& head, const Dropout& dropout, i64 tile, i64 key_tile, BackwardState& state, float* dk, float* dv, float* dq,
                  bool bias_grad);

}  // namespace tapeformer::kernels::attention_tiles
