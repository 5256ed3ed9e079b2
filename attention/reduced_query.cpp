// reduced_query.cpp: fewer queries than positions, so fewer rows come out: for tasks with one label a sequence.
// Dai et al., "Funnel-Transformer", 2020 (arXiv 2006.03236), section 2.2 (pooled queries); Lee et al., "Set Transformer", 2019 (arXiv
// 1810.00825), eq. 11, and Jaegle et al., "Perceiver", 2021 (arXiv 2103.03206) (learned queries).
#include <algorithm>
#include <cmath>

#include "attention/attention.h"
#include "attention/windows.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct ReducedQueryConfig {
  std::string reduce = "mean";
  i64 stride = 2;
  std::optional<i64> kernel, queries, max_len;
  std::optional<double> scale;
};
template <class V>
void visit_fields(V& v, ReducedQueryConfig& c) {
  v("reduce", c.reduce, OneOf{"mean", "subsample", "conv", "linear", "latent"},
    "mean: of the real queries of a window; subsample: every stride-th; conv: learned filters; linear: learned combinations of all "
    "positions; latent: the queries are parameters");
  v("stride", c.stride, at_least(1), "mean, subsample, conv: positions from a window to the next");
  v("kernel", c.kernel, at_least(1), "mean, conv: positions a window; null = stride");
  v("queries", c.queries, at_least(1), "linear, latent: how many, required");
  v("max_len", c.max_len, at_least(1), "linear: longest input; null = the model's");
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
}

class ReducedQuery final : public AttentionCore {
 public:
  using Config = ReducedQueryConfig;
  static AttentionInfo describe() {
    return {.name = "reduced_query",
            .summary = "M representative queries instead of N: the sequence gets shorter, one label a sequence only",
            .formula = "o_t = softmax(scale reduce(q)_t k^T) v",
            .paper = "Dai et al. 2020, arXiv 2006.03236; Lee et al. 2019, arXiv 1810.00825",
            .cost = "time M N d, memory N d",
            .causal = false};
  }
  ReducedQuery(Config c, const AttentionSpec& s, RngKey key) : config_(c), spec_(s), kernel_(c.kernel.value_or(c.stride)) {
    const bool by_window = c.reduce == "mean" || c.reduce == "conv", counted = c.reduce == "linear" || c.reduce == "latent";
    const auto unused = [&](bool set, bool used, const char* name) {
      if (set && !used) warn_unused(fmt::format("attention.reduced_query: {} has no effect with reduce: {}", name, c.reduce));
    };
    unused(c.stride != Config().stride, !counted, "stride");
    unused(c.kernel.has_value(), by_window, "kernel");
    unused(c.queries.has_value(), counted, "queries");
    unused(c.max_len.has_value(), c.reduce == "linear", "max_len");
    if (by_window && kernel_ < c.stride)
      throw ConfigError(fmt::format("kernel: got {}, expected at least stride, {}: it would skip positions", kernel_, c.stride));
    if (counted && !c.queries) throw ConfigError("queries: missing; reduce: " + c.reduce + " needs their number");
    const i64 H = s.heads, d = s.head_dim;
    if (c.reduce == "conv") {
      weight_ = std::make_unique<Weight>(this, "W", Shape{H, d, d, kernel_}, Init::fan_in(d * kernel_), key);
      bias_ = std::make_unique<Weight>(this, "bias", Shape{H, d}, Init::zeros(), key, false);
    } else if (c.reduce == "linear") {
      length_ = table_length(c.max_len, s);
      const Init start = Init::normal(1 / std::sqrt(static_cast<double>(length_)));  // larger rows saturate the softmax
      weight_ = std::make_unique<Weight>(this, "E", Shape{H, *c.queries, length_}, start, key);
    } else if (c.reduce == "latent") {
      weight_ = std::make_unique<Weight>(this, "latents", Shape{H, *c.queries, d}, Init::normal(1), key);
    }
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  bool wants_q() const override { return config_.reduce != "latent"; }
  bool shortens() const override { return true; }

  // extra out_mask: u8 [B, M].
  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const i64 B = in.k.dim(0), N = in.k.dim(2);
    if (length_ > 0) check_length(describe().name, N, length_);
    const Tensor queries = reduced(in.q, in.mask, B), mask = out_mask(in.mask, N);
    if (in.extra) (*in.extra)["out_mask"] = mask.defined() ? mask : Tensor::full({B, queries.dim(2)}, 1, DType::U8);
    ops::AttentionOptions o{.scale = config_.scale, .query_mask = mask, .key_mask = in.mask};
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    return ops::attention(queries, in.k, in.v, o);
  }

  // The residual by the queries' own rule: x as heads instead of q; the latents themselves. None where x is of another width.
  Rows shorten(const Tensor& x, const Tensor& mask) const override {
    const bool by_head = config_.reduce != "mean" && config_.reduce != "subsample";
    Rows out{{}, out_mask(mask, x.dim(1))};
    if (by_head && x.dim(2) != spec_.heads * spec_.head_dim) return out;
    out.x = ops::merge_heads(reduced(ops::split_heads(x, by_head ? spec_.heads : 1), mask, x.dim(0)));
    return out;
  }

 private:
  Windows windows(i64 N) const { return {N, config_.reduce == "subsample" ? 1 : kernel_, config_.stride}; }

  Tensor reduced(const Tensor& q, const Tensor& mask, i64 B) const {  // [B, H, N, d] -> [B, H, M, d]
    const std::string& rule = config_.reduce;
    if (rule == "latent") {
      const i64 H = spec_.heads, M = *config_.queries, d = spec_.head_dim;
      return ops::expand(ops::reshape(weight_->get(), {1, H, M, d}), {B, H, M, d});
    }
    const i64 N = q.dim(2);
    const Tensor rows = real_rows(q, mask);
    if (rule == "mean") return windows(N).mean(rows, mask);
    if (rule == "conv") return windows(N).convolve(rows, weight_->get(), bias_->get());
    if (rule == "linear") return project_length(ops::slice(weight_->get(), 2, 0, N), rows);
    Tensor every = Tensor::empty({windows(N).count()}, DType::I64);
    for (i64 t = 0; t < every.numel(); ++t) every.mut_ptr<i64>()[t] = t * config_.stride;
    return ops::gather(rows, 2, every);
  }

  Tensor out_mask(const Tensor& mask, i64 N) const {  // u8 [B, M]; undefined when mask is
    if (!mask.defined()) return {};
    if (config_.reduce != "linear" && config_.reduce != "latent") return windows(N).visible(mask);
    const i64 B = mask.dim(0), M = *config_.queries;
    return Windows(N, N, N).visible(mask).expand({B, M}).clone();
  }

  Config config_;
  AttentionSpec spec_;
  i64 kernel_, length_ = 0;
  std::unique_ptr<Weight> weight_, bias_;
};

[[maybe_unused]] const bool kRegistered = register_attention<ReducedQuery>();

}  // namespace
}  // namespace tapeformer
