// norm.cpp: layer norm and RMS norm. Only the input and two numbers a row are kept; a consumer's copy of the output is computed again.
#include "core/kernels/norm.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "autograd/node.h"
#include "autograd/ops.h"

namespace tapeformer::ops {
namespace {

i64 rows_of(const Tensor& x) { return x.dim(-1) == 0 ? 0 : x.numel() / x.dim(-1); }

template <class T>
T* optional_ptr(Tensor& t) {
  return t.defined() ? t.mut_ptr<T>() : nullptr;
}
template <class T>
const T* optional_ptr(const Tensor& t) {
  return t.defined() ? t.ptr<T>() : nullptr;
}

template <bool kCentred>
struct Norm final : Node {
  static constexpr std::string_view kName = kCentred ? "layer_norm" : "rms_norm";
  SavedTensor x, gain, bias;
  Tensor mean, rstd;
  Norm(const Tensor& x_, const Tensor& g, const Tensor& b, Tensor mean_, Tensor rstd_)
      : x(x_, Keep::Exact), gain(g, Keep::Exact), bias(b, Keep::Exact), mean(std::move(mean_)), rstd(std::move(rstd_)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {
    const Tensor in = x.get(kName).to_contiguous(), g = gain.get(kName).to_contiguous(), dy = up.to_contiguous();
    Tensor dx = Tensor::empty_like(in), dg = Tensor::empty_like(g), db = kCentred ? Tensor::empty_like(g) : Tensor();
    with_float(kName, in.dtype(), [&](auto t) {
      using T = decltype(t);
      kernels::norm_grad(in.ptr<T>(), g.ptr<T>(), optional_ptr<T>(std::as_const(mean)), rstd.ptr<T>(), dy.ptr<T>(), rows_of(in), in.dim(-1),
                         dx.mut_ptr<T>(), dg.mut_ptr<T>(), optional_ptr<T>(db));
    });
    if constexpr (kCentred) return {dx, dg, db};
    return {dx, dg};
  }
  bool can_replay() const override { return true; }
  int replay_depth() const override { return std::max({x.replay_depth(), gain.replay_depth(), bias.replay_depth()}) + 1; }
  Tensor replay() const override {
    const Tensor in = x.get(kName).to_contiguous(), g = gain.get(kName).to_contiguous();
    const Tensor b = kCentred ? bias.get(kName).to_contiguous() : Tensor();
    Tensor y = Tensor::empty_like(in);
    with_float(kName, in.dtype(), [&](auto t) {
      using T = decltype(t);
      kernels::norm_replay(in.ptr<T>(), g.ptr<T>(), optional_ptr<T>(b), rows_of(in), in.dim(-1), optional_ptr<T>(std::as_const(mean)),
                           rstd.ptr<T>(), y.mut_ptr<T>());
    });
    return y;
  }
};

struct Result {
  Tensor y, mean, rstd;
};

Result run(std::string_view op, const Tensor& x, const Tensor& gain, const Tensor& bias, double eps, bool centred) {
  if (x.rank() < 1 || gain.shape() != Shape{x.dim(-1)} || (centred && bias.shape() != gain.shape()))
    throw ShapeError(fmt::format("[{}] got x {} and gain {}, expected x [..., D] and gain{} [D]", op, x.shape().str(), gain.shape().str(),
                                 centred ? ", bias" : ""));
  for (const Tensor* t : {&gain, &bias})
    if (t->defined() && t->dtype() != x.dtype())
      throw ShapeError(fmt::format("[{}] element types differ: got {} and {}", op, name_of(x.dtype()), name_of(t->dtype())));
  const Tensor in = x.detach().to_contiguous(), g = gain.detach().to_contiguous(), b = centred ? bias.detach().to_contiguous() : Tensor();
  const Shape rows{rows_of(in)};
  Result r{Tensor::empty_like(in), centred ? Tensor::empty(rows, x.dtype()) : Tensor(), Tensor::empty(rows, x.dtype())};
  with_float(op, x.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::norm(in.ptr<T>(), g.ptr<T>(), optional_ptr<T>(b), eps, rows[0], in.dim(-1), r.y.mut_ptr<T>(), optional_ptr<T>(r.mean),
                  r.rstd.mut_ptr<T>());
  });
  return r;
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& gain, const Tensor& bias, double eps) {
  Result r = run("layer_norm", x, gain, bias, eps, true);
  return record<Norm<true>>(r.y, {&x, &gain, &bias}, x, gain, bias, r.mean, r.rstd);
}

Tensor rms_norm(const Tensor& x, const Tensor& gain, double eps) {
  Result r = run("rms_norm", x, gain, {}, eps, false);
  return record<Norm<false>>(r.y, {&x, &gain}, x, gain, Tensor(), r.mean, r.rstd);
}

}  // namespace tapeformer::ops
