// aft: kinds that coincide, extreme numbers, cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/counters.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

const char* const kKinds[] = {"{kind: simple}", "{kind: full}", "{kind: full, bias_rank: 2}", "{kind: local, window: 5}",
                              "{kind: conv, window: 70, bias_heads: shared}"};

// o by the definition, in double. weight(h, i, j) is the bias.
template <class Weight>
Tensor aft_loop(const AttentionInput& in, bool causal, Weight&& weight) {
  const i64 B = in.v.dim(0), H = in.v.dim(1), N = in.v.dim(2), d = in.v.dim(3);
  const auto Q = in.q.to_vector(), K = in.k.to_vector(), V = in.v.to_vector(), m = in.mask.to_vector();
  std::vector<double> o(Q.size(), 0.0);
  for (i64 x = 0; x < B * H * N * d; ++x) {
    const i64 f = x % d, i = x / d % N, h = x / d / N % H, b = x / d / N / H, g = b * H + h;
    if (m[static_cast<std::size_t>(b * N + i)] == 0) continue;
    double top = -HUGE_VAL, num = 0, den = 0;
    const auto at = [&](i64 j) { return static_cast<std::size_t>((g * N + j) * d + f); };
    for (int pass = 0; pass < 2; ++pass)
      for (i64 j = 0; j < (causal ? i + 1 : N); ++j) {
        if (m[static_cast<std::size_t>(b * N + j)] == 0) continue;
        const double score = K[at(j)] + weight(h, i, j);
        if (pass == 0) top = std::max(top, score);
        if (pass == 0) continue;
        den += std::exp(score - top);
        num += std::exp(score - top) * V[at(j)];
      }
    o[static_cast<std::size_t>(x)] = num / den / (1 + std::exp(-Q[static_cast<std::size_t>(x)]));
  }
  return Tensor::from<double>(o, in.v.shape());
}

TEST(Aft, WithoutBiasEveryKindIsSimple) {
  for (const char* config : kKinds)
    for (bool causal : {false, true}) {
      SCOPED_TRACE(config);
      const DTypeScope f64(DType::F64);
      const Sizes s{.B = 4, .N = 150};
      const Case c{.type = "aft", .config = config, .causal = causal}, simple{.type = "aft", .config = "{kind: simple}", .causal = causal};
      const auto core = build(c, spec_of(c, s)), plain = build(simple, spec_of(simple, s));
      for (Parameter* p : core->parameters()) p->value.fill(0);
      AttentionInput in = random_input(*core, s, DType::F64);
      in.mask = mixed_mask(s.B, s.N);
      const Result x = run(*core, in), y = run(*plain, in);
      EXPECT_LE(difference(x.o, y.o), 1e-13);
      EXPECT_LE(difference(x.o, aft_loop(in, causal, [](i64, i64, i64) { return 0.0; })), 1e-13);
      for (const char* name : {"q", "k", "v"}) EXPECT_LE(difference(x.grads.at(name), y.grads.at(name)), 1e-13) << name;
    }
}

TEST(Aft, AWideBandIsTheFullTable) {
  for (bool causal : {false, true}) {
    const DTypeScope f64(DType::F64);
    const Sizes s{.B = 4, .N = 90};
    const Case band{.type = "aft", .config = "{kind: local, window: 90, bias_heads: per_head}", .causal = causal},
        full{.type = "aft", .config = "{bias_heads: per_head}", .causal = causal};
    const auto a = build(band, spec_of(band, s)), b = build(full, spec_of(full, s));
    const std::vector<double> w = b->parameters()[0]->value.to_vector();
    std::vector<double> rows(static_cast<std::size_t>(2 * 90 * 179), 0.0);
    for (i64 x = 0; x < 2 * 90 * 90; ++x)
      rows[static_cast<std::size_t>(x / 90 * 179 + x % 90 - x / 90 % 90 + 89)] = w[static_cast<std::size_t>(x)];
    a->parameters()[0]->value.copy_from(Tensor::from<double>(rows, {2, 90, 179}));
    AttentionInput in = random_input(*a, s, DType::F64);
    in.mask = mixed_mask(s.B, s.N);
    const Result x = run(*a, in), y = run(*b, in);
    EXPECT_LE(difference(x.o, y.o), 1e-13);
    for (const char* name : {"q", "k", "v"}) EXPECT_LE(difference(x.grads.at(name), y.grads.at(name)), 1e-12) << name;
    const std::vector<double> dw = y.grads.at("param/w").to_vector(), dband = x.grads.at("param/w_band").to_vector();
    double worst = 0;
    for (i64 i = 0; i < 2 * 90 * 90; ++i)
      worst = std::max(
          worst, std::abs(dw[static_cast<std::size_t>(i)] - dband[static_cast<std::size_t>(i / 90 * 179 + i % 90 - i / 90 % 90 + 89)]));
    EXPECT_LE(worst, 1e-12);
  }
}

