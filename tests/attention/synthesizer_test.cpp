// synthesizer: kinds that coincide, sums that vanish, cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/counters.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

Tensor& value(AttentionCore& core, const std::string& name) {
  for (Parameter* p : core.parameters())
    if (p->name == name) return p->value;
  throw std::runtime_error("no parameter " + name);
}

void expect_same(AttentionCore& a, AttentionCore& b, const AttentionInput& in, std::vector<std::string> names) {
  const Result x = run(a, in), y = run(b, in);
  EXPECT_LE(difference(x.o, y.o), 1e-12);
  for (const std::string& name : names) EXPECT_LE(difference(x.grads.at(name), y.grads.at(name)), 1e-11) << name;
}

TEST(Synthesizer, ALowRankMatrixIsAMatrix) {
  for (bool causal : {false, true}) {
    const DTypeScope f64(DType::F64);
    const Sizes s{.B = 4, .N = 70};
    const Case low{.type = "synthesizer", .config = "{kind: factorized_random, rank: 3}", .causal = causal},
        random{.type = "synthesizer", .config = "{}", .causal = causal};
    const auto a = build(low, spec_of(low, s)), b = build(random, spec_of(random, s));
    value(*b, "R").copy_from(ops::matmul(value(*a, "R1"), value(*a, "R2").transpose(1, 2)));
    AttentionInput in = random_input(*a, s, DType::F64);
    in.mask = mixed_mask(s.B, s.N);
    expect_same(*a, *b, in, {"v"});
  }
}

TEST(Synthesizer, AFixedMatrixIsAMatrix) {
  const DTypeScope f64(DType::F64);
  const Sizes s{.B = 4, .N = 20};
  const Case fixed{.type = "synthesizer", .config = "{kind: fixed_random}"}, random{.type = "synthesizer", .config = "{}"};
  const auto a = build(fixed, spec_of(fixed, s)), b = build(random, spec_of(random, s));
  EXPECT_TRUE(a->parameters().empty());
  value(*b, "R").copy_from(*a->buffers()[0].tensor);
  AttentionInput in = random_input(*a, s, DType::F64);
  in.mask = mixed_mask(s.B, s.N);
  expect_same(*a, *b, in, {"v"});
}

// One sample: the outer products of its rows are a matrix.
TEST(Synthesizer, OuterProductsAreAMatrix) {
  for (const auto& [left, right] : {std::pair<i64, i64>{9, 8}, {24, 3}, {1, 80}})
    for (bool causal : {false, true}) {
      const DTypeScope f64(DType::F64);
      const Sizes s{.B = 1, .N = 70, .H = 2, .d = 3};
      const Case outer{.type = "synthesizer",
                       .config = fmt::format("{{kind: factorized_dense, factor_a: {}, factor_b: {}}}", left, right),
                       .causal = causal},
          random{.type = "synthesizer", .config = "{}", .causal = causal};
      SCOPED_TRACE(testing::Message() << outer);
      const auto a = build(outer, spec_of(outer, s)), b = build(random, spec_of(random, s));
      const AttentionInput in = random_input(*a, s, DType::F64);
      const auto affine = [&](const Tensor& x, const char* W, const char* bias) {
        return ops::add(ops::matmul(x, value(*a, W).transpose(1, 2)), value(*a, bias).view({2, 1, value(*a, bias).dim(1)}));
      };
      const Tensor x = in.x.view({1, 70, 6}), hidden = ops::relu(affine(x, "W1", "b1"));
      const Tensor A = affine(hidden, "Wa", "ba"), B = affine(hidden, "Wb", "bb");
      std::vector<double> R(2 * 70 * 70);
      for (i64 i = 0; i < 2 * 70 * 70; ++i)
        R[static_cast<std::size_t>(i)] = A.to_vector()[static_cast<std::size_t>(i / 70 * left + i % 70 / right)] *
                                         B.to_vector()[static_cast<std::size_t>(i / 70 * right + i % 70 % right)];
      value(*b, "R").copy_from(Tensor::from<double>(R, {2, 70, 70}));
      expect_same(*a, *b, in, {"v"});
    }
}

