// adamw.cpp: Adam with decoupled weight decay (Loshchilov & Hutter, "Decoupled Weight Decay Regularization", 2019, Algorithm 2):
// w <- w - lr weight_decay w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps), m and v as in Adam
#include <cmath>

#include "optim/optimizer.h"

namespace tapeformer {
namespace {

struct AdamWConfig {
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 0.01;
};
template <class V>
void visit_fields(V& v, AdamWConfig& c) {
  v("lr", c.lr, above(0), "learning rate where the schedule stands at 1");
  v("betas", c.betas, Range{0, 0.999999}, "memory of the mean and of the square of the gradient");
  v("eps", c.eps, above(0), "added to the root of the square");
  v("weight_decay", c.weight_decay, at_least(0), "each step shrinks a weight by lr times this; not norms and biases");
}

class AdamW final : public Optimizer {
 public:
  using Config = AdamWConfig;
  explicit AdamW(const Config& c) : c_(c) {
    if (c.betas.size() != 2) throw ConfigError(fmt::format("optim.betas: got {} numbers, expected 2", c.betas.size()));
  }
  double base_lr() const override { return c_.lr; }

 protected:
  std::vector<Slot> slots(const Parameter& p) const override { return {{"m", p.value.shape()}, {"v", p.value.shape()}}; }
  void update(Parameter& p, std::span<Tensor> state, const Step& s) const override {
    const double t = static_cast<double>(s.number);
    const float b1 = static_cast<float>(c_.betas[0]), b2 = static_cast<float>(c_.betas[1]), eps = static_cast<float>(c_.eps);
    const float r1 = static_cast<float>(1 - c_.betas[0]), r2 = static_cast<float>(1 - c_.betas[1]);
    const float rate = static_cast<float>(s.lr / (1 - std::pow(c_.betas[0], t)));
    const float correct = static_cast<float>(1 / std::sqrt(1 - std::pow(c_.betas[1], t)));
    const float shrink = p.decay ? static_cast<float>(s.lr * c_.weight_decay) : 0.0f;
    const float* g = p.grad.ptr<float>();
    float *w = p.value.mut_ptr<float>(), *m = state[0].mut_ptr<float>(), *v = state[1].mut_ptr<float>();
    sweep(p, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) {
        m[i] = b1 * m[i] + r1 * g[i];
        v[i] = b2 * v[i] + r2 * g[i] * g[i];
        w[i] -= shrink * w[i] + rate * m[i] / (std::sqrt(v[i]) * correct + eps);
      }
    });
  }

 private:
  const Config c_;
};

[[maybe_unused]] const bool kRegistered = register_optimizer<AdamW>("adamw", "Adam with decoupled weight decay");

}  // namespace
}  // namespace tapeformer