// Keys and biases of 1e4, in f32 against loops in double: rows whose sums vanish beside the maxima are taken with their own.
TEST(Aft, HugeLogits) {
  for (const char* config : kKinds)
    for (bool causal : {false, true})
      for (double size : {30.0, 1e4}) {
        SCOPED_TRACE(testing::Message() << config << (causal ? " causal " : " ") << size);
        const Sizes s{.B = 3, .N = 140};
        const Case c{.type = "aft", .config = config, .causal = causal};
        const auto core = build(c, spec_of(c, s));
        for (Parameter* p : core->parameters()) p->value.copy_from(ops::scale(p->value, 5 * std::sqrt(size)));
        AttentionInput in = random_input(*core, s, DType::F32);
        in.k = ops::scale(in.k, size);
        in.mask = mixed_mask(s.B, s.N);
        const Result r = run(*core, in);
        const auto wide = [&] {
          const DTypeScope f64(DType::F64);
          auto same = build(c, spec_of(c, s));
          copy_parameters(*core, *same);
          AttentionInput x = in;
          for (Tensor* t : {&x.q, &x.k, &x.v}) *t = t->to(DType::F64);
          return run(*same, x, {}, random_tensor(in.v.shape(), DType::F64, 11 + 3));
        }();
        EXPECT_LE(difference(r.o, wide.o), size > 100 ? 2e-3 : 2e-5);
        for (const auto& [name, g] : r.grads) {
          double largest = 1;
          for (double v : wide.grads.at(name).to_vector()) largest = std::max(largest, std::abs(v));
          EXPECT_LE(difference(g, wide.grads.at(name)), 5e-3 * largest) << name;
        }
        if (std::string(config) == "{kind: simple}") {
          EXPECT_LE(difference(wide.o, aft_loop(in, causal, [](i64, i64, i64) { return 0.0; })), 1e-10);
        }
      }
}

double flops(const char* config, i64 N, bool causal = false) {
  const Case c{.type = "aft", .config = config, .causal = causal};
  const Sizes s{.B = 2, .N = N, .H = 2, .d = 8};
  const auto core = build(c, spec_of(c, s));
  const AttentionInput in = random_input(*core, s, DType::F32);
  const Tensor upstream = random_tensor(in.v.shape(), DType::F32, 4);
  const double before = static_cast<double>(counters::now().matmul_flops);
  run(*core, in, {}, upstream);
  return static_cast<double>(counters::now().matmul_flops) - before;
}

TEST(Aft, Cost) {
  for (bool causal : {false, true})
    for (const char* config : {"{kind: local}", "{kind: conv}"})
      EXPECT_NEAR(flops(config, 1024, causal) / flops(config, 512, causal), 2, 0.2) << config;
  EXPECT_EQ(flops("{kind: simple}", 1024), 0);
  EXPECT_NEAR(flops("{kind: full}", 1024) / flops("{kind: full}", 512), 4, 0.1);
  EXPECT_LE(flops("{kind: full}", 1024, true) / flops("{kind: full}", 1024), 0.65);
  EXPECT_NEAR(flops("{kind: full}", 1024), 6.0 * 1024 * 1024 * 2 * 2 * 16, 1);  // three products of numerators and denominators
}

TEST(Aft, Refusals) {
  const auto refusal = [](const char* config, AttentionSpec spec) {
    return message_of([&] { build_attention(ConfigNode::parse(config, "test.yaml"), spec, RngKey(1)); });
  };
  EXPECT_NE(
      refusal("{type: aft, max_len: 8}", {.dim = 8, .heads = 2, .head_dim = 4, .max_len = 16}).find("max_len: got 8, expected at least 16"),
      std::string::npos);
  EXPECT_NE(
      refusal("{type: aft}", {.dim = 8, .heads = 2, .head_dim = 4, .value_dim = 5, .max_len = 16}).find("keys are 4 wide and values 5"),
      std::string::npos);
}

}  // namespace
}  // namespace tapeformer::suite
