// What every registered variant must satisfy. A new variant is tested here by being registered.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/parallel.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

class EveryVariant : public testing::TestWithParam<Case> {
 protected:
  void SetUp() override { set_thread_count(1); }  // sizes are tiny; ThreadsChangeNoBit takes more
  void TearDown() override { set_thread_count(threads_); }
  const Case& c() const { return GetParam(); }
  std::unique_ptr<AttentionCore> core(const Sizes& s, double dropout = 0, std::uint64_t seed = 1) {
    return build(c(), spec_of(c(), s, dropout), seed);
  }

 private:
  int threads_ = thread_count();
};
INSTANTIATE_TEST_SUITE_P(Attention, EveryVariant, testing::ValuesIn(all_cases()),
                         [](const testing::TestParamInfo<Case>& i) { return i.param.name; });

// Gradients of x, q, k, v and every parameter against central differences.
std::string check_gradients(AttentionCore& core, const Sizes& s, const Tensor& mask, const Ctx& ctx) {
  AttentionInput in = random_input(core, s, DType::F64);
  in.mask = mask;
  std::vector<Tensor> values;
  std::vector<std::string> names;
  for (const auto& [name, t] : inputs_of(in)) {
    names.push_back(name);
    values.push_back(t);
  }
  const auto f = [&](const std::vector<Tensor>& x) {
    AttentionInput now = in;
    for (std::size_t i = 0; i < x.size(); ++i) set_input(now, names[i], x[i]);
    return core.attend(now, ctx);
  };
  return gradcheck(f, values, core.parameters());
}

TEST_P(EveryVariant, GradientIsTheDerivative) {
  if (!c().exact_gradient) GTEST_SKIP() << "straight-through";
  const DTypeScope f64(DType::F64);
  for (const Sizes& s : {Sizes{.B = 3, .N = 7, .d = 3}, Sizes{.B = 1, .N = 4, .d = 2}, Sizes{.B = 2, .N = 1, .d = 2}}) {
    SCOPED_TRACE(s.N);
    auto plain = core(s), dropped = core(s, 0.3);
    const Tensor mask = s.B == 3 ? mask_of(*plain, mixed_mask(s.B, s.N)) : Tensor();
    EXPECT_EQ(check_gradients(*plain, s, mask, {}), "");
    EXPECT_EQ(check_gradients(*dropped, s, mask, {.training = true, .key = RngKey(5)}), "");
  }
}

// f32 on the tile engine against f64 on plain loops, at lengths that cross tiles.
TEST_P(EveryVariant, FloatAgreesWithDouble) {
  for (i64 N : {5, 64, 150}) {
    SCOPED_TRACE(N);
    const Sizes s{.B = 3, .N = N, .H = 2, .d = 4};
    auto single = core(s);
    std::unique_ptr<AttentionCore> wide;
    {
      const DTypeScope f64(DType::F64);
      wide = core(s);
    }
    copy_parameters(*single, *wide);
    AttentionInput a = random_input(*single, s, DType::F32), b = random_input(*wide, s, DType::F64);
    a.mask = b.mask = mask_of(*single, mixed_mask(s.B, s.N));
    const Result x = run(*single, a), y = run(*wide, b);
    EXPECT_LE(difference(x.o, y.o), 1e-4);
    for (const auto& [name, g] : y.grads) {
      double size = 1;
      for (double v : g.to_vector()) size = std::max(size, std::abs(v));
      EXPECT_LE(difference(x.grads.at(name), g), 2e-4 * size) << name;
    }
  }
}

TEST_P(EveryVariant, TheFutureNeverChangesThePast) {
  if (!c().causal) GTEST_SKIP() << "not causal";
  const Sizes s{.B = 3, .N = 90};
  auto attention = core(s);
  for (i64 now : {1, 64, 71}) {
    SCOPED_TRACE(now);
    AttentionInput a = random_input(*attention, s, DType::F32), b = a;
    a.mask = b.mask = mask_of(*attention, mixed_mask(s.B, s.N));
    Tensor past = Tensor::full({s.B, s.N}, 1, DType::U8);
    past.slice(1, now, s.N).fill(0);
    for (const auto& [name, t] : inputs_of(b)) set_input(b, name, overwrite(t, past, false, 7));
    const Tensor upstream = overwrite(random_upstream(*attention, a, 4), past, false, 0);  // the loss knows the past alone
    const Result x = run(*attention, a, {}, upstream), y = run(*attention, b, {}, upstream);
    EXPECT_LE(difference(x.o.slice(-2, 0, now), y.o.slice(-2, 0, now)), 1e-6);
    EXPECT_GT(difference(x.o, y.o), 1e-3);
    for (const auto& [name, t] : inputs_of(a)) {
      const Tensor& g = x.grads.at(name);
      EXPECT_EQ(difference(g, overwrite(g, past, false, 0)), 0) << name << ": a row of the past sends a gradient to the future";
    }
  }
}

