#include "layers/pooling.h"

#include <algorithm>

#include "autograd/ops.h"
#include "core/error.h"

namespace tapeformer {
namespace {

Tensor pick(const Tensor& x, const Tensor& mask, bool last) {
  const i64 B = mask.dim(0), N = mask.dim(1);
  Tensor index = Tensor::full({B, 1}, -1, DType::I64);
  const Tensor m = mask.to_contiguous();
  for (i64 b = 0; b < B; ++b)
    for (i64 i = 0; i < N; ++i) {
      const i64 at = last ? N - 1 - i : i;
      if (!m.ptr<std::uint8_t>()[b * N + at]) continue;
      index.mut_ptr<i64>()[b] = at;
      break;
    }
  return ops::reshape(ops::gather_along(x, index), {B, x.dim(2)});
}

Tensor mean(const Tensor& x, const Tensor& mask) {
  const i64 B = mask.dim(0), N = mask.dim(1);
  Tensor weight = Tensor::zeros({B, 1, N}, DType::F64);
  const Tensor m = mask.to_contiguous();
  for (i64 b = 0; b < B; ++b) {
    i64 real = 0;
    for (i64 i = 0; i < N; ++i) real += m.ptr<std::uint8_t>()[b * N + i];
    for (i64 i = 0; i < N; ++i)
      if (m.ptr<std::uint8_t>()[b * N + i]) weight.mut_ptr<double>()[b * N + i] = 1.0 / static_cast<double>(real);
  }
  return ops::reshape(ops::matmul(weight.to(x.dtype()), ops::mask_rows(x, mask)), {B, x.dim(2)});
}

Tensor max(const Tensor& x, const Tensor& mask) {
  const i64 B = mask.dim(0), N = mask.dim(1);
  const Tensor lowest = Tensor::scalar(-1e30, x.dtype());
  const Tensor y = ops::max(ops::where(mask.view({B, N, 1}), x, lowest), 1);
  Tensor any = Tensor::zeros({B}, DType::U8);
  const Tensor m = mask.to_contiguous();
  for (i64 b = 0; b < B; ++b)
    for (i64 i = 0; i < N; ++i) any.mut_ptr<std::uint8_t>()[b] |= m.ptr<std::uint8_t>()[b * N + i];
  return ops::mask_rows(y, any);
}

}  // namespace

const std::vector<std::string>& pooling_names() {
  static const std::vector<std::string> names{"mean", "max", "cls", "last", "attention"};
  return names;
}

Pooling::Pooling(const std::string& kind, i64 dim, RngKey key) : kind_(kind) {
  if (std::find(pooling_names().begin(), pooling_names().end(), kind) == pooling_names().end())
    throw ConfigError("pooling: got '" + kind + "', expected one of: " + join(pooling_names()) + did_you_mean(kind, pooling_names()));
  if (kind != "attention") return;
  hidden_ = std::make_unique<Child<Linear>>(this, "hidden", std::make_unique<Linear>(dim, dim, key.fold_in("hidden")));
  score_ = std::make_unique<Child<Linear>>(this, "score", std::make_unique<Linear>(dim, 1, key.fold_in("score"), false));
}

Tensor Pooling::forward(const Tensor& x, const Tensor& mask) const {
  const i64 B = x.dim(0), N = x.dim(1);
  if (kind_ == "mean") return mean(x, mask);
  if (kind_ == "max") return max(x, mask);
  if (kind_ == "cls" || kind_ == "last") return pick(x, mask, kind_ == "last");
  const Tensor real = ops::mask_rows(x, mask);  // before the network: its gradient would carry what padding holds
  const Tensor scores = ops::reshape((*score_)->forward(ops::tanh((*hidden_)->forward(real))), {B, N});
  const Tensor weights = ops::softmax(scores, mask);
  return ops::reshape(ops::matmul(ops::reshape(weights, {B, 1, N}), real), {B, x.dim(2)});
}

}  // namespace tapeformer
