// recompute.h: activation checkpointing (Chen et al. 2016): a block's inner values are dropped after forward and computed again in
// backward.
#pragma once
#include <functional>
#include <span>
#include <vector>

#include "autograd/tape.h"

namespace tapeformer {

// fn(inputs) must be pure: it may read `inputs` and the parameters named in `params`, nothing else that is recorded. The result, every
// gradient and every random mask are the same bits as without recompute.
Tensor recompute(std::function<Tensor(std::span<const Tensor>)> fn, std::vector<Tensor> inputs, std::vector<Parameter*> params);

}  // namespace tapeformer
