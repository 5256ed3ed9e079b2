// bigbird.cpp: blocks of positions see neighbouring blocks, global blocks and some random ones.
// Zaheer et al., "Big Bird: Transformers for Longer Sequences", 2020 (arXiv 2007.14062); with tokens in front: ETC (arXiv 2004.08483).
#include "attention/blocks.h"

namespace tapeformer {
namespace {

struct BigBirdConfig {
  std::optional<double> scale;
  i64 block_size = 64, window_blocks = 1;
  std::vector<i64> global_blocks{0, -1};
  i64 num_random = 3, num_global_ext = 0;
  std::optional<i64> seed;
};
template <class V>
void visit_fields(V& v, BigBirdConfig& c) {
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
  v("block_size", c.block_size, at_least(1), "positions a block");
  v("window_blocks", c.window_blocks, at_least(0), "radius of the window, in blocks");
  v("global_blocks", c.global_blocks, "blocks that see and are seen by all; negative from the padded end");
  v("num_random", c.num_random, at_least(0), "random blocks that each block sees besides");
  v("num_global_ext", c.num_global_ext, at_least(0), "learned tokens in front that see and are seen by all");
  v("seed", c.seed, "of the random blocks; null = from the run's seed and the layer");
}

class BigBird final : public PatternCore {
 public:
  using Config = BigBirdConfig;
  static AttentionInfo describe() {
    return {.name = "bigbird",
            .summary = "blocks see neighbouring blocks, global blocks and some random blocks",
            .formula = "S_i = keys of blocks c with |r - c| <= w, or r or c global, or c in R_h[r]; r = the block of i",
            .paper = "Zaheer et al. 2020, arXiv 2007.14062; Ainslie et al. 2020, arXiv 2004.08483",
            .cost = "time N b (2w + 1 + |G| + r) d, memory N d",
            .example = "{block_size: 2, global_blocks: [-1], num_random: 1}"};
  }
  BigBird(Config c, const AttentionSpec& spec, RngKey key)
      : PatternCore(spec, c.scale),
        config_(std::move(c)),
        linker_({.window = config_.window_blocks,
                 .global_blocks = config_.global_blocks,
                 .num_random = config_.num_random,
                 .causal = spec.causal}) {
    linker_.warn_without_effect("bigbird", spec.max_len, config_.block_size);
    if (config_.num_random > 0) draws_.emplace(this, config_.seed, spec, key);
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  i64 external_tokens() const override { return config_.num_global_ext; }
  std::shared_ptr<const kernels::Pattern> pattern(const AttentionInput& in) const override {
    const i64 heads = in.any().dim(1), N = in.any().dim(-2), external = config_.num_global_ext > 0 ? std::min(in.external, N) : 0;
    const i64 nb = (N - external + config_.block_size - 1) / config_.block_size;
    const Tensor* given = in.find("rand_blocks");
    return std::make_shared<BlockPattern>(
        given != nullptr ? linker_.given("bigbird", heads, nb, *given) : linker_.drawn(heads, nb, draws_ ? draws_->get() : RngKey()),
        config_.block_size, external);
  }

 private:
  Config config_;
  BlockLinker linker_;
  std::optional<DrawKey> draws_;
};

[[maybe_unused]] const bool kRegistered = register_attention<BigBird>();

}  // namespace
}  // namespace tapeformer
