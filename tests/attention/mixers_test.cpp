// What the pages of the mixers and of the whole blocks claim beyond the suite.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/counters.h"
#include "layers/norm.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

AttentionInput input(const Tensor& x, const Tensor& mask = {}) {
  AttentionInput in;
  in.x = x;
  in.mask = mask;
  return in;
}

std::vector<i64> real_positions(const Tensor& mask, i64 b) {
  std::vector<i64> out;
  for (i64 n = 0; n < mask.dim(1); ++n)
    if (mask.data<std::uint8_t>()[static_cast<std::size_t>(b * mask.dim(1) + n)]) out.push_back(n);
  return out;
}

Tensor rows_of(const Tensor& x, i64 b, const std::vector<i64>& positions) {  // [1, n, D]
  return stack_rows(x.slice(0, b, b + 1).view({x.dim(1), x.dim(2)}), positions).view({1, static_cast<i64>(positions.size()), x.dim(2)});
}

Tensor turned(const Tensor& x) {  // [B, N, D] from the last position to the first
  std::vector<i64> order;
  for (i64 n = x.dim(1); n-- > 0;) order.push_back(n);
  Tensor out = Tensor::empty_like(x);
  for (i64 b = 0; b < x.dim(0); ++b) out.slice(0, b, b + 1).copy_from(rows_of(x, b, order));
  return out;
}

// Without positions of their own, these see a sample's real tokens and nothing of where its padding stands.
TEST(Mixers, AnyPaddingEqualsThePackedSample) {
  const Sizes s{.B = 4, .N = 13};
  for (const char* config : {"{type: fnet}", "{type: rnn, hidden: 3}", "{type: lstm, bidirectional: true}",
                             "{type: gru, hidden: 5, bidirectional: true, layers: 2}"}) {
    const DTypeScope f64(DType::F64);
    const auto core =
        build_attention(ConfigNode::parse(config, "test"), {.dim = s.dim(), .heads = 2, .head_dim = 4, .max_len = 20}, RngKey(1));
    const Tensor x = random_tensor({s.B, s.N, s.dim()}, DType::F64, 1), mask = mixed_mask(s.B, s.N);
    const Tensor o = core->attend(input(x, mask), {});
    for (i64 b : {0, 1, 3}) {
      const std::vector<i64> real = real_positions(mask, b);
      EXPECT_LE(difference(rows_of(o, b, real), core->attend(input(rows_of(x, b, real)), {})), 1e-12) << config << " sample " << b;
    }
  }
}

// Convolutions know where padding stands, but not that it goes on.
TEST(Mixers, TrailingPaddingEqualsTheTrimmedSample) {
  const DTypeScope f64(DType::F64);
  const Tensor x = random_tensor({1, 11, 8}, DType::F64, 1);
  for (const char* config : {"{type: conv1d, kernel: 5, dilation: 3}", "{type: conv1d, kernel: 4}", "{type: conformer, conv_kernel: 7}",
                             "{type: conformer, conv_norm: none}", "{type: mlp_mixer}", "{type: gmlp, tiny_attention: 3}"}) {
    const auto core = build_attention(ConfigNode::parse(config, "test"), {.dim = 8, .heads = 2, .head_dim = 4, .max_len = 20}, RngKey(1));
    Tensor mask = Tensor::full({1, 11}, 1, DType::U8);
    mask.slice(1, 7, 11).fill(0);
    EXPECT_LE(difference(core->attend(input(x, mask), {}).slice(1, 0, 7), core->attend(input(x.slice(1, 0, 7)), {})), 1e-12) << config;
  }
}

