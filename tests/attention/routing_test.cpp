// Clusters of routing: what they coincide with, who is in them, and what they cost.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops.h"
#include "core/counters.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

Tensor layer_normed(const Tensor& x) {
  const i64 d = x.dim(3);
  return ops::layer_norm(x, Tensor::full({d}, 1, x.dtype()), Tensor::zeros({d}, x.dtype()), 1e-6);
}

TEST(RoutingClusters, OneClusterIsFull) {
  const DTypeScope f64(DType::F64);
  const Sizes s{.B = 4, .N = 70, .H = 2, .d = 4};
  for (const char* assignment : {"topk", "argmax"})
    for (bool causal : {false, true})
      for (bool normalised : {false, true}) {
        SCOPED_TRACE(testing::Message() << assignment << (causal ? " causal" : "") << (normalised ? " normalised" : ""));
        const Case a{.type = "routing",
                     .config = std::string("{num_clusters: 1, assignment: ") + assignment +
                               ", attend_normalized: " + (normalised ? "true}" : "false}"),
                     .causal = causal},
            b{.type = "full", .config = "{}", .causal = causal};
        const auto one = build(a, spec_of(a, s)), two = build(b, spec_of(b, s));
        AttentionInput in = random_input(*one, s, DType::F64);
        in.mask = mixed_mask(s.B, s.N);
        AttentionInput raw = in;
        if (normalised) {
          raw.q = layer_normed(in.q);
          raw.k = layer_normed(in.k);
        }
        const Result x = run(*one, in), y = run(*two, raw);
        EXPECT_LE(difference(x.o, y.o), 1e-12);
        EXPECT_LE(difference(x.grads.at("v"), y.grads.at("v")), 1e-12);
        for (const char* name : {"q", "k"})
          if (!normalised) EXPECT_LE(difference(x.grads.at(name), y.grads.at(name)), 1e-12) << name;
      }
}

Named report_of(const Case& c, const Sizes& s, const Tensor& mask = {}) {
  const auto core = build(c, spec_of(c, s));
  AttentionInput in = random_input(*core, s, DType::F32);
  in.mask = mask;
  Named extra;
  in.extra = &extra;
  core->attend(in, {});
  return extra;
}

TEST(RoutingClusters, AThirdOfTheTokensIsInNone) {
  const Sizes s{.B = 1, .N = 512, .H = 4, .d = 16};
  const Named topk = report_of({.type = "routing", .config = "{num_clusters: 16}"}, s);
  EXPECT_NEAR(topk.at("unrouted").item(), 0.35, 0.05);
  EXPECT_EQ(topk.at("largest_cluster").item(), 32);
  const Named argmax = report_of({.type = "routing", .config = "{num_clusters: 16, assignment: argmax}"}, s);
  EXPECT_EQ(argmax.at("unrouted").item(), 0);
  EXPECT_GT(argmax.at("largest_cluster").item(), 32);
}

TEST(RoutingClusters, FewTokens) {
  const Sizes one{.B = 1, .N = 1};
  for (const char* config : {"{num_clusters: 5}", "{num_clusters: 5, assignment: argmax}", "{num_clusters: 1, exclude_self: true}"}) {
    const Case c{.type = "routing", .config = config};
    const auto core = build(c, spec_of(c, one));
    AttentionInput in = random_input(*core, one, DType::F32);
    in.k = in.q;  // the only query and the only key meet
    EXPECT_LE(difference(core->attend(in, {}), in.v), 1e-6) << config;
  }
  Tensor mask = Tensor::zeros({2, 20}, DType::U8);  // three real tokens for clusters of ten
  mask.slice(0, 0, 1).slice(1, 4, 7).fill(1);
  const Named extra = report_of({.type = "routing", .config = "{num_clusters: 2}"}, {.B = 2, .N = 20}, mask);
  const std::vector<double> members = extra.at("k_member").to_vector();
  double taken = 0;
  for (double x : members) taken += x;
  EXPECT_EQ(taken, 2 * 2 * 3) << "heads, clusters, tokens";
}

TEST(RoutingClusters, EqualTokensAreTakenInOrder) {
  const Case c{.type = "routing", .config = "{num_clusters: 1, window: 3}"};
  const Sizes s{.B = 1, .N = 8, .H = 1};
  const auto core = build(c, spec_of(c, s));
  AttentionInput in = random_input(*core, s, DType::F32);
  in.q = in.q.slice(2, 0, 1).expand({1, 1, 8, s.d}).clone();
  Named extra;
  in.extra = &extra;
  core->attend(in, {});
  EXPECT_EQ(extra.at("q_member").to_vector(), (std::vector<double>{1, 1, 1, 0, 0, 0, 0, 0}));
}

// With C = sqrt(N): twice the length, 2^1.5 times the pairs.
TEST(RoutingClusters, CostGrowsAsNTimesItsRoot) {
  double before = 0;
  std::size_t largest_before = 0;
  for (i64 root : {32, 64, 128}) {
    const i64 N = root * root;
    const Case c{.type = "routing", .config = "{}"};
    const Sizes s{.B = 1, .N = N, .H = 2, .d = 4};
    const auto core = build(c, spec_of(c, s));
    EXPECT_EQ(core->buffers()[0].tensor->dim(1), root);
    const AttentionInput in = random_input(*core, s, DType::F32);
    std::size_t largest = 0;
    const std::int64_t pairs = counters::now().attention_pairs;
    memory::set_allocation_hook([&](std::size_t bytes) { largest = std::max(largest, bytes); });
    const Result r = run(*core, in, {}, in.v);
    memory::set_allocation_hook(nullptr);
    if (N > 1024) {
      EXPECT_LE(largest, largest_before * 17 / 4) << "memory is not linear at " << N;
      EXPECT_LT(largest, static_cast<std::size_t>(N * N / 2));
    }
    const double now = static_cast<double>(counters::now().attention_pairs - pairs);
    EXPECT_LE(now, 2.5 * static_cast<double>(s.H * N * std::max<i64>(root, 64))) << N;  // tiles of 64
    if (N > 4096) EXPECT_NEAR(now / before, 8, 0.8) << N;
    before = now;
    largest_before = largest;
  }
}

}  // namespace
}  // namespace tapeformer::suite
