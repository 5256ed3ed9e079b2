// What the variants cost: pairs computed and memory held, by counting, not by the clock.
#include <gtest/gtest.h>

#include <algorithm>

#include "core/counters.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

struct Cost {
  std::size_t largest = 0, peak = 0;  // bytes: largest allocation, most held above the start
  double pairs = 0;
};

Cost cost_of(const Case& c, i64 N) {
  const Sizes s{.B = 1, .N = N, .H = 2, .d = 4};
  const auto core = build(c, spec_of(c, s));
  const AttentionInput in = random_input(*core, s, DType::F32);
  const Tensor upstream = random_upstream(*core, in, 4);
  Cost cost;
  const double pairs = static_cast<double>(counters::now().attention_pairs);
  const std::size_t start = memory::stats().live;
  memory::reset_peak();
  memory::set_allocation_hook([&](std::size_t bytes) { cost.largest = std::max(cost.largest, bytes); });
  run(*core, in, {}, upstream);
  memory::set_allocation_hook(nullptr);
  cost.peak = memory::stats().peak - start;
  cost.pairs = static_cast<double>(counters::now().attention_pairs) - pairs;
  return cost;
}

// A variant whose parameters are N x N cannot do without an N x N gradient.
bool owns_a_matrix(const Case& c, i64 N) {
  const auto core = build_attention(config_of(c), spec_of(c, {.N = N}), RngKey(1));
  const auto parameters = core->parameters();
  return std::any_of(parameters.begin(), parameters.end(), [&](const Parameter* p) { return p->value.numel() >= N * N; });
}

std::vector<Case> examples() {
  std::vector<Case> out;
  for (const std::string& name : attention_registry().names())
    for (bool causal : {false, true}) {
      const AttentionInfo& info = attention_registry().get(name).info;
      if (!causal || info.causal) out.push_back({.type = name, .config = info.example, .causal = causal});
    }
  for (bool causal : {false, true}) {
    out.push_back({.type = "synthesizer", .config = "{kind: dense}", .causal = causal});
    out.push_back({.type = "sinkhorn", .config = "{block_size: 64}", .causal = causal});
    out.push_back({.type = "local", .config = "{mode: block, block_size: 32}", .causal = causal});
    out.push_back({.type = "hybrid", .config = "{heads: [{type: full}, {type: local}]}", .causal = causal});
    out.push_back(
        {.type = "hybrid", .config = "{combine: union, heads: [{type: local, window: 5}, {type: local, window: 9}]}", .causal = causal});
  }
  return out;
}

const std::pair<const char*, const char*> kLinear[] = {
    {"local", "{window: 40}"},
    {"local", "{mode: block, block_size: 48}"},
    {"global", "{global_positions: [0, 100, 1000, -1], include_self: true}"},
    {"global", "{mode: external, num_global: 3}"},
    {"bigbird", "{block_size: 64}"},
    {"bigbird", "{block_size: 32, num_random: 2, global_blocks: [], num_global_ext: 4}"},
    {"random", "{block_size: 64}"},
    {"strided", "{stride: 3, reach: 8}"},
    {"reformer", "{chunk_len: 32, n_rounds: 3}"},
    {"longformer", "{window: 40, global_positions: [0]}"},
    {"longformer", "{window: 40, dilation: [1, 4], global_positions: [0, 100, 1000, 1001, -1]}"},
    {"global", "{global_positions: [0, 100, 200, 300, 400, -1], include_self: true}"},
};

TEST(AttentionCost, NothingQuadraticIsAllocated) {
  constexpr i64 N = 4096;
  for (const Case& c : examples()) {
    if (owns_a_matrix(c, N)) continue;
    EXPECT_LT(cost_of(c, N).largest, static_cast<std::size_t>(N * N)) << c;
  }
}

TEST(AttentionCost, LongInputsTakeLittleMemory) {
  for (const auto& [type, config] : kLinear) {
    const Cost cost = cost_of({.type = type, .config = config}, 16384);
    EXPECT_LT(cost.largest, std::size_t{16384} * 16384 / 8) << type << " " << config;  // not even as bits
    EXPECT_LT(cost.peak, std::size_t{64} << 20) << type << " " << config;
  }
}

TEST(AttentionCost, TheNaiveFormIsCaught) {
  constexpr i64 N = 512;
  EXPECT_GE(cost_of({.type = "full", .config = "{impl: naive}"}, N).largest, static_cast<std::size_t>(N * N));
}

TEST(AttentionCost, PairsGrowLinearly) {
  for (const auto& [type, config] : kLinear)
    for (bool causal : {false, true}) {
      const Case c{.type = type, .config = config, .causal = causal};
      double before = cost_of(c, 2048).pairs;
      EXPECT_GT(before, 0);
      for (i64 N : {4096, 8192}) {
        const double now = cost_of(c, N).pairs;
        EXPECT_GE(now / before, 1.7) << c << " at N = " << N;
        EXPECT_LE(now / before, 2.2) << c << " at N = " << N;
        before = now;
      }
    }
  const double full = cost_of({.type = "full", .config = "{}"}, 2048).pairs / cost_of({.type = "full", .config = "{}"}, 1024).pairs;
  EXPECT_GT(full, 3.5);
}

TEST(AttentionCost, CausalHalvesFull) {
  const double all = cost_of({.type = "full", .config = "{}"}, 2048).pairs,
               half = cost_of({.type = "full", .config = "{}", .causal = true}, 2048).pairs;
  EXPECT_LE(half / all, 0.55);
}

TEST(AttentionCost, MemoryGrowsLinearly) {
  for (const Case& c : examples()) {
    if (owns_a_matrix(c, 1024) || c.config == "{block_size: 4}") continue;  // blocks of 4: (N / b)^2 is what counts
    const double small = static_cast<double>(cost_of(c, 2048).peak), large = static_cast<double>(cost_of(c, 4096).peak);
    EXPECT_LE(large / small, 2.2) << c;
  }
}

}  // namespace
}  // namespace tapeformer::suite
