// linear_transformer.cpp: attention with a kernel feature map, in the order that is linear in the length.
// Katharopoulos et al., "Transformers are RNNs", ICML 2020, eq. 4-5 (parallel), 9 (causal), 16-20 (recurrent).
#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct LinearTransformerConfig {
  std::string feature_map = "elu1";
  double eps = 1e-6;
  bool normalize = true;
  double scale = 1;
  i64 chunk = 64;
};
template <class V>
void visit_fields(V& v, LinearTransformerConfig& c) {
  v("feature_map", c.feature_map, OneOf{"elu1", "relu", "exp", "identity"}, "phi, element by element; elu1 is elu(x) + 1");
  v("eps", c.eps, at_least(0), "added to the denominator");
  v("normalize", c.normalize, "divide by the sum of the weights");
  v("scale", c.scale, "factor of the result when normalize is off");
  v("chunk", c.chunk, at_least(1), "block length of the causal form; does not change the result");
}

class LinearTransformer final : public AttentionCore {
 public:
  using Config = LinearTransformerConfig;
  static AttentionInfo describe() {
    return {.name = "linear_transformer",
            .summary = "a kernel feature map instead of the softmax: linear in the length",
            .formula = "o_i = phi(q_i) sum_j phi(k_j)^T v_j / (phi(q_i) sum_j phi(k_j) + eps)",
            .paper = "Katharopoulos et al. 2020, arXiv 2006.16236",
            .cost = "time N d^2, memory N d",
            .permutation_equivariant = true};
  }
  LinearTransformer(Config c, const AttentionSpec& spec, RngKey) : config_(c), causal_(spec.causal) {
    if (spec.dropout > 0) warn_unused("attention.linear_transformer: attention_dropout has no effect, there are no weights to drop");
    if (c.normalize && c.feature_map == "identity")
      throw ConfigError("feature_map identity is signed and cannot be normalised: set normalize: false");
    if (c.normalize && c.scale != 1) warn_unused("attention.linear_transformer: scale has no effect with normalize: true");
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  // side S0 [B,H,d,dv] and z0 [B,H,d]: the state to start from (causal); extra S, z: the state after the last token. Calling it token by
  // token or in pieces of any length gives the rows of one call.
  Tensor attend(const AttentionInput& in, const Ctx&) const override {
    ops::LinearAttentionOptions o{.mask = in.mask,
                                  .causal = causal_,
                                  .normalize = config_.normalize,
                                  .eps = config_.eps,
                                  .scale = config_.scale,
                                  .chunk = config_.chunk};
    if (const Tensor* S0 = in.find("S0")) o.S0 = *S0;
    if (const Tensor* z0 = in.find("z0")) o.z0 = *z0;
    ops::LinearAttentionState last;
    const Tensor y =
        ops::linear_attention(phi(real_rows(in.q, in.mask)), phi(real_rows(in.k, in.mask)), in.v, o, in.extra ? &last : nullptr);
    if (in.extra) {
      (*in.extra)["S"] = last.S;
      (*in.extra)["z"] = last.z;
    }
    return y;
  }

 private:
  Tensor phi(const Tensor& x) const {
    if (config_.feature_map == "relu") return ops::relu(x);
    if (config_.feature_map == "exp") return ops::exp(x);
    if (config_.feature_map == "identity") return x;
    return ops::elu1(x);
  }
  Config config_;
  bool causal_;
};

[[maybe_unused]] const bool kRegistered = register_attention<LinearTransformer>();

}  // namespace
}  // namespace tapeformer