TEST_P(EveryVariant, PaddingIsInvisible) {
  for (i64 N : {7, 70, 130}) {
    SCOPED_TRACE(N);
    const Sizes s{.B = 4, .N = N};
    auto attention = core(s);
    AttentionInput a = random_input(*attention, s, DType::F32);
    a.mask = mask_of(*attention, mixed_mask(s.B, s.N));
    const Tensor upstream = random_upstream(*attention, a, 4);
    const Result x = run(*attention, a, {}, upstream);
    EXPECT_TRUE(same_bits(x.o, overwrite(x.o, output_mask(*attention, a), false, 0))) << "a padded row is not exactly 0";
    EXPECT_LT(difference(x.o, x.o), 1) << "NaN";
    for (double junk : {1e3, kNaN}) {
      AttentionInput b = a;
      for (const auto& [name, t] : inputs_of(a)) set_input(b, name, overwrite(t, a.mask, false, junk));
      const Result y = run(*attention, b, {}, upstream);
      EXPECT_TRUE(same_bits(x.o, y.o)) << "padding holds " << junk;
      for (const auto& [name, g] : y.grads) {
        EXPECT_TRUE(same_bits(x.grads.at(name), g)) << name << ", padding holds " << junk;
        if (name.size() > 1) continue;  // a parameter
        EXPECT_TRUE(same_bits(g, overwrite(g, a.mask, false, 0))) << name << ": a padded row gets a gradient";
      }
    }
  }
}

TEST_P(EveryVariant, AnyLengthWorks) {
  const Sizes most{.B = 2, .N = 64};
  auto attention = core(most);
  for (i64 N : {1, 2, 3, 5, 8, 63, 64}) {
    Sizes s = most;
    s.N = N;
    AttentionInput in = random_input(*attention, s, DType::F32);
    const Result r = run(*attention, in);
    if (attention->info().place == Place::Core && !attention->shortens())
      EXPECT_EQ(r.o.shape(), (Shape{2, s.H, N, in.v.dim(3)}));
    else if (attention->info().place == Place::Block)
      EXPECT_EQ(r.o.shape(), in.x.shape());
    for (const auto& [name, g] : r.grads) EXPECT_LT(difference(g, g), 1) << name << " at N = " << N;
    in.mask = mask_of(*attention, Tensor::full({s.B, N}, 0, DType::U8));
    const Tensor o = run(*attention, in).o;
    const Tensor real = o.slice(-2, std::min(N, in.external), o.dim(-2));
    EXPECT_EQ(difference(real, Tensor::zeros(real.shape())), 0);
  }
}

TEST_P(EveryVariant, PermutingPositionsPermutesRows) {
  if (c().causal || !attention_registry().get(c().type).info.permutation_equivariant) GTEST_SKIP() << "not claimed";
  const Sizes s{.B = 2, .N = 37};
  auto attention = core(s);
  const AttentionInput a = random_input(*attention, s, DType::F32);
  AttentionInput b = a;
  const KeyedPermutation order(static_cast<std::uint64_t>(s.N), RngKey(2));
  const auto permuted = [&](const Tensor& t) {
    Tensor index = Tensor::empty({s.N}, DType::I64);
    for (i64 n = 0; n < s.N; ++n) index.mut_ptr<i64>()[n] = static_cast<i64>(order(static_cast<std::uint64_t>(n)));
    return ops::gather(t, t.rank() - 2, index);
  };
  for (const auto& [name, t] : inputs_of(a)) set_input(b, name, permuted(t));
  EXPECT_LE(difference(permuted(attention->attend(a, {})), attention->attend(b, {})), 1e-5);
}

TEST_P(EveryVariant, ThreadsChangeNoBit) {
  const Sizes s{.B = 3, .N = 200, .H = 2, .d = 8};
  auto attention = core(s, 0.1);
  AttentionInput in = random_input(*attention, s, DType::F32);
  in.mask = mask_of(*attention, mixed_mask(s.B, s.N));
  const Ctx ctx{.training = true, .key = RngKey(8)};
  const Result one = run(*attention, in, ctx);
  for (int threads : {2, 3, 8}) {
    set_thread_count(threads);
    const Result many = run(*attention, in, ctx);
    EXPECT_TRUE(same_bits(one.o, many.o)) << threads << " threads";
    for (const auto& [name, g] : one.grads) EXPECT_TRUE(same_bits(g, many.grads.at(name))) << name << ", " << threads << " threads";
  }
}

