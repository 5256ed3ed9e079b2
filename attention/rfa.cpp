// rfa.cpp: softmax attention of unit vectors estimated by sines and cosines of random projections, with an optional gate that lets the sums
// forget. Peng et al., "Random Feature Attention", ICLR 2021, eq. 4-7. Estimates can come near zero, hence the floor of the denominator.
#include <cmath>

#include "attention/attention.h"
#include "attention/random_features.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct RfaConfig {
  i64 features = 64;
  std::string kernel = "gaussian";
  double tau = 1;
  bool learned_sigma = true, gate = false;
  double norm_eps = 1e-6, denom_floor = 0.05;
  bool features_per_head = true;
  i64 redraw_every = 0;
};
template <class V>
void visit_fields(V& v, RfaConfig& c) {
  v("features", c.features, at_least(1), "rows of W");
  v("kernel", c.kernel, OneOf{"gaussian", "arccos"}, "gaussian: sines and cosines, estimates softmax; arccos: relu features");
  v("tau", c.tau, above(0), "temperature: logits are q.k / tau^2 for unit vectors");
  v("learned_sigma", c.learned_sigma, "a learned factor for each dimension of a head");
  v("gate", c.gate, "a learned gate lets the sums forget; causal only");
  v("norm_eps", c.norm_eps, above(0), "q and k are divided by sqrt(|x|^2 + norm_eps^2)");
  v("denom_floor", c.denom_floor, at_least(0), "least denominator for each visible key; below exp(-2 / tau^2) it only removes noise");
  v("features_per_head", c.features_per_head, "a W for each head");
  v("redraw_every", c.redraw_every, at_least(0), "training steps between new draws of W; 0 = never");
}

class Rfa final : public AttentionCore {
 public:
  using Config = RfaConfig;
  static AttentionInfo describe() {
    return {.name = "rfa",
            .summary = "random features of unit vectors estimate softmax attention, an optional gate forgets: linear in the length",
            .formula =
                "phi(x) = [sin W x / |x|, cos W x / |x|];  S_t = g_t S_{t-1} + (1 - g_t) phi(k_t) v_t^T;  o_t = S_t^T phi(q_t) / "
                "(z_t.phi(q_t))",
            .paper = "Peng et al. 2021, arXiv 2103.02143",
            .cost = "time N m d, memory N (m + d) for m features",
            .example = "{features: 12}",
            .permutation_equivariant = true};
  }
  Rfa(Config c, const AttentionSpec& s, RngKey key)
      : config_(c),
        causal_(s.causal),
        W_(this, c.redraw_every, key.fold_in("W"),
           [shape = Shape{c.features_per_head ? s.heads : 1, c.features, s.head_dim}](RngKey k) { return gaussian_rows(shape, k); }) {
    if (s.dropout > 0) warn_unused("attention.rfa: attention_dropout has no effect, there are no weights to drop");
    if (c.gate && !s.causal) throw ConfigError("gate: true needs causal: true, since what is forgotten depends on the order");
    if (c.learned_sigma) sigma_ = std::make_unique<Weight>(this, "sigma", Shape{s.heads, s.head_dim}, Init{Init::Kind::Ones}, key, false);
    if (!c.gate) return;
    w_g_ = std::make_unique<Weight>(this, "w_g", Shape{s.heads, s.dim}, Init::fan_in(s.dim), key);
    b_g_ = std::make_unique<Weight>(this, "b_g", Shape{s.heads}, Init::zeros(), key, false);
    std::vector<double> start;
    for (i64 h = 0; h < s.heads; ++h) start.push_back(std::log(std::exp2(std::min<double>(3.0 + static_cast<double>(h), 60)) - 1));
    b_g_->parameter().value.copy_from(Tensor::from<double>(start, {s.heads}));  // head h remembers 2^(3+h) tokens
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  // side gate_logits [B, H, N] instead of the gate's own projection of x.
  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    Tensor W = ops::scale(W_.get(ctx), 1 / config_.tau);  // [H or 1, m, d]
    if (sigma_) W = ops::mul(W, ops::reshape(sigma_->get(), {in.q.dim(1), 1, in.q.dim(3)}));
    const Tensor down = ops::transpose(W, 1, 2);
    ops::LinearAttentionOptions o{.mask = in.mask, .causal = causal_};
    o.floor = config_.denom_floor * static_cast<double>(config_.features);  // the features come without their factor m^(-1/2)
    if (config_.gate) o.gate = gate(in);
    return ops::linear_attention(phi(in.q, in.mask, down), phi(in.k, in.mask, down), in.v, o);
  }

 private:
  Tensor phi(const Tensor& x, const Tensor& mask, const Tensor& down) const {
    const Tensor rows = real_rows(x, mask);
    const Tensor norm = ops::sqrt(ops::scale(ops::sum(ops::mul(rows, rows), {3}, true), 1, config_.norm_eps * config_.norm_eps));
    const Tensor z = ops::matmul(ops::div(rows, norm), down);
    return config_.kernel == "arccos" ? ops::relu(z) : ops::concat({ops::sin(z), ops::cos(z)}, 3);
  }
  Tensor gate(const AttentionInput& in) const {
    if (const Tensor* logits = in.find("gate_logits")) return *logits;
    return ops::transpose(ops::linear(real_rows(in.x, in.mask), ops::transpose(w_g_->get(), 0, 1), b_g_->get()), 1, 2);
  }
  Config config_;
  bool causal_;
  RandomFeatures W_;
  std::unique_ptr<Weight> sigma_, w_g_, b_g_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Rfa>();

}  // namespace
}  // namespace tapeformer
