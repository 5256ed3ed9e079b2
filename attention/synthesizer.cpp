// synthesizer.cpp: attention weights that do not come from q.k: tables of parameters, or a small network on the query's token, or mixtures.
// Tay et al., "Synthesizer: Rethinking Self-Attention for Transformer Models", ICML 2021 (arXiv 2005.00743), sections 3.1 to 3.4.
// Positions are absolute: a batch padded at the left means something else than one padded at the right.
#include <algorithm>
#include <cmath>

#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct SynthesizerConfig {
  std::string kind = "random";
  std::optional<i64> max_len, hidden, factor_a, factor_b;
  i64 rank = 8;
  std::vector<std::string> components;
};
template <class V>
void visit_fields(V& v, SynthesizerConfig& c) {
  v("kind", c.kind, OneOf{"random", "fixed_random", "dense", "factorized_dense", "factorized_random", "mixture"},
    "random: learned matrix; fixed_random: never trained; dense: two layers on x; factorized_dense: two short vectors from x, multiplied; "
    "factorized_random: a learned matrix of low rank; mixture: a learned mean of components");
  v("max_len", c.max_len, at_least(1), "longest input; null = the model's");
  v("hidden", c.hidden, at_least(1), "dense, factorized_dense: hidden width; null = head width");
  v("factor_a", c.factor_a, at_least(1), "factorized_dense: length of the first vector; null = max_len / factor_b, rounded up");
  v("factor_b", c.factor_b, at_least(1), "factorized_dense: length of the second vector; null = the root of max_len, rounded up");
  v("rank", c.rank, at_least(1), "factorized_random: rank of the matrix");
  v("components", c.components, OneOf{"random", "fixed_random", "dense", "factorized_dense", "factorized_random", "vanilla"},
    "mixture: two or more kinds; vanilla is q.k / sqrt(d)");
}

