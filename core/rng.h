// rng.h: randomness as a pure function of (key, index): Philox4x32-10 of Salmon et al., "Parallel Random Numbers: As Easy as
// 1, 2, 3", 2011. There is no generator state to save, lock or forget; the same key gives the same numbers on any thread.
#pragma once
#include <array>
#include <cstdint>
#include <string_view>

#include "core/tensor.h"

namespace tapeformer {

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter, std::array<std::uint32_t, 2> key);

class RngKey {
 public:
  explicit RngKey(std::uint64_t seed = 0) : key_(seed) {}
  RngKey fold_in(std::uint64_t) const;  // a new key, unrelated to this one
  RngKey fold_in(std::string_view) const;
  std::uint64_t bits(std::uint64_t i) const;                    // 64 random bits at index i
  std::uint32_t bits32(std::uint64_t i) const;                  // 32 random bits at index i
  double uniform(std::uint64_t i) const;                        // [0, 1), 53 bits
  double normal(std::uint64_t i) const;                         // mean 0, variance 1
  std::uint64_t below(std::uint64_t i, std::uint64_t n) const;  // uniform in [0, n)
  std::uint64_t value() const { return key_; }

 private:
  std::uint64_t key_;
};

void fill_uniform(Tensor&, RngKey, double low, double high);  // element k gets uniform(k)
void fill_normal(Tensor&, RngKey, double mean, double stddev);

// A keyed permutation of [0, n) computed by index (Feistel walk): position i of the shuffled order, without storing the order.
class KeyedPermutation {
 public:
  KeyedPermutation(std::uint64_t n, RngKey key);
  std::uint64_t operator()(std::uint64_t i) const;  // i < n

 private:
  std::uint64_t round_trip(std::uint64_t i) const;
  std::uint64_t n_;
  int half_bits_;
  RngKey key_;
};

}  // namespace tapeformer
