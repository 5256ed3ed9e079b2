// performer.cpp: FAVOR+, softmax attention estimated by positive random features. Choromanski et al., "Rethinking Attention with
// Performers", ICLR 2021, section 2 (lemma 1 for the features, 2.4 for orthogonal rows). The estimate is unbiased for the kernel
// exp(q.k / sqrt(d)) alone; its variance grows like exp(|q + k|^2 / sqrt(d)), so long vectors need many features.
#include <cmath>

#include "attention/attention.h"
#include "attention/random_features.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct PerformerConfig {
  std::string kernel = "softmax";
  std::optional<i64> features;
  bool ortho = true;
  std::string ortho_scaling = "chi";
  bool features_per_head = false, projection = true;
  std::optional<double> feature_eps;
  i64 redraw_every = 1000;
};
template <class V>
void visit_fields(V& v, PerformerConfig& c) {
  v("kernel", c.kernel, OneOf{"softmax", "softmax_hyp", "relu"},
    "softmax_hyp: features of w and -w; relu: another kernel, no estimate of softmax");
  v("features", c.features, at_least(1), "rows of W; null = d ceil(ln d)");
  v("ortho", c.ortho, "rows of W orthogonal in blocks of d");
  v("ortho_scaling", c.ortho_scaling, OneOf{"chi", "sqrt_d"}, "norms of orthogonal rows: as of Gaussian vectors, or all sqrt(d)");
  v("features_per_head", c.features_per_head, "a W for each head");
  v("projection", c.projection, "relu: false applies it to q and k themselves");
  v("feature_eps", c.feature_eps, at_least(0),
    "added to every feature; null = 0, with relu 1e-3. > 0 with a softmax kernel: the published stabiliser, not causal");
  v("redraw_every", c.redraw_every, at_least(0), "training steps between new draws of W; 0 = never");
}

class Performer final : public AttentionCore {
 public:
  using Config = PerformerConfig;
  static AttentionInfo describe() {
    return {
        .name = "performer",
        .summary = "positive random features whose products estimate the softmax kernel: linear in the length",
        .formula = "phi(x) = exp(W x' - |x'|^2 / 2), x' = x / d^(1/4);  o_i = phi(q_i) sum_j phi(k_j)^T v_j / (phi(q_i) sum_j phi(k_j))",
        .paper = "Choromanski et al. 2021, arXiv 2009.14794",
        .cost = "time N m d, memory N (m + d) for m features",
        .example = "{features: 6}",
        .permutation_equivariant = true};
  }
  Performer(Config c, const AttentionSpec& spec, RngKey key)
      : config_(c), causal_(spec.causal), relu_(c.kernel == "relu"), eps_(c.feature_eps.value_or(relu_ ? 1e-3 : 0)) {
    if (spec.dropout > 0) warn_unused("attention.performer: attention_dropout has no effect, there are no weights to drop");
    if (!c.projection && !relu_) throw ConfigError("projection: false is for kernel: relu alone");
    if (relu_ && eps_ == 0) throw ConfigError("feature_eps: got 0, expected above 0 with kernel: relu");
    if (!relu_ && eps_ > 0 && causal_)
      throw ConfigError("feature_eps: above 0 selects the published stabiliser, which has no causal form; leave it out");
    if (!c.projection) {
      if (c.features) warn_unused("attention.performer: features has no effect with projection: false");
      return;
    }
    const i64 d = spec.head_dim, Hw = c.features_per_head ? spec.heads : 1;
    const i64 m = c.features.value_or(std::max<i64>(1, d * static_cast<i64>(std::ceil(std::log(static_cast<double>(d))))));
    W_ = std::make_unique<RandomFeatures>(this, c.redraw_every, key.fold_in("W"), [c, Hw, m, d](RngKey k) {
      return c.ortho ? orthogonal_rows(Hw, m, d, c.ortho_scaling == "chi", k) : gaussian_rows({Hw, m, d}, k);
    });
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const Tensor q = real_rows(in.q, in.mask), k = real_rows(in.k, in.mask);
    const double scale = 1 / std::sqrt(static_cast<double>(q.dim(3)));
    ops::LinearAttentionOptions o{.mask = in.mask, .causal = causal_, .eps = 0};
    if (!W_) return ops::linear_attention(positive(ops::scale(q, std::sqrt(scale))), positive(ops::scale(k, std::sqrt(scale))), in.v, o);
    Tensor W = ops::scale(W_->get(ctx), std::sqrt(scale));
    if (config_.kernel == "softmax_hyp") W = ops::concat({W, ops::neg(W)}, 1);
    const Tensor down = ops::transpose(W, 1, 2), a = ops::matmul(q, down), b = ops::matmul(k, down);
    if (relu_) return ops::linear_attention(positive(a), positive(b), in.v, o);
    const auto half_square = [&](const Tensor& x) { return ops::scale(ops::sum(ops::mul(x, x), {3}, true), scale / 2); };
    if (eps_ > 0) {
      const auto features = [&](const Tensor& x, const Tensor& size, const Tensor& top) {
        return ops::scale(ops::exp(ops::sub(x, ops::add(size, top))), 1, eps_);
      };
      return ops::linear_attention(features(a, half_square(q), ops::max(a, 3, true)), features(b, half_square(k), largest(b, in.mask)),
                                   in.v, o);
    }
    o.form = kernels::LinearForm::Exponents;  // |q'|^2 / 2 divides out
    return ops::linear_attention(a, ops::sub(b, half_square(k)), in.v, o);
  }

 private:
  Tensor positive(const Tensor& x) const { return ops::scale(ops::relu(x), 1, eps_); }
  // The largest exponent of a head's real keys, [B, H, 1, 1]; 0 where all is padding.
  static Tensor largest(const Tensor& b, const Tensor& mask) {
    const Tensor rows = ops::max(b, 3, true);
    if (!mask.defined()) return ops::max(rows, 2, true);
    const Tensor real = mask.to_contiguous().view({mask.dim(0), 1, mask.dim(1), 1}), lowest = Tensor::full({}, -1e30, b.dtype());
    const Tensor top = ops::max(ops::where(real, rows, lowest), 2, true);
    return ops::where(ops::greater(top.detach(), lowest), top, Tensor::zeros({}, b.dtype()));
  }
  Config config_;
  bool causal_, relu_;
  double eps_;
  std::unique_ptr<RandomFeatures> W_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Performer>();

}  // namespace
}  // namespace tapeformer
