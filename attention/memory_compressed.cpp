// memory_compressed.cpp: a strided convolution makes keys and values fewer; every query looks at all windows.
// Liu et al., "Generating Wikipedia by Summarizing Long Sequences", ICLR 2018 (arXiv 1801.10198), section 4.2.3.
#include <algorithm>

#include "attention/attention.h"
#include "attention/windows.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct MemoryCompressedConfig {
  i64 kernel = 3, stride = 3;
  std::string compression = "full";
  bool share_kv_conv = false, bias = true;
  std::optional<std::string> null_slot;
  std::optional<double> scale;
};
template <class V>
void visit_fields(V& v, MemoryCompressedConfig& c) {
  v("kernel", c.kernel, at_least(1), "positions a window");
  v("stride", c.stride, at_least(1), "positions from a window to the next; at most kernel");
  v("compression", c.compression, OneOf{"full", "depthwise", "mean"},
    "full: filters over a head's features; depthwise: one filter a feature; mean of the real rows");
  v("share_kv_conv", c.share_kv_conv, "the same filters for keys and values");
  v("bias", c.bias, "filters have a bias");
  v("null_slot", c.null_slot, OneOf{"none", "learned"}, "one more learned key and value that every query sees; null = learned when causal");
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
}

// Keys are `extra` slots that all see, then windows; a query sees those that end at its position or before.
class ClosedWindows final : public kernels::Pattern {
 public:
  ClosedWindows(Windows windows, i64 extra) : windows_(windows), extra_(extra) {}
  Cover cover(i64, i64, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    if (k1 <= extra_ || windows_.last(k1 - 1 - extra_) <= q0) return Cover::Full;
    return k0 < extra_ || windows_.last(k0 - extra_) < q1 ? Cover::Partial : Cover::None;
  }
  void row(i64, i64, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    for (i64 j = std::max(k0, extra_); j < k1; ++j) allowed[j - k0] = windows_.last(j - extra_) <= i;
  }

 private:
  Windows windows_;
  i64 extra_;
};

class MemoryCompressed final : public AttentionCore {
 public:
  using Config = MemoryCompressedConfig;
  static AttentionInfo describe() {
    return {.name = "memory_compressed",
            .summary = "full attention on keys and values that a strided convolution made fewer",
            .formula = "o = softmax(scale q conv(k)^T) conv(v)",
            .paper = "Liu et al. 2018, arXiv 1801.10198",
            .cost = "time N^2 d / stride + N d^2 kernel / stride, memory N d"};
  }
  MemoryCompressed(Config c, const AttentionSpec& s, RngKey key)
      : config_(c), spec_(s), null_(c.null_slot.value_or(s.causal ? "learned" : "none") == "learned") {
    if (c.stride > c.kernel)
      throw ConfigError(fmt::format("stride: got {}, expected at most kernel, {}: it would skip positions", c.stride, c.kernel));
    const i64 H = s.heads, d = s.head_dim, dv = s.dv();
    if (c.share_kv_conv && d != dv)
      throw ConfigError(fmt::format("share_kv_conv: keys are {} wide and values {}, they cannot share filters", d, dv));
    if (c.compression != "mean") {
      filters(Wk_, bk_, "k", H, d, key);
      if (!c.share_kv_conv) filters(Wv_, bv_, "v", H, dv, key);
    }
    if (null_) {
      null_k_ = std::make_unique<Weight>(this, "null_k", Shape{H, d}, Init::zeros(), key, false);
      null_v_ = std::make_unique<Weight>(this, "null_v", Shape{H, dv}, Init::zeros(), key, false);
    }
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const i64 B = in.q.dim(0);
    const Windows windows(in.q.dim(2), config_.kernel, config_.stride);
    const bool shared = config_.share_kv_conv;
    Tensor k = compress(windows, in.k, in.mask, Wk_, bk_), v = compress(windows, in.v, in.mask, shared ? Wk_ : Wv_, shared ? bk_ : bv_);
    ops::AttentionOptions o{.scale = config_.scale, .query_mask = in.mask, .key_mask = windows.visible(in.mask)};
    if (null_) {
      k = with_null(*null_k_, k);
      v = with_null(*null_v_, v);
      if (o.key_mask.defined()) o.key_mask = ops::concat({Tensor::full({B, 1}, 1, DType::U8), o.key_mask}, 1);
    }
    if (spec_.causal) o.pattern = std::make_shared<ClosedWindows>(windows, null_ ? 1 : 0);
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    return ops::attention(in.q, k, v, o);
  }

 private:
  using WeightPtr = std::unique_ptr<Weight>;
  void filters(WeightPtr& W, WeightPtr& b, const std::string& which, i64 H, i64 d, RngKey key) {
    const bool full = config_.compression == "full";
    const Shape shape = full ? Shape{H, d, d, config_.kernel} : Shape{H, d, config_.kernel};
    W = std::make_unique<Weight>(this, "W" + which, shape, Init::fan_in(full ? d * config_.kernel : config_.kernel), key);
    if (config_.bias) b = std::make_unique<Weight>(this, "b" + which, Shape{H, d}, Init::zeros(), key, false);
  }
  Tensor compress(const Windows& windows, const Tensor& x, const Tensor& mask, const WeightPtr& W, const WeightPtr& b) const {
    const Tensor rows = real_rows(x, mask), bias = b ? b->get() : Tensor();
    if (!W) return windows.mean(rows, mask);
    return config_.compression == "full" ? windows.convolve(rows, W->get(), bias) : windows.convolve_each(rows, W->get(), bias);
  }
  static Tensor with_null(const Weight& slot, const Tensor& x) {
    const i64 B = x.dim(0), H = x.dim(1), d = x.dim(3);
    return ops::concat({ops::expand(ops::reshape(slot.get(), {1, H, 1, d}), {B, H, 1, d}), x}, 2);
  }

  Config config_;
  AttentionSpec spec_;
  bool null_;
  WeightPtr Wk_, bk_, Wv_, bv_, null_k_, null_v_;
};

[[maybe_unused]] const bool kRegistered = register_attention<MemoryCompressed>();

}  // namespace
}  // namespace tapeformer
