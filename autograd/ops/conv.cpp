// conv.cpp: 1-D and 2-D convolution (cross-correlation), channels last.
#include "core/kernels/conv.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/node.h"
#include "autograd/ops.h"

namespace tapeformer::ops {
namespace {

struct Conv final : Node {
  static constexpr std::string_view kName = "conv";
  kernels::Conv2d c;
  SavedTensor x, w;
  bool need_x, need_w, has_bias;
  Conv(const kernels::Conv2d& c_, const Tensor& x_, const Tensor& w_, const Tensor& b)
      : c(c_),
        x(x_),
        w(w_, Keep::Exact),
        need_x(static_cast<bool>(x_.grad_ref())),
        need_w(static_cast<bool>(w_.grad_ref())),
        has_bias(b.defined()) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {
    const Tensor in = x.get(kName).to_contiguous(), weight = w.get(kName).to_contiguous(), dy = up.to_contiguous();
    Tensor dx = need_x ? Tensor::empty_like(in) : Tensor(), dw = need_w ? Tensor::empty_like(weight) : Tensor();
    Tensor db = has_bias ? Tensor::empty({c.Co}, dy.dtype()) : Tensor();
    with_float(kName, dy.dtype(), [&](auto t) {
      using T = decltype(t);
      const auto out = [](Tensor& g) { return g.defined() ? g.mut_ptr<T>() : nullptr; };
      kernels::conv2d_grad(c, in.ptr<T>(), weight.ptr<T>(), dy.ptr<T>(), out(dx), out(dw), out(db));
    });
    return {dx, dw, db};
  }
};

Tensor run(const kernels::Conv2d& c, const Tensor& x, const Tensor& w, const Tensor& bias, const Shape& out) {
  const Tensor in = x.detach().to_contiguous(), weight = w.detach().to_contiguous();
  const Tensor b = bias.defined() ? bias.detach().to_contiguous() : Tensor();
  Tensor y = Tensor::empty(out, x.dtype());
  with_float("conv", x.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::conv2d(c, in.ptr<T>(), weight.ptr<T>(), b.defined() ? b.ptr<T>() : nullptr, y.mut_ptr<T>());
  });
  return record<Conv>(y, {&x, &w, &bias}, c, x, w, bias);
}

void check(const char* op, const Tensor& x, const Tensor& w, const Tensor& bias, i64 groups, i64 stride, i64 dilation, i64 padding,
           i64 out_size) {
  const i64 channels = x.dim(-1);
  if (groups < 1 || channels % groups != 0 || w.dim(0) % groups != 0 || w.dim(1) != channels / groups ||
      (bias.defined() && bias.shape() != Shape{w.dim(0)}))
    throw ShapeError(fmt::format("[{}] got x {}, w {}, bias {}, groups {}, expected w [Co, Ci / groups, taps] and bias [Co]", op,
                                 x.shape().str(), w.shape().str(), bias.defined() ? bias.shape().str() : "none", groups));
  if (stride < 1 || dilation < 1)
    throw ShapeError(fmt::format("[{}] got stride {} and dilation {}, expected at least 1", op, stride, dilation));
  if (padding < 0) throw ShapeError(fmt::format("[{}] got a padding of {}, expected at least 0", op, padding));
  if (std::min(w.dim(2), w.dim(-1)) < 1) throw ShapeError(fmt::format("[{}] got w {}, expected at least one tap", op, w.shape().str()));
  for (const Tensor* t : {&w, &bias})
    if (t->defined() && t->dtype() != x.dtype())
      throw ShapeError(fmt::format("[{}] element types differ: got {} and {}", op, name_of(x.dtype()), name_of(t->dtype())));
  if (out_size < 1)
    throw ShapeError(fmt::format("[{}] the kernel {} reaches beyond the padded input {}", op, w.shape().str(), x.shape().str()));
}

i64 output_size(i64 in, i64 taps, i64 stride, i64 dilation, i64 pad) {
  const i64 room = in + pad - dilation * (taps - 1) - 1;
  return room < 0 || stride < 1 ? 0 : room / stride + 1;
}

}  // namespace

Tensor conv1d(const Tensor& x, const Tensor& w, const Tensor& bias, const ConvOptions& o) {
  if (x.rank() != 3 || w.rank() != 3)
    throw ShapeError(
        fmt::format("[conv1d] got x {} and w {}, expected x [B, N, Ci] and w [Co, Ci / groups, taps]", x.shape().str(), w.shape().str()));
  const i64 n = output_size(x.dim(1), w.dim(2), o.stride, o.dilation, o.pad_before + o.pad_after);
  check("conv1d", x, w, bias, o.groups, o.stride, o.dilation, std::min(o.pad_before, o.pad_after), n);
  kernels::Conv2d c{.B = x.dim(0), .Hi = 1, .Wi = x.dim(1), .Ci = x.dim(2), .Co = w.dim(0), .Kh = 1, .Kw = w.dim(2)};
  c.stride_w = o.stride;
  c.dilation_w = o.dilation;
  c.groups = o.groups;
  c.pad_left = o.pad_before;
  c.pad_right = o.pad_after;
  return run(c, x, w, bias, {x.dim(0), n, w.dim(0)});
}

Tensor conv2d(const Tensor& x, const Tensor& w, const Tensor& bias, const Conv2dOptions& o) {
  if (x.rank() != 4 || w.rank() != 4)
    throw ShapeError(fmt::format("[conv2d] got x {} and w {}, expected x [B, H, W, Ci] and w [Co, Ci / groups, Kh, Kw]", x.shape().str(),
                                 w.shape().str()));
  const i64 h = output_size(x.dim(1), w.dim(2), o.stride_h, o.dilation_h, o.pad_top + o.pad_bottom);
  const i64 n = output_size(x.dim(2), w.dim(3), o.stride_w, o.dilation_w, o.pad_left + o.pad_right);
  check("conv2d", x, w, bias, o.groups, std::min(o.stride_h, o.stride_w), std::min(o.dilation_h, o.dilation_w),
        std::min({o.pad_top, o.pad_bottom, o.pad_left, o.pad_right}), std::min(h, n));
  kernels::Conv2d c{.B = x.dim(0), .Hi = x.dim(1), .Wi = x.dim(2), .Ci = x.dim(3), .Co = w.dim(0), .Kh = w.dim(2), .Kw = w.dim(3)};
  c.stride_h = o.stride_h;
  c.stride_w = o.stride_w;
  c.dilation_h = o.dilation_h;
  c.dilation_w = o.dilation_w;
  c.groups = o.groups;
  c.pad_top = o.pad_top;
  c.pad_bottom = o.pad_bottom;
  c.pad_left = o.pad_left;
  c.pad_right = o.pad_right;
  return run(c, x, w, bias, {x.dim(0), h, n, w.dim(0)});
}

}  // namespace tapeformer::ops
