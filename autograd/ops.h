// ops.h: every differentiable function, one page. Tensors are f32 or f64 unless said otherwise; f64 is the reference path. Ops are pure,
// check their inputs (ShapeError "[op] ..."), and record themselves on the current tape. Negative axes count from the end.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/kernels/graph_attention.h"
#include "core/kernels/linear_attention.h"
#include "core/kernels/recurrent.h"
#include "core/rng.h"
#include "core/tensor.h"

namespace tapeformer::ops {

// Arithmetic with NumPy broadcasting.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);  // the gradient goes to the larger; halves where equal
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor scale(const Tensor& x, double factor, double shift = 0);  // factor x + shift
Tensor pow(const Tensor& x, double exponent);
Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor sin(const Tensor& x);
Tensor cos(const Tensor& x);

// Comparisons give u8, 1 = true, and take no part in gradients.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);  // u8 condition; all three broadcast
Tensor mask_rows(const Tensor& x, const Tensor& mask);  // x [..., D], u8 mask [...]: rows with mask 0 become exactly 0 and get no gradient

// Activations.
Tensor relu(const Tensor& x);
Tensor gelu(const Tensor& x);  // x Phi(x), exact
Tensor gelu_tanh(const Tensor& x);
Tensor silu(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor elu(const Tensor& x);
Tensor elu1(const Tensor& x);  // elu(x) + 1, positive
Tensor softplus(const Tensor& x);

// Products.
Tensor matmul(const Tensor& a, const Tensor& b);  // [..., m, k] x [..., k, n] -> [..., m, n]; leading axes broadcast; any strides
Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias = {});  // [..., in] x [in, out] (+ [out]) -> [..., out]

// Reductions. Empty axes = all. keep: reduced axes stay with size 1.
Tensor sum(const Tensor& x, std::vector<int> axes = {}, bool keep = false);
Tensor mean(const Tensor& x, std::vector<int> axes = {}, bool keep = false);
Tensor max(const Tensor& x, int axis, bool keep = false);  // the first of equal maxima gets the gradient
Tensor cumsum(const Tensor& x, int axis);
Tensor softmax(const Tensor& x, const Tensor& keep = {});      // last axis; keep: u8 [..., n], 0 = weight exactly 0
Tensor log_softmax(const Tensor& x, const Tensor& keep = {});  // last axis; columns with keep 0 give 0 and take no part

// Norms over the last axis.
Tensor layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double eps = 1e-5);
Tensor rms_norm(const Tensor& x, const Tensor& gain, double eps = 1e-6);

// Look-ups and randomness.
Tensor embedding(const Tensor& table, const Tensor& ids);                               // [V, D], i64 [...] -> [..., D]
Tensor dropout(const Tensor& x, double p, RngKey key, std::span<const i64> rows = {});  // axis 0 is the sample; rows: global sample indices

// Shape. Views where strides allow.
Tensor reshape(const Tensor& x, Shape shape);
Tensor reshape(const Tensor& x, std::initializer_list<i64> shape);  // one size may be -1
Tensor permute(const Tensor& x, std::vector<int> axes);
Tensor transpose(const Tensor& x, int a, int b);
Tensor slice(const Tensor& x, int axis, i64 from, i64 to);
Tensor concat(const std::vector<Tensor>& parts, int axis);
Tensor pad(const Tensor& x, int axis, i64 before, i64 after, double value = 0);
Tensor expand(const Tensor& x, Shape shape);                    // broadcast view
Tensor gather(const Tensor& x, int axis, const Tensor& index);  // i64 index of shape [m]: y[.., i, ..] = x[.., index_i, ..]; -1 gives 0
Tensor gather_along(const Tensor& x, const Tensor& index);      // x [..., n, D], i64 index [..., m] -> [..., m, D]; -1 gives 0
Tensor scatter_add(const Tensor& x, int axis, const Tensor& index, i64 size);  // y[.., index_i, ..] += x[.., i, ..]; -1 is left out
Tensor scatter_along(const Tensor& x, const Tensor& index,
                     i64 size);                  // x [..., m, D], i64 [..., m] -> [..., size, D], sums; -1 is left out