TEST(Mixers, TablesBeyondTheInputGetNoGradient) {
  const Sizes s{.B = 2, .N = 20};
  for (const char* type : {"mlp_mixer", "gmlp"})
    for (bool causal : {false, true}) {
      if (causal && !attention_registry().get(type).info.causal) continue;
      const Case c{.type = type, .config = "{}", .causal = causal};
      const auto core = build(c, spec_of(c, s));
      const Result r = run(*core, input(random_tensor({2, 7, s.dim()}, DType::F32, 1)));
      const auto beyond = [&](const char* name, int axis) {
        const Tensor g = r.grads.at(std::string("param/") + name).slice(axis, 7, 20);
        EXPECT_EQ(difference(g, Tensor::zeros(g.shape())), 0) << type << " " << name;
      };
      if (c.type == "gmlp") {
        beyond("Ws", 0), beyond("Ws", 1), beyond("bs", 0);
        for (i64 i = 0; i < 7 && causal; ++i) {
          const Tensor future = r.grads.at("param/Ws").slice(0, i, i + 1).slice(1, i + 1, 20);
          EXPECT_EQ(difference(future, Tensor::zeros(future.shape())), 0);
        }
      } else {
        beyond("Wt1", 1), beyond("Wt2", 0), beyond("bt2", 0);
      }
    }
}

// ---- fnet

TEST(Fnet, ZeroModeIsTheTransformOfZeros) {
  const Sizes s{.B = 4, .N = 12};
  const Case c{.type = "fnet", .config = "{pad_mode: zero, norm: none}"};
  const auto core = build(c, spec_of(c, s));
  const Tensor x = random_tensor({s.B, s.N, s.dim()}, DType::F32, 1), mask = mixed_mask(s.B, s.N);
  const Tensor zeros = overwrite(x, mask, false, 0);
  EXPECT_LE(difference(core->attend(input(x, mask), {}), overwrite(core->attend(input(zeros), {}), mask, false, 0)), 1e-4);
}

// ---- recurrent networks

TEST(Recurrent, TheWayBackIsTheWayForthOnTheTurnedSequence) {
  const DTypeScope f64(DType::F64);
  const Sizes s{.B = 3, .N = 9};
  const Tensor x = random_tensor({s.B, s.N, s.dim()}, DType::F64, 1);
  for (const char* type : {"rnn", "lstm", "gru"}) {
    const Case both{.type = type, .config = "{hidden: 5, bidirectional: true}"}, one{.type = type, .config = "{hidden: 5}"};
    const auto two = build(both, spec_of(both, s)), forth = build(one, spec_of(one, s)), back = build(one, spec_of(one, s));
    const auto weights = two->parameters();
    for (std::size_t i = 0; i < 4; ++i) {
      forth->parameters()[i]->value.copy_from(weights[i]->value);
      back->parameters()[i]->value.copy_from(weights[4 + i]->value);
      EXPECT_EQ(weights[4 + i]->name, weights[i]->name + "_rev");
    }
    const Tensor o = two->attend(input(x), {});
    EXPECT_LE(difference(o.slice(2, 0, 5), forth->attend(input(x), {})), 1e-14) << type;
    EXPECT_LE(difference(turned(o.slice(2, 5, 10).to_contiguous()), back->attend(input(turned(x)), {})), 1e-14) << type;
  }
}

TEST(Recurrent, LayersStandOnEachOther) {
  const DTypeScope f64(DType::F64);
  const Sizes s{.B = 3, .N = 9};
  const Tensor x = random_tensor({s.B, s.N, s.dim()}, DType::F64, 1), mask = mixed_mask(s.B, s.N);
  const Case two{.type = "gru", .config = "{layers: 2}"}, one{.type = "gru", .config = "{}"};
  const auto both = build(two, spec_of(two, s)), first = build(one, spec_of(one, s)), second = build(one, spec_of(one, s));
  for (std::size_t i = 0; i < 4; ++i) {
    first->parameters()[i]->value.copy_from(both->parameters()[i]->value);
    second->parameters()[i]->value.copy_from(both->parameters()[4 + i]->value);
  }
  const Tensor between = first->attend(input(x, mask), {});
  EXPECT_LE(difference(both->attend(input(x, mask), {}), second->attend(input(between, mask), {})), 1e-14);
}

