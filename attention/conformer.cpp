// conformer.cpp: feed-forward, attention, convolution and feed-forward in one block: Gulati et al., "Conformer: Convolution-augmented
// Transformer for Speech Recognition", Interspeech 2020, section 2. The attention is any variant that keeps the length. Padding never
// reaches the convolution; with conv_norm batch the samples of a batch meet in their mean and variance, over real tokens only.
#include "attention/attention.h"
#include "autograd/ops.h"
#include "layers/conv1d.h"
#include "layers/embedding.h"
#include "layers/linear.h"
#include "layers/norm.h"

namespace tapeformer {
namespace {

struct ConformerConfig {
  std::optional<i64> heads, ffn;
  i64 conv_kernel = 31;
  std::string conv_norm = "layer";
  ConfigNode attention = ConfigNode::null();
  double dropout = 0.1, ln_eps = 1e-5, bn_momentum = 0.1, bn_eps = 1e-5;
};
template <class V>
void visit_fields(V& v, ConformerConfig& c) {
  v("heads", c.heads, at_least(1), "attention heads; null = the model's");
  v("ffn", c.ffn, at_least(1), "hidden width of both feed-forward parts; null = 4 D");
  v("conv_kernel", c.conv_kernel, at_least(1), "taps of the depthwise convolution, odd unless causal");
  v("conv_norm", c.conv_norm, OneOf{"layer", "batch", "none"}, "between the depthwise convolution and its activation");
  v("attention", c.attention, "{type: ..., its keys} of the variant inside; null = full");
  v("dropout", c.dropout, Range{0, 0.95}, "on the output of each part and inside the feed-forward parts");
  v("ln_eps", c.ln_eps, above(0), "added to the variance of the layer norms");
  v("bn_momentum", c.bn_momentum, Range{0, 1}, "share of the newest batch in the running statistics (conv_norm: batch)");
  v("bn_eps", c.bn_eps, above(0), "added to the variance of a batch");
}

class HalfStep {  // W2 swish(W1 LN(x) + b1) + b2
 public:
  HalfStep(Module* owner, const std::string& prefix, i64 dim, i64 hidden, double eps, RngKey key)
      : norm_(owner, prefix + "ln_", dim, eps, key),
        in_(owner, prefix + "W1", prefix + "b1", dim, hidden, key),
        out_(owner, prefix + "W2", prefix + "b2", hidden, dim, key) {}
  template <class Drop>
  Tensor forward(const Tensor& x, Drop&& drop) const {
    return out_.forward(drop(ops::silu(in_.forward(norm_.forward(x))), "hidden"));
  }

 private:
  NamedLayerNorm norm_;
  NamedLinear in_, out_;
};

class Convolution {  // W2 swish(norm(depthwise(mask * GLU(W1 LN(x) + b1)))) + b2
 public:
  Convolution(Module* owner, const ConformerConfig& c, i64 dim, bool causal, RngKey key)
      : dim_(dim),
        eps_(c.ln_eps),
        shape_(same_length({.kernel = c.conv_kernel, .groups = dim, .causal = causal})),
        norm_(owner, "cv_ln_", dim, c.ln_eps, key),
        in_(owner, "cv_W1", "cv_b1", dim, 2 * dim, key),
        taps_(owner, "cv_Wd", {dim, c.conv_kernel}, Init::fan_in(c.conv_kernel), key),
        bias_(owner, "cv_bd", {dim}, Init::zeros(), key, false),
        out_(owner, "cv_W2", "cv_b2", dim, dim, key) {
    if (c.conv_norm == "none") return;
    gain_ = std::make_unique<Weight>(owner, "cv_n_g", Shape{dim}, Init::ones(), key, false);
    shift_ = std::make_unique<Weight>(owner, "cv_n_b", Shape{dim}, Init::zeros(), key, false);
    if (c.conv_norm == "batch") batch_ = std::make_unique<BatchMoments>(owner, dim, c.bn_momentum, c.bn_eps);
  }
  Tensor forward(const Tensor& x, const Tensor& mask, const Ctx& ctx) const {
    const Tensor both = in_.forward(norm_.forward(x));
    const Tensor gated = ops::mul(ops::slice(both, 2, 0, dim_), ops::sigmoid(ops::slice(both, 2, dim_, 2 * dim_)));
    const Tensor y = ops::conv1d(real_rows(gated, mask), ops::reshape(taps_.get(), {dim_, 1, taps_.shape()[1]}), bias_.get(), shape_);
    return out_.forward(ops::silu(normalised(y, mask, ctx)));
  }

