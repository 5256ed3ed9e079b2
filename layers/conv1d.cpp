#include "layers/conv1d.h"

#include <cmath>

#include "autograd/ops.h"

namespace tapeformer {

Conv1d::Conv1d(i64 in, i64 out, const Conv1dOptions& o, RngKey key)
    : options_(o),
      weight_(this, "weight", {out, in / o.groups, o.kernel}, Init::fan_in(in / o.groups * o.kernel), key),
      bias_(this, "bias", {out}, Init::zeros(), key, false) {}

ops::ConvOptions same_length(const Conv1dOptions& o) {
  const i64 before = o.causal ? o.kernel - 1 : (o.kernel - 1) / 2;
  return {.stride = o.stride,
          .dilation = o.dilation,
          .groups = o.groups,
          .pad_before = o.dilation * before,
          .pad_after = o.dilation * (o.kernel - 1 - before)};
}

Tensor Conv1d::forward(const Tensor& x, const Tensor& mask) const {
  const Tensor y = ops::conv1d(mask.defined() ? ops::mask_rows(x, mask) : x, weight_.get(), bias_.get(), same_length(options_));
  return mask.defined() ? ops::mask_rows(y, strided_mask(mask)) : y;
}

Tensor Conv1d::strided_mask(const Tensor& mask) const {
  if (options_.stride == 1) return mask;
  const i64 n = (mask.dim(1) + options_.stride - 1) / options_.stride;
  Tensor out = Tensor::empty({mask.dim(0), n}, DType::U8);
  const Tensor in = mask.to_contiguous();
  for (i64 b = 0; b < mask.dim(0); ++b)
    for (i64 i = 0; i < n; ++i) out.mut_ptr<std::uint8_t>()[b * n + i] = in.ptr<std::uint8_t>()[b * mask.dim(1) + i * options_.stride];
  return out;
}

}  // namespace tapeformer
