#include "layers/patch_embedding.h"

#include <fmt/format.h>

#include <algorithm>

#include "autograd/ops.h"
#include "core/error.h"

namespace tapeformer {
namespace {

const PatchEmbeddingConfig& checked(const PatchEmbeddingConfig& c) {
  if (c.height % c.patch != 0 || c.width % c.patch != 0)
    throw ConfigError(fmt::format("patch: got {}, which does not divide the image of {} x {} pixels", c.patch, c.height, c.width));
  return c;
}

}  // namespace

PatchEmbedding::PatchEmbedding(const PatchEmbeddingConfig& c, RngKey key)
    : config_(checked(c)),
      W_(this, "W", {c.dim, c.channels, c.patch, c.patch}, Init::fan_in(c.channels * c.patch * c.patch), key),
      b_(this, "b", {c.dim}, Init::zeros(), key, false) {
  if (c.class_token) cls_ = std::make_unique<Weight>(this, "cls", Shape{1, c.dim}, Init::zeros(), key);
  if (c.positions) pos_ = std::make_unique<Weight>(this, "pos", Shape{tokens(), c.dim}, Init::normal(0.02), key);
}

i64 PatchEmbedding::tokens() const {
  return config_.height / config_.patch * (config_.width / config_.patch) + (config_.class_token ? 1 : 0);
}

Tensor PatchEmbedding::forward(const Tensor& image) const {
  const i64 B = image.dim(0), C = config_.channels, P = config_.patch, rows = config_.height / P, columns = config_.width / P;
  if (image.shape() != Shape{B, C, config_.height, config_.width})
    throw ShapeError(fmt::format("[patch_embedding] got an image of {}, expected {}; the position table is for this size",
                                 image.shape().str(), (Shape{B, C, config_.height, config_.width}).str()));
  const Tensor cut = ops::permute(ops::reshape(image, {B, C, rows, P, columns, P}), {0, 2, 4, 1, 3, 5});
  const Tensor flat = ops::reshape(W_.get(), {config_.dim, C * P * P});
  Tensor x = ops::linear(ops::reshape(cut, {B, rows * columns, C * P * P}), ops::transpose(flat, 0, 1), b_.get());
  if (cls_) x = ops::concat({ops::expand(ops::reshape(cls_->get(), {1, 1, config_.dim}), {B, 1, config_.dim}), x}, 1);
  return pos_ ? ops::add(x, pos_->get()) : x;
}

namespace {

// Weights [to, from] of a line of `from` cells seen by one of `to`. Whole numbers until the division: no scale factor to be rounded.
Tensor line_weights(i64 from, i64 to) {
  Tensor w = Tensor::zeros({to, from}, DType::F64);
  for (i64 i = 0; i < to; ++i) {
    const i64 numerator = std::clamp<i64>((2 * i + 1) * from - to, 0, 2 * to * (from - 1)), left = numerator / (2 * to);
    const double share = static_cast<double>(numerator % (2 * to)) / static_cast<double>(2 * to);
    w.mut_ptr<double>()[i * from + left] += 1 - share;
    if (share > 0) w.mut_ptr<double>()[i * from + left + 1] += share;
  }
  return w;
}

}  // namespace

Tensor resize_positions(const Tensor& table, PatchGrid from, PatchGrid to, bool class_token) {
  const i64 front = class_token ? 1 : 0;
  if (table.rank() != 2 || table.dim(0) != from.rows * from.columns + front || std::min({from.rows, from.columns, to.rows, to.columns}) < 1)
    throw ShapeError(fmt::format("[resize_positions] got a table {}, a grid of {} x {} and a new one of {} x {}, expected {} rows",
                                 table.shape().str(), from.rows, from.columns, to.rows, to.columns, from.rows * from.columns + front));
  const i64 D = table.dim(1);
  const Tensor wide = table.detach().to(DType::F64), cells = wide.slice(0, front, wide.dim(0));
  const Tensor tall = ops::matmul(line_weights(from.rows, to.rows), ops::reshape(cells, {from.rows, from.columns * D}));
  const Tensor grid = ops::matmul(line_weights(from.columns, to.columns), ops::reshape(tall, {to.rows, from.columns, D}));
  const Tensor flat = ops::reshape(grid, {to.rows * to.columns, D});
  return (class_token ? ops::concat({wide.slice(0, 0, 1), flat}, 0) : flat).to(table.dtype());
}

}  // namespace tapeformer
