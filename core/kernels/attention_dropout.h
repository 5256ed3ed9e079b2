// attention_dropout.h: which attention weights dropout keeps: bits of (key, sample, head, query, key position), so that backward finds them
// again and every kernel draws the same for the same pair.
#pragma once
#include <cmath>
#include <cstdint>

#include "core/rng.h"

namespace tapeformer::kernels {

class RowDropout {  // of one query
 public:
  RowDropout() = default;
  RowDropout(double p, RngKey key, i64 sample, i64 head, i64 query)
      : on_(p > 0), threshold_(static_cast<std::uint32_t>(std::lround(p * 0x1.0p16))), kept_(1 / (1 - p)) {
    if (on_)
      key_ = key.fold_in(static_cast<std::uint64_t>(sample))
                 .fold_in(static_cast<std::uint64_t>(head))
                 .fold_in(static_cast<std::uint64_t>(query));
  }
  double factor(i64 j) const {  // of the weight of key j: 0 or 1/(1-p); 1 without dropout
    if (!on_) return 1;
    const std::uint32_t bits = key_.bits32(static_cast<std::uint64_t>(j) >> 1) >> (16 * (j & 1)) & 0xffffu;
    return bits >= threshold_ ? kept_ : 0;
  }

 private:
  bool on_ = false;
  std::uint32_t threshold_ = 0;
  double kept_ = 1;
  RngKey key_;
};

}  // namespace tapeformer::kernels
