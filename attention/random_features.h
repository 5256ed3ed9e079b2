// random_features.h: random projections that a layer keeps in the checkpoint and may draw anew while it trains.
#pragma once
#include <functional>

#include "layers/module.h"

namespace tapeformer {

// W is a function of (key, draw number) alone. With every > 0, training at step s uses draw s / every, however often the layer is called;
// evaluation uses the draw of the last step. Buffers of `owner`: W, W_draw and W_key.
class RandomFeatures {
 public:
  using Draw = std::function<Tensor(RngKey)>;
  RandomFeatures(Module* owner, i64 every, RngKey, Draw);
  Tensor get(const Ctx&) const;  // W for this call; a new draw is proposed as the step's effect

 private:
  i64 every_;
  Draw draw_;
  mutable Buffer W_, number_, key_;
};

Tensor gaussian_rows(Shape, RngKey);  // N(0, 1), the default type
// [blocks, m, d]: each block's rows are orthogonal in groups of d, their directions uniform (Choromanski et al. 2020, section 2.4). Norms
// are those of independent N(0, I_d) vectors, or all sqrt(d).
Tensor orthogonal_rows(i64 blocks, i64 m, i64 d, bool chi_norms, RngKey);

}  // namespace tapeformer
