#include "layers/linear.h"

#include "autograd/ops.h"

namespace tapeformer {

Linear::Linear(i64 in, i64 out, RngKey key, bool bias) : Linear(in, out, key, bias, Init::xavier(in, out)) {}

Linear::Linear(i64 in, i64 out, RngKey key, bool bias, Init init) : weight_(this, "weight", {in, out}, init, key) {
  if (bias) bias_ = std::make_unique<Weight>(this, "bias", Shape{out}, Init::zeros(), key, false);
}

Tensor Linear::forward(const Tensor& x) const { return ops::linear(x, weight_.get(), bias_ ? bias_->get() : Tensor()); }

}  // namespace tapeformer
