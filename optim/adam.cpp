// adam.cpp: Adam (Kingma & Ba, "Adam: A Method for Stochastic Optimization", 2015, Algorithm 1): weight decay, where asked for, is L2: part
// of the gradient. m <- b1 m + (1 - b1) g;  v <- b2 v + (1 - b2) g^2;  w <- w - lr (m / (1 - b1^t)) / (sqrt(v / (1 - b2^t)) + eps)
#include <cmath>

#include "optim/optimizer.h"

namespace tapeformer {
namespace {

struct AdamConfig {
  double lr = 1e-3;
  std::vector<double> betas = {0.9, 0.999};
  double eps = 1e-8, weight_decay = 0;
};
template <class V>
void visit_fields(V& v, AdamConfig& c) {
  v("lr", c.lr, above(0), "learning rate where the schedule stands at 1");
  v("betas", c.betas, Range{0, 0.999999}, "memory of the mean and of the square of the gradient");
  v("eps", c.eps, above(0), "added to the root of the square");
  v("weight_decay", c.weight_decay, at_least(0), "L2: added to the gradient, times the weight; not for norms and biases");
}

class Adam final : public Optimizer {
 public:
  using Config = AdamConfig;
  explicit Adam(const Config& c) : c_(c) {
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
    const float decay = p.decay ? static_cast<float>(c_.weight_decay) : 0.0f;
    const float* grad = p.grad.ptr<float>();
    float *w = p.value.mut_ptr<float>(), *m = state[0].mut_ptr<float>(), *v = state[1].mut_ptr<float>();
    sweep(p, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) {
        const float g = grad[i] + decay * w[i];
        m[i] = b1 * m[i] + r1 * g;
        v[i] = b2 * v[i] + r2 * g * g;
        w[i] -= rate * m[i] / (std::sqrt(v[i]) * correct + eps);
      }
    });
  }

 private:
  const Config c_;
};

[[maybe_unused]] const bool kRegistered = register_optimizer<Adam>("adam", "Adam, with weight decay as part of the gradient (L2)");

}  // namespace
}  // namespace tapeformer
