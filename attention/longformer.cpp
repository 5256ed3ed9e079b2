// longformer.cpp: a window, dilated in some heads, and global tokens that see everything through projections of their own.
// Beltagy, Peters, Cohan, "Longformer: The Long-Document Transformer", 2020 (arXiv 2004.05150).
#include <algorithm>
#include <numeric>

#include "attention/globals.h"
#include "autograd/ops.h"
#include "layers/embedding.h"

namespace tapeformer {
namespace {

struct LongformerConfig {
  std::optional<double> scale;
  i64 window = 64;
  ConfigNode dilation = ConfigNode::scalar("1");
  std::vector<i64> global_positions, global_token_ids;
  bool share_global_proj = false;
};
template <class V>
void visit_fields(V& v, LongformerConfig& c) {
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
  v("window", c.window, at_least(0), "radius: keys seen on each side");
  v("dilation", c.dilation, "distance of neighbouring keys of the window: an integer, or a list with one for each head");
  v("global_positions", c.global_positions, "positions of global tokens, negative from the padded end");
  v("global_token_ids", c.global_token_ids, "tokens with one of these ids are global");
  v("share_global_proj", c.share_global_proj, "global tokens look through the same q, k, v as the others");
}

using Range = kernels::IntervalPattern::Range;

// Dilated windows, head by head, in an order in which they are ranges: positions by their residue, then by themselves.
class DilatedWindow final : public kernels::IntervalPattern {
 public:
  DilatedWindow(i64 N, i64 window, std::vector<i64> dilation) : N_(N), window_(window), dilation_(std::move(dilation)) {}
  Range keys(i64, i64 h, i64 place) const override {
    const i64 D = std::min(of_head(h), N_), longer = N_ % D, size = N_ / D;  // the first `longer` classes have a position more
    const i64 c = place < longer * (size + 1) ? place / (size + 1) : (place - longer) / size;
    const i64 start = c * size + std::min(c, longer), end = start + size + (c < longer);
    return {std::max(start, place - window_), std::min(end, place + window_ + 1)};
  }
  bool same_for_heads() const override { return false; }
  Tensor order() const {  // i64 [1, H, N]
    const i64 H = static_cast<i64>(dilation_.size());
    Tensor out = Tensor::empty({1, H, N_}, DType::I64);
    i64* at = out.mut_ptr<i64>();
    for (i64 h = 0; h < H; ++h)
      for (i64 c = 0; c < std::min(of_head(h), N_); ++c)
        for (i64 i = c; i < N_; i += of_head(h)) *at++ = i;
    return out;
  }

 private:
  i64 of_head(i64 h) const { return dilation_[static_cast<std::size_t>(h)]; }
  i64 N_, window_;
  std::vector<i64> dilation_;
};

// Place k of the keys is the k-th global token of the sample. Every query sees it, unless its window does.
class GlobalsOutsideWindow final : public kernels::Pattern {
 public:
  GlobalsOutsideWindow(std::shared_ptr<const Globals> globals, i64 window, std::vector<i64> dilation)
      : globals_(std::move(globals)), window_(window), dilation_(std::move(dilation)) {}
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64, i64) const override {
    const i64 reach = window_ * of_head(h);
    return globals_->count(b, q0 - reach, q1 + reach) > 0 ? Cover::Partial : Cover::Full;
  }
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    const std::vector<i64>& all = globals_->of(b);
    for (i64 k = k0; k < std::min(k1, static_cast<i64>(all.size())); ++k) {
      const i64 far = std::abs(all[static_cast<std::size_t>(k)] - i);
      if (far % of_head(h) == 0 && far / of_head(h) <= window_) allowed[k - k0] = 0;
    }
  }
  bool same_for_samples() const override { return false; }
  bool same_for_heads() const override { return false; }

 private:
  i64 of_head(i64 h) const { return dilation_[static_cast<std::size_t>(h)]; }
  std::shared_ptr<const Globals> globals_;
  i64 window_;
  std::vector<i64> dilation_;
};

