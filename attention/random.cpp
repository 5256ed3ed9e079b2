// random.cpp: each block of positions sees some random blocks and nothing else; a part of hybrids.
// The random links of Zaheer et al. 2020 (arXiv 2007.14062) alone.
#include "attention/blocks.h"

namespace tapeformer {
namespace {

struct RandomConfig {
  std::optional<double> scale;
  i64 block_size = 64, num_random = 3;
  std::optional<i64> seed;
};
template <class V>
void visit_fields(V& v, RandomConfig& c) {
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
  v("block_size", c.block_size, at_least(1), "positions a block");
  v("num_random", c.num_random, at_least(1), "random blocks that each block sees, never itself");
  v("seed", c.seed, "of the random blocks; null = from the run's seed and the layer");
}

class RandomBlocks final : public PatternCore {
 public:
  using Config = RandomConfig;
  static AttentionInfo describe() {
    return {.name = "random",
            .summary = "each block of positions sees some random other blocks",
            .formula = "S_i = keys of the blocks R_h[r]; r = the block of i",
            .paper = "Zaheer et al. 2020, arXiv 2007.14062",
            .cost = "time N b r d, memory N d",
            .example = "{block_size: 2, num_random: 2}"};
  }
  RandomBlocks(Config c, const AttentionSpec& spec, RngKey key)
      : PatternCore(spec, c.scale),
        block_(c.block_size),
        linker_({.skip_own = true, .num_random = c.num_random, .causal = spec.causal}),
        draws_(this, c.seed, spec, key) {
    linker_.warn_without_effect("random", spec.max_len, block_);
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  std::shared_ptr<const kernels::Pattern> pattern(const AttentionInput& in) const override {
    const i64 heads = in.any().dim(1), nb = (in.any().dim(-2) + block_ - 1) / block_;
    const Tensor* given = in.find("rand_blocks");
    return std::make_shared<BlockPattern>(
        given != nullptr ? linker_.given("random", heads, nb, *given) : linker_.drawn(heads, nb, draws_.get()), block_, 0);
  }

 private:
  i64 block_;
  BlockLinker linker_;
  DrawKey draws_;
};

[[maybe_unused]] const bool kRegistered = register_attention<RandomBlocks>();

}  // namespace
}  // namespace tapeformer
