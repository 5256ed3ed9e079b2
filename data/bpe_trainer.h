// bpe_trainer.h: byte pair encoding (Sennrich et al. 2016) over bytes: which pairs to merge, most frequent first.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/shape.h"

namespace tapeformer {

using BpeMerge = std::pair<std::int32_t, std::int32_t>;  // symbols: 0 to 255 bytes, 256 + k the result of merge k

// Pieces that merges never cross: a run of letters, of digits or of other marks with one blank in front, or a run of
// white space.
std::vector<std::string_view> split_pieces(std::string_view text);
// At most `merges` merges of pairs that occur min_count times or more; equal counts go by the bytes of the pair.
std::vector<BpeMerge> train_bpe(std::span<const std::string> texts, i64 merges, i64 min_count);

}  // namespace tapeformer
