// local.cpp: a window of neighbouring keys. Sliding: i - left <= j <= i + right. Block: the own block and some before and after it.
// Liu et al. 2018 (arXiv 1801.10198), Parmar et al. 2018 (arXiv 1802.05751).
#include "attention/attention.h"

namespace tapeformer {
namespace {

struct LocalConfig {
  std::optional<double> scale;
  std::string mode = "sliding";
  i64 window = 64;
  std::optional<i64> window_left, window_right;
  i64 block_size = 64, look_back = 1, look_forward = 1;
};
template <class V>
void visit_fields(V& v, LocalConfig& c) {
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
  v("mode", c.mode, OneOf{"sliding", "block"}, "a window that slides with the query, or fixed blocks");
  v("window", c.window, at_least(0), "sliding: radius, keys seen on each side (0 = self only)");
  v("window_left", c.window_left, at_least(0), "sliding: radius to the left; null = window");
  v("window_right", c.window_right, at_least(0), "sliding: radius to the right; null = window");
  v("block_size", c.block_size, at_least(1), "block: positions a block");
  v("look_back", c.look_back, at_least(0), "block: blocks seen before the own");
  v("look_forward", c.look_forward, at_least(0), "block: blocks seen after the own");
}

class Window final : public kernels::IntervalPattern {
 public:
  Window(const LocalConfig& c, bool causal)
      : block_(c.mode == "block" ? c.block_size : 0),
        left_(block_ ? c.look_back : c.window_left.value_or(c.window)),
        right_(block_   ? c.look_forward
               : causal ? 0
                        : c.window_right.value_or(c.window)) {}
  Range keys(i64, i64, i64 i) const override {
    if (block_) return {(i / block_ - left_) * block_, (i / block_ + right_ + 1) * block_};
    return {i - left_, i + right_ + 1};
  }

 private:
  i64 block_, left_, right_;
};

class Local final : public PatternCore {
 public:
  using Config = LocalConfig;
  static AttentionInfo describe() {
    return {.name = "local",
            .summary = "a window of neighbouring keys, sliding or in blocks",
            .formula = "o_i = sum_j softmax_j(q_i.k_j / sqrt(d)) v_j over i - L <= j <= i + R",
            .paper = "Liu et al. 2018, arXiv 1801.10198; Parmar et al. 2018, arXiv 1802.05751",
            .cost = "time N w d, memory N d",
            .example = "{window: 3}"};
  }
  Local(Config c, const AttentionSpec& spec, RngKey) : PatternCore(spec, c.scale), window_(std::make_shared<Window>(c, spec.causal)) {
    const Config fresh;
    if (c.mode == "block" && (c.window != fresh.window || c.window_left || c.window_right))
      warn_unused("attention.local: window, window_left and window_right have no effect with mode: block");
    if (c.mode == "sliding" && (c.block_size != fresh.block_size || c.look_back != fresh.look_back || c.look_forward != fresh.look_forward))
      warn_unused("attention.local: block_size, look_back and look_forward have no effect with mode: sliding");
    if (c.mode == "sliding" && spec.causal && c.window_right && *c.window_right > 0)
      warn_unused("attention.local: window_right has no effect with causal: true");
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  std::shared_ptr<const kernels::Pattern> pattern(const AttentionInput&) const override { return window_; }

 private:
  std::shared_ptr<const Window> window_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Local>();

}  // namespace
}  // namespace tapeformer
