// embedding.h: token tables and positions.
#pragma once
#include <string>

#include "layers/module.h"

namespace tapeformer {

class Embedding : public Module {
 public:
  Embedding(i64 vocab, i64 dim, RngKey key, double stddev);
  Tensor forward(const Tensor& ids) const;  // i64 [B, N] -> [B, N, D]

 private:
  Weight table_;  // [V, D]
};

// Positions added to the input: learned [max_len, D], or sinusoidal (Vaswani et al. 2017, section 3.5).
class Positions : public Module {
 public:
  enum class Kind { Learned, Sinusoidal };
  Positions(Kind kind, i64 max_len, i64 dim, RngKey key);
  Tensor forward(const Tensor& x) const;  // [B, N, D] -> [B, N, D]; ShapeError when N > max_len

 private:
  i64 max_len_;
  std::unique_ptr<Weight> learned_;
  Tensor fixed_;
};

// Rotary positions (Su et al. 2021, eq. 34): pairs (i, i + d/2) of x [B, H, N, d] are turned by n / base^(2i/d). d must be even.
// positions: i64 [B, N], the n of each row; undefined = 0 ... N-1.
Tensor rotary(const Tensor& x, const Tensor& positions = {}, double base = 10000);

}  // namespace tapeformer
