#include "layers/norm.h"

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/error.h"

namespace tapeformer {

Norm::Norm(const std::string& kind, i64 dim, double eps, RngKey key) : eps_(eps), gain_(this, "gain", {dim}, Init::ones(), key, false) {
  if (kind == "layer_norm")
    bias_ = std::make_unique<Weight>(this, "bias", Shape{dim}, Init::zeros(), key, false);
  else if (kind != "rms_norm")
    throw ConfigError("norm: got '" + kind + "', expected one of: layer_norm, rms_norm");
}

Tensor Norm::forward(const Tensor& x) const {
  return bias_ ? ops::layer_norm(x, gain_.get(), bias_->get(), eps_) : ops::rms_norm(x, gain_.get(), eps_);
}

NamedLayerNorm::NamedLayerNorm(Module* owner, const std::string& prefix, i64 dim, double eps, RngKey key)
    : eps_(eps),
      gain_(owner, prefix + "g", {dim}, Init::ones(), key, false),
      bias_(owner, prefix + "b", {dim}, Init::zeros(), key, false) {}

Tensor NamedLayerNorm::forward(const Tensor& x) const { return ops::layer_norm(x, gain_.get(), bias_.get(), eps_); }

BatchMoments::BatchMoments(Module* owner, i64 dim, double momentum, double eps)
    : momentum_(momentum),
      eps_(eps),
      mean_(owner, "running_mean", Tensor::zeros({dim}, default_dtype())),
      variance_(owner, "running_var", Tensor::full({dim}, 1, default_dtype())) {}

Tensor BatchMoments::normalise(const Tensor& x, const Tensor& mask, const Ctx& ctx) const {
  const auto real = [&](const Tensor& t) { return mask.defined() ? ops::mask_rows(t, mask) : t; };
  const auto divided = [&](const Tensor& centred, const Tensor& variance) {
    return ops::mul(centred, ops::pow(ops::scale(variance, 1, eps_), -0.5));
  };
  if (!ctx.training) return divided(real(ops::sub(x, mean_.get())), variance_.get());
  double count = static_cast<double>(x.dim(0) * x.dim(1));
  if (mask.defined()) {
    const std::vector<double> m = mask.to_vector();
    count = static_cast<double>(std::count_if(m.begin(), m.end(), [](double v) { return v != 0; }));
  }
  if (ctx.effects && count > 0) propose(real(x.detach()), count, *ctx.effects);
  const double share = 1 / std::max(count, 1.0);
  const Tensor centred = real(ops::sub(x, ops::scale(ops::sum(real(x), {0, 1}), share)));
  return divided(centred, ops::scale(ops::sum(ops::mul(centred, centred), {0, 1}), share));
}

// Sums are of x less the running mean, which stays as it is during a step: small where the mean is large. Padded rows are 0 here; what they
// add is taken off.
void BatchMoments::propose(const Tensor& x, double count, StepEffects& effects) const {
  const i64 D = x.dim(2);
  const double padding = static_cast<double>(x.dim(0) * x.dim(1)) - count;
  const Tensor shift = mean_.get().clone(), off = ops::sub(x, shift);
  const Tensor sum = ops::add(ops::sum(off, {0, 1}), ops::scale(shift, padding));
  const Tensor squares = ops::sub(ops::sum(ops::mul(off, off), {0, 1}), ops::scale(ops::mul(shift, shift), padding));
  const Tensor counts = Tensor::scalar(count), both = ops::concat({sum, squares}, 0).to(DType::F32);
  const auto moved = [momentum = momentum_](Tensor& buffer, const std::vector<double>& batch) {
    std::vector<double> v = buffer.to_vector();
    for (std::size_t i = 0; i < v.size(); ++i) v[i] += momentum * (batch[i] - v[i]);
    buffer.copy_from(Tensor::from<double>(v, buffer.shape()));
  };
  effects.propose(&variance_.value(), both, counts, [moved, D](Tensor& buffer, const Tensor& sums, const Tensor& n) {
    const std::vector<double> s = sums.to_vector();
    std::vector<double> batch(static_cast<std::size_t>(D));
    for (i64 i = 0; i < D; ++i) batch[i] = std::max(0.0, s[D + i] - s[i] * s[i] / n.item()) / std::max(n.item() - 1, 1.0);
    moved(buffer, batch);
  });
  effects.propose(&mean_.value(), sum.to(DType::F32), counts, [moved, shift](Tensor& buffer, const Tensor& sums, const Tensor& n) {
    const std::vector<double> s = sums.to_vector(), start = shift.to_vector();
    std::vector<double> batch(s.size());
    for (std::size_t i = 0; i < s.size(); ++i) batch[i] = start[i] + s[i] / n.item();
    moved(buffer, batch);
  });
}

}  // namespace tapeformer