// A window without dilation and a few global keys in one pass.
class WindowAndGlobals final : public kernels::IntervalPattern {
 public:
  WindowAndGlobals(std::shared_ptr<const Globals> globals, i64 window) : globals_(std::move(globals)), window_(window) {}
  Range keys(i64, i64, i64 i) const override { return {i - window_, i + window_ + 1}; }
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    const Cover near = IntervalPattern::cover(b, h, q0, q1, k0, k1);
    const i64 global = near == Cover::Full ? 0 : globals_->count(b, k0, k1);
    return global == k1 - k0 ? Cover::Full : global > 0 ? Cover::Partial : near;
  }
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    IntervalPattern::row(b, h, i, k0, k1, allowed);
    const std::vector<i64>& all = globals_->of(b);
    for (auto j = std::lower_bound(all.begin(), all.end(), k0); j != all.end() && *j < k1; ++j) allowed[*j - k0] = 1;
  }
  void key_tiles(i64 b, i64 h, i64 q0, i64 q1, i64 keys, i64 tile, std::vector<i64>& out) const override {
    const auto start = static_cast<std::ptrdiff_t>(out.size());
    IntervalPattern::key_tiles(b, h, q0, q1, keys, tile, out);
    for (i64 j : globals_->of(b)) out.push_back(j / tile);
    std::sort(out.begin() + start, out.end());
    out.erase(std::unique(out.begin() + start, out.end()), out.end());
  }
  bool same_for_samples() const override { return false; }

 private:
  std::shared_ptr<const Globals> globals_;
  i64 window_;
};

// Query g is the g-th global token of the sample and sees keys up to its own position.
class PastOfGlobals final : public kernels::IntervalPattern {
 public:
  explicit PastOfGlobals(std::shared_ptr<const Globals> globals) : globals_(std::move(globals)) {}
  Range keys(i64 b, i64, i64 g) const override {
    const std::vector<i64>& all = globals_->of(b);
    return {0, all.empty() ? 0 : all[static_cast<std::size_t>(std::min(g, static_cast<i64>(all.size()) - 1))] + 1};
  }
  bool same_for_samples() const override { return false; }

 private:
  std::shared_ptr<const Globals> globals_;
};

// One head's value for each of H heads, from an integer or a list.
std::vector<i64> dilation_of(const ConfigNode& node, i64 heads) {
  std::vector<i64> out;
  const auto add = [&](const ConfigNode& n) {
    i64 value = 1;
    detail::read_scalar(n, value);
    detail::check(n, static_cast<double>(value), at_least(1));
    out.push_back(value);
  };
  if (!node.is_sequence()) {
    add(node);
    out.resize(static_cast<std::size_t>(heads), out[0]);
    return out;
  }
  for (const ConfigNode& n : node.items()) add(n);
  if (static_cast<i64>(out.size()) != heads)
    throw ConfigError(fmt::format("{}: the list has {} entries, expected one for each of the {} heads", node.place(), out.size(), heads));
  return out;
}

class Projection {  // of x, owned by the core: [B, N, D] -> [B, H, N, d]
 public:
  Projection(Module* owner, const std::string& name, const AttentionSpec& s, i64 head_dim, RngKey key)
      : heads_(s.heads), W_(owner, "W_" + name, {s.dim, s.heads * head_dim}, Init::xavier(s.dim, s.heads * head_dim), key) {
    if (s.bias) b_.emplace(owner, "b_" + name, Shape{s.heads * head_dim}, Init::zeros(), key, false);
  }
  Tensor operator()(const Tensor& x) const { return ops::split_heads(ops::linear(x, W_.get(), b_ ? b_->get() : Tensor()), heads_); }
  void start_from(const Tensor& W, const Tensor& b) {
    W_.parameter().value.copy_from(W);
    if (b_ && b.defined()) b_->parameter().value.copy_from(b);
  }

 private:
  i64 heads_;
  Weight W_;
  std::optional<Weight> b_;
};

