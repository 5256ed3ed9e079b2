// The plain loops behind attention.h: each row's set of keys is built from Pattern::row alone, sums are in double.
#include <cmath>

#include "core/counters.h"
#include "core/kernels/attention.h"
#include "core/kernels/attention_dropout.h"
#include "core/parallel.h"

namespace tapeformer::kernels {
namespace {

template <class T>
const T* row_of(const RowsView<const T>& x, i64 b, i64 h, i64 i) {
  return x.p + b * x.b + h * x.h + i * x.n;
}
template <class T>
T* row_of(const RowsView<T>& x, i64 b, i64 h, i64 i) {
  return x.p + b * x.b + h * x.h + i * x.n;
}

template <class T>
double dot(const T* x, const T* y, i64 n) {
  double sum = 0;
  for (i64 c = 0; c < n; ++c) sum += double(x[c]) * double(y[c]);
  return sum;
}

template <class T>
class Row {  // the keys that the query at place i looks at, with scores and dropout factors
 public:
  i64 query = -1;         // its row; -1: none stands there
  std::vector<i64> keys;  // rows
  std::vector<double> score, factor;

  void build(const Attention<T>& a, i64 b, i64 h, i64 i) {
    const i64 *queries = a.query_order.head(b, h), *order = a.key_order.head(b, h);
    query = queries ? queries[i] : i;
    keys.clear();
    score.clear();
    factor.clear();
    if (query < 0) return;
    allow(a, b, h, i);
    const RowDropout dropout(a.dropout, a.dropout_key, a.rows ? a.rows[b] : b, h, query);
    for (i64 place = 0; place < a.M; ++place) {
      const i64 j = order ? order[place] : place;
      if (!allowed_[place] || j < 0 || (a.causal && j > query) || (a.key_mask && !a.key_mask[b * a.key_rows() + j])) continue;
      double s = a.scale * dot(row_of(a.q, b, h, query), row_of(a.k, b, h, j), a.d);
      if (a.key_bias) s += double(a.key_bias[b * a.key_bias_b + h * a.key_bias_h + j]);
      if (a.pair_bias.p) s += double(row_of(a.pair_bias, b, h, query)[j]);
      if (a.left.p) s += double(row_of(a.left, b, h, query)[j / a.period]) * double(row_of(a.right, b, h, query)[j % a.period]);
      keys.push_back(j);
      score.push_back(s);
      factor.push_back(dropout.factor(j));
    }
  }

