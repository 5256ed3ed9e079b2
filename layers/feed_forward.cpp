#include "layers/feed_forward.h"

#include <algorithm>

#include "autograd/ops.h"
#include "core/error.h"

namespace tapeformer {

const std::vector<std::string>& activation_names() {
  static const std::vector<std::string> names{"relu", "gelu", "gelu_tanh", "silu", "tanh"};
  return names;
}

Tensor activate(const std::string& name, const Tensor& x) {
  if (name == "relu") return ops::relu(x);
  if (name == "gelu") return ops::gelu(x);
  if (name == "gelu_tanh") return ops::gelu_tanh(x);
  if (name == "silu") return ops::silu(x);
  if (name == "tanh") return ops::tanh(x);
  throw ConfigError("activation: got '" + name + "', expected one of: " + join(activation_names()) +
                    did_you_mean(name, activation_names()));
}

FeedForward::FeedForward(i64 dim, i64 hidden, const std::string& activation, double dropout, RngKey key)
    : activation_(activation),
      dropout_(dropout),
      in_(this, "in", std::make_unique<Linear>(dim, hidden, key.fold_in("in"))),
      out_(this, "out", std::make_unique<Linear>(hidden, dim, key.fold_in("out"))) {
  if (activation == "swiglu")
    gate_ = std::make_unique<Child<Linear>>(this, "gate", std::make_unique<Linear>(dim, hidden, key.fold_in("gate")));
  else if (std::find(activation_names().begin(), activation_names().end(), activation) == activation_names().end())
    activate(activation, {});
}

Tensor FeedForward::forward(const Tensor& x, const Ctx& ctx) const {
  Tensor h = gate_ ? ops::mul(ops::silu((*gate_)->forward(x)), in_->forward(x)) : activate(activation_, in_->forward(x));
  if (ctx.training) h = ops::dropout(h, dropout_, ctx.at("hidden").key, ctx.rows);
  return out_->forward(h);
}

}  // namespace tapeformer
