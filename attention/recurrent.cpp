// recurrent.cpp: recurrent networks as mixers, in one or two directions (core/kernels/recurrent.h has the equations). Schuster and Paliwal,
// "Bidirectional Recurrent Neural Networks", 1997. The direction that runs back starts at the last real token.
#include <cmath>

#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

using kernels::Cell;

template <Cell cell>
struct RecurrentConfig {
  std::optional<i64> hidden;
  bool bidirectional = false;
  i64 layers = 1;
  double dropout = 0, forget_bias = 1;
};
template <class V, Cell cell>
void visit_fields(V& v, RecurrentConfig<cell>& c) {
  v("hidden", c.hidden, at_least(1), "states of each direction; null = D, or D/2 with two directions");
  v("bidirectional", c.bidirectional, "a second network from the last token to the first");
  v("layers", c.layers, Range{1, 1000}, "networks on top of each other");
  v("dropout", c.dropout, Range{0, 0.95}, "between layers");
  if constexpr (cell == Cell::Lstm) v("forget_bias", c.forget_bias, Range{-100, 100}, "start value of the forget gate's bias");
}

class Direction {  // one layer's network in one direction; its weights belong to `owner`
 public:
  Direction(Module* owner, Cell cell, bool reverse, const std::string& suffix, i64 in, i64 hidden, double forget_bias, RngKey key)
      : cell_(cell),
        reverse_(reverse),
        w_ih_(owner, "w_ih" + suffix, {kernels::gates_of(cell) * hidden, in}, start(hidden), key),
        w_hh_(owner, "w_hh" + suffix, {kernels::gates_of(cell) * hidden, hidden}, start(hidden), key),
        b_ih_(owner, "b_ih" + suffix, {kernels::gates_of(cell) * hidden}, start(hidden), key, false),
        b_hh_(owner, "b_hh" + suffix, {kernels::gates_of(cell) * hidden}, start(hidden), key, false) {
    if (cell != Cell::Lstm) return;
    b_ih_.parameter().value.slice(0, hidden, 2 * hidden).fill(forget_bias);
    b_hh_.parameter().value.slice(0, hidden, 2 * hidden).fill(0);
  }
  Tensor forward(const Tensor& x, const Tensor& mask) const {
    const Tensor gi = ops::linear(x, ops::transpose(w_ih_.get(), 0, 1), b_ih_.get());
    return ops::recurrent(gi, w_hh_.get(), b_hh_.get(), {.cell = cell_, .reverse = reverse_, .mask = mask});
  }

 private:
  static Init start(i64 hidden) { return Init::uniform(1 / std::sqrt(static_cast<double>(hidden))); }
  Cell cell_;
  bool reverse_;
  Weight w_ih_, w_hh_, b_ih_, b_hh_;
};

template <Cell cell>
class Recurrent final : public AttentionCore {
 public:
  using Config = RecurrentConfig<cell>;
  static AttentionInfo describe() {
    AttentionInfo i{.cost = "time N G H (D + H) in N steps one after the other, memory N G H; G = 1, 4, 3 for rnn, lstm, gru",
                    .place = Place::Mix,
                    .q = false,
                    .k = false,
                    .v = false};
    if (cell == Cell::Rnn) {
      i.name = "rnn";
      i.summary = "a recurrent network with tanh units instead of attention";
      i.formula = "h_t = tanh(W_ih x_t + b_ih + W_hh h_(t-1) + b_hh)";
      i.paper = "Elman 1990, Finding Structure in Time";
    } else if (cell == Cell::Lstm) {
      i.name = "lstm";
      i.summary = "a recurrent network with long short-term memory instead of attention";
      i.formula = "c_t = s(f) c_(t-1) + s(i) tanh(g);  h_t = s(o) tanh(c_t);  (i,f,g,o) = W_ih x_t + b_ih + W_hh h_(t-1) + b_hh";
      i.paper = "Hochreiter and Schmidhuber 1997, Long Short-Term Memory";
    } else {
      i.name = "gru";
      i.summary = "a recurrent network with gated units instead of attention";
      i.formula =
          "h_t = (1 - z) n + z h_(t-1);  n = tanh(gi_n + r gh_n);  r, z = s(gi + gh);  gi = W_ih x_t + b_ih, gh = W_hh h_(t-1) + b_hh";
      i.paper = "Cho et al. 2014, arXiv 1406.1078";
    }
    return i;
  }
  Recurrent(Config c, const AttentionSpec& spec, RngKey key) : config_(c), directions_(c.bidirectional ? 2 : 1) {
    if (c.bidirectional && spec.causal) throw ConfigError("bidirectional: true sees the future and cannot be used with causal: true");
    if (!c.hidden && spec.dim % directions_ != 0)
      throw ConfigError(fmt::format("hidden: missing; the model's width {} cannot be shared by two directions", spec.dim));
    if (c.layers == 1 && c.dropout > 0)
      warn_unused(fmt::format("attention.{}: dropout has no effect with layers: 1, it acts between layers", describe().name));
    hidden_ = c.hidden.value_or(spec.dim / directions_);
    for (i64 layer = 0; layer < c.layers; ++layer)
      for (i64 d = 0; d < directions_; ++d)
        networks_.push_back(std::make_unique<Direction>(this, cell, d == 1, (d == 1 ? "_rev" : "") + suffix(layer),
                                                        layer == 0 ? spec.dim : directions_ * hidden_, hidden_, c.forget_bias, key));
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  i64 value_dim() const override { return directions_ * hidden_; }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    Tensor x = real_rows(in.x, in.mask);
    for (i64 layer = 0; layer < config_.layers; ++layer) {
      if (layer > 0 && ctx.training) x = ops::dropout(x, config_.dropout, ctx.at(layer).key, ctx.rows);
      std::vector<Tensor> states;
      for (i64 d = 0; d < directions_; ++d)
        states.push_back(networks_[static_cast<std::size_t>(layer * directions_ + d)]->forward(x, in.mask));
      x = states.size() == 1 ? states[0] : ops::concat(states, 2);
    }
    return x;
  }

 private:
  static std::string suffix(i64 layer) { return layer == 0 ? "" : "_" + std::to_string(layer); }
  Config config_;
  i64 directions_, hidden_;
  std::vector<std::unique_ptr<Direction>> networks_;
};

[[maybe_unused]] const bool kRegistered[] = {register_attention<Recurrent<Cell::Rnn>>(), register_attention<Recurrent<Cell::Lstm>>(),
                                             register_attention<Recurrent<Cell::Gru>>()};

}  // namespace
}  // namespace tapeformer