 private:
  void allow(const Attention<T>& a, i64 b, i64 h, i64 i) {
    const bool real = a.query_mask == nullptr || a.query_mask[b * a.query_rows() + query];
    allowed_.assign(static_cast<std::size_t>(a.M), real ? 1 : 0);
    if (real && a.pattern) a.pattern->row(b, h, i, 0, a.M, allowed_.data());
  }
  std::vector<std::uint8_t> allowed_;
};

template <class T>
void forward_row(const Attention<T>& a, const Row<T>& row, i64 b, i64 h, const RowsView<T>& o, T& row_max, T& row_lse) {
  std::vector<double> sum(static_cast<std::size_t>(a.dv), 0.0);
  row_max = T(kEmptyRow);
  row_lse = T(0);
  if (!row.keys.empty()) {
    row_max = static_cast<T>(*std::max_element(row.score.begin(), row.score.end()));
    double total = 0;
    for (double s : row.score) total += std::exp(s - double(row_max));
    row_lse = static_cast<T>(std::log(total));
    for (std::size_t x = 0; x < row.keys.size(); ++x) {
      const double p = row.factor[x] * std::exp(row.score[x] - double(row_max)) / total;
      const T* v = row_of(a.v, b, h, row.keys[x]);
      for (i64 c = 0; c < a.dv; ++c) sum[c] += p * double(v[c]);
    }
  }
  T* out = row_of(o, b, h, row.query);
  for (i64 c = 0; c < a.dv; ++c) out[c] = static_cast<T>(sum[c]);
}

template <class T>
void put(T& to, double value, bool add) {
  to = static_cast<T>(add ? double(to) + value : value);
}

template <class T>
struct HeadGrads {
  std::vector<double> dk, dv, dbias;
};

template <class T>
void backward_row(const Attention<T>& a, const Row<T>& row, i64 b, i64 h, const RowsView<const T>& o, T row_max, T row_lse,
                  const RowsView<const T>& d_o, const AttentionGrads<T>& grads, HeadGrads<T>& sums) {
  const i64 i = row.query;
  std::vector<double> dq(static_cast<std::size_t>(a.d), 0.0);
  const T *go = row_of(d_o, b, h, i), *q = row_of(a.q, b, h, i);
  const double through = row.keys.empty() ? 0 : dot(go, row_of(o, b, h, i), a.dv);
  for (std::size_t x = 0; x < row.keys.size(); ++x) {
    const i64 j = row.keys[x];
    const double p = std::exp(row.score[x] - double(row_max) - double(row_lse));
    const T *k = row_of(a.k, b, h, j), *v = row_of(a.v, b, h, j);
    const double ds = p * (row.factor[x] * dot(go, v, a.dv) - through);
    for (i64 c = 0; c < a.dv; ++c) sums.dv[j * a.dv + c] += row.factor[x] * p * double(go[c]);
    for (i64 c = 0; c < a.d; ++c) {
      sums.dk[j * a.d + c] += a.scale * ds * double(q[c]);
      dq[c] += a.scale * ds * double(k[c]);
    }
    sums.dbias[j] += ds;
    if (grads.dpair_bias.p) row_of(grads.dpair_bias, b, h, i)[j] += static_cast<T>(ds);
    if (grads.dleft.p) {
      const i64 u = j / a.period, w = j % a.period;
      row_of(grads.dleft, b, h, i)[u] += static_cast<T>(ds * double(row_of(a.right, b, h, i)[w]));
      row_of(grads.dright, b, h, i)[w] += static_cast<T>(ds * double(row_of(a.left, b, h, i)[u]));
    }
  }
  if (grads.dq.p) {
    for (i64 c = 0; c < a.d; ++c) put(row_of(grads.dq, b, h, i)[c], dq[c], grads.add);
  }
}

template <class T>
void backward_head(const Attention<T>& a, i64 b, i64 h, const RowsView<const T>& o, const T* row_max, const T* row_lse,
                   const RowsView<const T>& d_o, const AttentionGrads<T>& grads) {
  const auto zeros = [](i64 n) { return std::vector<double>(static_cast<std::size_t>(n), 0.0); };
  const i64 M = a.key_rows();
  const i64* order = a.key_order.head(b, h);
  HeadGrads<T> sums{zeros(M * a.d), zeros(M * a.dv), zeros(M)};
  Row<T> row;
  for (i64 i = 0; i < a.N; ++i) {
    row.build(a, b, h, i);
    if (row.query < 0) continue;
    const i64 at = (b * a.H + h) * a.query_rows() + row.query;
    backward_row(a, row, b, h, o, row_max[at], row_lse[at], d_o, grads, sums);
  }
  for (i64 place = 0; place < a.M; ++place) {
    const i64 j = order ? order[place] : place;
    if (j < 0) continue;
    for (i64 c = 0; c < a.d && grads.dk.p; ++c) put(row_of(grads.dk, b, h, j)[c], sums.dk[j * a.d + c], grads.add);
    for (i64 c = 0; c < a.dv && grads.dv.p; ++c) put(row_of(grads.dv, b, h, j)[c], sums.dv[j * a.dv + c], grads.add);
    if (grads.dkey_bias) put(grads.dkey_bias[(b * a.H + h) * M + j], sums.dbias[j], grads.add);
  }
}

}  // namespace

template <class T>
void attention_forward_reference(const Attention<T>& a, RowsView<T> o, T* row_max, T* row_lse) {
  parallel_for(a.B * a.H * a.N, 16, [&](i64 begin, i64 end) {
    Row<T> row;
    for (i64 x = begin; x < end; ++x) {
      const i64 i = x % a.N, h = x / a.N % a.H, b = x / a.N / a.H;
      row.build(a, b, h, i);
      const i64 at = (b * a.H + h) * a.query_rows() + row.query;
      if (row.query >= 0) forward_row(a, row, b, h, o, row_max[at], row_lse[at]);
    }
  });
}

template <class T>
void attention_backward_reference(const Attention<T>& a, RowsView<const T> o, const T* row_max, const T* row_lse, RowsView<const T> d_o,
                                  const AttentionGrads<T>& grads) {
  const auto& pair = grads.dpair_bias;
  const bool shared = pair.p != nullptr && ((a.B > 1 && pair.b == 0) || (a.H > 1 && pair.h == 0));
  parallel_for(a.B * a.H, shared ? a.B * a.H : 1, [&](i64 begin, i64 end) {
    for (i64 x = begin; x < end; ++x) backward_head(a, x / a.H, x % a.H, o, row_max, row_lse, d_o, grads);
  });
}

template void attention_forward_reference(const Attention<float>&, RowsView<float>, float*, float*);
template void attention_forward_reference(const Attention<double>&, RowsView<double>, double*, double*);
template void attention_backward_reference(const Attention<float>&, RowsView<const float>, const float*, const float*,
                                           RowsView<const float>, const AttentionGrads<float>&);
template void attention_backward_reference(const Attention<double>&, RowsView<const double>, const double*, const double*,
                                           RowsView<const double>, const AttentionGrads<double>&);

}  // namespace tapeformer::kernels