 private:
  Tensor normalised(const Tensor& y, const Tensor& mask, const Ctx& ctx) const {
    if (!gain_) return y;
    if (!batch_) return ops::layer_norm(y, gain_->get(), shift_->get(), eps_);
    return ops::add(ops::mul(batch_->normalise(y, mask, ctx), gain_->get()), shift_->get());
  }
  i64 dim_;
  double eps_;
  ops::ConvOptions shape_;
  NamedLayerNorm norm_;
  NamedLinear in_;
  Weight taps_, bias_;  // [D, K], [D]
  std::unique_ptr<Weight> gain_, shift_;
  std::unique_ptr<BatchMoments> batch_;
  NamedLinear out_;
};

class Attending {  // Wo attention(Wq y, Wk y, Wv y) + bo for y = LN(x)
 public:
  Attending(Module* owner, const ConfigNode& variant, const AttentionSpec& spec, double eps, RngKey key)
      : spec_(spec),
        norm_(owner, "at_ln_", spec.dim, eps, key),
        core_(owner, "attention", build_attention(variant, spec, key.fold_in("attention"))) {
    refuse_misfits(variant);
    const i64 D = spec.dim, dv = core_->value_dim() > 0 ? core_->value_dim() : spec.head_dim;
    const bool heads = core_->info().place == Place::Core;
    const auto linear = [&](const char* weight, const char* bias, i64 in, i64 out) {
      return std::make_unique<NamedLinear>(owner, weight, bias, in, out, key);
    };
    if (heads && core_->wants_q()) q_ = linear("at_Wq", "", D, D);
    if (heads && core_->wants_k()) k_ = linear("at_Wk", "", D, D);
    if (heads) v_ = linear("at_Wv", "", D, spec.heads * dv);
    const i64 width = heads ? (core_->averages_heads() ? dv : spec.heads * dv) : core_->value_dim() > 0 ? core_->value_dim() : D;
    out_ = linear("at_Wo", "at_bo", width, D);
    const auto start = [](const std::unique_ptr<NamedLinear>& x) {
      return x ? x->weight().parameter().value.transpose(0, 1).to_contiguous() : Tensor();
    };
    core_->start_from({.Wq = start(q_), .Wk = start(k_), .Wv = start(v_)});
  }

  Tensor forward(const Tensor& x, const AttentionInput& given, const Ctx& ctx) const {
    AttentionInput in = given;
    in.x = norm_.forward(x);
    in.extra = nullptr;
    require_side(*core_, in);
    const auto heads = [&](const std::unique_ptr<NamedLinear>& w) {
      return w ? ops::split_heads(w->forward(in.x), spec_.heads) : Tensor();
    };
    in.q = heads(q_);
    in.k = heads(k_);
    in.v = heads(v_);
    if (in.rotary && in.q.defined()) in.q = tapeformer::rotary(in.q);
    if (in.rotary && in.k.defined()) in.k = tapeformer::rotary(in.k);
    const Tensor y = core_->attend(in, ctx);
    return out_->forward(!v_ ? y : core_->averages_heads() ? ops::mean(y, {1}) : ops::merge_heads(y));
  }

