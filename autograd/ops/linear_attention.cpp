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
  a.causal = o.causal;
  a.normalize = o.normalize;
  a.eps = o.eps;
  a.scale = o.scale;
  a.chunk = o.chunk;
  if (o.S0.defined()) {
    a.S0 = o.S0.ptr<T>();
    a.z0 = o.z0.ptr<T>();
  }
  return a;
}

struct LinearAttend final : Node {
  static constexpr std::string_view kName = "linear_attention";
  SavedTensor q, k, v, o;
  Tensor den;
  LinearAttentionOptions options;
  LinearAttend(const Tensor& q_, const Tensor& k_, const Tensor& v_, const Tensor& o_, Tensor d, LinearAttentionOptions op)
      : q(q_), k(k_), v(v_), o(o_), den(std::move(d)), options(std::move(op)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {
    const Tensor q_ = rows_ready(q.get(kName)), k_ = rows_ready(k.get(kName)), v_ = rows_ready(v.get(kName)),
                 out = rows_ready(o.get(kName)), dy = rows_ready(up);
    const DType t = dy.dtype();
    const auto rows_of = [&](i64 d) { return Tensor::empty({q_.dim(0), q_.dim(2), q_.dim(1), d}, t).transpose(1, 2); };
    Tensor dq = rows_of(q_.dim(3)), dk = rows_of(q_.dim(3)), dv = rows_of(v_.dim(3));
    Tensor dS = options.S0.defined() ? Tensor::zeros_like(options.S0) : Tensor(),
           dz = options.z0.defined() ? Tensor::zeros_like(options.z0) : Tensor();
    with_float(kName, t, [&](auto zero) {
      using T = decltype(zero);
      kernels::LinearAttentionGrads<T> g{rows_view_mut<T>(dq), rows_view_mut<T>(dk), rows_view_mut<T>(dv)};
      if (dS.defined()) {
        g.dS0 = dS.mut_ptr<T>();
        g.dz0 = dz.mut_ptr<T>();
      }
      kernels::linear_attention_grad(args<T>(q_, k_, v_, options), rows_view<T>(out), den.ptr<T>(), rows_view<T>(dy), g);
    });
    return {dq, dk, dv, dS, dz};
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
  const Tensor &S0 = options.S0.defined() ? options.S0 : no_state, &z0 = options.z0.defined() ? options.z0 : no_state;
  if (S0.defined()) {
    o.S0 = S0.detach().to_contiguous();
    o.z0 = z0.detach().to_contiguous();
  }
  const Tensor q_ = rows_ready(q), k_ = rows_ready(k), v_ = rows_ready(v);
  const i64 B = q.dim(0), H = q.dim(1), N = q.dim(2);
  Tensor out = Tensor::empty({B, N, H, v.dim(3)}, q.dtype()).transpose(1, 2), den = Tensor::empty({B, H, N}, q.dtype());
  if (last) *last = {Tensor::zeros({B, H, q.dim(3), v.dim(3)}, q.dtype()), Tensor::zeros({B, H, q.dim(3)}, q.dtype())};
  with_float("linear_attention", q.dtype(), [&](auto zero) {
    using T = decltype(zero);
    kernels::linear_attention(args<T>(q_, k_, v_, o), rows_view_mut<T>(out), den.mut_ptr<T>(), last ? last->S.mut_ptr<T>() : nullptr,
                              last ? last->z.mut_ptr<T>() : nullptr);
  });
  return record<LinearAttend>(out, {&q, &k, &v, &S0, &z0}, q, k, v, out, den, o);
}

}  // namespace tapeformer::ops
