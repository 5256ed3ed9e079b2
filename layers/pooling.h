// pooling.h: one vector a sequence, over real tokens only. cls: the first real position; last: the last real position; mean; max;
// attention: weights softmax_n(w . tanh(W x_n)) (Yang et al. 2016, eq. 5-7). A sample without real tokens gives zeros.
#pragma once
#include <string>
#include <vector>

#include "layers/linear.h"

namespace tapeformer {

const std::vector<std::string>& pooling_names();

class Pooling : public Module {
 public:
  Pooling(const std::string& kind, i64 dim, RngKey key);
  Tensor forward(const Tensor& x, const Tensor& mask) const;  // [B, N, D], u8 [B, N] -> [B, D]

 private:
  std::string kind_;
  std::unique_ptr<Child<Linear>> hidden_, score_;
};

}  // namespace tapeformer