Tensor split_heads(const Tensor& x, i64 heads);  // [B, N, H d] -> [B, H, N, d] view
Tensor merge_heads(const Tensor& x);             // [B, H, N, d] -> [B, N, H d]

// Convolutions, channels last, cross-correlation.
struct ConvOptions {
  i64 stride = 1, dilation = 1, groups = 1;
  i64 pad_before = 0, pad_after = 0;
};
Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& = {});  // [B,N,Ci], [Co,Ci/g,K] -> [B,N',Co]
struct Conv2dOptions {
  i64 stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1, groups = 1;
  i64 pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;
};
Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias,
              const Conv2dOptions& = {});  // [B,H,W,Ci], [Co,Ci/g,Kh,Kw] -> [B,H',W',Co]

// Losses are sums; divide by the count at the end (see Model).
struct CrossEntropyOptions {
  i64 ignore = -100;
  double smoothing = 0;  // (1 - s) on the target, s / C on every class
  Tensor class_weights;  // [C] or undefined
};
Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& = {});  // [..., C], i64 [...] -> []
Tensor binary_cross_entropy(const Tensor& logits, const Tensor& targets);                            // same shapes, targets 0..1 -> []
Tensor mean_squared_error(const Tensor& x, const Tensor& target);                                    // sum of squares -> []

// softmax(scale q k^T + biases) v on the tile engine; nothing N x M is allocated (core/kernels/attention.h).
struct AttentionOptions {
  std::optional<double> scale;  // default 1 / sqrt(d)
  bool causal = false;
  Tensor query_mask, key_mask;                      // u8 [B, N], [B, M], 1 = real
  std::shared_ptr<const kernels::Pattern> pattern;  // null = every key
  Tensor key_bias;                                  // [B or 1, H or 1, M]
  Tensor pair_bias;                                 // [B or 1, H or 1, N, M]
  Tensor outer_left, outer_right;                   // [B, H, N, a], [B, H, N, c], a c >= M: s_ij += left_i[j / c] right_i[j % c]
  double dropout = 0;
  RngKey key{0};
  std::span<const i64> rows;  // global sample indices
};
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v,
                 const AttentionOptions& = {});  // [B,H,N,d] [.,.,M,d] [.,.,M,dv]; batch and head axes of k, v may be 1

// Softmax attention of each node over the sources of its edges (core/kernels/graph_attention.h), in time E (d + dv).
struct GraphAttentionOptions {
  std::shared_ptr<const kernels::EdgeIndex> edges;  // for as many nodes as q has rows; one graph for all samples, or one a sample
  std::optional<double> scale;                      // default 1 / sqrt(d)
  bool additive = false;                            // d = 1: scores are LeakyReLU(q_i + k_j)
  double negative_slope = 0.2;
  Tensor mask;       // u8 [B, N], 1 = real
  Tensor edge_bias;  // [H, E], one value for each given edge; not with additive
  double dropout = 0;
  RngKey key{0};
  std::span<const i64> rows;  // global sample indices
};
Tensor graph_attention(const Tensor& q, const Tensor& k, const Tensor& v, const GraphAttentionOptions&);  // [B,H,N,d] .. -> [B,H,N,dv]

// One softmax a row over the union of several sets of pairs, each run by the tile engine in an order of its own: sorted, chosen, permuted.
// No pair may be in two parts; one that is in m of them weighs m times. Masks, biases, causality and dropout go by the rows of q and k as
// in attention(), which this equals. options.pattern stays null.
struct AttentionPart {
  Tensor queries, keys;  // i64 [places] or [B or 1, H or 1, places]: the row of q (of k and v) at each place, at most once, -1 = none;
                         // undefined = every row in its order
  std::shared_ptr<const kernels::Pattern> pattern;  // of places; null = every pair
};
// empty: set to u8 [B,H,N], 1 = a real row without a key in any part.
Tensor attention_parts(const Tensor& q, const Tensor& k, const Tensor& v, std::vector<AttentionPart> parts, const AttentionOptions& = {},
                       Tensor* empty = nullptr);

