// lion.cpp: Lion (Chen et al., "Symbolic Discovery of Optimization Algorithms", 2023, Algorithm 2):
// w <- w - lr (sign(b1 m + (1 - b1) g) + weight_decay w);  m <- b2 m + (1 - b2) g
#include "optim/optimizer.h"

namespace tapeformer {
namespace {

struct LionConfig {
  double lr = 1e-4;
  std::vector<double> betas = {0.9, 0.99};
  double weight_decay = 0.1;
};
template <class V>
void visit_fields(V& v, LionConfig& c) {
  v("lr", c.lr, above(0), "learning rate where the schedule stands at 1; three to ten times smaller than AdamW's");
  v("betas", c.betas, Range{0, 0.999999}, "share of the memory in the update, and its decay");
  v("weight_decay", c.weight_decay, at_least(0), "each step shrinks a weight by lr times this; not norms and biases");
}

class Lion final : public Optimizer {
 public:
  using Config = LionConfig;
  explicit Lion(const Config& c) : c_(c) {
    if (c.betas.size() != 2) throw ConfigError(fmt::format("optim.betas: got {} numbers, expected 2", c.betas.size()));
  }
  double base_lr() const override { return c_.lr; }

 protected:
  std::vector<Slot> slots(const Parameter& p) const override { return {{"m", p.value.shape()}}; }
  void update(Parameter& p, std::span<Tensor> state, const Step& s) const override {
    const float b1 = static_cast<float>(c_.betas[0]), b2 = static_cast<float>(c_.betas[1]), lr = static_cast<float>(s.lr);
    const float r1 = static_cast<float>(1 - c_.betas[0]), r2 = static_cast<float>(1 - c_.betas[1]);
    const float decay = p.decay ? static_cast<float>(c_.weight_decay) : 0.0f;
    const float* g = p.grad.ptr<float>();
    float *w = p.value.mut_ptr<float>(), *m = state[0].mut_ptr<float>();
    sweep(p, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) {
        const float c = b1 * m[i] + r1 * g[i];
        const float sign = static_cast<float>(c > 0) - static_cast<float>(c < 0);
        w[i] -= lr * (sign + decay * w[i]);
        m[i] = b2 * m[i] + r2 * g[i];
      }
    });
  }

 private:
  const Config c_;
};

[[maybe_unused]] const bool kRegistered = register_optimizer<Lion>("lion", "sign of an interpolated momentum: half of Adam's state");

}  // namespace
}  // namespace tapeformer
