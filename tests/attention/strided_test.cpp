// Strided patterns against sets built by plain loops, and what they cost.
#include <gtest/gtest.h>

#include <cmath>

#include "core/counters.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

struct Setting {
  const char* config;
  bool (*sees)(i64 i, i64 j);
};

i64 mod(i64 a, i64 b) { return (a % b + b) % b; }

const Setting kSettings[] = {
    {"{stride: 3, reach: 1}", [](i64 i, i64 j) { return mod(j - i, 3) == 0 && std::abs(j - i) <= 3; }},
    {"{stride: 5, reach: 70}", [](i64 i, i64 j) { return mod(j - i, 5) == 0; }},
    {"{stride: 2, reach: null, include_self: false}", [](i64 i, i64 j) { return mod(j - i, 2) == 0 && i != j; }},
    {"{stride: 1, reach: 3, include_self: false}", [](i64 i, i64 j) { return std::abs(j - i) <= 3 && i != j; }},
    {"{stride: 500, include_self: false}", [](i64, i64) { return false; }},
    {"{pattern: strided, stride: 7}", [](i64 i, i64 j) { return std::abs(j - i) <= 7 || mod(j - i, 7) == 0; }},
    {"{pattern: strided, stride: 1}", [](i64, i64) { return true; }},
    {"{pattern: strided, stride: 90}", [](i64 i, i64 j) { return std::abs(j - i) <= 90 || mod(j - i, 90) == 0; }},
    {"{pattern: strided, stride: 12, part: first}", [](i64 i, i64 j) { return std::abs(j - i) <= 12; }},
    {"{pattern: strided, stride: 12, part: second}", [](i64 i, i64 j) { return mod(j - i, 12) == 0; }},
    {"{pattern: fixed, stride: 8, summary: 3}", [](i64 i, i64 j) { return i / 8 == j / 8 || j % 8 >= 5; }},
    {"{pattern: fixed, stride: 70}", [](i64 i, i64 j) { return i / 70 == j / 70 || j % 70 == 69; }},
    {"{pattern: fixed, stride: 6, summary: 6}", [](i64, i64) { return true; }},
    {"{pattern: fixed, stride: 10, part: first}", [](i64 i, i64 j) { return i / 10 == j / 10; }},
    {"{pattern: fixed, stride: 10, summary: 2, part: second}", [](i64, i64 j) { return j % 10 >= 8; }},
    {"{pattern: fixed, stride: 400, part: second}", [](i64, i64) { return false; }},
};

bool on(const Tensor& mask, i64 i) { return mask.data<std::uint8_t>()[static_cast<std::size_t>(i)] != 0; }

// As it runs by itself, and by the pattern that a union reads.
TEST(Strided, MatchesLoops) {
  const i64 B = 4, N = 150;
  for (const Setting& s : kSettings)
    for (bool causal : {false, true})
      for (const std::string& config : {std::string(s.config), "{combine: union, heads: [{type: strided, " +
                                                                   std::string(s.config).substr(1) + ", {type: local, window: 0}]}"}) {
        const bool united = config != s.config;
        const Case c{.type = united ? "hybrid" : "strided", .config = config, .causal = causal};
        const auto core = build(c, spec_of(c, {.N = N}));
        AttentionInput in = random_input(*core, {.B = B, .N = N}, DType::F32);
        in.mask = mixed_mask(B, N);
        const Tensor want = softmax_loop(in.q, in.k, in.v, 0.5, [&](i64 b, i64, i64 i, i64 j) {
          return on(in.mask, b * N + i) && on(in.mask, b * N + j) && (!causal || j <= i) && (s.sees(i, j) || (united && i == j));
        });
        EXPECT_LE(difference(core->attend(in, {}), want), 5e-6) << c;
      }
}

// Every tile's answer is the truth about its pairs.
TEST(Strided, CoverIsExact) {
  const i64 N = 140;
  for (const Setting& s : kSettings) {
    const Case c{.type = "strided", .config = s.config};
    const auto core = build(c, spec_of(c, {.N = N}));
    const auto pattern = dynamic_cast<const PatternCore&>(*core).pattern(random_input(*core, {.N = N}, DType::F32));
    for (i64 size : {1, 4, 7, 64})
      for (i64 q0 = 0; q0 < N; q0 += size)
        for (i64 k0 = 0; k0 < N; k0 += size) {
          const i64 q1 = std::min(q0 + size, N), k1 = std::min(k0 + size, N);
          i64 seen = 0;
          for (i64 i = q0; i < q1; ++i)
            for (i64 j = k0; j < k1; ++j) seen += s.sees(i, j);
          const auto cover = pattern->cover(0, 0, q0, q1, k0, k1);
          if (cover == kernels::Pattern::Cover::None) EXPECT_EQ(seen, 0) << s.config;
          if (cover == kernels::Pattern::Cover::Full) EXPECT_EQ(seen, (q1 - q0) * (k1 - k0)) << s.config;
          if (seen == 0 && size > 1) EXPECT_NE(cover, kernels::Pattern::Cover::Full) << s.config;
        }
  }
}

double pairs_of(const std::string& type, const std::string& config, i64 N, bool causal) {
  const Case c{.type = type, .config = config, .causal = causal};
  const auto core = build(c, spec_of(c, {.N = N, .H = 1}));
  const double before = static_cast<double>(counters::now().attention_pairs);
  core->attend(random_input(*core, {.B = 1, .N = N, .H = 1}, DType::F32), {});
  return static_cast<double>(counters::now().attention_pairs) - before;
}

// Pairs computed against pairs in the set: tiles of 8 x 16 round up.
TEST(Strided, PairsAreThoseOfThePattern) {
  for (bool causal : {false, true})
    for (const auto& [N, s] : {std::pair<i64, i64>{1024, 32}, {4096, 64}, {16384, 128}}) {
      const double half = causal ? 0.5 : 1, n = static_cast<double>(N), stride = static_cast<double>(s), jumps = n / stride;
      const auto expect = [&](const std::string& config, double per_row) {
        const double pairs = pairs_of("strided", config, N, causal);
        EXPECT_LE(pairs, n * (half * per_row + 48)) << config << " N " << N << " causal " << causal;
      };
      expect(fmt::format("{{stride: {}, reach: null}}", s), jumps + 16);
      expect(fmt::format("{{stride: {}, reach: 4}}", s), 9);
      expect(fmt::format("{{pattern: strided, stride: {}}}", s), 2 * stride + jumps + 16);
      expect(fmt::format("{{pattern: fixed, stride: {}}}", s), stride + jumps);
      const std::string both =
          fmt::format("{{combine: union, heads: [{{type: local, window: 8}}, {{type: strided, stride: {}, reach: null}}]}}", s);
      EXPECT_LE(pairs_of("hybrid", both, N, causal), n * (half * (17 + jumps) + 80)) << both;
    }
}

}  // namespace
}  // namespace tapeformer::suite
