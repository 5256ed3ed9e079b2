#include "core/rng.h"

#include <gtest/gtest.h>

#include <set>

namespace tapeformer {
namespace {

using Words = std::array<std::uint32_t, 4>;

TEST(Philox, KnownAnswersOfRandom123) {
  EXPECT_EQ(philox4x32({0, 0, 0, 0}, {0, 0}), (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  const std::uint32_t f = 0xffffffff;
  EXPECT_EQ(philox4x32({f, f, f, f}, {f, f}), (Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(RngKey, MomentsOfUniformAndNormal) {
  const RngKey key = RngKey(7).fold_in("moments");
  const int n = 100000;
  double mean = 0, square = 0, uniform = 0;
  for (int i = 0; i < n; ++i) {
    const double z = key.normal(i), u = key.uniform(i);
    mean += z / n;
    square += z * z / n;
    uniform += u / n;
  }
  EXPECT_NEAR(mean, 0, 0.015);
  EXPECT_NEAR(square, 1, 0.02);
  EXPECT_NEAR(uniform, 0.5, 0.005);
}

TEST(KeyedPermutation, VisitsEveryIndexOnce) {
  for (std::uint64_t n : {1, 2, 3, 5, 17, 64, 1000, 4097}) {
    const KeyedPermutation order(n, RngKey(n));
    std::set<std::uint64_t> seen;
    for (std::uint64_t i = 0; i < n; ++i) seen.insert(order(i));
    EXPECT_EQ(seen.size(), n);
    EXPECT_LT(*seen.rbegin(), n);
  }
}

}  // namespace
}  // namespace tapeformer
