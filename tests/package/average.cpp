// average.cpp: no weights to learn from: each position gets the mean of the values, or of those up to itself when causal.
// Zhang, Xiong, Su, "Accelerating Neural Transformer via an Average Attention Network", ACL 2018, eq. 1.
#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct AverageConfig {
  double scale = 1;
};
template <class V>
void visit_fields(V& v, AverageConfig& c) {
  v("scale", c.scale, above(0), "factor of the mean");
}

class Average final : public AttentionCore {
 public:
  using Config = AverageConfig;
  static AttentionInfo describe() {
    return {.name = "average",
            .summary = "the mean of the values, or of those so far",
            .formula = "o_i = scale / i sum_{j <= i} v_j",
            .paper = "Zhang et al. 2018, arXiv 1805.00631",
            .cost = "time N d, memory N d",
            .permutation_equivariant = true,
            .q = false,
            .k = false};
  }
  Average(Config c, const AttentionSpec& spec, RngKey) : config_(c), causal_(spec.causal) {}
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx&) const override {
    const Shape rows{in.v.dim(0), 1, in.v.dim(2), 1};  // [B, 1, N, 1], 1 = real token
    const Tensor real = in.mask.defined() ? in.mask.view(rows).to(in.v.dtype()) : Tensor::full(rows, 1, in.v.dtype());
    const Tensor v = ops::mul(in.v, real);
    const Tensor sum = causal_ ? ops::cumsum(v, 2) : ops::sum(v, {2}, true);
    const Tensor count = causal_ ? ops::cumsum(real, 2) : ops::sum(real, {2}, true);
    const Tensor mean = ops::div(ops::scale(sum, config_.scale), ops::maximum(count, Tensor::scalar(1, in.v.dtype())));
    return ops::mul(mean, real);  // padded rows are exactly 0
  }

 private:
  Config config_;
  bool causal_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Average>();

}  // namespace
}  // namespace tapeformer
