// recurrent.cpp: recurrent networks (core/kernels/recurrent.h).
#include "core/kernels/recurrent.h"

#include <fmt/format.h>

#include "autograd/node.h"
#include "autograd/ops.h"

namespace tapeformer::ops {
namespace {

kernels::Recurrent shape_of(const Tensor& h, const RecurrentOptions& o) {
  return {.cell = o.cell,
          .B = h.dim(0),
          .N = h.dim(1),
          .hidden = h.dim(2),
          .reverse = o.reverse,
          .mask = o.mask.defined() ? o.mask.ptr<std::uint8_t>() : nullptr};
}

struct RecurrentNode final : Node {
  static constexpr std::string_view kName = "recurrent";
  SavedTensor w, h;
  Tensor kept;
  RecurrentOptions options;
  RecurrentNode(const Tensor& w_, const Tensor& h_, Tensor k, RecurrentOptions o)
      : w(w_, Keep::Exact), h(h_, Keep::Exact), kept(std::move(k)), options(std::move(o)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {
    const Tensor weight = w.get(kName).to_contiguous(), states = h.get(kName), dy = up.to_contiguous();
    const i64 G = weight.dim(0);
    Tensor dgi = Tensor::empty({dy.dim(0), dy.dim(1), G}, dy.dtype()), dw = Tensor::empty_like(weight), db = Tensor::empty({G}, dy.dtype());
    with_float(kName, dy.dtype(), [&](auto t) {
      using T = decltype(t);
      kernels::recurrent_grad<T>(shape_of(states, options), weight.ptr<T>(), states.ptr<T>(), kept.ptr<T>(), dy.ptr<T>(),
                                 {dgi.mut_ptr<T>(), dw.mut_ptr<T>(), db.mut_ptr<T>()});
    });
    return {dgi, dw, db};
  }
};

void check(const Tensor& gi, const Tensor& w, const Tensor& b, const RecurrentOptions& o) {
  const i64 G = kernels::gates_of(o.cell);
  if (gi.rank() != 3 || w.rank() != 2 || w.dim(0) != G * w.dim(1) || gi.dim(2) != w.dim(0) || b.shape() != Shape{w.dim(0)})
    throw ShapeError(fmt::format("[recurrent] got gi {}, w_hh {}, b_hh {}, expected [B, N, {} H], [{} H, H], [{} H]", gi.shape().str(),
                                 w.shape().str(), b.shape().str(), G, G, G));
  for (const Tensor* t : {&w, &b})
    if (t->dtype() != gi.dtype())
      throw ShapeError(fmt::format("[recurrent] element types differ: got {} and {}", name_of(gi.dtype()), name_of(t->dtype())));
  if (o.mask.defined() && (o.mask.shape() != gi.shape().without(-1) || o.mask.dtype() != DType::U8))
    throw ShapeError(fmt::format("[recurrent] mask is {} {}, expected u8 [{}, {}] with 1 = real", name_of(o.mask.dtype()),
                                 o.mask.shape().str(), gi.dim(0), gi.dim(1)));
}

}  // namespace

Tensor recurrent(const Tensor& gi, const Tensor& w_hh, const Tensor& b_hh, const RecurrentOptions& options) {
  check(gi, w_hh, b_hh, options);
  RecurrentOptions o = options;
  if (o.mask.defined()) o.mask = o.mask.to_contiguous();
  const Tensor in = gi.detach().to_contiguous(), w = w_hh.detach().to_contiguous(), b = b_hh.detach().to_contiguous();
  const i64 H = w.dim(1), B = gi.dim(0), N = gi.dim(1);
  Tensor h = Tensor::empty({B, N, H}, gi.dtype());
  const bool keep = recording({&gi, &w_hh, &b_hh});
  Tensor kept = Tensor::empty({B, N, keep ? kernels::kept_blocks(o.cell) * H : 0}, gi.dtype());
  with_float("recurrent", gi.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::recurrent(shape_of(h, o), in.ptr<T>(), w.ptr<T>(), b.ptr<T>(), h.mut_ptr<T>(), keep ? kept.mut_ptr<T>() : nullptr);
  });
  return record<RecurrentNode>(h, {&gi, &w_hh, &b_hh}, w_hh, h, kept, o);
}

}  // namespace tapeformer::ops
