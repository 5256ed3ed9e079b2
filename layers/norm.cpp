#include "layers/norm.h"

#include "autograd/ops.h"
#include "core/error.h"

namespace tapeformer {

Norm::Norm(const std::string& kind, i64 dim, double eps, RngKey key) : eps_(eps), gain_(this, "gain", {dim}, Init::ones(), key, false) {
  if (kind == "layer_norm")
    bias_ = std::make_unique<Weight>(this, "bias", Shape{dim}, Init::zeros(), key, false);
  else if (kind != "rms_norm")
    throw ConfigError("norm: got '" + kind + "', expected one of: layer_norm, rms_norm");
}

Tensor Norm::forward(const Tensor& x) const {
  return bias_ ? ops::layer_norm(x, gain_.get(), bias_->get(), eps_) : ops::rms_norm(x, gain_.get(), eps_);
}

}  // namespace tapeformer
