// aft.cpp: no product of queries and keys: every feature of a key is its own weight, plus a learned bias of the positions; the query gates.
// Zhai et al., "An Attention Free Transformer", 2021 (arXiv 2105.14103), eq. 2-5. Offsets and tables count positions, padding included.
#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct AftConfig {
  std::string kind = "full";
  std::optional<i64> max_len;
  i64 window = 32;
  i64 bias_rank = 0;
  std::string bias_heads = "shared";
};
template <class V>
void visit_fields(V& v, AftConfig& c) {
  v("kind", c.kind, OneOf{"full", "local", "simple", "conv"},
    "full: a bias for every pair; local: for pairs nearer than window; conv: by distance alone; simple: none");
  v("max_len", c.max_len, at_least(1), "full, local: longest input; null = the model's");
  v("window", c.window, at_least(1), "local, conv: s, positions less than s away have a bias");
  v("bias_rank", c.bias_rank, at_least(0), "full: > 0: the bias is w_u w_v^T of this rank");
  v("bias_heads", c.bias_heads, OneOf{"shared", "per_head"}, "full, local: one table for all heads, or each its own");
}

class Aft final : public AttentionCore {
 public:
  using Config = AftConfig;
  static AttentionInfo describe() {
    return {.name = "aft",
            .summary = "weights exp(k_j + w_ij), feature by feature, gated by the query; no product of queries and keys",
            .formula = "o_i = sigmoid(q_i) sum_j exp(k_j + w_ij) v_j / sum_j exp(k_j + w_ij)",
            .paper = "Zhai et al. 2021, arXiv 2105.14103",
            .cost = "full: time N^2 d, memory N^2 (the table); local, conv: time N s d; simple: time N d"};
  }
  Aft(Config c, const AttentionSpec& s, RngKey key) : config_(c), spec_(s), reach_(c.window - 1) {
    if (s.dv() != s.head_dim)
      throw ConfigError(fmt::format("aft works element by element: keys are {} wide and values {}", s.head_dim, s.dv()));
    if (s.dropout > 0) warn_unused("attention.aft: attention_dropout has no effect, there are no weights to drop");
    const bool full = c.kind == "full", local = c.kind == "local";
    const auto unused = [&](bool set, bool used, const char* name) {
      if (set && !used) warn_unused(fmt::format("attention.aft: {} has no effect with kind: {}", name, c.kind));
    };
    unused(c.window != Config().window, local || c.kind == "conv", "window");
    unused(c.bias_rank > 0, full, "bias_rank");
    unused(c.bias_heads != "shared", full || local, "bias_heads");
    if (full || local) length_ = table_length(c.max_len, s);
    const i64 heads = c.bias_heads == "shared" ? 1 : s.heads, rank = c.bias_rank;
    const auto table = [&](const char* name, Shape shape) { return std::make_unique<Weight>(this, name, shape, Init::normal(0.01), key); };
    if (full && rank > 0) {
      w_ = table("w_u", {heads, length_, rank});
      w_v_ = table("w_v", {heads, length_, rank});
    } else if (full) {
      w_ = table("w", {heads, length_, length_});
    } else if (local) {
      w_ = table("w_band", {heads, length_, 2 * reach_ + 1});
    } else if (c.kind == "conv") {
      w_ = table("w_rel", {s.heads, 2 * reach_ + 1});
    }
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx&) const override {
    const i64 N = in.v.dim(2);
    if (length_ > 0) check_length(describe().name, N, length_);
    ops::PositionAttentionOptions o{.mask = in.mask, .causal = spec_.causal};
    if (config_.kind == "local" || config_.kind == "conv") o.reach = reach_;
    return ops::mul(ops::sigmoid(real_rows(in.q, in.mask)), ops::position_attention(table(N), in.k, in.v, o));
  }

 private:
  Tensor table(i64 N) const {
    if (config_.kind == "simple") return {};
    const Tensor w = w_->get();
    if (config_.kind == "conv") return ops::reshape(w, {w.dim(0), 1, w.dim(1)});
    const Tensor rows = ops::slice(w, 1, 0, N);
    if (config_.kind == "local") return rows;
    return w_v_ ? ops::matmul(rows, ops::transpose(ops::slice(w_v_->get(), 1, 0, N), 1, 2)) : ops::slice(rows, 2, 0, N);
  }

  Config config_;
  AttentionSpec spec_;
  i64 reach_, length_ = 0;
  std::unique_ptr<Weight> w_, w_v_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Aft>();

}  // namespace
}  // namespace tapeformer