 private:
  void refuse_misfits(const ConfigNode& variant) const {
    const std::string name = core_->info().name;
    if (core_->shortens() || core_->external_tokens() > 0 || core_->info().place == Place::Block)
      throw ConfigError(fmt::format("{}: '{}' cannot stand inside a conformer: {}", variant.place(), name,
                                    core_->shortens()              ? "it shortens the sequence"
                                    : core_->external_tokens() > 0 ? "it needs external tokens"
                                                                   : "it is a whole block itself"));
  }
  AttentionSpec spec_;
  NamedLayerNorm norm_;
  Child<AttentionCore> core_;
  std::unique_ptr<NamedLinear> q_, k_, v_, out_;
};

class Conformer final : public AttentionCore {
 public:
  using Config = ConformerConfig;
  static AttentionInfo describe() {
    return {.name = "conformer",
            .summary = "feed-forward, attention, convolution, feed-forward; a whole block",
            .formula = "x += FFN(x)/2;  x += Attn(LN(x));  x += Conv(x);  x += FFN(x)/2;  o = LN(x)",
            .paper = "Gulati et al. 2020, arXiv 2005.08100",
            .cost = "the attention's, and time N D (4 ffn + 3 D + kernel), memory N (ffn + D)",
            .example = "{conv_kernel: 3, ffn: 6}",
            .place = Place::Block,
            .q = false,
            .k = false,
            .v = false};
  }
  Conformer(Config c, const AttentionSpec& s, RngKey key)
      : config_(checked(std::move(c), s)),
        first_(this, "f1_", s.dim, config_.ffn.value_or(4 * s.dim), config_.ln_eps, key),
        attention_(this, config_.attention, inner(config_, s), config_.ln_eps, key),
        convolution_(this, config_, s.dim, s.causal, key),
        second_(this, "f2_", s.dim, config_.ffn.value_or(4 * s.dim), config_.ln_eps, key),
        last_norm_(this, "out_", s.dim, config_.ln_eps, key) {}
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const auto drop = [&](const char* part) {
      return [this, here = ctx.at(part)](const Tensor& t, const char* name) {
        return here.training ? ops::dropout(t, config_.dropout, here.at(name).key, here.rows) : t;
      };
    };
    Tensor x = real_rows(in.x, in.mask);
    const auto half_step = [&](const HalfStep& part, const char* name) {
      x = ops::add(x, ops::scale(drop(name)(part.forward(x, drop(name)), "out"), 0.5));
    };
    half_step(first_, "first");
    x = ops::add(x, drop("attention")(attention_.forward(x, in, ctx.at("attention")), "out"));
    x = ops::add(x, drop("convolution")(convolution_.forward(x, in.mask, ctx), "out"));
    half_step(second_, "second");
    return real_rows(last_norm_.forward(x), in.mask);
  }

 private:
  static Config checked(Config c, const AttentionSpec& s) {
    if (c.conv_kernel % 2 == 0 && !s.causal)
      throw ConfigError(fmt::format("conv_kernel: got {}, expected an odd number (even ones are for causal: true)", c.conv_kernel));
    const i64 heads = c.heads.value_or(s.heads);
    if (s.dim % heads != 0) throw ConfigError(fmt::format("heads: got {}, expected a divisor of the model's width {}", heads, s.dim));
    if (c.conv_norm == "batch" && s.causal)
      warn_unused("attention.conformer: conv_norm batch: in training, a batch's mean and variance see the future");
    if (c.attention.is_scalar() && c.attention.text() == "softmax") c.attention = ConfigNode::null();
    return c;
  }
  static AttentionSpec inner(const Config& c, const AttentionSpec& s) {
    AttentionSpec out = s;
    out.heads = c.heads.value_or(s.heads);
    out.head_dim = s.dim / out.heads;
    return out;
  }
  Config config_;
  HalfStep first_;
  Attending attention_;
  Convolution convolution_;
  HalfStep second_;
  NamedLayerNorm last_norm_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Conformer>();

}  // namespace
}  // namespace tapeformer
