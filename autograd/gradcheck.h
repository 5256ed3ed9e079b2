// gradcheck.h: gradients against central differences in f64; public, for people who add ops and layers.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "autograd/tape.h"

namespace tapeformer {

struct GradcheckOptions {
  double step = 1e-6;       // x +- step max(1, |x|)
  double tolerance = 1e-6;  // |analytic - numeric| <= tolerance (1 + |numeric|)
  std::uint64_t seed = 1;   // of the random upstream gradient
};

// f: f64 inputs -> one f64 output; `params` are parameters f reads. Checks every element of every input and parameter, under
// sum(output * random). Returns "" or a message that names the worst element.
std::string gradcheck(const std::function<Tensor(const std::vector<Tensor>&)>& f, std::vector<Tensor> inputs,
                      std::vector<Parameter*> params = {}, const GradcheckOptions& = {});

}  // namespace tapeformer
