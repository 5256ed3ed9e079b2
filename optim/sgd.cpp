// sgd.cpp: stochastic gradient descent. g <- g + weight_decay w;  m <- momentum m + g;  w <- w - lr m, or w - lr (g + momentum m) with
// Nesterov's look-ahead (Sutskever et al., "On the importance of initialization and momentum in deep learning", 2013).
#include "optim/optimizer.h"

namespace tapeformer {
namespace {

struct SgdConfig {
  double lr = 0.1, momentum = 0.9;
  bool nesterov = false;
  double weight_decay = 0;
};
template <class V>
void visit_fields(V& v, SgdConfig& c) {
  v("lr", c.lr, above(0), "learning rate where the schedule stands at 1");
  v("momentum", c.momentum, Range{0, 0.9999}, "share of the last update that is kept");
  v("nesterov", c.nesterov, "look ahead along the momentum");
  v("weight_decay", c.weight_decay, at_least(0), "added to the gradient, times the weight; not for norms and biases");
}

class Sgd final : public Optimizer {
 public:
  using Config = SgdConfig;
  explicit Sgd(const Config& c) : c_(c) {}
  double base_lr() const override { return c_.lr; }

 protected:
  std::vector<Slot> slots(const Parameter& p) const override {
    if (c_.momentum == 0) return {};
    return {{"m", p.value.shape()}};
  }
  void update(Parameter& p, std::span<Tensor> state, const Step& s) const override {
    const float lr = static_cast<float>(s.lr), mu = static_cast<float>(c_.momentum);
    const float decay = p.decay ? static_cast<float>(c_.weight_decay) : 0.0f;
    const float ahead = c_.nesterov ? mu : 1.0f, now = c_.nesterov ? 1.0f : 0.0f;
    const float* g = p.grad.ptr<float>();
    float* w = p.value.mut_ptr<float>();
    float* m = state.empty() ? nullptr : state[0].mut_ptr<float>();
    sweep(p, [&](i64 begin, i64 end) {
      if (m == nullptr) {
        for (i64 i = begin; i < end; ++i) w[i] -= lr * (g[i] + decay * w[i]);
        return;
      }
      for (i64 i = begin; i < end; ++i) {
        const float d = g[i] + decay * w[i];
        m[i] = mu * m[i] + d;
        w[i] -= lr * (now * d + ahead * m[i]);
      }
    });
  }

 private:
  const Config c_;
};

[[maybe_unused]] const bool kRegistered = register_optimizer<Sgd>("sgd", "gradient descent with momentum, optionally Nesterov's");

}  // namespace
}  // namespace tapeformer
