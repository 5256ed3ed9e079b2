#include "train/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"
#include "data/dataset.h"

namespace tapeformer {
namespace {

Metrics example() {  // labels 0 0 0 1 1 2, predictions 0 0 1 1 1 0
  Metrics m(4);
  const auto row = [](i64 c) { return std::vector<float>{c == 0 ? 2.f : 0, c == 1 ? 2.f : 0, c == 2 ? 2.f : 0, -1}; };
  std::vector<float> logits;
  for (i64 p : {0, 0, 1, 1, 1, 0, 2}) {
    const auto r = row(p);
    logits.insert(logits.end(), r.begin(), r.end());
  }
  m.add(Tensor::from<float>(logits, {7, 4}), Tensor::from<i64>({0, 0, 0, 1, 1, 2, kIgnoreLabel}, {7}));
  m.add_loss(3, 6);
  return m;
}

TEST(Metrics, NumbersByHand) {
  const Metrics m = example();
  EXPECT_EQ(m.count(), 6);
  EXPECT_DOUBLE_EQ(m.accuracy(), 4.0 / 6);
  EXPECT_DOUBLE_EQ(m.loss(), 0.5);
  EXPECT_DOUBLE_EQ(m.majority(), 0.5);
  EXPECT_DOUBLE_EQ(m.of_class(0).precision, 2.0 / 3);
  EXPECT_DOUBLE_EQ(m.of_class(0).recall, 2.0 / 3);
  EXPECT_DOUBLE_EQ(m.of_class(1).precision, 2.0 / 3);
  EXPECT_DOUBLE_EQ(m.of_class(1).recall, 1);
  EXPECT_DOUBLE_EQ(m.of_class(1).f1, 0.8);
  EXPECT_DOUBLE_EQ(m.of_class(2).f1, 0);
  EXPECT_EQ(m.of_class(3).support, 0);
  EXPECT_DOUBLE_EQ(m.macro_f1(), (2.0 / 3 + 0.8 + 0) / 3);  // class 3 occurs nowhere
  EXPECT_DOUBLE_EQ(m.score("loss"), -0.5);
  EXPECT_DOUBLE_EQ(m.value("macro_f1"), m.macro_f1());
}

TEST(Metrics, AddUpAndCountFrames) {
  Metrics twice = example();
  twice.add(example());
  EXPECT_EQ(twice.count(), 12);
  EXPECT_DOUBLE_EQ(twice.accuracy(), example().accuracy());
  EXPECT_DOUBLE_EQ(twice.loss(), 0.5);
  Metrics frames(2);
  frames.add(Tensor::from<float>({1, 0, 0, 1, 1, 0, 1, 0}, {2, 2, 2}), Tensor::from<i64>({0, 1, 1, kIgnoreLabel}, {2, 2}));
  EXPECT_EQ(frames.count(), 3);
  EXPECT_EQ(frames.at(1, 0), 1);
  EXPECT_TRUE(std::isnan(frames.loss()));
  EXPECT_THROW(frames.add(Tensor::zeros({2, 3}), Tensor::zeros({2}, DType::I64)), ShapeError);
}

TEST(Metrics, TheFirstOfEqualLogitsCounts) {
  Metrics m(3);
  m.add(Tensor::zeros({1, 3}), Tensor::from<i64>({0}, {1}));
  EXPECT_EQ(m.at(0, 0), 1);
}

}  // namespace
}  // namespace tapeformer
