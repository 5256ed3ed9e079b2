// softmax.cpp: y[..., j] = exp(x_j - max) / sum_k exp(x_k - max) over the last axis, and its logarithm.
#include "core/kernels/softmax.h"

#include <fmt/format.h>

#include "autograd/node.h"
#include "autograd/ops.h"

namespace tapeformer::ops {
namespace {

const std::uint8_t* bytes(const Tensor& keep) { return keep.defined() ? keep.ptr<std::uint8_t>() : nullptr; }

Tensor full_keep(const char* op, const Tensor& x, const Tensor& keep) {
  if (x.rank() < 1) throw ShapeError(fmt::format("[{}] got a scalar, expected [..., n]", op));
  if (!keep.defined()) return {};
  if (keep.dtype() != DType::U8) throw ShapeError(fmt::format("[{}] keep is {}, expected u8", op, name_of(keep.dtype())));
  return keep.expand(x.shape()).to_contiguous();
}

i64 rows_of(const Tensor& x) { return x.dim(-1) == 0 ? 0 : x.numel() / x.dim(-1); }

struct Softmax final : Node {
  static constexpr std::string_view kName = "softmax";
  SavedTensor y;
  explicit Softmax(const Tensor& y_) : y(y_, Keep::Exact) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {  // dx = y (dy - sum(y dy))
    const Tensor out = y.get(kName), dy = up.to_contiguous();
    Tensor dx = Tensor::empty_like(dy);
    with_float(kName, dy.dtype(), [&](auto t) {
      using T = decltype(t);
      kernels::softmax_grad(out.ptr<T>(), dy.ptr<T>(), rows_of(dy), dy.dim(-1), dx.mut_ptr<T>());
    });
    return {dx};
  }
};

struct LogSoftmax final : Node {
  static constexpr std::string_view kName = "log_softmax";
  SavedTensor y;
  Tensor keep;
  LogSoftmax(const Tensor& y_, Tensor k) : y(y_, Keep::Exact), keep(std::move(k)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {  // dx = dy - exp(y) sum(dy)
    const Tensor out = y.get(kName), dy = up.to_contiguous();
    Tensor dx = Tensor::empty_like(dy);
    with_float(kName, dy.dtype(), [&](auto t) {
      using T = decltype(t);
      kernels::log_softmax_grad(out.ptr<T>(), bytes(keep), dy.ptr<T>(), rows_of(dy), dy.dim(-1), dx.mut_ptr<T>());
    });
    return {dx};
  }
};

}  // namespace

Tensor softmax(const Tensor& x, const Tensor& keep) {
  const Tensor mask = full_keep("softmax", x, keep);
  const Tensor in = x.detach().to_contiguous();
  Tensor y = Tensor::empty_like(in);
  with_float("softmax", x.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::softmax(in.ptr<T>(), bytes(mask), rows_of(in), in.dim(-1), y.mut_ptr<T>());
  });
  return record<Softmax>(y, {&x}, y);
}

Tensor log_softmax(const Tensor& x, const Tensor& keep) {
  const Tensor mask = full_keep("log_softmax", x, keep);
  const Tensor in = x.detach().to_contiguous();
  Tensor y = Tensor::empty_like(in);
  with_float("log_softmax", x.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::log_softmax(in.ptr<T>(), bytes(mask), rows_of(in), in.dim(-1), y.mut_ptr<T>());
  });
  return record<LogSoftmax>(y, {&x}, y, mask);
}

}  // namespace tapeformer::ops
