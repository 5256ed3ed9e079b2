// conv1d.h: convolution along the sequence, channels last. Padded rows are read as zeros and stay zero.
#pragma once
#include "autograd/ops.h"
#include "layers/module.h"

namespace tapeformer {

struct Conv1dOptions {
  i64 kernel = 3, stride = 1, dilation = 1, groups = 1;
  bool causal = false;  // taps reach back only; otherwise centred
};

// Padding that keeps the length at stride 1: all of it before (causal), or as much on both sides, the odd tap of an even kernel at the end.
ops::ConvOptions same_length(const Conv1dOptions&);

class Conv1d : public Module {
 public:
  Conv1d(i64 in, i64 out, const Conv1dOptions&, RngKey key);
  // x [B, N, in], mask u8 [B, N] or undefined -> [B, ceil(N / stride), out]
  Tensor forward(const Tensor& x, const Tensor& mask) const;
  Tensor strided_mask(const Tensor& mask) const;  // u8 [B, N] -> [B, ceil(N / stride)]

 private:
  Conv1dOptions options_;
  Weight weight_, bias_;  // [out, in / groups, kernel], [out]
};

}  // namespace tapeformer