// A mixture that puts everything on q.k is full attention.
TEST(Synthesizer, VanillaAloneIsFull) {
  for (bool causal : {false, true}) {
    const DTypeScope f64(DType::F64);
    const Sizes s{.B = 4, .N = 70};
    const Case mixture{.type = "synthesizer",
                       .config = "{kind: mixture, components: [random, vanilla, dense, factorized_dense, factorized_random]}",
                       .causal = causal},
        full{.type = "full", .config = "{}", .causal = causal};
    const auto a = build(mixture, spec_of(mixture, s)), b = build(full, spec_of(full, s));
    value(*a, "alpha_logits").copy_from(Tensor::from<double>({-900, 0, -900, -900, -900}, {5}));
    AttentionInput in = random_input(*a, s, DType::F64);
    in.mask = mixed_mask(s.B, s.N);
    expect_same(*a, *b, in, {"q", "k", "v"});
  }
}

// exp(R - row maximum) is shared by the samples: one that lacks the large columns is taken with its own maximum.
TEST(Synthesizer, ASampleWithoutTheLargeColumns) {
  const Sizes s{.B = 2, .N = 90};
  const Case c{.type = "synthesizer", .config = "{}"};
  const auto core = build(c, spec_of(c, s));
  Tensor& R = value(*core, "R");
  R.slice(2, 0, 2).copy_from(ops::scale(R.slice(2, 0, 2), 1, 300));
  AttentionInput in = random_input(*core, s, DType::F32);
  in.mask = Tensor::full({2, 90}, 1, DType::U8);
  in.mask.slice(0, 1, 2).slice(1, 0, 2).fill(0);
  const Result r = run(*core, in);
  const DTypeScope f64(DType::F64);
  const auto wide = build(c, spec_of(c, s));
  copy_parameters(*core, *wide);
  value(*wide, "R").slice(2, 0, 2).fill(-1e4);  // for the second sample the same, without anything large
  AttentionInput x = in;
  for (Tensor* t : {&x.x, &x.v}) *t = t->to(DType::F64);
  const Result want = run(*wide, x);
  EXPECT_LE(difference(r.o.slice(0, 1, 2), want.o.slice(0, 1, 2)), 1e-5);
  EXPECT_LE(difference(r.grads.at("v").slice(0, 1, 2), want.grads.at("v").slice(0, 1, 2)), 1e-5);
}

struct Cost {
  double matmul, attention;
  std::size_t largest = 0;
};
Cost cost_of(const char* config, i64 B, i64 N) {
  const Sizes s{.B = B, .N = N, .H = 2, .d = 8};
  const Case c{.type = "synthesizer", .config = config};
  const auto core = build(c, spec_of(c, s));
  const AttentionInput in = random_input(*core, s, DType::F32);
  const Tensor upstream = random_tensor(in.v.shape(), DType::F32, 4);
  const auto before = counters::now();
  Cost cost;
  memory::set_allocation_hook([&](std::size_t bytes) { cost.largest = std::max(cost.largest, bytes); });
  run(*core, in, {}, upstream);
  memory::set_allocation_hook(nullptr);
  cost.matmul = static_cast<double>(counters::now().matmul_flops - before.matmul_flops);
  cost.attention = static_cast<double>(counters::now().attention_flops - before.attention_flops);
  return cost;
}

TEST(Synthesizer, Cost) {
  const Cost random = cost_of("{}", 3, 512);
  EXPECT_EQ(random.matmul, 3 * 2.0 * 512 * 512 * 3 * 2 * 9);  // per sample and head: E v and E m, E^T g, g v^T
  EXPECT_EQ(random.attention, 0);
  for (const char* config : {"{kind: factorized_dense}", "{kind: factorized_random}",
                             "{kind: mixture, components: [vanilla, dense, factorized_dense, factorized_random]}"})
    EXPECT_LT(cost_of(config, 1, 4096).largest, 4096u * 4096u) << config;
}

TEST(Synthesizer, Refusals) {
  const auto refusal = [](const char* config) {
    return message_of(
        [&] { build_attention(ConfigNode::parse(config, "test.yaml"), {.dim = 8, .heads = 2, .head_dim = 4, .max_len = 16}, RngKey(1)); });
  };
  EXPECT_NE(refusal("{type: synthesizer, kind: mixture}").find("components: got 0, expected at least two"), std::string::npos);
  EXPECT_NE(refusal("{type: synthesizer, kind: mixture, components: [random, random]}").find("'random' is there twice"), std::string::npos);
  EXPECT_NE(refusal("{type: synthesizer, kind: mixture, components: [random, strange]}").find("strange"), std::string::npos);
  EXPECT_NE(refusal("{type: synthesizer, kind: factorized_dense, factor_a: 3, factor_b: 5}").find("factor_a: got 3 times 5"),
            std::string::npos);
}

}  // namespace
}  // namespace tapeformer::suite
