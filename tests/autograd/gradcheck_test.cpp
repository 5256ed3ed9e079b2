// The checker itself: right gradients pass, each kind of wrong one is found.
#include "autograd/gradcheck.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/node.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct Wrong final : Node {  // y = x^2 with the gradient `factor` dy x + shift
  static constexpr std::string_view kName = "wrong";
  SavedTensor x;
  double factor, shift;
  Wrong(const Tensor& x_, double f, double s) : x(x_), factor(f), shift(s) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {ops::scale(ops::mul(dy, x.get(kName)), factor, shift)}; }
};

Tensor square(const Tensor& x, double factor, double shift) {
  Tensor y;
  {
    const NoGrad no_grad;
    y = ops::mul(x, x);
  }
  return record<Wrong>(y.detach(), {&x}, x, factor, shift);
}

std::string check(double factor, double shift) {
  return gradcheck([=](const std::vector<Tensor>& in) { return square(in[0], factor, shift); }, {Tensor::from<double>({0.5, -1, 2}, {3})});
}

TEST(Gradcheck, AcceptsTheRightGradientAndNamesWrongOnes) {
  EXPECT_EQ(check(2, 0), "");
  EXPECT_EQ(check(2.0001, 0).substr(0, 15), "input 0 element");
  EXPECT_EQ(check(2, 1e-4).substr(0, 15), "input 0 element");
  EXPECT_NE(check(2, std::nan("")), "");
}

TEST(Gradcheck, SeesParametersAndMissingGradients) {
  Parameter p{"scale", Tensor::from<double>({3}, {1}), {}};
  const auto f = [&](bool cut) {
    return gradcheck(
        [&, cut](const std::vector<Tensor>& in) {
          const Tensor w = Tape::current() ? Tape::current()->leaf(p) : p.value;
          return ops::mul(in[0], cut ? w.detach() : w);
        },
        {Tensor::from<double>({0.5, -1}, {2})}, {&p});
  };
  EXPECT_EQ(f(false), "");
  EXPECT_EQ(f(true).substr(0, 25), "parameter scale element 0");
}

TEST(Gradcheck, LeavesInputsAsTheyWere) {
  const Tensor x = Tensor::from<double>({0.1, 0.7}, {2}), before = x.clone();
  gradcheck([](const std::vector<Tensor>& in) { return ops::exp(in[0]); }, {x});
  EXPECT_EQ(x.to_vector(), before.to_vector());
}

struct Zero final : Node {
  static constexpr std::string_view kName = "zero";
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {Tensor::zeros_like(dy)}; }
};

TEST(Gradcheck, UsesARandomUpstream) {  // under a sum, softmax's gradient is zero whatever the code says
  const std::string message = gradcheck([](const std::vector<Tensor>& in) { return record<Zero>(ops::softmax(in[0].detach()), {&in[0]}); },
                                        {Tensor::from<double>({0.1, 0.7, -1}, {3})});
  EXPECT_NE(message, "");
}

}  // namespace
}  // namespace tapeformer
