// globals.h: the global positions of each sample, for the variants that have some.
#pragma once
#include <algorithm>
#include <vector>

#include "attention/attention.h"

namespace tapeformer {

// Real positions that are listed in `positions` (negative from the padded end; what lies outside of the input is ignored), hold one of
// `ids` (side input token_ids, i64 [B, N]) or are marked (side input gmask, u8 [B, N], optional). ShapeError "[who] ..." for a missing or
// misshapen side input.
class Globals {
 public:
  Globals(const char* who, const std::vector<i64>& positions, const std::vector<i64>& ids, const AttentionInput&);
  explicit Globals(std::vector<std::vector<i64>> at) : at_(std::move(at)) {}

  const std::vector<i64>& of(i64 b) const { return at_[static_cast<std::size_t>(b)]; }  // ascending
  bool has(i64 b, i64 i) const { return std::binary_search(of(b).begin(), of(b).end(), i); }
  i64 count(i64 b, i64 from, i64 to) const {  // in [from, to)
    return std::lower_bound(of(b).begin(), of(b).end(), to) - std::lower_bound(of(b).begin(), of(b).end(), from);
  }
  i64 samples() const { return static_cast<i64>(at_.size()); }
  i64 most() const;                         // of any sample
  bool few() const { return most() <= 4; }  // their keys in the tiles where they stand cost less than a pass of their own
  Tensor index() const;                     // i64 [B, most()]: the positions, then -1

 private:
  std::vector<std::vector<i64>> at_;
};

// The pattern in which global rows see every key and every row sees the global keys.
class GlobalPattern final : public kernels::Pattern {
 public:
  GlobalPattern(Globals globals, bool self) : globals_(std::move(globals)), self_(self) {}  // self: and each row itself
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override;
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override;
  void key_tiles(i64 b, i64 h, i64 q0, i64 q1, i64 keys, i64 tile, std::vector<i64>& out) const override;
  bool same_for_samples() const override { return false; }

 private:
  Globals globals_;
  bool self_;
};

}  // namespace tapeformer
