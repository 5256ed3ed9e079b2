// linear_attention.h: the reordered product of kernel features: o_i = (sum_j phi(q_i).phi(k_j) v_j) / denominator_i over all real keys, or
// over j <= i, with running sums S_i = sum_j phi(k_j) v_j^T and z_i = sum_j phi(k_j) (Katharopoulos et al. 2020, eq. 4-12). Time N d dv,
// memory N (d + dv): a chunk at a time is in work, with the state of everything before it; states of single positions exist nowhere.
#pragma once
#include <cstdint>

#include "core/kernels/attention.h"

namespace tapeformer::kernels {

enum class LinearForm {
  // phi(q) = q, phi(k) = k; z.q + eps, or max(z.q, floor n) with n the number of visible keys, or scale without a denominator.
  Features,
  // phi = exp, divided by z.phi(q). Exact for exponents of any size: keys are relative to their running maximum c per feature, queries to
  // the
  // maximum of q + c (Choromanski et al. 2020, eq. 5, without its epsilon). A key may be -inf in some features.
  Exponents,
  // phi(q) = q, phi(k) = exp(k), and each feature is divided by its own sum: o_i = sum_r q_ir sum_j exp(k_jr) v_j / sum_j exp(k_jr)
  // (Shen et al. 2021, eq. 5).
  PerFeature,
};

template <class T>
struct LinearAttention {
  i64 B = 0, H = 0, N = 0, d = 0, dv = 0;
  RowsView<const T> q, k, v;           // [B,H,N,d] [B,H,N,d] [B,H,N,dv]; d = features
  const std::uint8_t* mask = nullptr;  // [B, N], 1 = real; null = all real
  LinearForm form = LinearForm::Features;
  bool causal = false;
  bool normalize = true;  // Features: false = no denominator, times scale
  double eps = 1e-6, scale = 1;
  double floor = -1;  // Features: >= 0 replaces eps; a denominator that is not positive gives 0
  // Features, causal: logits [B,H,N] of a gate g: the state decays by g and the key comes in with 1 - g; n likewise (Peng et al. 2021,
  // eq. 7). Padding leaves the state alone.
  const T* gate = nullptr;
  i64 chunk = 64;                        // causal block length; changes rounding only
  const T *S0 = nullptr, *z0 = nullptr;  // Features, causal: state before the first token, [B,H,d,dv] and [B,H,d] contiguous
};

template <class T>
struct LinearSaved {                           // what backward needs beside the inputs and o, all contiguous
  T* den = nullptr;                            // [B,H,N] the denominator; 1 where there is none
  T* top = nullptr;                            // [B,H,N] Exponents: what the query's exponents are relative to
  T *S = nullptr, *z = nullptr, *c = nullptr;  // without causality: the sums [B,H,d,dv], [B,H,d]; c [B,H,d] where keys are exponents
};

// o [B,H,N,dv]. S, z: the state after the last token, or null (Features).
template <class T>
void linear_attention(const LinearAttention<T>&, RowsView<T> o, const LinearSaved<T>&, T* S, T* z);

template <class T>
struct LinearAttentionGrads {
  RowsView<T> dq, dk, dv;            // overwritten; dk: p null = not wanted, not with a gate
  T *dS0 = nullptr, *dz0 = nullptr;  // null = not wanted
  T* dgate = nullptr;                // [B,H,N]
};
template <class T>
void linear_attention_grad(const LinearAttention<T>&, RowsView<const T> o, const LinearSaved<T>&, RowsView<const T> d_o,
                           const LinearAttentionGrads<T>&);

}  // namespace tapeformer::kernels
