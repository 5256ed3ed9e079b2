// reversible.h: residual blocks whose inputs are computed again from their outputs in backward, so that a stack keeps two tensors whatever
// its depth (Gomez et al. 2017, arXiv 1707.04585; Kitaev et al. 2020, arXiv 2001.04451, eq. 7-9):
//   y1 = x1 + F(x2), y2 = x2 + G(y1)     and back: x2 = y2 - G(y1), x1 = y1 - F(x2)
#pragma once
#include <functional>
#include <vector>

#include "autograd/tape.h"

namespace tapeformer {

struct ReversibleBlock {
  // Pure: of their argument and the parameters named below, the same shape out; again: a second call, in backward, must not act twice.
  using Half = std::function<Tensor(const Tensor& x, bool again)>;
  Half F, G;
};

// The last block's y1 and y2, one after the other: [2, ...]. x1, x2: equal shapes, they may be the same tensor. params: every parameter
// that a block reads, each once.
Tensor reversible(std::vector<ReversibleBlock> blocks, const Tensor& x1, const Tensor& x2, std::vector<Parameter*> params);

}  // namespace tapeformer
