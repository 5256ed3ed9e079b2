// linformer.cpp: keys and values projected along the length to r slots, the same projection for every sample.
// Wang et al., "Linformer: Self-Attention with Linear Complexity", 2020 (arXiv 2006.04768), eq. 7.
// Columns belong to positions, padding included.
#include <cmath>

#include "attention/attention.h"
#include "attention/windows.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct LinformerConfig {
  std::optional<i64> max_len;
  i64 slots = 256;
  std::string sharing = "headwise";
  std::optional<double> scale;
};
template <class V>
void visit_fields(V& v, LinformerConfig& c) {
  v("max_len", c.max_len, at_least(1), "longest input; null = the model's");
  v("slots", c.slots, at_least(1), "r, keys that a query sees");
  v("sharing", c.sharing, OneOf{"none", "headwise", "kv", "layerwise"},
    "none: E and F for each head; headwise: E and F for all heads; kv: one matrix for keys and values of all heads; layerwise: and of all "
    "layers");
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
}

class Linformer final : public AttentionCore {
 public:
  using Config = LinformerConfig;
  static AttentionInfo describe() {
    return {.name = "linformer",
            .summary = "keys and values are r learned combinations of all positions",
            .formula = "o = softmax(scale q (E k)^T) F v",
            .paper = "Wang et al. 2020, arXiv 2006.04768",
            .cost = "time N r d, memory N d + r d",
            .example = "{slots: 3}",
            .causal = false};
  }
  Linformer(Config c, const AttentionSpec& s, RngKey key) : config_(c), spec_(s), length_(table_length(c.max_len, s)) {
    if (c.slots > length_)
      warn_unused(fmt::format("attention.linformer: {} slots are more than the {} positions of the longest input", c.slots, length_));
    const Shape shape{c.sharing == "none" ? s.heads : 1, c.slots, length_};
    const Init start = Init::normal(1 / std::sqrt(static_cast<double>(length_)));  // a slot has the size of one token
    if (c.sharing == "layerwise" && s.shared != nullptr) {
      E_ = &s.shared->get("linformer_E", shape, start, key);
      return;
    }
    own_E_ = std::make_unique<Weight>(this, "E", shape, start, key);
    E_ = own_E_.get();
    if (c.sharing == "none" || c.sharing == "headwise") F_ = std::make_unique<Weight>(this, "F", shape, start, key);
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const i64 N = in.q.dim(2);
    check_length(describe().name, N, length_);
    const Tensor E = ops::slice(E_->get(), 2, 0, N), F = F_ ? ops::slice(F_->get(), 2, 0, N) : E;
    ops::AttentionOptions o{.scale = config_.scale, .query_mask = in.mask};
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    return ops::attention(in.q, project_length(E, real_rows(in.k, in.mask)), project_length(F, real_rows(in.v, in.mask)), o);
  }

 private:
  Config config_;
  AttentionSpec spec_;
  i64 length_;
  std::unique_ptr<Weight> own_E_, F_;
  const Weight* E_ = nullptr;  // its own or the model's
};

[[maybe_unused]] const bool kRegistered = register_attention<Linformer>();

}  // namespace
}  // namespace tapeformer