class Longformer final : public AttentionCore {
 public:
  using Config = LongformerConfig;
  static AttentionInfo describe() {
    return {.name = "longformer",
            .summary = "a window, dilated in some heads, and global tokens with projections of their own",
            .formula = "o_i = softmax attention over i + t D_h, |t| <= w, and G; i in G: over everything, with q', k', v'",
            .paper = "Beltagy et al. 2020, arXiv 2004.05150",
            .cost = "time N (w + |G|) d, memory N d",
            .example = "{window: 2, dilation: 2, global_positions: [0, -2]}"};
  }
  Longformer(Config c, const AttentionSpec& spec, RngKey key)
      : config_(std::move(c)), spec_(spec), dilation_(dilation_of(config_.dilation, spec.heads)) {
    if (config_.global_positions.empty() && config_.global_token_ids.empty() && !spec.gmask)
      warn_unused("attention.longformer: without global_positions or global_token_ids this is local attention");
    if (config_.share_global_proj) return;
    qg_.emplace(this, "qg", spec, spec.head_dim, key);
    kg_.emplace(this, "kg", spec, spec.head_dim, key);
    vg_.emplace(this, "vg", spec, spec.dv(), key);
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  void start_from(const Projections& p) override {
    if (!qg_) return;
    qg_->start_from(p.Wq, p.bq);
    kg_->start_from(p.Wk, p.bk);
    vg_->start_from(p.Wv, p.bv);
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const auto globals = std::make_shared<const Globals>("longformer", config_.global_positions, config_.global_token_ids, in);
    const bool named = !config_.global_positions.empty() || !config_.global_token_ids.empty();
    if (named && globals->samples() > 0 && globals->most() == 0)
      warn_unused("attention.longformer: no sample of a batch has a global token; this is local attention there");
    const Tensor near = local(in, globals, ctx);
    if (globals->most() == 0) return near;
    const Tensor at = globals->index();  // [B, m]
    const i64 B = at.dim(0), m = at.dim(1), H = near.dim(1);
    const Tensor at_heads = at.view({B, 1, m}).expand({B, H, m});
    return ops::add(near, ops::scatter_along(global(in, globals, at, at_heads, ctx), at_heads, near.dim(2)));
  }

 private:
  ops::AttentionOptions options(const AttentionInput& in, const Ctx& ctx, const char* name) const {
    ops::AttentionOptions o{.scale = config_.scale, .query_mask = in.mask, .key_mask = in.mask};
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at(name).key;
    o.rows = ctx.rows;
    return o;
  }

  // Global rows are 0 and send nothing back.
  Tensor local(const AttentionInput& in, const std::shared_ptr<const Globals>& globals, const Ctx& ctx) const {
    const i64 B = in.q.dim(0), N = in.q.dim(2), m = globals->most();
    ops::AttentionOptions o = options(in, ctx, "weights");
    o.causal = spec_.causal;
    if (m > 0) {
      o.query_mask = in.mask.defined() ? in.mask.clone() : Tensor::full({B, N}, 1, DType::U8);
      for (i64 b = 0; b < B; ++b)
        for (i64 i : globals->of(b)) o.query_mask.mut_ptr<std::uint8_t>()[b * N + i] = 0;
    }
    const bool dilated = std::any_of(dilation_.begin(), dilation_.end(), [](i64 D) { return D > 1; });
    if (!dilated && globals->few()) {
      o.pattern = std::make_shared<WindowAndGlobals>(globals, config_.window);
      return ops::attention(in.q, in.k, in.v, o);
    }
    const auto window = std::make_shared<DilatedWindow>(N, config_.window, dilation_);
    const Tensor order = dilated ? window->order() : Tensor();
    std::vector<ops::AttentionPart> parts{{.queries = order, .keys = order, .pattern = window}};
    if (m > 0)
      parts.push_back({.queries = {},
                       .keys = globals->index().view({B, 1, m}),
                       .pattern = std::make_shared<GlobalsOutsideWindow>(globals, config_.window, dilation_)});
    return ops::attention_parts(in.q, in.k, in.v, std::move(parts), o);
  }

  // Rows of the global tokens alone: [B, H, m, dv].
  Tensor global(const AttentionInput& in, const std::shared_ptr<const Globals>& globals, const Tensor& at, const Tensor& at_heads,
                const Ctx& ctx) const {
    ops::AttentionOptions o = options(in, ctx, "global_weights");
    o.query_mask = ops::greater(at, Tensor::full({}, -1, DType::I64));
    if (spec_.causal) o.pattern = std::make_shared<PastOfGlobals>(globals);
    const Tensor *q = in.find("qg"), *k = in.find("kg"), *v = in.find("vg");
    if (q != nullptr && k != nullptr && v != nullptr) return ops::attention(ops::gather_along(*q, at_heads), *k, *v, o);
    if (config_.share_global_proj) return ops::attention(ops::gather_along(in.q, at_heads), in.k, in.v, o);
    const Tensor x = real_rows(in.x, in.mask);
    Tensor qg = (*qg_)(ops::gather_along(x, at)), kg = (*kg_)(x);
    if (in.rotary) {
      qg = rotary(qg, at);
      kg = rotary(kg);
    }
    return ops::attention(qg, kg, (*vg_)(x), o);
  }

  Config config_;
  AttentionSpec spec_;
  std::vector<i64> dilation_;
  std::optional<Projection> qg_, kg_, vg_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Longformer>();

}  // namespace
}  // namespace tapeformer
