// attention.cpp: scaled dot-product attention over a pattern of keys, or over several without a pair in common, each in its own order, on
// the tile engine (core/kernels/attention.h).
#include "core/kernels/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "autograd/rows_view.h"

namespace tapeformer::ops {
namespace {

kernels::Order order_of(const Tensor& index, i64 rows) {  // [N'] or [B or 1, H or 1, N'], contiguous
  if (!index.defined()) return {};
  const bool own = index.rank() == 3;
  return {index.ptr<i64>(), own && index.dim(0) > 1 ? index.stride(0) : 0, own && index.dim(1) > 1 ? index.stride(1) : 0, rows};
}

struct Problem {   // what forward and backward share
  Tensor q, k, v;  // expanded to [B, H, ...]
  std::vector<AttentionPart> parts;
  AttentionOptions o;
  std::vector<i64> rows;
  Shape k_shape, v_shape, key_bias_shape, pair_bias_shape;

  template <class T>
  kernels::Attention<T> args(const AttentionPart& part, const Tensor& q_, const Tensor& k_, const Tensor& v_) const {
    kernels::Attention<T> a;
    a.B = q_.dim(0);
    a.H = q_.dim(1);
    a.N = part.queries.defined() ? part.queries.dim(-1) : q_.dim(2);
    a.d = q_.dim(3);
    a.M = part.keys.defined() ? part.keys.dim(-1) : k_.dim(2);
    a.query_order = order_of(part.queries, q_.dim(2));
    a.key_order = order_of(part.keys, k_.dim(2));
    a.dv = v_.dim(3);
    a.q = rows_view<T>(q_);
    a.k = rows_view<T>(k_);
    a.v = rows_view<T>(v_);
    a.scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<i64>(a.d, 1))));
    a.causal = o.causal;
    if (o.query_mask.defined()) a.query_mask = o.query_mask.ptr<std::uint8_t>();
    if (o.key_mask.defined()) a.key_mask = o.key_mask.ptr<std::uint8_t>();
    a.pattern = part.pattern.get();
    if (o.key_bias.defined()) {
      a.key_bias = o.key_bias.ptr<T>();
      a.key_bias_b = o.key_bias.dim(0) == 1 ? 0 : o.key_bias.stride(0);
      a.key_bias_h = o.key_bias.dim(1) == 1 ? 0 : o.key_bias.stride(1);
    }
    if (o.pair_bias.defined())
      a.pair_bias = {o.pair_bias.ptr<T>(), o.pair_bias.dim(0) == 1 ? 0 : o.pair_bias.stride(0),
                     o.pair_bias.dim(1) == 1 ? 0 : o.pair_bias.stride(1), o.pair_bias.stride(2)};
    if (o.outer_left.defined()) {
      a.left = rows_view<T>(o.outer_left);
      a.right = rows_view<T>(o.outer_right);
      a.period = o.outer_right.dim(3);
    }
    a.dropout = o.dropout;
    a.dropout_key = o.key;
    if (!rows.empty()) a.rows = rows.data();
    return a;
  }
};

struct Softmax {           // over a part's pairs
  Tensor o, row_max, lse;  // [B, H, N, dv], [B, H, N] twice
};

template <class T>
Softmax forward_part(const Problem& p, const AttentionPart& part) {
  const i64 B = p.q.dim(0), H = p.q.dim(1), N = p.q.dim(2), dv = p.v.dim(3);
  const DType t = p.q.dtype();
  Softmax s;
  if (part.queries.defined()) {  // rows without a place are empty
    s.o = Tensor::zeros({B, N, H, dv}, t).transpose(1, 2);
    s.row_max = Tensor::full({B, H, N}, kernels::kEmptyRow, t);
    s.lse = Tensor::zeros({B, H, N}, t);
  } else {
    s.o = Tensor::empty({B, N, H, dv}, t).transpose(1, 2);
    s.row_max = Tensor::empty({B, H, N}, t);
    s.lse = Tensor::empty({B, H, N}, t);
  }
  kernels::attention_forward(p.args<T>(part, p.q, p.k, p.v), rows_view_mut<T>(s.o), s.row_max.template mut_ptr<T>(),
                             s.lse.template mut_ptr<T>());
  return s;
}