class Synthesizer final : public AttentionCore {
 public:
  using Config = SynthesizerConfig;
  static AttentionInfo describe() {
    return {.name = "synthesizer",
            .summary = "weights from parameters (random) or from the query's token alone (dense), not from q.k; or a mixture",
            .formula = "o = softmax(R) v;  dense: R_ij = (W2 relu(W1 x_i + b1) + b2)_j;  mixture: sum_s softmax(a)_s R_s",
            .paper = "Tay et al. 2021, arXiv 2005.00743",
            .cost = "time N^2 d, memory random L^2 a head, factorized_dense N^1.5, dense and factorized_random N d",
            .q = false,
            .k = false};
  }
  Synthesizer(Config c, const AttentionSpec& s, RngKey key)
      : config_(c),
        spec_(s),
        length_(table_length(c.max_len, s)),
        components_(c.kind == "mixture" ? c.components : std::vector<std::string>{c.kind}) {
    check_components();
    const i64 H = s.heads, L = length_, hidden = c.hidden.value_or(s.head_dim);
    right_ = c.factor_b.value_or(static_cast<i64>(std::ceil(std::sqrt(static_cast<double>(L)))));
    const i64 left = c.factor_a.value_or((L + right_ - 1) / right_);
    if (has("factorized_dense") && left * right_ < L)
      throw ConfigError(fmt::format("factor_a: got {} times {}, expected a product of at least max_len, {}", left, right_, L));
    const auto weight = [&](const char* name, Shape shape, Init init, bool decay = true) {
      return std::make_unique<Weight>(this, name, shape, init, key, decay);
    };
    if (has("dense") || has("factorized_dense")) {
      W1_ = weight("W1", {H, hidden, s.dim}, Init::fan_in(s.dim));
      b1_ = weight("b1", {H, hidden}, Init::zeros(), false);
    }
    if (has("dense")) {
      W2_ = weight("W2", {H, L, hidden}, Init::fan_in(hidden));
      b2_ = weight("b2", {H, L}, Init::zeros(), false);
    }
    if (has("factorized_dense")) {
      Wa_ = weight("Wa", {H, left, hidden}, Init::fan_in(hidden));
      ba_ = weight("ba", {H, left}, Init::zeros(), false);
      Wb_ = weight("Wb", {H, right_, hidden}, Init::fan_in(hidden));
      bb_ = weight("bb", {H, right_}, Init::zeros(), false);
    }
    const Init factor = Init::normal(std::pow(static_cast<double>(c.rank), -0.25));
    if (has("factorized_random")) {
      R1_ = weight("R1", {H, L, c.rank}, factor);
      R2_ = weight("R2", {H, L, c.rank}, factor);
    }
    if (has("random")) R_ = weight("R", {H, L, L}, Init::normal(1));
    if (has("fixed_random")) {
      Tensor r = Tensor::empty({H, L, L}, default_dtype());
      Init::normal(1).fill(r, key.fold_in("R"));
      fixed_ = std::make_unique<Buffer>(this, R_ ? "R_fixed" : "R", r);
    }
    if (c.kind == "mixture") alpha_ = weight("alpha_logits", {static_cast<i64>(components_.size())}, Init::zeros(), false);
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  bool wants_q() const override { return has("vanilla"); }
  bool wants_k() const override { return has("vanilla"); }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const i64 N = in.v.dim(2);
    check_length(describe().name, N, length_);
    const double dropout = ctx.training ? spec_.dropout : 0;
    Logits logits;
    const Tensor alpha = alpha_ ? ops::softmax(alpha_->get()) : Tensor();
    for (std::size_t s = 0; s < components_.size(); ++s) {
      const i64 at = static_cast<i64>(s);
      add(components_[s], in, alpha.defined() ? ops::reshape(ops::slice(alpha, 0, at, at + 1), {1, 1, 1, 1}) : Tensor(), logits);
    }
    if (logits.queries.empty() && !logits.left.defined() && dropout == 0)  // the same matrix for every sample
      return ops::position_attention(logits.table, {}, in.v, {.mask = in.mask, .causal = spec_.causal});
    ops::AttentionOptions o{.scale = 1.0, .causal = spec_.causal, .query_mask = in.mask, .key_mask = in.mask};
    o.key_bias = logits.key_bias;
    if (logits.table.defined()) o.pair_bias = ops::reshape(logits.table, {1, spec_.heads, N, N});
    o.outer_left = logits.left;
    o.outer_right = logits.right;
    o.dropout = dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    return ops::attention(joined(logits.queries, in, true), joined(logits.keys, in, false), in.v, o);
  }

 private:
  using WeightPtr = std::unique_ptr<Weight>;
  struct Logits {                       // sum of: q.k of the joined vectors, key_bias, table, left x right
    std::vector<Tensor> queries, keys;  // [B or 1, H, N, .]
    Tensor key_bias;                    // [1, H, N]
    Tensor table;                       // [H, N, N]
    Tensor left, right;                 // [B, H, N, a], [B, H, N, c]
    Tensor hidden;                      // [B, H, N, hidden], for whoever comes next
  };

  bool has(const char* kind) const { return std::find(components_.begin(), components_.end(), kind) != components_.end(); }

  void check_components() const {
    const Config& c = config_;
    const auto unused = [&](bool set, bool used, const char* name) {
      if (set && !used) warn_unused(fmt::format("attention.synthesizer: {} has no effect with kind: {}", name, c.kind));
    };
    unused(c.hidden.has_value(), has("dense") || has("factorized_dense"), "hidden");
    unused(c.factor_a || c.factor_b, has("factorized_dense"), "factor_a or factor_b");
    unused(c.rank != Config().rank, has("factorized_random"), "rank");
    unused(!c.components.empty(), c.kind == "mixture", "components");
    if (components_.size() < 2 && c.kind == "mixture")
      throw ConfigError(fmt::format("components: got {}, expected at least two kinds to mix", components_.size()));
    for (const std::string& name : components_)
      if (std::count(components_.begin(), components_.end(), name) > 1) throw ConfigError("components: '" + name + "' is there twice");
  }

