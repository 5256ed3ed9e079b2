// global.cpp: a few tokens see everyone and are seen by everyone; the others do not see each other.
// Beltagy et al. 2020 (arXiv 2004.05150); tokens added for the purpose: Ainslie et al. 2020, ETC (arXiv 2004.08483).
#include <numeric>

#include "attention/globals.h"

namespace tapeformer {
namespace {

struct GlobalConfig {
  std::optional<double> scale;
  std::string mode = "internal";
  std::vector<i64> global_positions, global_token_ids;
  i64 num_global = 1;
  bool include_self = false;
};
template <class V>
void visit_fields(V& v, GlobalConfig& c) {
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
  v("mode", c.mode, OneOf{"internal", "external"}, "global are tokens of the input, or learned tokens in front of it");
  v("global_positions", c.global_positions, "internal: positions, negative from the padded end");
  v("global_token_ids", c.global_token_ids, "internal: tokens with one of these ids");
  v("num_global", c.num_global, at_least(1), "external: learned tokens");
  v("include_self", c.include_self, "every token sees itself too");
}

// Every key but the global ones; the queries are global rows.
class OtherKeys final : public kernels::Pattern {
 public:
  explicit OtherKeys(std::shared_ptr<const Globals> globals) : globals_(std::move(globals)) {}
  Cover cover(i64 b, i64, i64, i64, i64 k0, i64 k1) const override {
    const i64 global = globals_->count(b, k0, k1);
    return global == 0 ? Cover::Full : global == k1 - k0 ? Cover::None : Cover::Partial;
  }
  void row(i64 b, i64, i64, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    for (i64 j : globals_->of(b))
      if (j >= k0 && j < k1) allowed[j - k0] = 0;
  }
  bool same_for_samples() const override { return false; }

 private:
  std::shared_ptr<const Globals> globals_;
};

// Rows that are not global see themselves.
class OwnKey final : public kernels::IntervalPattern {
 public:
  explicit OwnKey(std::shared_ptr<const Globals> globals) : globals_(std::move(globals)) {}
  Range keys(i64, i64, i64 i) const override { return {i, i + 1}; }
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    return globals_->count(b, q0, q1) == q1 - q0 ? Cover::None : std::min(IntervalPattern::cover(b, h, q0, q1, k0, k1), Cover::Partial);
  }
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    if (globals_->has(b, i))
      std::fill_n(allowed, k1 - k0, std::uint8_t{0});
    else
      IntervalPattern::row(b, h, i, k0, k1, allowed);
  }
  bool same_for_samples() const override { return false; }

 private:
  std::shared_ptr<const Globals> globals_;
};

class Global final : public PatternCore {
 public:
  using Config = GlobalConfig;
  static AttentionInfo describe() {
    return {.name = "global",
            .summary = "global tokens see every token and are seen by every token; others see only them",
            .formula = "S_i = everything if i in G, else G (and i with include_self)",
            .paper = "Beltagy et al. 2020, arXiv 2004.05150; Ainslie et al. 2020, arXiv 2004.08483",
            .cost = "time N |G| d, memory N d",
            .example = "{global_positions: [0, 5, -1], include_self: true}"};
  }
  Global(Config c, const AttentionSpec& spec, RngKey) : PatternCore(spec, c.scale), config_(std::move(c)) {
    const Config fresh;
    const bool named = !config_.global_positions.empty() || !config_.global_token_ids.empty();
    if (external()) {
      if (named) warn_unused("attention.global: global_positions and global_token_ids have no effect with mode: external");
    } else {
      if (!named && !spec.gmask)
        throw ConfigError(
            "global_positions, global_token_ids: got neither, expected at least one position or token id with mode: internal");
      if (config_.num_global != fresh.num_global) warn_unused("attention.global: num_global has no effect with mode: internal");
    }
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  i64 external_tokens() const override { return external() ? config_.num_global : 0; }
  std::shared_ptr<const kernels::Pattern> pattern(const AttentionInput& in) const override {
    return std::make_shared<GlobalPattern>(globals(in), config_.include_self);
  }
  // With many global tokens: all rows see the global keys, put side by side; global rows see the other keys; the others themselves.
  std::vector<ops::AttentionPart> parts(const AttentionInput& in) const override {
    auto all = std::make_shared<const Globals>(globals(in));
    if (all->few()) return {{.pattern = std::make_shared<GlobalPattern>(*all, config_.include_self)}};
    const Tensor at = all->index().view({all->samples(), 1, all->most()});
    std::vector<ops::AttentionPart> out{{.keys = at}, {.queries = at, .pattern = std::make_shared<OtherKeys>(all)}};
    if (config_.include_self) out.push_back({.pattern = std::make_shared<OwnKey>(all)});
    return out;
  }

 private:
  Globals globals(const AttentionInput& in) const {
    Globals out = external() ? first(in) : Globals("global", config_.global_positions, config_.global_token_ids, in);
    if (out.samples() > 0 && out.most() == 0)
      warn_unused("attention.global: no sample of a batch has a global token; rows then see nothing" +
                  std::string(config_.include_self ? " but themselves" : ""));
    return out;
  }
  bool external() const { return config_.mode == "external"; }
  Globals first(const AttentionInput& in) const {
    const Tensor& x = in.any();
    std::vector<i64> all(static_cast<std::size_t>(std::min(in.external, x.dim(-2))));
    std::iota(all.begin(), all.end(), i64{0});
    return Globals(std::vector<std::vector<i64>>(static_cast<std::size_t>(x.dim(0)), all));
  }
  Config config_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Global>();

}  // namespace
}  // namespace tapeformer
