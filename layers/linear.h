// linear.h: y = x W + b, and y = W x + b as papers write it.
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

// y = W x + b over the last axis, W [out, in]. Both are weights of the owner, under the owner's names; no bias where its name is "".
class NamedLinear {
 public:
  NamedLinear(Module* owner, std::string weight, std::string bias, i64 in, i64 out, RngKey key);  // fan-in, bias 0
  Tensor forward(const Tensor& x) const;                                                          // [..., in] -> [..., out]
  Weight& weight() { return weight_; }

 private:
  Weight weight_;
  std::unique_ptr<Weight> bias_;
};

}  // namespace tapeformer