Softmax forward_all(const Problem& p) {
  Softmax all;
  with_float("attention", p.q.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (const AttentionPart& part : p.parts) {
      const Softmax s = forward_part<T>(p, part);
      if (!all.o.defined())
        all = s;
      else
        kernels::attention_merge<T>(s.o.dim(0), s.o.dim(1), s.o.dim(2), s.o.dim(3), rows_view_mut<T>(all.o), all.row_max.mut_ptr<T>(),
                                    all.lse.mut_ptr<T>(), rows_view<T>(s.o), s.row_max.ptr<T>(), s.lse.ptr<T>());
    }
  });
  return all;
}

struct Attend final : Node {
  static constexpr std::string_view kName = "attention";
  static constexpr int kInputs = 7;  // q, k, v, key_bias, pair_bias, outer_left, outer_right
  Problem p;
  SavedTensor q, k, v, o;
  Tensor row_max, row_lse;
  bool need[kInputs];
  Attend(Problem problem, const Softmax& s, const Tensor* const in[kInputs])
      : p(std::move(problem)), q(p.q), k(p.k), v(p.v), o(s.o), row_max(s.row_max), row_lse(s.lse) {
    for (int i = 0; i < kInputs; ++i) need[i] = static_cast<bool>(in[i]->grad_ref());
    p.q = p.k = p.v = Tensor();
  }
  std::string_view name() const override { return kName; }

  Grads backward(const Tensor& up) override {
    const Tensor q_ = rows_ready(q.get(kName)), k_ = rows_ready(k.get(kName)), v_ = rows_ready(v.get(kName)),
                 out = rows_ready(o.get(kName));
    const Tensor dy = rows_ready(up);
    const DType t = dy.dtype();
    const i64 B = q_.dim(0), H = q_.dim(1), N = q_.dim(2), M = k_.dim(2);
    const bool sparse = p.parts[0].queries.defined() || p.parts[0].keys.defined();  // the first part may leave rows out
    const auto rows_of = [&](i64 n, i64 d) {                                        // laid out as the projections want
      return (sparse ? Tensor::zeros({B, n, H, d}, t) : Tensor::empty({B, n, H, d}, t)).transpose(1, 2);
    };
    Tensor dq = need[0] ? rows_of(N, q_.dim(3)) : Tensor(), dk = need[1] ? rows_of(M, k_.dim(3)) : Tensor();
    Tensor dv = need[2] ? rows_of(M, v_.dim(3)) : Tensor();
    Tensor dkb = need[3] ? Tensor::zeros({B, H, M}, t) : Tensor(), dpb = need[4] ? Tensor::zeros(p.pair_bias_shape, t) : Tensor();
    const bool outer = need[5] || need[6];
    Tensor dleft = outer ? Tensor::zeros(p.o.outer_left.shape(), t) : Tensor(),
           dright = outer ? Tensor::zeros(p.o.outer_right.shape(), t) : Tensor();
    with_float(kName, t, [&](auto zero) {
      using T = decltype(zero);
      kernels::AttentionGrads<T> g;
      g.dq = rows_view_mut<T>(dq);
      g.dk = rows_view_mut<T>(dk);
      g.dv = rows_view_mut<T>(dv);
      if (dkb.defined()) g.dkey_bias = dkb.mut_ptr<T>();
      if (dpb.defined()) {
        g.dpair_bias = rows_view_mut<T>(dpb);
        if (dpb.dim(0) == 1) g.dpair_bias.b = 0;
        if (dpb.dim(1) == 1) g.dpair_bias.h = 0;
      }
      g.dleft = rows_view_mut<T>(dleft);
      g.dright = rows_view_mut<T>(dright);
      g.add = sparse;
      for (const AttentionPart& part : p.parts) {
        kernels::attention_backward(p.args<T>(part, q_, k_, v_), rows_view<T>(out), row_max.ptr<T>(), row_lse.ptr<T>(), rows_view<T>(dy),
                                    g);
        g.add = true;
      }
    });
    Grads grads{dq, dk, dv, dkb, dpb, dleft, dright};
    if (need[1]) grads[1] = sum_to(dk, p.k_shape);
    if (need[2]) grads[2] = sum_to(dv, p.v_shape);
    if (need[3]) grads[3] = sum_to(dkb, p.key_bias_shape);
    return grads;
  }
};

