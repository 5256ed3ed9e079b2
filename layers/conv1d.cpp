#include "layers/conv1d.h"

#include <cmath>

#include "autograd/ops.h"

namespace tapeformer {

Conv1d::Conv1d(i64 in, i64 out, const Conv1dOptions& o, RngKey key)
    : options_(o),
      weight_(this, "weight", {out, in / o.groups, o.kernel}, Init::fan_in(in / o.groups * o.kernel), key),
      bias_(this, "bias", {out}, Init::zeros(), key, false) {}

Tensor Conv1d::forward(const Tensor& x, const Tensor& mask) const {
  const i64 reach = options_.dilation * (options_.kernel - 1);
  ops::ConvOptions o{.stride = options_.stride, .dilation = options_.dilation, .groups = options_.groups};
  o.pad_before = options_.causal ? reach : reach / 2;
  o.pad_after = options_.causal ? 0 : reach - reach / 2;
  const Tensor y = ops::conv1d(mask.defined() ? ops::mask_rows(x, mask) : x, weight_.get(), bias_.get(), o);
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
