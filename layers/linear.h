// linear.h: y = x W + b.
#pragma once
#include "layers/module.h"

namespace tapeformer {

class Linear : public Module {
 public:
  Linear(i64 in, i64 out, RngKey key, bool bias = true);  // Xavier uniform, bias 0
  Linear(i64 in, i64 out, RngKey key, bool bias, Init weight_init);
  Tensor forward(const Tensor& x) const;  // [..., in] -> [..., out]
  Parameter& weight() { return weight_.parameter(); }
  Parameter* bias() { return bias_ ? &bias_->parameter() : nullptr; }

 private:
  Weight weight_;                 // [in, out]
  std::unique_ptr<Weight> bias_;  // [out]
};

}  // namespace tapeformer
