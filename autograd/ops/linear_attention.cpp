// linear_attention.cpp: attention as a product of feature maps, in the order that is linear in the length
// (core/kernels/linear_attention.h).
#include "core/kernels/linear_attention.h"

#include <fmt/format.h>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "autograd/rows_view.h"

namespace tapeformer::ops {
namespace {

template <class T>
kernels::LinearAttention<T> args(const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionOptions& o) {
  kernels::LinearAttention<T> a{.B = q.dim(0),
                                .H = q.dim(1),
                                .N = q.dim(2),
                                .d = q.dim(3),
                                .dv = v.dim(3),
                                .q = rows_view<T>(q),
                                .k = rows_view<T>(k),
                                .v = rows_view<T>(v)};
  if (o.mask.defined()) a.mask = o.mask.ptr<std::uint8_t>();
  a.form = o.form;
  a.causal = o.causal;
  a.normalize = o.normalize;
  a.eps = o.eps;
  a.scale = o.scale;
  a.floor = o.floor.value_or(-1);
  if (o.gate.defined()) a.gate = o.gate.ptr<T>();
  a.chunk = o.chunk;
  if (o.S0.defined()) {
    a.S0 = o.S0.ptr<T>();
    a.z0 = o.z0.ptr<T>();
  }
  return a;
}

struct Kept {  // kernels::LinearSaved
  Tensor den, top, S, z, c;
  Kept(const Tensor& q, const Tensor& v, const LinearAttentionOptions& o) {
    const DType t = q.dtype();
    const Shape rows = q.shape().without(-1), sums{q.dim(0), q.dim(1), q.dim(3)};
    den = Tensor::empty(rows, t);
    if (o.form == kernels::LinearForm::Exponents) top = Tensor::empty(rows, t);
    if (o.causal) return;
    S = Tensor::empty({q.dim(0), q.dim(1), q.dim(3), v.dim(3)}, t);
    z = Tensor::empty(sums, t);
    if (o.form != kernels::LinearForm::Features) c = Tensor::empty(sums, t);
  }
  template <class T>
  kernels::LinearSaved<T> view() {
    const auto p = [](Tensor& t) { return t.defined() ? t.mut_ptr<T>() : nullptr; };
    return {p(den), p(top), p(S), p(z), p(c)};
  }
};

struct LinearAttend final : Node {
  static constexpr std::string_view kName = "linear_attention";
  SavedTensor q, k, v, o;
  Kept kept;
  LinearAttentionOptions options;
  bool need_k;
  LinearAttend(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& o_, Kept kept_, LinearAttentionOptions op)
      : q(q_), k(k_), v(v_), o(o_), kept(std::move(kept_)), options(std::move(op)), need_k(k_.grad_ref() || options.gate.defined()) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {
    const Tensor q_ = rows_ready(q.get(kName)), k_ = rows_ready(k.get(kName)), v_ = rows_ready(v.get(kName)),
                 out = rows_ready(o.get(kName)), dy = rows_ready(up);
    const DType t = dy.dtype();
    const auto rows_of = [&](i64 d) { return Tensor::empty({q_.dim(0), q_.dim(2), q_.dim(1), d}, t).transpose(1, 2); };
    Tensor dq = rows_of(q_.dim(3)), dk = need_k ? rows_of(q_.dim(3)) : Tensor(), dv = rows_of(v_.dim(3));
    Tensor dS = options.S0.defined() ? Tensor::zeros_like(options.S0) : Tensor(),
           dz = options.z0.defined() ? Tensor::zeros_like(options.z0) : Tensor(),
           dgate = options.gate.defined() ? Tensor::empty_like(options.gate) : Tensor();
    with_float(kName, t, [&](auto zero) {
      using T = decltype(zero);
      kernels::LinearAttentionGrads<T> g{rows_view_mut<T>(dq), need_k ? rows_view_mut<T>(dk) : kernels::RowsView<T>{},
                                         rows_view_mut<T>(dv)};
      if (dS.defined()) {
        g.dS0 = dS.mut_ptr<T>();
        g.dz0 = dz.mut_ptr<T>();
      }
      if (dgate.defined()) g.dgate = dgate.mut_ptr<T>();
      kernels::linear_attention_grad(args<T>(q_, k_, v_, options), rows_view<T>(out), kept.view<T>(), rows_view<T>(dy), g);
    });
    return {dq, dk, dv, dS, dz, dgate};
  }
};

void check(const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionOptions& o) {
  const bool fits = q.rank() == 4 && v.rank() == 4 && k.shape() == q.shape() && v.shape().without(-1) == q.shape().without(-1);
  if (!fits)
    throw ShapeError(fmt::format("[linear_attention] got q {}, k {}, v {}, expected q, k [B, H, N, d] and v [B, H, N, dv]", q.shape().str(),
                                 k.shape().str(), v.shape().str()));
  if (o.mask.defined() && (o.mask.shape() != Shape{q.dim(0), q.dim(2)} || o.mask.dtype() != DType::U8))
    throw ShapeError(fmt::format("[linear_attention] mask is {} {}, expected u8 [{}, {}] with 1 = real", name_of(o.mask.dtype()),
                                 o.mask.shape().str(), q.dim(0), q.dim(2)));
  if (o.chunk < 1) throw ShapeError(fmt::format("[linear_attention] chunk is {}, expected at least 1", o.chunk));
  if (o.form != kernels::LinearForm::Features && (!o.normalize || o.floor || o.gate.defined() || o.S0.defined()))
    throw ShapeError(
        "[linear_attention] exponents have a denominator of their own and no gate and state: got normalize: false, floor, gate or S0");
  if (o.gate.defined() && (!o.causal || o.S0.defined()))
    throw ShapeError("[linear_attention] a gate is for causal sequences from their start");
  if (o.gate.defined() && (o.gate.shape() != q.shape().without(-1) || o.gate.dtype() != q.dtype()))
    throw ShapeError(fmt::format("[linear_attention] gate is {} {}, expected {} {}", name_of(o.gate.dtype()), o.gate.shape().str(),
                                 name_of(q.dtype()), q.shape().without(-1).str()));
  if (o.floor && *o.floor < 0) throw ShapeError(fmt::format("[linear_attention] floor is {}, expected at least 0", *o.floor));
  if (o.S0.defined() != o.z0.defined() || (o.S0.defined() && !o.causal))
    throw ShapeError("[linear_attention] a state is S0 and z0 together, with causal");
  if (o.S0.defined() &&
      (o.S0.shape() != Shape{q.dim(0), q.dim(1), q.dim(3), v.dim(3)} || o.z0.shape() != Shape{q.dim(0), q.dim(1), q.dim(3)}))
    throw ShapeError(fmt::format("[linear_attention] got S0 {} and z0 {}, expected [B, H, d, dv] and [B, H, d]", o.S0.shape().str(),
                                 o.z0.shape().str()));
}

}  // namespace

Tensor linear_attention(const Tensor& q, const Tensor& k, const Tensor& v, const LinearAttentionOptions& options,
                        LinearAttentionState* last) {
  check(q, k, v, options);
  LinearAttentionOptions o = options;
  if (o.mask.defined()) o.mask = o.mask.to_contiguous();
  const Tensor no_state;
  const Tensor &S0 = options.S0.defined() ? options.S0 : no_state, &z0 = options.z0.defined() ? options.z0 : no_state,
               &gate = options.gate.defined() ? options.gate : no_state;
  if (gate.defined()) o.gate = gate.detach().to_contiguous();
  if (S0.defined()) {
    o.S0 = S0.detach().to_contiguous();
    o.z0 = z0.detach().to_contiguous();
  }
  const Tensor q_ = rows_ready(q), k_ = rows_ready(k), v_ = rows_ready(v);
  const i64 B = q.dim(0), H = q.dim(1), N = q.dim(2);
  Tensor out = Tensor::empty({B, N, H, v.dim(3)}, q.dtype()).transpose(1, 2);
  Kept kept(q, v, o);
  if (last) *last = {Tensor::zeros({B, H, q.dim(3), v.dim(3)}, q.dtype()), Tensor::zeros({B, H, q.dim(3)}, q.dtype())};
  with_float("linear_attention", q.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::linear_attention(args<T>(q_, k_, v_, o), rows_view_mut<T>(out), kept.view<T>(), last ? last->S.mut_ptr<T>() : nullptr,
                              last ? last->z.mut_ptr<T>() : nullptr);
  });
  return record<LinearAttend>(out, {&q, &k, &v, &S0, &z0, &gate}, q, k, v, out, kept, o);
}

}  // namespace tapeformer::ops