// A sample's result, its random masks included, does not depend on who else is in the batch, nor on its place there.
TEST_P(EveryVariant, SamplesDoNotMeet) {
  const Sizes s{.B = 4, .N = 70};
  auto attention = core(s, 0.4);
  AttentionInput in = random_input(*attention, s, DType::F32);
  in.mask = mask_of(*attention, mixed_mask(s.B, s.N));
  const Tensor upstream = random_upstream(*attention, in, 4);
  const std::vector<i64> rows{40, 7, 3, 21};
  const Ctx ctx{.training = true, .key = RngKey(8), .rows = rows};
  const Result all = run(*attention, in, ctx, upstream);
  for (const std::vector<i64>& samples : {std::vector<i64>{0}, {1}, {3}, {3, 1, 0}, {2, 3}}) {
    std::vector<i64> theirs;
    for (i64 b : samples) theirs.push_back(rows[static_cast<std::size_t>(b)]);
    const Ctx here{.training = true, .key = RngKey(8), .rows = theirs};
    const Result some = run(*attention, take_samples(in, samples), here, stack_rows(upstream, samples));
    EXPECT_LE(difference(some.o, stack_rows(all.o, samples)), 1e-6);
    for (const auto& [name, t] : inputs_of(in))
      EXPECT_LE(difference(some.grads.at(name), stack_rows(all.grads.at(name), samples)), 1e-5) << name;
  }
}

TEST_P(EveryVariant, CallsAreFunctionsOfTheirArguments) {
  const Sizes s{.B = 2, .N = 40};
  auto attention = core(s, 0.5);
  const AttentionInput in = random_input(*attention, s, DType::F32);
  const Tensor calm = attention->attend(in, {});
  EXPECT_TRUE(same_bits(calm, attention->attend(in, {.key = RngKey(99)}))) << "evaluation depends on the key";
  const Tensor wild = attention->attend(in, {.training = true, .key = RngKey(1)});
  EXPECT_TRUE(same_bits(wild, attention->attend(in, {.training = true, .key = RngKey(1)})));
  if (difference(calm, wild) > 0) {
    EXPECT_GT(difference(wild, attention->attend(in, {.training = true, .key = RngKey(2)})), 0) << "the key has no effect";
  }
  EXPECT_TRUE(same_bits(calm, attention->attend(in, {}))) << "training changed the layer";
}

TEST_P(EveryVariant, ParametersAndBuffersAreTheWholeState) {
  const Sizes s{.B = 2, .N = 40};
  auto a = core(s, 0, 1), b = core(s, 0, 2);
  const AttentionInput in = random_input(*a, s, DType::F32);
  if (!a->parameters().empty() || !a->buffers().empty()) {
    EXPECT_GT(difference(a->attend(in, {}), b->attend(in, {})), 0);
  }
  copy_parameters(*a, *b);
  EXPECT_TRUE(same_bits(a->attend(in, {}), b->attend(in, {})));
}

// Heads side by side, as a projection leaves them, and keys in the middle of a wider tensor.
TEST_P(EveryVariant, StridedInputsGiveTheSameBits) {
  const Sizes s{.B = 3, .N = 70};
  auto attention = core(s);
  AttentionInput in = random_input(*attention, s, DType::F32);
  in.mask = mask_of(*attention, mixed_mask(s.B, s.N));
  AttentionInput views = in;
  for (const auto& [name, t] : inputs_of(in)) {
    if (name == "x" || t.dim(3) != s.d) continue;
    Tensor wide = Tensor::full({s.B, s.N, 3 * s.dim()}, kNaN);
    Tensor part = wide.slice(2, s.dim(), 2 * s.dim()).view({s.B, s.N, s.H, s.d}).transpose(1, 2);
    part.copy_from(t);
    ASSERT_FALSE(part.contiguous());
    set_input(views, name, part);
  }
  const Result a = run(*attention, in), b = run(*attention, views);
  EXPECT_TRUE(same_bits(a.o, b.o));
  for (const auto& [name, g] : a.grads) EXPECT_TRUE(same_bits(g, b.grads.at(name))) << name;
}

TEST_P(EveryVariant, ResolvedConfigBuildsTheSame) {
  const Sizes s{.B = 2, .N = 20};
  const ConfigNode resolved = resolve_attention_config(config_of(c()));
  const auto a = build_attention(config_of(c()), spec_of(c(), s), RngKey(1)), b = build_attention(resolved, spec_of(c(), s), RngKey(1));
  const AttentionInput in = random_input(*a, s, DType::F32);
  EXPECT_TRUE(same_bits(a->attend(in, {}), b->attend(in, {})));
  EXPECT_EQ(resolve_attention_config(ConfigNode::parse(resolved.yaml(), "again.yaml")), resolved);
}

}  // namespace
}  // namespace tapeformer::suite
