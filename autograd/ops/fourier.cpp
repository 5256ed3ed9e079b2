// fourier.cpp: the real part of a Fourier transform over positions and features (core/kernels/fourier.h).
#include "core/kernels/fourier.h"

#include <fmt/format.h>

#include "autograd/node.h"
#include "autograd/ops.h"

namespace tapeformer::ops {
namespace {

Tensor run(const Tensor& x, const FourierOptions& o) {
  const Tensor in = x.detach().to_contiguous();
  Tensor y = Tensor::empty_like(in);
  const kernels::FourierMix f{.B = x.dim(0),
                              .N = x.dim(1),
                              .D = x.dim(2),
                              .mask = o.mask.defined() ? o.mask.ptr<std::uint8_t>() : nullptr,
                              .ortho = o.ortho,
                              .trim = o.trim};
  with_float("fourier_mix", x.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::fourier_mix(f, in.ptr<T>(), y.mut_ptr<T>());
  });
  return y;
}

struct Fourier final : Node {  // cosine and sine matrices are symmetric: dx is the same transform of dy
  static constexpr std::string_view kName = "fourier_mix";
  FourierOptions options;
  explicit Fourier(FourierOptions o) : options(std::move(o)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {run(dy, options)}; }
};

}  // namespace

Tensor fourier_mix(const Tensor& x, const FourierOptions& options) {
  if (x.rank() != 3) throw ShapeError(fmt::format("[fourier_mix] got x {}, expected [B, N, D]", x.shape().str()));
  FourierOptions o = options;
  if (o.mask.defined()) {
    if (o.mask.dtype() != DType::U8 || o.mask.shape() != x.shape().without(-1))
      throw ShapeError(fmt::format("[fourier_mix] mask is {} {}, expected u8 [{}, {}] with 1 = real", name_of(o.mask.dtype()),
                                   o.mask.shape().str(), x.dim(0), x.dim(1)));
    o.mask = o.mask.to_contiguous();
  }
  return record<Fourier>(run(x, o), {&x}, o);
}

}  // namespace tapeformer::ops
