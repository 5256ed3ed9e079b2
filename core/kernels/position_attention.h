// position_attention.h: attention whose weights are a table of positions plus the keys themselves, feature by feature:
//   y_i = sum_j exp(w_ij + k_j) v_j / sum_j exp(w_ij + k_j)   over real keys j (j <= i when causal), everything by feature
// (Zhai et al. 2021, eq. 2; without k: Tay et al. 2021, random synthesizer). exp(w) does not depend on the sample, so a tile of it
// multiplies the rows [exp(k) v, exp(k)] of many samples at once; nothing of size N x N x d exists, nor N x N. Where w is 0 (beyond
// `reach`, or everywhere) a tile needs only the sum of its rows, before and after the band: time N (reach + 64) d.
#pragma once
#include <cstdint>

#include "core/kernels/attention.h"

namespace tapeformer::kernels {

template <class T>
struct PositionAttention {
  enum class Table { None, Full, Band };
  i64 B = 0, H = 0, N = 0, d = 0;
  RowsView<const T> k, v;              // [B,H,N,d]; k.p null = 0
  const std::uint8_t* mask = nullptr;  // [B, N], 1 = real; null = all real
  bool causal = false;
  Table table = Table::None;
  const T* w = nullptr;        // Full: element (g, i, j) at w[g w_group + i w_row + j]
  i64 w_group = 0, w_row = 0;  // Band: at w[g w_group + i w_row + j - i + reach] where |j - i| <= reach, 0 elsewhere
  i64 groups = 1;              // tables: one for all heads, or H
  i64 reach = 0;
  i64 denominators() const { return k.p ? d : 1; }
};

// y [B,H,N,d], overwritten; padded rows and rows without a key 0. den [B,H,N,denominators()] contiguous: the sum relative to the maxima of
// the table's row and of the keys; 0 = no key; -1 = it vanished there (below 1e-30), and y comes from a loop over the row with its own
// maximum.
template <class T>
void position_attention(const PositionAttention<T>&, RowsView<T> y, T* den);

template <class T>
struct PositionAttentionGrads {
  RowsView<T> dk, dv;  // overwritten; dk.p null = not wanted
  T* dw = nullptr;     // of zeros, addressed as w by the two strides below; null = not wanted
  i64 dw_group = 0, dw_row = 0;
};
template <class T>
void position_attention_grad(const PositionAttention<T>&, RowsView<const T> y, const T* den, RowsView<const T> dy,
                             const PositionAttentionGrads<T>&);

}  // namespace tapeformer::kernels
