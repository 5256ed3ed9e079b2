// norm.h: normalisation over the last axis: "layer_norm" (gain and bias) or "rms_norm" (gain).
#pragma once
#include <string>

#include "layers/module.h"

namespace tapeformer {

class Norm : public Module {
 public:
  Norm(const std::string& kind, i64 dim, double eps, RngKey key);  // ConfigError for another kind
  Tensor forward(const Tensor& x) const;                           // [..., D] -> [..., D]

 private:
  double eps_;
  Weight gain_;                   // [D]
  std::unique_ptr<Weight> bias_;  // [D], layer_norm only
};

}  // namespace tapeformer
