#include "attention/windows.h"

#include <algorithm>

#include "autograd/ops.h"

namespace tapeformer {

Tensor Windows::real_rows(const Tensor& mask, i64 batch) const {
  Tensor out = Tensor::empty({batch, count()}, DType::I64);
  const Tensor m = mask.defined() ? mask.to_contiguous() : Tensor();
  for (i64 b = 0; b < batch; ++b)
    for (i64 t = 0; t < count(); ++t) {
      const i64 from = t * stride_, to = std::min(last(t) + 1, length_);
      const std::uint8_t* row = m.defined() ? m.ptr<std::uint8_t>() + b * length_ : nullptr;
      out.mut_ptr<i64>()[b * count() + t] = row ? std::count_if(row + from, row + to, [](std::uint8_t x) { return x != 0; }) : to - from;
    }
  return out;
}

Tensor Windows::visible(const Tensor& mask) const {
  if (!mask.defined()) return {};
  const Tensor rows = real_rows(mask, mask.dim(0));
  Tensor out = Tensor::empty(rows.shape(), DType::U8);
  std::transform(rows.data<i64>().begin(), rows.data<i64>().end(), out.mut<std::uint8_t>().begin(), [](i64 n) { return n > 0; });
  return out;
}

Tensor Windows::mean(const Tensor& x, const Tensor& mask) const {
  const i64 B = x.dim(0), H = x.dim(1), d = x.dim(3);
  const Tensor sums = convolve_each(x, Tensor::full({H, d, kernel_}, 1, x.dtype()), {});
  const Tensor rows = real_rows(mask, B);
  std::vector<double> share(static_cast<std::size_t>(rows.numel()));
  std::transform(rows.data<i64>().begin(), rows.data<i64>().end(), share.begin(),
                 [](i64 n) { return n > 0 ? 1 / static_cast<double>(n) : 0; });
  return ops::mul(sums, Tensor::from<double>(share, {B, 1, count(), 1}).to(x.dtype()));
}

Tensor Windows::convolve(const Tensor& x, const Tensor& filters, const Tensor& bias) const {
  const i64 H = filters.dim(0), d = filters.dim(1);
  return grouped(x, ops::reshape(filters, {H * d, filters.dim(2), kernel_}), bias, H);
}

Tensor Windows::convolve_each(const Tensor& x, const Tensor& filters, const Tensor& bias) const {
  const i64 channels = filters.dim(0) * filters.dim(1);
  return grouped(x, ops::reshape(filters, {channels, 1, kernel_}), bias, channels);
}

// Heads side by side are the channels of one grouped convolution.
Tensor Windows::grouped(const Tensor& x, const Tensor& filters, const Tensor& bias, i64 groups) const {
  const ops::ConvOptions o{.stride = stride_, .groups = groups, .pad_after = last(count() - 1) + 1 - length_};
  const Tensor flat_bias = bias.defined() ? ops::reshape(bias, {-1}) : Tensor();
  return ops::split_heads(ops::conv1d(ops::merge_heads(x), filters, flat_bias, o), x.dim(1));
}

// The samples (and the heads where they share E) lie beside each other in the columns, so that the gradient of E is one product too.
Tensor project_length(const Tensor& E, const Tensor& x) {
  const i64 B = x.dim(0), H = x.dim(1), N = x.dim(2), d = x.dim(3), r = E.dim(1);
  if (E.dim(0) == 1) {
    const Tensor columns = ops::reshape(ops::permute(x, {2, 0, 1, 3}), {1, N, B * H * d});
    return ops::permute(ops::reshape(ops::matmul(E, columns), {r, B, H, d}), {1, 2, 0, 3});
  }
  const Tensor columns = ops::reshape(ops::permute(x, {1, 2, 0, 3}), {H, N, B * d});
  return ops::permute(ops::reshape(ops::matmul(E, columns), {H, r, B, d}), {2, 0, 1, 3});
}

}  // namespace tapeformer