// o_i = sum_j (phi(q_i).phi(k_j)) v_j / denominator_i over real keys j (j <= i when causal), in time N d dv
// (core/kernels/linear_attention.h has the forms and denominators). Padded rows give 0.
struct LinearAttentionOptions {
  Tensor mask;                                               // u8 [B, N], 1 = real
  kernels::LinearForm form = kernels::LinearForm::Features;  // q and k are features (not negative when normalize is on), or exponents
  bool causal = false, normalize = true;
  double eps = 1e-6, scale = 1;  // Features. scale: instead of the denominator when normalize is off
  std::optional<double> floor;   // Features: the denominator is at least floor times the number of visible keys, instead of + eps
  Tensor gate;                   // Features, causal: logits [B, H, N]; the state and the number of keys decay by sigmoid(gate)
  i64 chunk = 64;
  Tensor S0, z0;  // Features, causal: [B,H,d,dv], [B,H,d]: the state to start from
};
struct LinearAttentionState {
  Tensor S, z;
};
Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionOptions& = {},
                        LinearAttentionState* last = nullptr);  // last: Features alone

// x [..., d] -> [..., C(d + degree, degree)]: every monomial x^a / sqrt(a!) up to the degree, 1 first, so that the products of the rows of
// x and y are sum over n <= degree of (x.y)^n / n!.
Tensor monomials(const Tensor& x, i64 degree);

// y_i = sum_j exp(w_ij + k_j) v_j / sum_j exp(w_ij + k_j) over real keys j (j <= i when causal), feature by feature: the weights are a
// table of positions and the keys themselves, without a product of queries and keys (core/kernels/position_attention.h). k, v [B, H, N, d];
// k undefined = 0. Padded rows give 0.
struct PositionAttentionOptions {
  Tensor mask;  // u8 [B, N], 1 = real
  bool causal = false;
  std::optional<i64> reach;  // w is a band: see below
};
// w undefined = 0; [H or 1, N, N]; or with a reach r [H or 1, N or 1, 2 r + 1]: w_ij stands at j - i + r, and is 0 beyond the band.
Tensor position_attention(const Tensor& w, const Tensor& k, const Tensor& v, const PositionAttentionOptions& = {});

// Re(DFT over positions (DFT over features (x))), x [B, N, D] (core/kernels/fourier.h). Padded rows give 0.
struct FourierOptions {
  Tensor mask;        // u8 [B, N], 1 = real
  bool ortho = true;  // times (L D)^-1/2, L positions
  bool trim = true;   // over a sample's real rows in their order; otherwise over all, with padding as zeros
};
Tensor fourier_mix(const Tensor& x, const FourierOptions& = {});

// Hidden states of a recurrent network from zero states (core/kernels/recurrent.h): gi [B, N, G H] = W_ih x + b_ih, w_hh [G H, H],
// b_hh [G H] -> [B, N, H]; G = 1 for rnn, 4 for lstm, 3 for gru. A padded step keeps the state and gives 0.
struct RecurrentOptions {
  kernels::Cell cell = kernels::Cell::Lstm;
  bool reverse = false;  // from the last position to the first
  Tensor mask;           // u8 [B, N], 1 = real
};
Tensor recurrent(const Tensor& gi, const Tensor& w_hh, const Tensor& b_hh, const RecurrentOptions& = {});

// `value` forward; the gradient goes to `soft` unchanged (Bengio et al. 2013, straight-through estimator).
Tensor straight_through(const Tensor& value, const Tensor& soft);

}  // namespace tapeformer::ops
