// graph_attention.cpp: attention along the edges of a graph (core/kernels/graph_attention.h).
#include "core/kernels/graph_attention.h"

#include <fmt/format.h>

#include <cmath>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "autograd/rows_view.h"

namespace tapeformer::ops {
namespace {

struct Settings {
  GraphAttentionOptions o;  // without tensors that carry gradients
  std::vector<i64> rows;

  template <class T>
  kernels::GraphAttention<T> args(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& bias) const {
    kernels::GraphAttention<T> a{.B = q.dim(0),
                                 .H = q.dim(1),
                                 .N = q.dim(2),
                                 .d = q.dim(3),
                                 .dv = v.dim(3),
                                 .q = rows_view<T>(q),
                                 .k = rows_view<T>(k),
                                 .v = rows_view<T>(v)};
    a.edges = o.edges.get();
    a.scale = o.scale.value_or(1 / std::sqrt(static_cast<double>(std::max<i64>(a.d, 1))));
    a.additive = o.additive;
    a.negative_slope = o.negative_slope;
    if (o.mask.defined()) a.mask = o.mask.ptr<std::uint8_t>();
    if (bias.defined()) {
      a.bias = bias.ptr<T>();
      a.bias_edges = bias.dim(1);
    }
    a.dropout = o.dropout;
    a.dropout_key = o.key;
    if (!rows.empty()) a.rows = rows.data();
    return a;
  }
};

struct GraphAttend final : Node {
  static constexpr std::string_view kName = "graph_attention";
  Settings settings;
  SavedTensor q, k, v, bias, o;
  Tensor row_max, row_lse;
  bool bias_wanted;
  GraphAttend(Settings s, const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& bias_, const Tensor& o_, Tensor m, Tensor l)
      : settings(std::move(s)), q(q_), k(k_), v(v_), o(o_), row_max(std::move(m)), row_lse(std::move(l)), bias_wanted(bias_.grad_ref()) {
    if (bias_.defined()) bias = SavedTensor(bias_);
  }
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {
    const Tensor q_ = rows_ready(q.get(kName)), k_ = rows_ready(k.get(kName)), v_ = rows_ready(v.get(kName)),
                 out = rows_ready(o.get(kName)), dy = rows_ready(up),
                 b_ = bias.defined() ? bias.get(kName).detach().to_contiguous() : Tensor();
    const DType t = dy.dtype();
    const auto rows_of = [&](i64 d) { return Tensor::empty({q_.dim(0), q_.dim(2), q_.dim(1), d}, t).transpose(1, 2); };
    Tensor dq = rows_of(q_.dim(3)), dk = rows_of(q_.dim(3)), dv = rows_of(v_.dim(3));
    Tensor db = bias_wanted ? Tensor::empty(b_.shape(), t) : Tensor();
    with_float(kName, t, [&](auto zero) {
      using T = decltype(zero);
      kernels::GraphAttentionGrads<T> g{rows_view_mut<T>(dq), rows_view_mut<T>(dk), rows_view_mut<T>(dv)};
      if (db.defined()) g.dbias = db.mut_ptr<T>();
      kernels::graph_attention_grad(settings.args<T>(q_, k_, v_, b_), rows_view<T>(out), row_max.ptr<T>(), row_lse.ptr<T>(),
                                    rows_view<T>(dy), g);
    });
    return {dq, dk, dv, db};
  }
};

void check(const Tensor& q, const Tensor& k, const Tensor& v, const GraphAttentionOptions& o) {
  if (q.rank() != 4 || v.rank() != 4 || k.shape() != q.shape() || v.shape().without(-1) != q.shape().without(-1))
    throw ShapeError(fmt::format("[graph_attention] got q {}, k {}, v {}, expected q, k [B, H, N, d] and v [B, H, N, dv]", q.shape().str(),
                                 k.shape().str(), v.shape().str()));
  if (k.dtype() != q.dtype() || v.dtype() != q.dtype())
    throw ShapeError(fmt::format("[graph_attention] element types differ: got {}, {} and {}", name_of(q.dtype()), name_of(k.dtype()),
                                 name_of(v.dtype())));
  if (!o.edges) throw ShapeError("[graph_attention] there are no edges");
  if (o.edges->nodes() != q.dim(2) || (o.edges->graphs() != 1 && o.edges->graphs() != q.dim(0)))
    throw ShapeError(fmt::format("[graph_attention] the edges are of {} graph(s) with {} nodes, q is {}", o.edges->graphs(),
                                 o.edges->nodes(), q.shape().str()));
  if (o.additive && q.dim(3) != 1)
    throw ShapeError(fmt::format("[graph_attention] additive scores need one number a node: got q {}", q.shape().str()));
  if (o.mask.defined() && (o.mask.dtype() != DType::U8 || o.mask.shape() != Shape{q.dim(0), q.dim(2)}))
    throw ShapeError(fmt::format("[graph_attention] mask is {} {}, expected u8 [{}, {}] with 1 = real", name_of(o.mask.dtype()),
                                 o.mask.shape().str(), q.dim(0), q.dim(2)));
  if (o.edge_bias.defined() && (o.additive || o.edge_bias.rank() != 2 || o.edge_bias.dim(0) != q.dim(1) ||
                                o.edge_bias.dim(1) != o.edges->given() || o.edge_bias.dtype() != q.dtype()))
    throw ShapeError(fmt::format("[graph_attention] edge_bias is {} {}, expected {} [{}, {}] and scores that are not additive",
                                 name_of(o.edge_bias.dtype()), o.edge_bias.shape().str(), name_of(q.dtype()), q.dim(1), o.edges->given()));
  if (!o.rows.empty() && static_cast<i64>(o.rows.size()) != q.dim(0))
    throw ShapeError(fmt::format("[graph_attention] got {} sample indices for q {}", o.rows.size(), q.shape().str()));
  if (!(o.dropout >= 0 && o.dropout < 1))
    throw ShapeError(fmt::format("[graph_attention] dropout is {}, expected 0 to below 1", o.dropout));
}

}  // namespace

Tensor graph_attention(const Tensor& q, const Tensor& k, const Tensor& v, const GraphAttentionOptions& options) {
  check(q, k, v, options);
  Settings s{options, {options.rows.begin(), options.rows.end()}};
  s.o.rows = {};
  s.o.edge_bias = Tensor();
  if (s.o.mask.defined()) s.o.mask = s.o.mask.to_contiguous();
  const Tensor& bias = options.edge_bias;
  const Tensor q_ = rows_ready(q), k_ = rows_ready(k), v_ = rows_ready(v), b_ = bias.defined() ? bias.detach().to_contiguous() : Tensor();
  const i64 B = q.dim(0), H = q.dim(1), N = q.dim(2);
  Tensor o = Tensor::empty({B, N, H, v.dim(3)}, q.dtype()).transpose(1, 2);
  Tensor row_max = Tensor::empty({B, H, N}, q.dtype()), row_lse = Tensor::empty({B, H, N}, q.dtype());
  with_float("graph_attention", q.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::graph_attention(s.args<T>(q_, k_, v_, b_), rows_view_mut<T>(o), row_max.mut_ptr<T>(), row_lse.mut_ptr<T>());
  });
  return record<GraphAttend>(o, {&q, &k, &v, &bias}, std::move(s), q, k, v, bias, o, row_max, row_lse);
}

}  // namespace tapeformer::ops