TEST(Recurrent, ForgetGatesStartOpen) {
  const auto core = build_attention(ConfigNode::parse("{type: lstm, hidden: 3, forget_bias: 1.5}", "test"), {.dim = 4}, RngKey(1));
  for (const Parameter* p : core->parameters()) {
    if (p->name == "b_ih") EXPECT_EQ(p->value.slice(0, 3, 6).to_vector(), std::vector<double>(3, 1.5));
    if (p->name == "b_hh") EXPECT_EQ(p->value.slice(0, 3, 6).to_vector(), std::vector<double>(3, 0));
    for (double v : p->value.slice(0, 0, 3).to_vector()) EXPECT_LE(std::abs(v), 1 / std::sqrt(3.0)) << p->name;
  }
}

// ---- gmlp

TEST(Gmlp, CausalBlocksOfRowsAreOneTriangle) {
  const DTypeScope f64(DType::F64);
  const Sizes s{.B = 2, .N = 300, .d = 2};  // two borders of blocks
  const Case causal{.type = "gmlp", .config = "{ffn: 4}", .causal = true}, full{.type = "gmlp", .config = "{ffn: 4}"};
  const auto a = build(causal, spec_of(causal, s)), b = build(full, spec_of(full, s));
  copy_parameters(*a, *b);
  for (Parameter* p : b->parameters())
    for (i64 i = 0; i + 1 < s.N && p->name == "Ws"; ++i) p->value.slice(0, i, i + 1).slice(1, i + 1, s.N).fill(0);
  const AttentionInput in = input(random_tensor({s.B, s.N, s.dim()}, DType::F64, 1), mixed_mask(s.B, s.N));
  const Tensor upstream = random_tensor({s.B, s.N, s.dim()}, DType::F64, 2);
  const auto flops = [] { return static_cast<double>(counters::now().matmul_flops); };
  const double start = flops();
  const Result x = run(*a, in, {}, upstream);
  const double middle = flops();
  const Result y = run(*b, in, {}, upstream);
  EXPECT_LE(difference(x.o, y.o), 1e-11);
  for (const auto& [name, g] : x.grads)
    if (name != "param/Ws") EXPECT_LE(difference(g, y.grads.at(name)), 1e-10) << name;
  EXPECT_LT(middle - start, 0.75 * (flops() - middle)) << "the upper triangle is computed";
}

TEST(Gmlp, StartsAsAPlainNetwork) {
  const DTypeScope f64(DType::F64);
  const auto gated = build_attention(ConfigNode::parse("{type: gmlp, init_eps: 0}", "test"),
                                     {.dim = 8, .heads = 2, .head_dim = 4, .max_len = 9}, RngKey(1));
  const Tensor x = random_tensor({2, 9, 8}, DType::F64, 1);
  const std::vector<i64> order{4, 2, 0, 8, 6, 1, 3, 5, 7};
  const Tensor o = gated->attend(input(x), {});
  for (i64 b = 0; b < 2; ++b)
    EXPECT_LE(difference(rows_of(o, b, order), gated->attend(input(rows_of(x, b, order)), {})), 1e-12) << "positions meet";
}

// ---- conformer with batch norm

const char* const kBatch = "{type: conformer, ffn: 5, conv_kernel: 3, conv_norm: batch, dropout: 0, bn_momentum: 0.25}";
std::unique_ptr<AttentionCore> batch_conformer() {
  return build_attention(ConfigNode::parse(kBatch, "test"), {.dim = 6, .heads = 2, .head_dim = 3, .max_len = 20}, RngKey(1));
}

TEST(ConformerBatchNorm, GradientIsTheDerivative) {
  const DTypeScope f64(DType::F64);
  const auto core = batch_conformer();
  for (bool training : {false, true})
    for (const Tensor& mask : {Tensor(), mixed_mask(3, 5)}) {
      const auto f = [&](const std::vector<Tensor>& in) { return core->attend(input(in[0], mask), {.training = training}); };
      EXPECT_EQ(gradcheck(f, {random_tensor({3, 5, 6}, DType::F64, 1)}, core->parameters()), "") << training;
    }
}

Tensor buffer(AttentionCore& core, const std::string& name) {
  for (const Module::NamedBuffer& b : core.buffers())
    if (b.path == name) return *b.tensor;
  return {};
}

