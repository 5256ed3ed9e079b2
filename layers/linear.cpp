#include "layers/linear.h"

#include "autograd/ops.h"

namespace tapeformer {

Linear::Linear(i64 in, i64 out, RngKey key, bool bias) : Linear(in, out, key, bias, Init::xavier(in, out)) {}

Linear::Linear(i64 in, i64 out, RngKey key, bool bias, Init init) : weight_(this, "weight", {in, out}, init, key) {
  if (bias) bias_ = std::make_unique<Weight>(this, "bias", Shape{out}, Init::zeros(), key, false);
}

Tensor Linear::forward(const Tensor& x) const { return ops::linear(x, weight_.get(), bias_ ? bias_->get() : Tensor()); }

NamedLinear::NamedLinear(Module* owner, std::string weight, std::string bias, i64 in, i64 out, RngKey key)
    : weight_(owner, std::move(weight), {out, in}, Init::fan_in(in), key) {
  if (!bias.empty()) bias_ = std::make_unique<Weight>(owner, std::move(bias), Shape{out}, Init::zeros(), key, false);
}

Tensor NamedLinear::forward(const Tensor& x) const {
  return ops::linear(x, ops::transpose(weight_.get(), 0, 1), bias_ ? bias_->get() : Tensor());
}

}  // namespace tapeformer
