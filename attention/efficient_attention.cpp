// efficient_attention.cpp: softmax of q over its features, softmax of k over positions, and the product from the right. It is not an
// approximation of softmax attention. Shen et al., "Efficient Attention: Attention with Linear Complexities", WACV 2021, eq. 2-5.
// The causal form, each position's softmax over the keys up to it, is an extension.
#include <algorithm>

#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct EfficientAttentionConfig {
  std::string normalization = "softmax";
};
template <class V>
void visit_fields(V& v, EfficientAttentionConfig& c) {
  v("normalization", c.normalization, OneOf{"softmax", "scaling"},
    "softmax: q over features, k over positions; scaling: the plain product divided by the length");
}

class EfficientAttention final : public AttentionCore {
 public:
  using Config = EfficientAttentionConfig;
  static AttentionInfo describe() {
    return {.name = "efficient_attention",
            .summary = "each feature of k is a softmax over positions, each q a softmax over features: linear in the length",
            .formula = "o_i = softmax_f(q_i) (softmax_n(K)^T V)",
            .paper = "Shen et al. 2021, arXiv 1812.01243",
            .cost = "time N d^2, memory N d",
            .permutation_equivariant = true};
  }
  EfficientAttention(Config c, const AttentionSpec& spec, RngKey) : config_(c), causal_(spec.causal) {
    if (spec.dropout > 0) warn_unused("attention.efficient_attention: attention_dropout has no effect, there are no weights to drop");
    if (causal_ && c.normalization == "scaling")
      throw ConfigError("normalization: scaling divides by the whole length and has no causal form");
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx&) const override {
    const Tensor q = real_rows(in.q, in.mask);
    ops::LinearAttentionOptions o{.mask = in.mask, .causal = causal_};
    if (config_.normalization == "softmax") {
      o.form = kernels::LinearForm::PerFeature;
      return ops::linear_attention(ops::softmax(q), in.k, in.v, o);
    }
    o.normalize = false;
    if (in.mask.defined()) return ops::mul(ops::linear_attention(q, in.k, in.v, o), shares(in.mask, q.dtype()));
    o.scale = 1 / static_cast<double>(q.dim(2));
    return ops::linear_attention(q, in.k, in.v, o);
  }

 private:
  static Tensor shares(const Tensor& mask, DType t) {  // 1 / number of real tokens, [B, 1, 1, 1]
    const i64 B = mask.dim(0), N = mask.dim(1);
    const Tensor m = mask.to_contiguous();
    std::vector<double> out(static_cast<std::size_t>(B));
    for (i64 b = 0; b < B; ++b) {
      const auto row = m.data<std::uint8_t>().begin() + b * N;
      out[static_cast<std::size_t>(b)] = 1 / static_cast<double>(std::max<i64>(1, N - std::count(row, row + N, std::uint8_t{0})));
    }
    return Tensor::from<double>(out, {B, 1, 1, 1}).to(t);
  }
  Config config_;
  bool causal_;
};

[[maybe_unused]] const bool kRegistered = register_attention<EfficientAttention>();

}  // namespace
}  // namespace tapeformer
