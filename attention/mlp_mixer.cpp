// mlp_mixer.cpp: two small networks instead of attention, one over positions and one over features: Tolstikhin et al., "MLP-Mixer: An
// all-MLP Architecture for Vision", NeurIPS 2021, eq. 1. A whole block. Positions are absolute; an input of N < max_len positions uses the
// first N rows and columns of the weights over positions, as if the rest were padding.
#include "attention/attention.h"
#include "autograd/ops.h"
#include "layers/feed_forward.h"
#include "layers/linear.h"
#include "layers/norm.h"

namespace tapeformer {
namespace {

struct MlpMixerConfig {
  std::optional<i64> max_len, token_hidden, channel_hidden;
  std::string activation = "gelu";
  double ln_eps = 1e-5, dropout = 0;
};
template <class V>
void visit_fields(V& v, MlpMixerConfig& c) {
  v("max_len", c.max_len, at_least(1), "longest input; null = the model's");
  v("token_hidden", c.token_hidden, at_least(1), "hidden width over positions; null = D/2");
  v("channel_hidden", c.channel_hidden, at_least(1), "hidden width over features; null = 4 D");
  v("activation", c.activation, OneOf{"gelu", "gelu_tanh", "relu", "silu"}, "in both networks; gelu is the exact one");
  v("ln_eps", c.ln_eps, above(0), "added to the variance of both norms");
  v("dropout", c.dropout, Range{0, 0.95}, "on the output of each network");
}

class MlpMixer final : public AttentionCore {
 public:
  using Config = MlpMixerConfig;
  static AttentionInfo describe() {
    return {.name = "mlp_mixer",
            .summary = "a network over positions, then one over features; a whole block",
            .formula = "u = x + Wt2 f(Wt1 LN(x) + bt1) + bt2 over positions;  o = u + Wc2 f(Wc1 LN(u) + bc1) + bc2",
            .paper = "Tolstikhin et al. 2021, arXiv 2105.01601",
            .cost = "time N D (token_hidden + channel_hidden), memory N (D + channel_hidden)",
            .place = Place::Block,
            .causal = false,
            .q = false,
            .k = false,
            .v = false};
  }
  MlpMixer(Config c, const AttentionSpec& s, RngKey key)
      : config_(c),
        length_(table_length(c.max_len, s)),
        norm1_(this, "ln1_", s.dim, c.ln_eps, key),
        Wt1_(this, "Wt1", {token_hidden(s), length_}, Init::fan_in(length_), key),
        bt1_(this, "bt1", {token_hidden(s)}, Init::zeros(), key, false),
        Wt2_(this, "Wt2", {length_, token_hidden(s)}, Init::fan_in(token_hidden(s)), key),
        bt2_(this, "bt2", {length_}, Init::zeros(), key, false),
        norm2_(this, "ln2_", s.dim, c.ln_eps, key),
        channels1_(this, "Wc1", "bc1", s.dim, c.channel_hidden.value_or(4 * s.dim), key),
        channels2_(this, "Wc2", "bc2", c.channel_hidden.value_or(4 * s.dim), s.dim, key) {}
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    check_length(describe().name, in.x.dim(1), length_);
    const auto drop = [&](const Tensor& t, const char* name) {
      return ctx.training ? ops::dropout(t, config_.dropout, ctx.at(name).key, ctx.rows) : t;
    };
    const Tensor x = real_rows(in.x, in.mask);
    const Tensor u = ops::add(x, drop(positions(real_rows(norm1_.forward(x), in.mask)), "positions"));
    const Tensor o = channels2_.forward(activate(config_.activation, channels1_.forward(norm2_.forward(u))));
    return real_rows(ops::add(u, drop(o, "channels")), in.mask);
  }

 private:
  i64 token_hidden(const AttentionSpec& s) const { return config_.token_hidden.value_or(std::max<i64>(s.dim / 2, 1)); }

  Tensor positions(const Tensor& y) const {  // [B, N, D]: the weights stand at the left, so that nothing is turned
    const i64 N = y.dim(1);
    const Tensor t =
        activate(config_.activation, ops::add(ops::matmul(ops::slice(Wt1_.get(), 1, 0, N), y), ops::reshape(bt1_.get(), {-1, 1})));
    return ops::add(ops::matmul(ops::slice(Wt2_.get(), 0, 0, N), t), ops::reshape(ops::slice(bt2_.get(), 0, 0, N), {N, 1}));
  }
  Config config_;
  i64 length_;
  NamedLayerNorm norm1_;
  Weight Wt1_, bt1_, Wt2_, bt2_;  // [token_hidden, L], [token_hidden], [L, token_hidden], [L]
  NamedLayerNorm norm2_;
  NamedLinear channels1_, channels2_;
};

[[maybe_unused]] const bool kRegistered = register_attention<MlpMixer>();

}  // namespace
}  // namespace tapeformer
