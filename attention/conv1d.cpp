// conv1d.cpp: one convolution with norm and residual, the convolutional baseline. A whole block; a network is a stack of them.
// Rows of padding are zeros to the convolution, so that a padded sample equals its trimmed self; a hole in the mask stays a hole.
#include "layers/conv1d.h"

#include "attention/attention.h"
#include "autograd/ops.h"
#include "layers/feed_forward.h"
#include "layers/norm.h"

namespace tapeformer {
namespace {

struct ConvBlockConfig {
  i64 kernel = 3, dilation = 1;
  std::string activation = "gelu";
  double ln_eps = 1e-5, dropout = 0;
};
template <class V>
void visit_fields(V& v, ConvBlockConfig& c) {
  v("kernel", c.kernel, at_least(1), "taps; an even number has one more at the right (not causal)");
  v("dilation", c.dilation, at_least(1), "positions from tap to tap");
  v("activation", c.activation, OneOf{"gelu", "gelu_tanh", "relu", "silu"}, "after the convolution");
  v("ln_eps", c.ln_eps, above(0), "added to the variance");
  v("dropout", c.dropout, Range{0, 0.95}, "before the residual sum");
}

class ConvBlock final : public AttentionCore {
 public:
  using Config = ConvBlockConfig;
  static AttentionInfo describe() {
    return {.name = "conv1d",
            .summary = "a convolution over neighbouring positions; a whole block",
            .formula = "o = x + f(conv(LN(x)))",
            .paper = "LeCun et al. 1989; the baseline that attention is compared with",
            .cost = "time N kernel D^2, memory N D",
            .place = Place::Block,
            .q = false,
            .k = false,
            .v = false};
  }
  ConvBlock(Config c, const AttentionSpec& s, RngKey key)
      : config_(c),
        shape_(same_length({.kernel = c.kernel, .dilation = c.dilation, .causal = s.causal})),
        norm_(this, "ln_", s.dim, c.ln_eps, key),
        W_(this, "W", {s.dim, s.dim, c.kernel}, Init::fan_in(s.dim * c.kernel), key),
        b_(this, "b", {s.dim}, Init::zeros(), key, false) {}
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const Tensor x = real_rows(in.x, in.mask);
    Tensor z = activate(config_.activation, ops::conv1d(real_rows(norm_.forward(x), in.mask), W_.get(), b_.get(), shape_));
    if (ctx.training) z = ops::dropout(z, config_.dropout, ctx.key, ctx.rows);
    return real_rows(ops::add(x, z), in.mask);
  }

 private:
  Config config_;
  ops::ConvOptions shape_;
  NamedLayerNorm norm_;
  Weight W_, b_;
};

[[maybe_unused]] const bool kRegistered = register_attention<ConvBlock>();

}  // namespace
}  // namespace tapeformer
