// norm.h: normalisation over the last axis: "layer_norm" (gain and bias) or "rms_norm" (gain); and over a batch.
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

// Layer norm whose gain and bias [D] are weights of the owner, named `prefix`g and `prefix`b.
class NamedLayerNorm {
 public:
  NamedLayerNorm(Module* owner, const std::string& prefix, i64 dim, double eps, RngKey key);
  Tensor forward(const Tensor& x) const;

 private:
  double eps_;
  Weight gain_, bias_;
};

// Batch norm over the real rows of x [B, N, D] (Ioffe and Szegedy 2015), without gain and bias. Training normalises by the batch's mean and
// biased variance and moves the buffers once a step: running <- (1 - momentum) running + momentum batch, with the variance unbiased;
// otherwise the buffers are used. The buffers running_mean and running_var [D] belong to the owner.
class BatchMoments {
 public:
  BatchMoments(Module* owner, i64 dim, double momentum, double eps);
  Tensor normalise(const Tensor& x, const Tensor& mask, const Ctx&) const;  // padded rows become 0

 private:
  void propose(const Tensor& x, double count, StepEffects&) const;
  double momentum_, eps_;
  mutable Buffer mean_, variance_;
};

}  // namespace tapeformer
