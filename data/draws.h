// draws.h: a sequence of random numbers from a key, for generators whose next draw depends on the last.
#pragma once
#include <cstdint>

#include "core/rng.h"

namespace tapeformer {

class Draws {
 public:
  explicit Draws(RngKey key) : key_(key) {}
  i64 below(i64 n) { return static_cast<i64>(key_.below(next_++, static_cast<std::uint64_t>(n))); }
  double uniform() { return key_.uniform(next_++); }
  double between(double low, double high) { return low + (high - low) * uniform(); }
  double normal() { return key_.normal(next_++); }

 private:
  RngKey key_;
  std::uint64_t next_ = 0;
};

}  // namespace tapeformer
