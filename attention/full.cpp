// full.cpp: softmax attention over all keys. Vaswani et al., "Attention Is All You Need", 2017, eq. 1.
#include "attention/attention.h"

#include <cmath>

#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct FullConfig {
  std::optional<double> scale;
  std::string impl = "tiled";
};
template <class V>
void visit_fields(V& v, FullConfig& c) {
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
  v("impl", c.impl, OneOf{"tiled", "naive"}, "naive keeps the N x N weights: the slow comparison, the same results");
}

class PairMask final : public kernels::Pattern {
 public:
  explicit PairMask(const Tensor& mask) : mask_(mask.to_contiguous()) {}
  Cover cover(i64, i64, i64, i64, i64, i64) const override { return Cover::Partial; }
  void row(i64 b, i64, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    const i64 n = mask_.dim(-2), m = mask_.dim(-1);
    const std::uint8_t* p = mask_.ptr<std::uint8_t>() + ((mask_.rank() == 3 ? b * n : 0) + i) * m;
    for (i64 j = k0; j < k1; ++j) allowed[j - k0] = p[j] != 0;
  }
  bool same_for_samples() const override { return mask_.rank() == 2; }

 private:
  Tensor mask_;
};

class Full final : public AttentionCore {
 public:
  using Config = FullConfig;
  static AttentionInfo describe() {
    return {.name = "full",
            .summary = "softmax over every key: exact, quadratic in the length",
            .formula = "o_i = sum_j softmax_j(q_i.k_j / sqrt(d)) v_j",
            .paper = "Vaswani et al. 2017, arXiv 1706.03762",
            .cost = "time N^2 d, memory N d",
            .causal = true,
            .cross = true,
            .pair_mask = true,
            .permutation_equivariant = true};
  }
  Full(Config c, const AttentionSpec& spec, RngKey) : config_(c), spec_(spec) {}
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const i64 N = in.q.dim(2), M = in.k.dim(2);
    const Tensor key_mask = in.key_mask.defined() ? in.key_mask : N == M ? in.mask : Tensor();
    if (config_.impl == "naive") return naive(in, key_mask, ctx);
    ops::AttentionOptions o{.scale = config_.scale, .causal = spec_.causal, .query_mask = in.mask, .key_mask = key_mask};
    if (in.pair_mask.defined()) o.pattern = std::make_shared<PairMask>(in.pair_mask);
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    return ops::attention(in.q, in.k, in.v, o);
  }

 private:
  // Every weight is kept: for comparisons and pictures.
  Tensor naive(const AttentionInput& in, const Tensor& key_mask, const Ctx& ctx) const {
    const i64 B = in.q.dim(0), N = in.q.dim(2), M = in.k.dim(2);
    const Tensor q = real_rows(in.q, in.mask), k = real_rows(in.k, key_mask), v = real_rows(in.v, key_mask);
    const double scale = config_.scale.value_or(1 / std::sqrt(static_cast<double>(in.q.dim(3))));
    Tensor keep = Tensor::full({B, 1, N, M}, 1, DType::U8);
    std::uint8_t* p = keep.mut_ptr<std::uint8_t>();
    const Tensor pairs = in.pair_mask.defined() ? in.pair_mask.to_contiguous() : Tensor();
    for (i64 b = 0; b < B; ++b)
      for (i64 i = 0; i < N; ++i)
        for (i64 j = 0; j < M; ++j) {
          const bool key_real = !key_mask.defined() || key_mask.ptr<std::uint8_t>()[b * M + j];
          const bool row_real = !in.mask.defined() || in.mask.ptr<std::uint8_t>()[b * N + i];
          const bool pair = !pairs.defined() || pairs.ptr<std::uint8_t>()[((pairs.rank() == 3 ? b * N : 0) + i) * M + j];
          p[(b * N + i) * M + j] = key_real && row_real && pair && (!spec_.causal || j <= i);
        }
    Tensor weights = ops::softmax(ops::scale(ops::matmul(q, ops::transpose(k, 2, 3)), scale), keep);
    if (in.extra) (*in.extra)["weights"] = weights;
    if (ctx.training) weights = ops::dropout(weights, spec_.dropout, ctx.at("weights").key, ctx.rows);
    return ops::matmul(weights, v);
  }

  Config config_;
  AttentionSpec spec_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Full>();

}  // namespace
}  // namespace tapeformer