  void add(const std::string& kind, const AttentionInput& in, const Tensor& alpha, Logits& to) const {
    const i64 H = spec_.heads, N = in.v.dim(2);
    const auto weighted = [&](const Tensor& t) { return alpha.defined() ? ops::mul(t, alpha) : t; };
    const auto rows = [&](const WeightPtr& w) { return ops::reshape(ops::slice(w->get(), 1, 0, N), {1, H, N, -1}); };
    if (kind == "vanilla") {
      to.queries.push_back(weighted(ops::scale(real_rows(in.q, in.mask), 1 / std::sqrt(static_cast<double>(in.q.dim(3))))));
      to.keys.push_back(in.k);
    } else if (kind == "factorized_random") {
      to.queries.push_back(weighted(rows(R1_)));
      to.keys.push_back(rows(R2_));
    } else if (kind == "dense") {  // the query is relu(W1 x + b1), the keys are W2, b2 is a bias of the key
      to.queries.push_back(weighted(hidden(in, to)));
      to.keys.push_back(rows(W2_));
      to.key_bias = ops::reshape(weighted(ops::reshape(ops::slice(b2_->get(), 1, 0, N), {1, H, N, 1})), {1, H, N});
    } else if (kind == "factorized_dense") {
      to.left = weighted(affine(hidden(in, to), Wa_, ba_));
      to.right = affine(hidden(in, to), Wb_, bb_);
    } else {
      const Tensor R = kind == "random" ? R_->get() : fixed_->get();
      const Tensor block = ops::slice(ops::slice(R, 1, 0, N), 2, 0, N);
      const Tensor table = alpha.defined() ? ops::mul(block, ops::reshape(alpha, {1, 1, 1})) : block;
      to.table = to.table.defined() ? ops::add(to.table, table) : table;
    }
  }

  Tensor hidden(const AttentionInput& in, Logits& to) const {
    if (to.hidden.defined()) return to.hidden;
    const Tensor W = ops::transpose(ops::reshape(W1_->get(), {-1, in.x.dim(2)}), 0, 1);
    return to.hidden = ops::split_heads(ops::relu(ops::linear(real_rows(in.x, in.mask), W, ops::reshape(b1_->get(), {-1}))), spec_.heads);
  }
  static Tensor affine(const Tensor& x, const WeightPtr& W, const WeightPtr& b) {
    return ops::add(ops::matmul(x, ops::transpose(W->get(), 1, 2)), ops::reshape(b->get(), {b->shape()[0], 1, -1}));
  }

  // The vectors of all components as one; a column of zeros where there are none.
  Tensor joined(const std::vector<Tensor>& parts, const AttentionInput& in, bool queries) const {
    const i64 B = in.v.dim(0), H = spec_.heads, N = in.v.dim(2);
    if (parts.empty()) return Tensor::zeros({1, 1, 1, 1}, in.v.dtype()).expand({queries ? B : 1, H, N, 1});
    const bool whole = queries || has("vanilla");  // every sample has its own
    std::vector<Tensor> all;
    for (const Tensor& t : parts) all.push_back(whole && t.dim(0) < B ? ops::expand(t, {B, H, N, t.dim(3)}) : t);
    return all.size() == 1 ? all[0] : ops::concat(all, 3);
  }

  Config config_;
  AttentionSpec spec_;
  i64 length_, right_ = 0;
  std::vector<std::string> components_;
  WeightPtr W1_, b1_, W2_, b2_, Wa_, ba_, Wb_, bb_, R1_, R2_, R_, alpha_;
  std::unique_ptr<Buffer> fixed_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Synthesizer>();

}  // namespace
}  // namespace tapeformer
