// synthesizer.cpp: attention weights that do not come from q.k: an N x N matrix of parameters, or a small network on the query's token.
// Tay et al., "Synthesizer: Rethinking Self-Attention for Transformer Models", ICML 2021, sections 3.1 and 3.2.
// Positions are absolute: a batch padded at the left means something else than one padded at the right.
#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct SynthesizerConfig {
  std::string kind = "random";
  std::optional<i64> max_len, hidden;
};
template <class V>
void visit_fields(V& v, SynthesizerConfig& c) {
  v("kind", c.kind, OneOf{"random", "fixed_random", "dense"},
    "random: learned matrix; fixed_random: never trained; dense: two layers on x");
  v("max_len", c.max_len, at_least(1), "longest input; null = the model's");
  v("hidden", c.hidden, at_least(1), "dense: hidden width; null = head width");
}

class Synthesizer final : public AttentionCore {
 public:
  using Config = SynthesizerConfig;
  static AttentionInfo describe() {
    return {.name = "synthesizer",
            .summary = "weights from parameters (random) or from the query's token alone (dense), not from q.k",
            .formula = "o = softmax(R) v;  dense: R_ij = (W2 relu(W1 x_i + b1) + b2)_j",
            .paper = "Tay et al. 2021, arXiv 2005.00743",
            .cost = "time N^2 d, memory random L^2 a head, dense N d",
            .q = false,
            .k = false};
  }
  Synthesizer(Config c, const AttentionSpec& s, RngKey key) : config_(c), spec_(s), length_(table_length(c.max_len, s)) {
    const i64 H = s.heads, hidden = c.hidden.value_or(s.head_dim);
    if (c.hidden && c.kind != "dense") warn_unused("attention.synthesizer: hidden has no effect with kind: " + c.kind);
    if (c.kind == "dense") {
      W1_ = std::make_unique<Weight>(this, "W1", Shape{H, hidden, s.dim}, Init::fan_in(s.dim), key);
      b1_ = std::make_unique<Weight>(this, "b1", Shape{H, hidden}, Init::zeros(), key, false);
      W2_ = std::make_unique<Weight>(this, "W2", Shape{H, length_, hidden}, Init::fan_in(hidden), key);
      b2_ = std::make_unique<Weight>(this, "b2", Shape{H, length_}, Init::zeros(), key, false);
    } else if (c.kind == "random") {
      R_ = std::make_unique<Weight>(this, "R", Shape{H, length_, length_}, Init::normal(1), key);
    } else {
      Tensor r = Tensor::empty({H, length_, length_}, default_dtype());
      Init::normal(1).fill(r, key.fold_in("R"));
      fixed_ = std::make_unique<Buffer>(this, "R", r);
    }
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const i64 B = in.v.dim(0), H = in.v.dim(1), N = in.v.dim(2);
    check_length(describe().name, N, length_);
    ops::AttentionOptions o{.scale = 1.0, .causal = spec_.causal, .query_mask = in.mask, .key_mask = in.mask};
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    if (config_.kind == "dense") {
      // Scores of vectors: the query is relu(W1 x + b1), the keys W2 are shared by all samples, b2 is a bias of the key.
      const Tensor hidden =
          ops::relu(ops::add(ops::matmul(ops::reshape(real_rows(in.x, in.mask), {B, 1, N, in.x.dim(2)}), ops::transpose(W1_->get(), 1, 2)),
                             ops::reshape(b1_->get(), {H, 1, -1})));
      const Tensor keys = ops::slice(W2_->get(), 1, 0, N);
      o.key_bias = ops::reshape(ops::slice(b2_->get(), 1, 0, N), {1, H, N});
      return ops::attention(hidden, ops::reshape(keys, {1, H, N, -1}), in.v, o);
    }
    const Tensor R = R_ ? R_->get() : fixed_->get();
    o.pair_bias = ops::reshape(ops::slice(ops::slice(R, 1, 0, N), 2, 0, N), {1, H, N, N});
    const Tensor none = Tensor::zeros({1, 1, 1, 1}, in.v.dtype());
    return ops::attention(none.expand({B, H, N, 1}), none.expand({1, 1, N, 1}), in.v, o);
  }

 private:
  Config config_;
  AttentionSpec spec_;
  i64 length_;
  std::unique_ptr<Weight> W1_, b1_, W2_, b2_, R_;
  std::unique_ptr<Buffer> fixed_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Synthesizer>();

}  // namespace
}  // namespace tapeformer
