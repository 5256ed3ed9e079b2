// attention.h: exact softmax attention over sets of keys, tile by tile, forward and backward; nothing of size N x M is allocated.
//   s_ij = scale q_i.k_j + key_bias_j + pair_bias_ij + outer_ij   over j in S_i = pattern AND real key AND (j <= i when causal)
//   o_i = sum_j c_ij exp(s_ij - L_i) v_j,  c_ij = 0 or 1/(1-p) with dropout, else 1;  S_i empty: o_i = 0 and no gradient
// Forward keeps per row the maximum and the log of the sum of exp(s - max) as two numbers; backward recomputes the scores.
// Queries and keys may stand in an order of their own (sorted, chosen, permuted): then a tile is 64 places of that order, patterns speak of
// places, and everything else (masks, biases, causality, dropout, outputs, gradients) of the rows that stand there.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "core/rng.h"
#include "core/shape.h"

namespace tapeformer::kernels {

// Which keys each query may look at, before padding and causality (the engine adds those). Immutable.
class Pattern {
 public:
  enum class Cover { None, Partial, Full };
  virtual ~Pattern() = default;
  // How [q0,q1) x [k0,k1) is covered. Partial is always a correct answer when some pair may be allowed; None and Full must be exact.
  virtual Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const = 0;
  // allowed[j - k0] for keys [k0, k1) of query i. Called for Partial tiles only. allowed comes in filled with 1; clear what is forbidden.
  virtual void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const = 0;
  // Key tiles (of `tile` keys) that query rows [q0,q1) need, ascending, appended to `out`. Default: asks cover() for every tile.
  virtual void key_tiles(i64 b, i64 h, i64 q0, i64 q1, i64 keys, i64 tile, std::vector<i64>& out) const;
  virtual bool same_for_samples() const { return true; }  // cover/row do not depend on b
  virtual bool same_for_heads() const { return true; }    // cover/row do not depend on h
};

// A pattern that is a range of keys for each query: place i sees [first, last) of keys(b, h, i), neither of which falls as i grows. Tiles
// are found from the ranges, in time of what is found. A pattern that forbids keys inside of the ranges overrides row() and cover().
class IntervalPattern : public Pattern {
 public:
  struct Range {
    i64 first, last;
  };
  virtual Range keys(i64 b, i64 h, i64 i) const = 0;
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override;
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override;
  void key_tiles(i64 b, i64 h, i64 q0, i64 q1, i64 keys, i64 tile, std::vector<i64>& out) const override;
};

template <class T>
struct RowsView {  // [B, H, N, d], last stride 1
  T* p = nullptr;
  i64 b = 0, h = 0, n = 0;  // strides in elements; 0 = shared
};

struct Order {             // which row stands at each place, -1 = none; a row stands at one place at most
  const i64* p = nullptr;  // null: row i at place i
  i64 b = 0, h = 0;        // strides; 0 = shared
  i64 rows = 0;            // rows there are
  const i64* head(i64 b_, i64 h_) const { return p ? p + b_ * b + h_ * h : nullptr; }
};
inline constexpr float kEmptyRow = -3.402823466e38f;  // row_max of a row without a key

template <class T>
struct Attention {
  i64 B = 0, H = 0, N = 0, M = 0, d = 0, dv = 0;  // N, M: places
  RowsView<const T> q, k, v;                      // [B,H,N,d] [B,H,M,d] [B,H,M,dv]; here and below N and M are rows where there is an order
  Order query_order, key_order;
  double scale = 1;
  bool causal = false;                       // needs M >= N without an order; key row j is seen by query row i only if j <= i
  const std::uint8_t* query_mask = nullptr;  // [B, N] contiguous, 1 = real; null = all real
  const std::uint8_t* key_mask = nullptr;    // [B, M]
  const Pattern* pattern = nullptr;          // null = every key
  const T* key_bias = nullptr;               // element (b,h,j) at key_bias[b*key_bias_b + h*key_bias_h + j]
  i64 key_bias_b = 0, key_bias_h = 0;
  RowsView<const T> pair_bias;  // element (b,h,i,j) at p[b*b + h*h + i*n + j]; p null = none
  // An outer product of two short vectors of the query: s_ij += left_i[j / period] right_i[j % period]. Not with an order of the keys.
  RowsView<const T> left, right;  // [B,H,N,ceil(M / period)], [B,H,N,period]; left.p null = none
  i64 period = 1;
  double dropout = 0;  // probability; bits are a pure function of (dropout_key, rows[b], h, i, j)
  RngKey dropout_key;
  const i64* rows = nullptr;  // [B] global sample index; null = 0..B-1
  bool biased() const { return key_bias != nullptr || pair_bias.p != nullptr || left.p != nullptr; }
  i64 query_rows() const { return query_order.p ? query_order.rows : N; }
  i64 key_rows() const { return key_order.p ? key_order.rows : M; }
};

// o: [B,H,N,dv] strided, overwritten (padded and empty rows get 0). row_max, row_lse: [B,H,N] contiguous; lse = log sum exp(s - max), 0 for
// an empty row. Rows that stand at no place stay as they are.
template <class T>
void attention_forward(const Attention<T>&, RowsView<T> o, T* row_max, T* row_lse);

// Joins the softmax over some keys (o, row_max, row_lse, as attention_forward leaves them) with that over others, exactly; an empty row
// takes no part. o, more: [B,H,N,dv], the rest [B,H,N] contiguous.
template <class T>
void attention_merge(i64 B, i64 H, i64 N, i64 dv, RowsView<T> o, T* row_max, T* row_lse, RowsView<const T> more, const T* more_max,
                     const T* more_lse);

template <class T>
struct AttentionGrads {       // overwritten, each strided with last stride 1; p null = not wanted. b or h stride must be real
  RowsView<T> dq, dk, dv;     // full [B,H,...] shapes even where the input is shared (the caller sums)
  T* dkey_bias = nullptr;     // [B,H,M] contiguous
  RowsView<T> dpair_bias;     // added to; strides may be 0 where pair_bias is shared; summed in order of b
  RowsView<T> dleft, dright;  // added to; both or none
  bool add = false;           // everything is added to; rows that stand at no place stay as they are
};
// o, row_max and row_lse may come from a softmax over more keys than these: several patterns without a pair in common are merged so.
template <class T>
void attention_backward(const Attention<T>&, RowsView<const T> o, const T* row_max, const T* row_lse, RowsView<const T> d_o,
                        const AttentionGrads<T>&);

// The same by plain loops that build each row's set from Pattern::row alone, in double; the oracle for tests. Also the f64 path.
template <class T>
void attention_forward_reference(const Attention<T>&, RowsView<T> o, T* row_max, T* row_lse);
template <class T>
void attention_backward_reference(const Attention<T>&, RowsView<const T> o, const T* row_max, const T* row_lse, RowsView<const T> d_o,
                                  const AttentionGrads<T>&);

}  // namespace tapeformer::kernels
