// feed_forward.h: the position-wise half of a block: linear, activation, dropout, linear.
//   relu, gelu, gelu_tanh, silu: W2 f(W1 x);  swiglu: W2 (silu(Wg x) * (W1 x))  (Shazeer 2020, eq. 6)
#pragma once
#include <string>
#include <vector>

#include "layers/linear.h"

namespace tapeformer {

const std::vector<std::string>& activation_names();
Tensor activate(const std::string& name, const Tensor& x);  // relu, gelu, gelu_tanh, silu, tanh; ConfigError otherwise

class FeedForward : public Module {
 public:
  FeedForward(i64 dim, i64 hidden, const std::string& activation, double dropout, RngKey key);
  Tensor forward(const Tensor& x, const Ctx&) const;  // [..., D] -> [..., D]

 private:
  std::string activation_;
  double dropout_;
  Child<Linear> in_;
  std::unique_ptr<Child<Linear>> gate_;
  Child<Linear> out_;
};

}  // namespace tapeformer
