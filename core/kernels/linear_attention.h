// linear_attention.h: the reordered product of kernel feature maps, o_i = S_i^T q_i / (z_i.q_i + eps) with S_i = sum_j k_j v_j^T and
// z_i = sum_j k_j over all real keys, or over j <= i in chunks of prefix sums (Katharopoulos et al. 2020, eq. 4-12). q and k are features
// already. Time N d dv; between chunks only [d, dv] states are kept.
#pragma once
#include <cstdint>

#include "core/kernels/attention.h"

namespace tapeformer::kernels {

template <class T>
struct LinearAttention {
  i64 B = 0, H = 0, N = 0, d = 0, dv = 0;
  RowsView<const T> q, k, v;           // [B,H,N,d] [B,H,N,d] [B,H,N,dv]
  const std::uint8_t* mask = nullptr;  // [B, N], 1 = real; null = all real
  bool causal = false;
  bool normalize = true;  // false: no denominator, times scale
  double eps = 1e-6, scale = 1;
  i64 chunk = 64;                        // causal block length; changes rounding only
  const T *S0 = nullptr, *z0 = nullptr;  // state before the first token, [B,H,d,dv] and [B,H,d] contiguous; causal only
};

// o [B,H,N,dv]; den [B,H,N] contiguous (z.q + eps; 1 when not normalised). S, z: the state after the last token, or null.
template <class T>
void linear_attention(const LinearAttention<T>&, RowsView<T> o, T* den, T* S, T* z);

template <class T>
struct LinearAttentionGrads {
  RowsView<T> dq, dk, dv;            // overwritten
  T *dS0 = nullptr, *dz0 = nullptr;  // null = not wanted
};
template <class T>
void linear_attention_grad(const LinearAttention<T>&, RowsView<const T> o, const T* den, RowsView<const T> d_o,
                           const LinearAttentionGrads<T>&);

}  // namespace tapeformer::kernels
