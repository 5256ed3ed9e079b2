// Self-attention that is a convolution: how close it comes, and what its gradients do.
#include "attention/conv_as_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "autograd/gradcheck.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

struct Pair {
  Tensor attention, convolution;
};

// Outputs, or the gradient of what `pick` chooses: an empty name is the image.
Pair outputs(const ConvAsAttention& layer, const Tensor& image) { return {layer.forward(image), layer.convolution(image)}; }
Pair gradients(ConvAsAttention& layer, const Tensor& image, const std::string& name) {
  Pair out;
  for (Tensor* to : {&out.attention, &out.convolution}) {
    Tape tape({.leaves = Tape::Leaves::Capture});
    const Tensor x = tape.watch(image), y = to == &out.attention ? layer.forward(x) : layer.convolution(x);
    tape.backward(y, random_tensor(y.shape(), y.dtype(), 5));
    *to = tape.grad(x);
    for (Parameter* p : layer.parameters())
      if (p->name == name) *to = tape.grad(*p);
  }
  return out;
}

double distance(const Pair& p) { return difference(p.attention, p.convolution); }

TEST(ConvAsAttention, TheErrorFallsWithAlpha) {
  const DTypeScope f64(DType::F64);
  const Tensor image = random_tensor({2, 3, 5, 6}, DType::F64, 1);
  double largest = 0, weights = 0;
  for (double v : image.to_vector()) largest = std::max(largest, std::abs(v));
  for (double alpha : {5.0, 10.0, 20.0, 46.0}) {
    ConvAsAttention layer({.in = 3, .out = 4, .alpha = alpha}, RngKey(1));
    weights = 0;
    for (double w : layer.parameters()[0]->value.to_vector()) weights += std::abs(w);
    EXPECT_LE(distance(outputs(layer, image)), 8 * std::exp(-alpha) * weights * largest + 1e-13) << alpha;
    if (alpha < 20) EXPECT_GT(distance(outputs(layer, image)), 1e-3 * std::exp(-alpha)) << alpha;
    if (alpha == 46) {
      for (const char* name : {"", "W", "b"}) EXPECT_LE(distance(gradients(layer, image, name)), 1e-12) << name;
    }
  }
}

TEST(ConvAsAttention, OneDimensionEvenKernelsAndFloat) {
  for (const auto& [kernel, size] : std::vector<std::pair<std::array<i64, 2>, std::array<i64, 2>>>{
           {{1, 3}, {1, 9}}, {{1, 4}, {1, 7}}, {{2, 2}, {3, 4}}, {{5, 1}, {2, 2}}, {{3, 3}, {1, 1}}, {{1, 1}, {4, 3}}}) {
    const ConvAsAttention layer({.in = 2, .out = 3, .kernel_h = kernel[0], .kernel_w = kernel[1], .alpha = 18}, RngKey(2));
    const Tensor image = random_tensor({2, 2, size[0], size[1]}, DType::F32, 3);
    EXPECT_LE(distance(outputs(layer, image)), 2e-6) << kernel[0] << " x " << kernel[1];
  }
}

TEST(ConvAsAttention, LearnedCentresHaveDerivatives) {
  const DTypeScope f64(DType::F64);
  ConvAsAttention soft({.in = 2, .out = 2, .kernel_h = 2, .kernel_w = 3, .alpha = 0.7, .learn_centres = true}, RngKey(3));
  const auto f = [&](const std::vector<Tensor>& in) { return soft.forward(in[0]); };
  EXPECT_EQ(gradcheck(f, {random_tensor({2, 2, 3, 4}, DType::F64, 4)}, soft.parameters()), "");

  double before = INFINITY;  // of alpha: it vanishes where the weights no longer move
  for (double alpha : {4.0, 8.0, 16.0, 32.0}) {
    ConvAsAttention layer({.in = 2, .out = 2, .alpha = alpha, .learn_centres = true}, RngKey(3));
    const double now = std::abs(gradients(layer, random_tensor({1, 2, 5, 5}, DType::F64, 4), "alpha").attention.item());
    EXPECT_LT(now, 0.1 * before) << alpha;
    before = now;
  }
}

TEST(ConvAsAttention, RefusesWhatItCannotDo) {
  EXPECT_EQ(message_of([] { ConvAsAttention({.in = 1, .out = 1, .kernel_h = 0}, RngKey(1)); }),
            "kernel: got [0, 3], expected at least 1 each");
  EXPECT_EQ(message_of([] { ConvAsAttention({.in = 1, .out = 1, .alpha = 0}, RngKey(1)); }), "alpha: got 0, expected above 0");
  EXPECT_EQ(message_of([] {
              ConvAsAttention({.in = 2, .out = 1}, RngKey(1)).forward(Tensor::zeros({1, 3, 2, 2}));
            }),
            "[conv_as_attention] got an image of [1, 3, 2, 2], expected [B, 2, height, width]");
}

}  // namespace
}  // namespace tapeformer::suite