// The batch's own moments, seen where momentum 1 puts them.
TEST(ConformerBatchNorm, BuffersFollowTheRealTokensOnce) {
  const DTypeScope f64(DType::F64);
  const Tensor x = random_tensor({4, 7, 6}, DType::F64, 1), mask = mixed_mask(4, 7);
  const auto whole = batch_conformer(), parts = batch_conformer();
  StepEffects effects;
  const Ctx ctx{.training = true, .effects = &effects};
  whole->attend(input(x, mask), ctx);
  EXPECT_EQ(buffer(*whole, "running_var").to_vector(), std::vector<double>(6, 1)) << "moved before the step";
  effects.commit();
  const Tensor mean = buffer(*whole, "running_mean"), variance = buffer(*whole, "running_var");
  EXPECT_GT(difference(mean, Tensor::zeros({6}, DType::F64)), 1e-3);

  for (i64 b = 0; b < 4; b += 2) parts->attend(input(x.slice(0, b, b + 2), mask.slice(0, b, b + 2).to_contiguous()), ctx);
  effects.commit();  // micro-batches are one batch
  EXPECT_LE(difference(buffer(*parts, "running_mean"), mean), 1e-6);
  EXPECT_LE(difference(buffer(*parts, "running_var"), variance), 1e-6);

  const auto packed = batch_conformer();  // padding, whatever it holds, is no token
  packed->attend(input(overwrite(x, mask, false, 1e3), mask), ctx);
  effects.commit();
  EXPECT_LE(difference(buffer(*packed, "running_mean"), mean), 1e-6);

  const auto quiet = batch_conformer();
  quiet->attend(input(x, mask), {.training = true});  // the second forward of a recomputed block has no effects
  effects.commit();
  EXPECT_EQ(buffer(*quiet, "running_mean").to_vector(), std::vector<double>(6, 0));
}

TEST(ConformerBatchNorm, MomentsAreThoseOfTheRows) {
  const DTypeScope f64(DType::F64);
  struct Owner : Module {
    BatchMoments moments{this, 3, 1.0, 1e-5};
  };
  Owner owner;
  Tensor x = random_tensor({2, 5, 3}, DType::F64, 1);
  x = ops::scale(x, 0.5, 100);  // a mean that is large beside the spread
  const Tensor mask = Tensor::from<std::uint8_t>({1, 1, 0, 1, 1, 0, 0, 1, 1, 0}, {2, 5});
  StepEffects effects;
  const Tensor y = owner.moments.normalise(x, mask, {.training = true, .effects = &effects});
  effects.commit();
  const std::vector<double> v = x.to_vector(), m = mask.to_vector(), out = y.to_vector(), mean_now = owner.buffers()[0].tensor->to_vector(),
                            variance_now = owner.buffers()[1].tensor->to_vector();
  for (std::size_t c = 0; c < 3; ++c) {
    double n = 0, mean = 0, squares = 0;
    for (std::size_t r = 0; r < 10; ++r) n += m[r], mean += m[r] * v[r * 3 + c];
    mean /= n;
    for (std::size_t r = 0; r < 10; ++r) squares += m[r] * std::pow(v[r * 3 + c] - mean, 2);
    for (std::size_t r = 0; r < 10; ++r) EXPECT_NEAR(out[r * 3 + c], m[r] * (v[r * 3 + c] - mean) / std::sqrt(squares / n + 1e-5), 1e-9);
    EXPECT_NEAR(mean_now[c], mean, 1e-4);
    EXPECT_NEAR(variance_now[c], squares / (n - 1), 0.02);  // sums travel in f32 and are of 100 here, in the first step alone
  }
  owner.moments.normalise(x, mask, {.training = true, .effects = &effects});
  effects.commit();
  for (std::size_t c = 0; c < 3; ++c) EXPECT_NEAR(owner.buffers()[0].tensor->to_vector()[c], mean_now[c], 1e-4);
}

}  // namespace
}  // namespace tapeformer::suite
