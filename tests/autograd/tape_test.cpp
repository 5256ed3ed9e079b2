#include "autograd/tape.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/error.h"

namespace tapeformer {
namespace {

using V = std::vector<double>;

Parameter parameter(const std::string& name, Tensor value) {
  Parameter p;
  p.name = name;
  p.value = std::move(value);
  return p;
}

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

Tensor vec(const V& v) { return Tensor::from(v, {static_cast<i64>(v.size())}); }

TEST(Tape, NothingIsRecordedWithoutATape) {
  Parameter p = parameter("p", vec({1, 2}));
  EXPECT_EQ(Tape::current(), nullptr);
  EXPECT_FALSE(ops::exp(p.value).grad_ref());
  Tape tape;
  EXPECT_FALSE(ops::exp(p.value).grad_ref());  // no leaf among the inputs
  EXPECT_TRUE(ops::exp(tape.leaf(p)).grad_ref());
  EXPECT_EQ(tape.size(), 2u);
}

TEST(Tape, OneGradientSharedByBothInputs) {  // add's backward returns {dy, dy}
  Parameter p = parameter("p", vec({1, 2}));
  const Tensor seed = vec({3, 5});
  Tape tape;
  const Tensor x = tape.leaf(p);
  tape.backward(ops::add(x, x), seed);
  EXPECT_EQ(p.grad.to_vector(), (V{6, 10}));
  EXPECT_EQ(seed.to_vector(), (V{3, 5}));  // the caller's seed is not added into
}

TEST(Tape, SeedIsNotHandedToTheParameter) {
  Parameter p = parameter("p", vec({1, 2}));
  const Tensor seed = vec({3, 5});
  {
    Tape tape;
    tape.backward(tape.leaf(p), seed);
  }
  p.grad.fill(0);
  EXPECT_EQ(seed.to_vector(), (V{3, 5}));
}

TEST(Tape, GradientsOfTwoTapesAddUp) {
  Parameter p = parameter("p", vec({1, 2}));
  for (int i = 0; i < 3; ++i) {
    Tape tape;
    tape.backward(ops::sum(ops::mul(tape.leaf(p), tape.leaf(p))));
  }
  EXPECT_EQ(p.grad.to_vector(), (V{6, 12}));
}

TEST(Tape, DiamondsVisitEveryPathOnce) {
  Tape tape;
  const Tensor x = tape.watch(vec({2}));
  Tensor y = x;
  for (int i = 0; i < 20; ++i) y = ops::add(y, y);  // 2^20 paths
  const Tensor z = ops::mul(y, ops::add(y, x));     // 2^20 x (2^20 x + x)
  tape.backward(z);
  const double n = 1048576;
  EXPECT_EQ(tape.grad(x).item(), 2 * 2 * n * (n + 1));
}

TEST(Tape, TiedWeightsCollectBothUses) {
  Parameter table = parameter("table", Tensor::from<double>({1, 2, 3, 4, 5, 6}, {3, 2}));
  Tape tape;
  const Tensor x = ops::embedding(tape.leaf(table), Tensor::from<i64>({2, 0}, {2}));
  const Tensor logits = ops::matmul(x, ops::transpose(tape.leaf(table), 0, 1));
  EXPECT_EQ(tape.size(), 4u);  // one leaf, not two
  tape.backward(ops::sum(logits));
  // d/dT sum_ij x_i . T_j = (column sums of T) at rows 2 and 0, plus (x_2 + x_0) at every row
  EXPECT_EQ(table.grad.to_vector(), (V{15, 20, 6, 8, 15, 20}));
}

TEST(Tape, OnFinalComesOnceAndWhenComplete) {
  Parameter a = parameter("a", vec({1})), b = parameter("b", vec({2})), frozen = parameter("f", vec({3}));
  frozen.trainable = false;
  Tape tape;
  std::vector<std::string> order;
  V at_call;
  tape.on_final = [&](Parameter& p) {
    order.push_back(p.name);
    at_call.push_back(p.grad.item());
  };
  const Tensor first = ops::mul(tape.leaf(a), tape.leaf(frozen));
  tape.backward(ops::sum(ops::mul(ops::mul(first, tape.leaf(b)), tape.leaf(a))));  // 3 a^2 b
  EXPECT_EQ(order, (std::vector<std::string>{"b", "a"}));
  EXPECT_EQ(at_call, (V{3, 12}));
  EXPECT_FALSE(frozen.grad.defined());
}

TEST(Tape, StaleTensorsAreRefused) {
  Tensor old;
  {
    Tape tape;
    old = ops::exp(tape.watch(vec({1})));
  }
  EXPECT_FALSE(ops::exp(old).grad_ref());  // no tape open: plain arithmetic
  Tape tape;
  const std::string message = error_of([&] { ops::mul(tape.watch(vec({1})), old); });
  EXPECT_NE(message.find("[mul] an input was recorded on tape"), std::string::npos) << message;
  EXPECT_NE(message.find("call detach() to use its value only"), std::string::npos) << message;
  EXPECT_NO_THROW(ops::mul(tape.watch(vec({1})), old.detach()));
  EXPECT_NE(error_of([&] { tape.backward(old); }).find("[backward] the loss was not recorded on this tape"), std::string::npos);
  EXPECT_NE(error_of([&] { (void)tape.grad(old); }).find("[grad] the tensor is not watched on this tape"), std::string::npos);
}

TEST(Tape, BackwardOnceFromOneElement) {
  Tape tape;
  const Tensor x = tape.watch(vec({1, 2})), y = ops::exp(x);
  EXPECT_EQ(error_of([&] { tape.backward(y); }), "[backward] the loss has shape [2], expected one element");
  tape.backward(ops::sum(y));
  EXPECT_EQ(error_of([&] { tape.backward(ops::sum(x.detach())); }).substr(0, 10), "[backward]");
  EXPECT_EQ(error_of([&] { ops::exp(x); }), "an op was recorded on a tape that has run backward already; open a new tape");
}

TEST(Tape, NoGradHidesTheTape) {
  Tape tape;
  const Tensor x = tape.watch(vec({1}));
  {
    const NoGrad outer;
    EXPECT_EQ(Tape::current(), nullptr);
    {
      const NoGrad inner;
      EXPECT_FALSE(ops::exp(x).grad_ref());
    }
    EXPECT_EQ(Tape::current(), nullptr);
  }
  EXPECT_EQ(Tape::current(), &tape);
  EXPECT_EQ(tape.size(), 1u);
}

TEST(Tape, NestedTapesRestoreTheOuterOne) {
  Tape outer;
  const Tensor x = outer.watch(vec({3}));
  const Tensor y = ops::mul(x, x);
  {
    Tape inner;
    const Tensor z = inner.watch(y);
    inner.backward(ops::mul(z, z));
    EXPECT_EQ(inner.grad(z).item(), 18);
  }
  EXPECT_EQ(Tape::current(), &outer);
  outer.backward(y);
  EXPECT_EQ(outer.grad(x).item(), 6);
}

TEST(Tape, AMillionEntriesNeedNoStack) {
  for (bool replayed : {false, true}) {
    Tape tape;
    const Tensor x = tape.watch(vec({0.5}));
    Tensor y = x;
    for (int i = 0; i < 1000000; ++i) y = replayed ? ops::neg(y) : ops::scale(y, -1);
    tape.backward(y);
    EXPECT_EQ(tape.grad(x).item(), 1);
  }
  Tape dropped;  // never run backward: the destructor must not recurse either
  Tensor y = dropped.watch(vec({0.5}));
  for (int i = 0; i < 1000000; ++i) y = ops::neg(y);
}

TEST(Tape, CheckFiniteNamesTheOp) {
  Tape::Options options;
  options.check_finite = true;
  Tape tape(options);
  const Tensor x = tape.watch(vec({0, 1}));
  EXPECT_EQ(error_of([&] { ops::log(x); }), "[log] gave a value that is not finite, output [2]");
  EXPECT_EQ(error_of([&] { ops::log(x.detach()); }),
            "[log] gave a value that is not finite, output [2]");  // unrecorded ops as well
  EXPECT_NO_THROW(ops::exp(x));
  const Tensor large = ops::scale(x, 1e200);
  EXPECT_THROW(ops::mul(large, large), NumericError);
}

TEST(Tape, SliceAddsIntoItsRegionOnly) {
  Tape tape;
  const Tensor x = tape.watch(Tensor::from<double>({1, 2, 3, 4, 5, 6}, {2, 3}));
  const Tensor left = ops::slice(x, 1, 0, 2), right = ops::slice(x, 1, 1, 3);
  tape.backward(ops::sum(ops::mul(left, right)));
  EXPECT_EQ(tape.grad(x).to_vector(), (V{2, 4, 2, 5, 10, 5}));
}

TEST(Tape, SliceAfterAFullGradientDoesNotTouchOtherHolders) {
  Tape tape;
  const Tensor x = tape.watch(vec({1, 2, 3})), y = tape.watch(vec({4, 5, 6}));
  const Tensor part = ops::slice(x, 0, 0, 1);  // before the add: its gradient comes after the add's {dy, dy}
  const Tensor both = ops::add(x, y);
  tape.backward(ops::add(ops::sum(both), ops::sum(part)));
  EXPECT_EQ(tape.grad(x).to_vector(), (V{2, 1, 1}));
  EXPECT_EQ(tape.grad(y).to_vector(), (V{1, 1, 1}));
}

TEST(Tape, EmbeddingAddsRepeatedRows) {
  Tape tape;
  const Tensor table = tape.watch(Tensor::zeros({4, 2}, DType::F64));
  const Tensor y = ops::embedding(table, Tensor::from<i64>({1, 3, 1, 1}, {4}));
  tape.backward(y, Tensor::from<double>({1, 2, 3, 4, 5, 6, 7, 8}, {4, 2}));
  EXPECT_EQ(tape.grad(table).to_vector(), (V{0, 0, 13, 16, 0, 0, 3, 4}));
}

TEST(Tape, GradientsArriveThroughStridedViews) {
  Parameter p = parameter("p", Tensor::from<double>({1, 2, 3, 4, 5, 6}, {2, 3}));
  Tape tape;
  const Tensor turned = ops::transpose(tape.leaf(p), 0, 1);  // [3, 2], strides 1 and 3
  tape.backward(ops::slice(ops::expand(ops::slice(turned, 0, 1, 2), {4, 2}), 0, 0, 3), Tensor::from<double>({1, 2, 3, 4, 5, 6}, {3, 2}));
  EXPECT_EQ(p.grad.to_vector(), (V{0, 9, 0, 0, 12, 0}));
  EXPECT_TRUE(p.grad.contiguous());
}

TEST(Tape, GradientOfASumIsStoredWhole) {  // sum's gradient is a stride-0 view; a parameter must own all of it
  Parameter p = parameter("p", vec({1, 2, 3}));
  for (int i = 0; i < 2; ++i) {
    Tape tape;
    tape.backward(ops::sum(tape.leaf(p)));
  }
  EXPECT_TRUE(p.grad.contiguous());
  EXPECT_EQ(p.grad.to_vector(), (V{2, 2, 2}));
}

TEST(Tape, TiesOfMaxima) {
  Tape tape;
  const Tensor a = tape.watch(vec({1, 2, 3})), b = tape.watch(vec({1, 5, 0}));
  tape.backward(ops::sum(ops::maximum(a, b)));
  EXPECT_EQ(tape.grad(a).to_vector(), (V{0.5, 0, 1}));
  EXPECT_EQ(tape.grad(b).to_vector(), (V{0.5, 1, 0}));
  Tape second;
  const Tensor x = second.watch(vec({2, 7, 7, 1}));
  second.backward(ops::max(x, 0));
  EXPECT_EQ(second.grad(x).to_vector(), (V{0, 1, 0, 0}));
}

TEST(Tape, StraightThroughTakesTheValueAndLeavesTheGradientToSoft) {
  Tape tape;
  const Tensor hard = tape.watch(vec({1, 0})), soft = tape.watch(vec({0.7, 0.3}));
  const Tensor y = ops::straight_through(hard, soft);
  EXPECT_EQ(y.to_vector(), (V{1, 0}));
  tape.backward(y, vec({2, 3}));
  EXPECT_FALSE(tape.grad(hard).defined());
  EXPECT_EQ(tape.grad(soft).to_vector(), (V{2, 3}));
}

TEST(Tape, UnusedBranchesGiveNoGradient) {
  Parameter used = parameter("used", vec({2})), unused = parameter("unused", vec({2}));
  Tape tape;
  const Tensor dead = ops::exp(tape.leaf(unused));
  tape.backward(ops::mul(tape.leaf(used), tape.leaf(used)));
  EXPECT_FALSE(unused.grad.defined());
  EXPECT_EQ(used.grad.item(), 4);
}

TEST(Tape, CaptureKeepsParameterGradientsOnTheTape) {
  Parameter p = parameter("p", vec({3}));
  Tape::Options options;
  options.leaves = Tape::Leaves::Capture;
  Tape tape(options);
  tape.backward(ops::mul(tape.leaf(p), tape.leaf(p)));
  EXPECT_FALSE(p.grad.defined());
  EXPECT_EQ(tape.grad(p).item(), 6);
}

}  // namespace
}  // namespace tapeformer
