// Images to tokens: a convolution whose stride is its kernel, and position tables for other sizes.
#include "layers/patch_embedding.h"

#include <gtest/gtest.h>

#include <map>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/error.h"

namespace tapeformer {
namespace {

Tensor random_tensor(Shape shape, std::uint64_t seed) {
  Tensor x = Tensor::empty(shape, DType::F64);
  fill_normal(x, RngKey(seed), 0, 1);
  return x;
}
std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(PatchEmbedding, IsAConvolutionAndHasDerivatives) {
  const DTypeScope f64(DType::F64);
  for (bool front : {false, true})
    for (i64 patch : {1, 2}) {
      PatchEmbedding layer({.patch = patch, .height = 4, .width = 6, .channels = 3, .dim = 5, .class_token = front}, RngKey(1));
      const i64 n = 24 / (patch * patch), first = front ? 1 : 0;
      ASSERT_EQ(layer.tokens(), n + first);
      std::map<std::string, Tensor> p;
      for (Parameter* q : layer.parameters()) p[q->name] = q->value;
      if (front) p.at("cls").fill(0.5);
      const Tensor image = random_tensor({2, 3, 4, 6}, 2), o = layer.forward(image);
      const Tensor grid = ops::conv2d(ops::permute(image, {0, 2, 3, 1}), p.at("W"), p.at("b"), {.stride_h = patch, .stride_w = patch});
      const Tensor want = ops::add(ops::reshape(grid, {2, n, 5}), p.at("pos").slice(0, first, n + first));
      const Tensor rows = ops::sub(o.slice(1, first, n + first), want);
      for (double e : rows.to_vector()) EXPECT_LE(std::abs(e), 1e-12);
      if (front) EXPECT_EQ(o.slice(1, 0, 1).slice(0, 1, 2).to_vector(), ops::add(p.at("cls"), p.at("pos").slice(0, 0, 1)).to_vector());
      EXPECT_EQ(gradcheck([&](const std::vector<Tensor>& in) { return layer.forward(in[0]); }, {image}, layer.parameters()), "");
    }
}

TEST(PatchEmbedding, SaysWhatDoesNotFit) {
  EXPECT_EQ(message_of([] { PatchEmbedding({.patch = 4, .height = 8, .width = 6, .channels = 1, .dim = 2}, RngKey(1)); }),
            "patch: got 4, which does not divide the image of 8 x 6 pixels");
  const PatchEmbedding layer({.patch = 2, .height = 4, .width = 4, .channels = 1, .dim = 2}, RngKey(1));
  EXPECT_NE(message_of([&] { layer.forward(Tensor::zeros({1, 1, 4, 6})); }).find("position table"), std::string::npos);
}

TEST(ResizePositions, IsBilinearBetweenCells) {
  const Tensor table = random_tensor({1 + 6, 3}, 1);
  EXPECT_EQ(resize_positions(table, {2, 3}, {2, 3}, true).to_vector(), table.to_vector());
  const Tensor wide = resize_positions(table, {2, 3}, {5, 4}, true);
  ASSERT_EQ(wide.shape(), (Shape{21, 3}));
  EXPECT_EQ(wide.slice(0, 0, 1).to_vector(), table.slice(0, 0, 1).to_vector()) << "the class token's row moved";
  const auto cell = [&](i64 r, i64 c) { return table.to_vector()[static_cast<std::size_t>((1 + r * 3 + c) * 3)]; };
  for (i64 i = 0; i < 5; ++i)
    for (i64 j = 0; j < 4; ++j) {
      const double r = std::clamp((static_cast<double>(i) + 0.5) * 2 / 5 - 0.5, 0.0, 1.0),
                   c = std::clamp((static_cast<double>(j) + 0.5) * 3 / 4 - 0.5, 0.0, 2.0);
      const i64 r0 = static_cast<i64>(r), c0 = static_cast<i64>(c), r1 = std::min<i64>(r0 + 1, 1), c1 = std::min<i64>(c0 + 1, 2);
      const double u = r - static_cast<double>(r0), v = c - static_cast<double>(c0);
      const double want = (1 - u) * ((1 - v) * cell(r0, c0) + v * cell(r0, c1)) + u * ((1 - v) * cell(r1, c0) + v * cell(r1, c1));
      EXPECT_NEAR(wide.to_vector()[static_cast<std::size_t>((1 + i * 4 + j) * 3)], want, 1e-12) << i << " " << j;
    }
  const Tensor one = Tensor::full({1, 2}, 0.25, DType::F32);
  EXPECT_EQ(resize_positions(one, {1, 1}, {2, 2}, false).to_vector(), std::vector<double>(8, 0.25));
  EXPECT_NE(message_of([&] { resize_positions(table, {2, 2}, {3, 3}, true); }).find("expected 5 rows"), std::string::npos);
}

}  // namespace
}  // namespace tapeformer
