// position_attention.cpp: attention by a table of positions and the keys alone (core/kernels/position_attention.h).
#include "core/kernels/position_attention.h"

#include <fmt/format.h>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "autograd/rows_view.h"

namespace tapeformer::ops {
namespace {

template <class T>
kernels::RowsView<const T> view(const Tensor& t) {
  return t.defined() ? rows_view<T>(t) : kernels::RowsView<const T>();
}
Tensor table_ready(const Tensor& w) {
  if (!w.defined()) return w;
  return w.dim(2) <= 1 || w.stride(2) == 1 ? w.detach() : w.detach().clone();
}

template <class T>
kernels::PositionAttention<T> args(const Tensor& w, const Tensor& k, const Tensor& v, const PositionAttentionOptions& o) {
  using Problem = kernels::PositionAttention<T>;
  Problem a{.B = v.dim(0), .H = v.dim(1), .N = v.dim(2), .d = v.dim(3), .k = view<T>(k), .v = view<T>(v)};
  if (o.mask.defined()) a.mask = o.mask.ptr<std::uint8_t>();
  a.causal = o.causal;
  if (!w.defined()) return a;
  a.table = o.reach ? Problem::Table::Band : Problem::Table::Full;
  a.w = w.ptr<T>();
  a.groups = w.dim(0);
  a.w_group = w.stride(0);
  a.w_row = w.dim(1) == 1 ? 0 : w.stride(1);
  a.reach = o.reach.value_or(0);
  return a;
}

struct PositionAttend final : Node {
  static constexpr std::string_view kName = "position_attention";
  SavedTensor w, k, v, y;
  Tensor den;
  PositionAttentionOptions options;
  bool need_w, need_k;
  PositionAttend(const Tensor& w_, const Tensor& k_, const Tensor& v_, const Tensor& y_, Tensor d, PositionAttentionOptions o)
      : v(v_),
        y(y_),
        den(std::move(d)),
        options(std::move(o)),
        need_w(static_cast<bool>(w_.grad_ref())),
        need_k(static_cast<bool>(k_.grad_ref())) {
    if (w_.defined()) w = SavedTensor(w_, Keep::Exact);
    if (k_.defined()) k = SavedTensor(k_);
  }
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {
    const Tensor w_ = w.defined() ? table_ready(w.get(kName)) : Tensor(), k_ = k.defined() ? rows_ready(k.get(kName)) : Tensor();
    const Tensor v_ = rows_ready(v.get(kName)), y_ = rows_ready(y.get(kName)), dy = rows_ready(up);
    const DType t = dy.dtype();
    const auto rows = [&] { return Tensor::empty({v_.dim(0), v_.dim(2), v_.dim(1), v_.dim(3)}, t).transpose(1, 2); };
    Tensor dw = need_w ? Tensor::zeros(w_.shape(), t) : Tensor(), dk = need_k ? rows() : Tensor(), dv = rows();
    with_float(kName, t, [&](auto zero) {
      using T = decltype(zero);
      kernels::PositionAttentionGrads<T> g{rows_view_mut<T>(dk), rows_view_mut<T>(dv)};
      if (dw.defined()) {
        g.dw = dw.mut_ptr<T>();
        g.dw_group = dw.stride(0);
        g.dw_row = dw.dim(1) == 1 ? 0 : dw.stride(1);
      }
      kernels::position_attention_grad(args<T>(w_, k_, v_, options), rows_view<T>(y_), den.ptr<T>(), rows_view<T>(dy), g);
    });
    return {dw, dk, dv};
  }
};

void check(const Tensor& w, const Tensor& k, const Tensor& v, const PositionAttentionOptions& o) {
  if (v.rank() != 4 || (k.defined() && k.shape() != v.shape()))
    throw ShapeError(fmt::format("[position_attention] got k {} and v {}, expected both [B, H, N, d]",
                                 k.defined() ? k.shape().str() : "undefined", v.shape().str()));
  const i64 B = v.dim(0), H = v.dim(1), N = v.dim(2);
  if (o.reach && *o.reach < 0) throw ShapeError(fmt::format("[position_attention] got a reach of {}, expected at least 0", *o.reach));
  const i64 columns = o.reach ? 2 * *o.reach + 1 : N;
  if (w.defined() &&
      (w.rank() != 3 || (w.dim(0) != H && w.dim(0) != 1) || (w.dim(1) != N && (!o.reach || w.dim(1) != 1)) || w.dim(2) != columns))
    throw ShapeError(fmt::format("[position_attention] w is {}, expected [{} or 1, {}, {}]", w.shape().str(), H,
                                 o.reach ? fmt::format("{} or 1", N) : std::to_string(N), columns));
  if (o.mask.defined() && (o.mask.shape() != Shape{B, N} || o.mask.dtype() != DType::U8))
    throw ShapeError(fmt::format("[position_attention] mask is {} {}, expected u8 [{}, {}] with 1 = real", name_of(o.mask.dtype()),
                                 o.mask.shape().str(), B, N));
  for (const Tensor* t : {&w, &k})
    if (t->defined() && t->dtype() != v.dtype())
      throw ShapeError(fmt::format("[position_attention] element types differ: got {} and {}", name_of(t->dtype()), name_of(v.dtype())));
}

}  // namespace

Tensor position_attention(const Tensor& w, const Tensor& k, const Tensor& v, const PositionAttentionOptions& options) {
  check(w, k, v, options);
  PositionAttentionOptions o = options;
  if (o.mask.defined()) o.mask = o.mask.to_contiguous();
  const Tensor w_ = table_ready(w), k_ = k.defined() ? rows_ready(k) : Tensor(), v_ = rows_ready(v);
  const i64 B = v.dim(0), H = v.dim(1), N = v.dim(2), d = v.dim(3);
  Tensor y = Tensor::empty({B, N, H, d}, v.dtype()).transpose(1, 2), den = Tensor::empty({B, H, N, k.defined() ? d : 1}, v.dtype());
  with_float("position_attention", v.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::position_attention(args<T>(w_, k_, v_, o), rows_view_mut<T>(y), den.mut_ptr<T>());
  });
  return record<PositionAttend>(y, {&w, &k, &v}, w, k, v, y, den, o);
}

}  // namespace tapeformer::ops