void check(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& o) {
  const auto shared = [](i64 size, i64 full) { return size == full || size == 1; };
  const bool ranks = q.rank() == 4 && k.rank() == 4 && v.rank() == 4;
  if (!ranks || k.dim(3) != q.dim(3) || k.dim(2) != v.dim(2) || !shared(k.dim(0), q.dim(0)) || !shared(k.dim(1), q.dim(1)) ||
      !shared(v.dim(0), q.dim(0)) || !shared(v.dim(1), q.dim(1)))
    throw ShapeError(fmt::format("[attention] got q {}, k {}, v {}, expected q [B, H, N, d], k [B, H, M, d], v [B, H, M, dv]",
                                 q.shape().str(), k.shape().str(), v.shape().str()));
  const i64 B = q.dim(0), N = q.dim(2), M = k.dim(2);
  if (o.causal && M < N) throw ShapeError(fmt::format("[attention] causal needs a key for every query: got N = {} and M = {}", N, M));
  const auto mask = [](const char* what, const Tensor& m, Shape want) {
    if (m.defined() && (m.shape() != want || m.dtype() != DType::U8))
      throw ShapeError(
          fmt::format("[attention] {} is {} {}, expected u8 {} with 1 = real", what, name_of(m.dtype()), m.shape().str(), want.str()));
  };
  mask("query_mask", o.query_mask, {B, N});
  mask("key_mask", o.key_mask, {B, M});
  if (o.key_bias.defined() &&
      (o.key_bias.rank() != 3 || !shared(o.key_bias.dim(0), B) || !shared(o.key_bias.dim(1), q.dim(1)) || o.key_bias.dim(2) != M))
    throw ShapeError(fmt::format("[attention] key_bias is {}, expected [B, H, M]", o.key_bias.shape().str()));
  if (o.pair_bias.defined() && (o.pair_bias.rank() != 4 || !shared(o.pair_bias.dim(0), B) || !shared(o.pair_bias.dim(1), q.dim(1)) ||
                                o.pair_bias.dim(2) != N || o.pair_bias.dim(3) != M))
    throw ShapeError(fmt::format("[attention] pair_bias is {}, expected [B, H, N, M]", o.pair_bias.shape().str()));
  const auto outer = [&](const Tensor& t) { return t.rank() == 4 && t.dim(0) == B && t.dim(1) == q.dim(1) && t.dim(2) == N; };
  const Tensor &left = o.outer_left, &right = o.outer_right;
  if (left.defined() != right.defined() || (left.defined() && (!outer(left) || !outer(right) || left.dim(3) * right.dim(3) < M)))
    throw ShapeError(fmt::format("[attention] got outer_left {} and outer_right {}, expected [B, H, N, a] and [B, H, N, c] with a c >= {}",
                                 left.defined() ? left.shape().str() : "none", right.defined() ? right.shape().str() : "none", M));
  for (const Tensor* t : {&o.key_bias, &o.pair_bias, &o.outer_left, &o.outer_right})
    if (t->defined() && t->dtype() != q.dtype())
      throw ShapeError(fmt::format("[attention] a bias is {}, expected {}", name_of(t->dtype()), name_of(q.dtype())));
  if (k.dtype() != q.dtype() || v.dtype() != q.dtype())
    throw ShapeError(
        fmt::format("[attention] element types differ: got {}, {} and {}", name_of(q.dtype()), name_of(k.dtype()), name_of(v.dtype())));
  if (!o.rows.empty() && static_cast<i64>(o.rows.size()) != B)
    throw ShapeError(
        fmt::format("[attention] got {} sample indices for q {}, expected one for each row of axis 0", o.rows.size(), q.shape().str()));
  if (!(o.dropout >= 0 && o.dropout < 1)) throw ShapeError(fmt::format("[attention] dropout is {}, expected 0 to below 1", o.dropout));
}

// Makes an order contiguous.
void check_order(const char* what, Tensor& order, i64 B, i64 H, i64 rows) {
  if (!order.defined()) return;
  const bool shared = order.rank() == 1;
  const bool own = order.rank() == 3 && (order.dim(0) == B || order.dim(0) == 1) && (order.dim(1) == H || order.dim(1) == 1);
  if (order.dtype() != DType::I64 || (!shared && !own))
    throw ShapeError(fmt::format("[attention_parts] {} is {} {}, expected i64 [places] or [B, H, places]", what, name_of(order.dtype()),
                                 order.shape().str()));
  order = order.to_contiguous();
  const i64 places = order.dim(-1);
  std::vector<i64> seen(static_cast<std::size_t>(rows), -1);
  for (i64 head = 0; places > 0 && head < order.numel() / places; ++head)
    for (i64 x = head * places; x < (head + 1) * places; ++x) {
      const i64 row = order.ptr<i64>()[x];
      if (row < -1 || row >= rows)
        throw ShapeError(fmt::format("[attention_parts] {} names row {}, expected -1 to {}", what, row, rows - 1));
      if (row >= 0 && std::exchange(seen[static_cast<std::size_t>(row)], head) == head)
        throw ShapeError(fmt::format("[attention_parts] {} names row {} twice", what, row));
    }
}

