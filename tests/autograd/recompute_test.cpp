#include "autograd/recompute.h"

#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "core/error.h"
#include "core/rng.h"

namespace tapeformer {
namespace {

Tensor normal(const Shape& s, std::uint64_t seed) {
  Tensor t = Tensor::empty(s);
  fill_normal(t, RngKey(seed), 0, 1);
  return t;
}

struct Block {
  Parameter w1, w2, gain;
  Block() {
    w1 = {"w1", normal({16, 32}, 1), {}};
    w2 = {"w2", normal({32, 16}, 2), {}};
    gain = {"gain", normal({16}, 3), {}};
  }
  Tensor operator()(const Tensor& x) {
    const auto leaf = [](Parameter& p) { return Tape::current() ? Tape::current()->leaf(p) : p.value; };
    const Tensor h = ops::gelu(ops::linear(ops::rms_norm(x, leaf(gain)), leaf(w1)));
    return ops::add(x, ops::linear(ops::dropout(h, 0.3, RngKey(9)), leaf(w2)));
  }
  std::vector<Parameter*> all() { return {&w1, &w2, &gain}; }
};

struct Outcome {
  std::vector<std::vector<double>> values;  // output, dx, parameters' gradients
  std::size_t saved;
};

Outcome run(bool recomputed, bool watched = true, Tape::Options options = {}) {
  Block block;
  Tape tape(options);
  const Tensor x0 = normal({40, 16}, 4);
  Tensor x = watched ? tape.watch(x0) : x0, y = x;
  for (int layer = 0; layer < 3; ++layer)
    y = recomputed ? recompute([&](std::span<const Tensor> in) { return block(in[0]); }, {y}, block.all()) : block(y);
  Outcome r;
  r.saved = tape.saved_bytes();
  r.values.push_back(y.to_vector());
  tape.backward(y, normal({40, 16}, 5));
  if (watched) r.values.push_back(tape.grad(x).to_vector());
  for (Parameter* p : block.all()) r.values.push_back(p->grad.to_vector());
  return r;
}

TEST(Recompute, SameBitsWithDropoutForLessMemory) {
  for (bool watched : {true, false}) {
    const Outcome with = run(true, watched), without = run(false, watched);
    EXPECT_EQ(with.values, without.values);
    EXPECT_LT(3 * with.saved, without.saved);
  }
}

TEST(Recompute, SameBitsWithRoundedSaving) {
  Tape::Options options;
  options.save_as = DType::BF16;
  EXPECT_EQ(run(true, true, options).values, run(false, true, options).values);
}

TEST(Recompute, WithoutATapeItIsAPlainCall) {
  Block block;
  const Tensor x = normal({4, 16}, 1);
  const Tensor y = recompute([&](std::span<const Tensor> in) { return block(in[0]); }, {x}, block.all());
  EXPECT_FALSE(y.grad_ref());
  EXPECT_EQ(y.to_vector(), block(x).to_vector());
}

TEST(Recompute, AForgottenParameterIsAnError) {
  Block block;
  Tape tape;
  const Tensor x = tape.watch(normal({4, 16}, 1));
  const Tensor y = recompute([&](std::span<const Tensor> in) { return block(in[0]); }, {x}, {&block.w1, &block.gain});
  try {
    tape.backward(y, normal({4, 16}, 2));
    FAIL() << "the forgotten parameter was not noticed";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "recompute: the function reads parameter 'w2', which was not named in params");
  }
}

TEST(Recompute, ACapturedRecordedTensorIsAnError) {
  Tape tape;
  const Tensor x = tape.watch(normal({4}, 1)), hidden = ops::exp(x);
  const Tensor y = recompute([&](std::span<const Tensor> in) { return ops::mul(in[0], hidden); }, {x}, {});
  EXPECT_THROW(tape.backward(y, normal({4}, 2)), Error);
}

TEST(Recompute, NestedBlocks) {
  std::vector<std::vector<double>> results[2];
  for (bool nested : {false, true}) {
    Block block;
    Tape tape;
    const Tensor x = tape.watch(normal({8, 16}, 4));
    const auto inner = [&](std::span<const Tensor> in) { return block(in[0]); };
    const auto outer = [&](std::span<const Tensor> in) {
      return ops::tanh(recompute(inner, {recompute(inner, {in[0]}, block.all())}, block.all()));
    };
    const Tensor y = nested ? recompute(outer, {x}, block.all()) : ops::tanh(block(block(x)));
    tape.backward(y, normal({8, 16}, 5));
    results[nested] = {y.to_vector(), tape.grad(x).to_vector()};
    for (Parameter* p : block.all()) results[nested].push_back(p->grad.to_vector());
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST(Recompute, FrozenParametersAndUnusedInputs) {
  Block block;
  block.w1.trainable = false;
  Tape tape;
  const Tensor x = tape.watch(normal({4, 16}, 1)), unused = tape.watch(normal({2}, 2));
  tape.backward(recompute([&](std::span<const Tensor> in) { return block(in[0]); }, {x, unused}, block.all()), normal({4, 16}, 3));
  EXPECT_FALSE(block.w1.grad.defined());
  EXPECT_TRUE(block.w2.grad.defined());
  EXPECT_FALSE(tape.grad(unused).defined());
}

TEST(Recompute, CheckFiniteNamesTheRecomputedOp) {
  Tape::Options options;
  options.check_finite = true;
  Tape tape(options);
  const Tensor x = tape.watch(Tensor::full({2}, -1));
  EXPECT_THROW(recompute([](std::span<const Tensor> in) { return ops::log(in[0]); }, {x}, {}), NumericError);
}

}  // namespace
}  // namespace tapeformer
