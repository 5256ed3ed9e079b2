// blocks.h: attention among blocks of positions, with random links: what `bigbird` and `random` share.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "attention/attention.h"

namespace tapeformer {

// Which blocks of keys a block of queries sees: the window |r - c| <= window, the global ones, and links of its own.
struct BlockLinks {
  i64 count = 0;                     // nb
  i64 window = -1;                   // radius in blocks; -1 = not even the own block
  std::vector<bool> global;          // [nb]
  std::vector<i64> starts, columns;  // links of head h from block r: columns[starts[h nb + r]] ..., ascending, outside of the window

  // Columns of [c0, c1] that block r of head h sees.
  i64 seen(i64 h, i64 r, i64 c0, i64 c1) const;
};

// Makes the links of each number of blocks, once. Random ones are a pure function of (key, head, nb, r): up to `num_random` distinct blocks
// that neither window nor global blocks cover (causal: of those before r), by a Fisher-Yates shuffle whose step t takes the key's value t.
class BlockLinker {
 public:
  struct Options {
    i64 window = -1;
    bool skip_own = false;           // the own block is never drawn (it is not where the window covers it)
    std::vector<i64> global_blocks;  // negative from the end; what lies outside is ignored
    i64 num_random = 0;
    bool causal = false;
  };
  explicit BlockLinker(Options o) : o_(std::move(o)) {}
  // Of blocks that inputs of up to max_len positions, `block` each, do not have; max_len 0 is unknown.
  void warn_without_effect(const char* who, i64 max_len, i64 block) const;
  std::shared_ptr<const BlockLinks> drawn(i64 heads, i64 nb, RngKey key) const;
  // rand_blocks: i64 [H, nb, r], -1 = none. ShapeError "[who] ...".
  std::shared_ptr<const BlockLinks> given(const char* who, i64 heads, i64 nb, const Tensor& rand_blocks) const;

 private:
  std::vector<i64> global_blocks(i64 nb) const;
  std::vector<i64> draw(i64 r, i64 nb, const std::vector<i64>& global, RngKey key) const;
  template <class Random>
  std::shared_ptr<const BlockLinks> link(i64 heads, i64 nb, Random&& random) const;

  Options o_;
  mutable std::mutex mutex_;
  mutable std::map<std::pair<std::uint64_t, i64>, std::shared_ptr<const BlockLinks>> made_;  // by key and nb
};

// The pattern of such links over blocks of `block` positions, the last one perhaps short. The first `external` rows and keys stand outside
// of the blocks: they see and are seen by all.
class BlockPattern final : public kernels::Pattern {
 public:
  BlockPattern(std::shared_ptr<const BlockLinks> links, i64 block, i64 external)
      : links_(std::move(links)), block_(block), external_(external) {}
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override;
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override;
  void key_tiles(i64 b, i64 h, i64 q0, i64 q1, i64 keys, i64 tile, std::vector<i64>& out) const override;
  bool same_for_heads() const override { return false; }

 private:
  i64 block_of(i64 i) const { return (i - external_) / block_; }
  std::shared_ptr<const BlockLinks> links_;
  i64 block_, external_;
};

// The key of a core's random draws: of a seed from the configuration and the core's place, or one that comes from the run and is kept
// in the checkpoint.
class DrawKey {
 public:
  DrawKey(Module* owner, std::optional<i64> seed, const AttentionSpec&, RngKey init);
  RngKey get() const;

 private:
  RngKey fixed_;
  std::optional<Buffer> kept_;  // "seed"
};

}  // namespace tapeformer