void check_part(AttentionPart& part, const Tensor& q, const Tensor& k) {
  if (q.rank() != 4 || k.rank() != 4) return;  // check() says so
  check_order("queries", part.queries, q.dim(0), q.dim(1), q.dim(2));
  check_order("keys", part.keys, q.dim(0), q.dim(1), k.dim(2));
}

// u8 [B, H, N]: real rows that no part gave a key.
Tensor empty_rows(const Tensor& row_max, const Tensor& query_mask) {
  const i64 B = row_max.dim(0), H = row_max.dim(1), N = row_max.dim(2);
  Tensor empty = Tensor::empty({B, H, N}, DType::U8);
  with_float("attention_parts", row_max.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T* max = row_max.ptr<T>();
    for (i64 x = 0; x < B * H * N; ++x) {
      const bool real = !query_mask.defined() || query_mask.ptr<std::uint8_t>()[x / N / H * N + x % N] != 0;
      empty.mut_ptr<std::uint8_t>()[x] = real && max[x] == T(kernels::kEmptyRow);
    }
  });
  return empty;
}

Tensor attend(const Tensor& q, const Tensor& k, const Tensor& v, std::vector<AttentionPart> parts, const AttentionOptions& options,
              Tensor* empty) {
  check(q, k, v, options);
  const i64 B = q.dim(0), H = q.dim(1), M = k.dim(2);
  Problem p;
  p.parts = std::move(parts);
  p.o = options;
  p.rows.assign(options.rows.begin(), options.rows.end());
  p.o.rows = {};
  p.o.pattern = nullptr;
  p.k_shape = k.shape();
  p.v_shape = v.shape();
  const Tensor no_bias;
  const Tensor& key_bias = options.key_bias.defined() ? options.key_bias : no_bias;
  const Tensor& pair_bias = options.pair_bias.defined() ? options.pair_bias : no_bias;
  if (key_bias.defined()) {
    p.key_bias_shape = key_bias.shape();
    p.o.key_bias = key_bias.detach().to_contiguous();
  }
  if (pair_bias.defined()) {
    p.pair_bias_shape = pair_bias.shape();
    p.o.pair_bias = pair_bias.dim(3) <= 1 || pair_bias.stride(3) == 1 ? pair_bias.detach() : pair_bias.detach().clone();
  }
  if (p.o.outer_left.defined()) {
    p.o.outer_left = rows_ready(options.outer_left);
    p.o.outer_right = rows_ready(options.outer_right);
  }
  if (p.o.query_mask.defined()) p.o.query_mask = p.o.query_mask.to_contiguous();
  if (p.o.key_mask.defined()) p.o.key_mask = p.o.key_mask.to_contiguous();
  p.q = rows_ready(q);
  p.k = rows_ready(k).expand({B, H, M, k.dim(3)});
  p.v = rows_ready(v).expand({B, H, M, v.dim(3)});
  const Softmax s = forward_all(p);
  if (empty != nullptr) *empty = empty_rows(s.row_max, p.o.query_mask);
  const Tensor &left = options.outer_left, &right = options.outer_right;
  const Tensor* const inputs[Attend::kInputs] = {&q, &k, &v, &key_bias, &pair_bias, &left, &right};
  return record<Attend>(s.o, {&q, &k, &v, &key_bias, &pair_bias, &left, &right}, std::move(p), s, inputs);
}

}  // namespace

Tensor attention_parts(const Tensor& q, const Tensor& k, const Tensor& v, std::vector<AttentionPart> parts, const AttentionOptions& options,
                       Tensor* empty) {
  if (parts.empty() || options.pattern != nullptr)
    throw ShapeError("[attention_parts] needs at least one part, and the patterns in the parts instead of the options");
  for (AttentionPart& part : parts) check_part(part, q, k);
  return attend(q, k, v, std::move(parts), options, empty);
}

Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, const AttentionOptions& options) {
  return attend(q, k, v, {{.queries = {}, .keys = {}, .pattern = options.pattern}}, options, nullptr);
}

}  // namespace tapeformer::ops
