// taylor_attention.cpp: the exponential of q.k cut after some power, as a product of monomials. The error against softmax attention is
// known: |s|^(p+1) / (p+1)! exp(max(s, 0)) in the kernel for degree p and a logit s; at degree 20 it is far below float32's rounding for
// |s| < 3, 4e-6 at s = -4, and 14 % at s = -6. Degree 2 is the map of Arora et al., "Simple linear attention language models balance the
// recall-throughput tradeoff", 2024.
#include <cmath>

#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct TaylorAttentionConfig {
  i64 degree = 2;
  std::optional<double> scale;
};
template <class V>
void visit_fields(V& v, TaylorAttentionConfig& c) {
  v("degree", c.degree, at_least(0), "highest power kept, even: then every weight is positive");
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
}

class TaylorAttention final : public AttentionCore {
 public:
  using Config = TaylorAttentionConfig;
  static constexpr i64 kMostFeatures = 100000;
  static AttentionInfo describe() {
    return {.name = "taylor_attention",
            .summary = "the exponential's Taylor polynomial instead of the exponential: linear in the length, with a known error",
            .formula = "phi(x) = all monomials x^a / sqrt(a!) of degree <= p;  phi(q).phi(k) = sum over n <= p of (q.k)^n / n!",
            .paper = "Arora et al. 2024, arXiv 2402.18668, for degree 2",
            .cost = "time N F d, memory N F for F = C(d + p, p) features",
            .permutation_equivariant = true};
  }
  TaylorAttention(Config c, const AttentionSpec& spec, RngKey) : config_(c), causal_(spec.causal) {
    if (spec.dropout > 0) warn_unused("attention.taylor_attention: attention_dropout has no effect, there are no weights to drop");
    if (c.degree % 2 != 0)
      throw ConfigError(fmt::format("degree: got {}, expected an even number: odd polynomials give negative weights", c.degree));
    double features = 1;
    for (i64 n = 1; n <= c.degree; ++n) features *= static_cast<double>(spec.head_dim + n) / static_cast<double>(n);
    if (features > static_cast<double>(kMostFeatures) + 0.5)
      throw ConfigError(fmt::format("degree: {} needs {:.0f} features for heads of width {}, expected at most {}", c.degree, features,
                                    spec.head_dim, kMostFeatures));
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  // extra softmax: plain attention on the same q, k and v, which the result comes near.
  Tensor attend(const AttentionInput& in, const Ctx&) const override {
    const double scale = config_.scale.value_or(1 / std::sqrt(static_cast<double>(in.q.dim(3))));
    const auto phi = [&](const Tensor& x) { return ops::monomials(ops::scale(real_rows(x, in.mask), std::sqrt(scale)), config_.degree); };
    if (in.extra)
      (*in.extra)["softmax"] = ops::attention(in.q.detach(), in.k.detach(), in.v.detach(),
                                              {.scale = scale, .causal = causal_, .query_mask = in.mask, .key_mask = in.mask});
    return ops::linear_attention(phi(in.q), phi(in.k), in.v, {.mask = in.mask, .causal = causal_, .eps = 0});
  }

 private:
  Config config_;
  bool causal_;
};

[[maybe_unused]] const bool kRegistered = register_attention<TaylorAttention>();

}  // namespace
}  // namespace tapeformer
