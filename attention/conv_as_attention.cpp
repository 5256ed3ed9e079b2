#include "attention/conv_as_attention.h"

#include <fmt/format.h>

#include "autograd/ops.h"
#include "core/error.h"

namespace tapeformer {
namespace {

const ConvAsAttentionConfig& checked(const ConvAsAttentionConfig& c) {
  if (std::min(c.kernel_h, c.kernel_w) < 1)
    throw ConfigError(fmt::format("kernel: got [{}, {}], expected at least 1 each", c.kernel_h, c.kernel_w));
  if (!(c.alpha > 0)) throw ConfigError(fmt::format("alpha: got {}, expected above 0", c.alpha));
  return c;
}

// Rows and columns [height width, 2] of a grid whose first cell is at (top, left).
Tensor grid(i64 height, i64 width, double top, double left, DType t) {
  std::vector<double> at;
  for (i64 i = 0; i < height; ++i)
    for (i64 j = 0; j < width; ++j) {
      at.push_back(top + static_cast<double>(i));
      at.push_back(left + static_cast<double>(j));
    }
  return Tensor::from<double>(at, {height * width, 2}).to(t);
}

}  // namespace

ConvAsAttention::ConvAsAttention(const ConvAsAttentionConfig& c, RngKey key)
    : config_(checked(c)),
      W_(this, "W", {c.out, c.in, c.kernel_h, c.kernel_w}, Init::fan_in(c.in * c.kernel_h * c.kernel_w), key),
      b_(this, "b", {c.out}, Init::zeros(), key, false) {
  if (!c.learn_centres) return;
  centres_ = std::make_unique<Weight>(this, "centres", Shape{c.kernel_h * c.kernel_w, 2}, Init::zeros(), key, false);
  alpha_ = std::make_unique<Weight>(this, "alpha", Shape{}, Init::zeros(), key, false);
  centres_->parameter().value.copy_from(
      grid(c.kernel_h, c.kernel_w, -static_cast<double>(c.kernel_h / 2), -static_cast<double>(c.kernel_w / 2), DType::F64));
  alpha_->parameter().value.fill(c.alpha);
}

// What depends on k in -alpha |k - (q + Delta)|^2 is a product: (2 alpha (q + Delta), -alpha) . (k, |k|^2). Positions are counted from the
// middle of the image, which keeps the squares small. -> [1, taps, height width, 3]
Tensor ConvAsAttention::queries(i64 height, i64 width, DType t) const {
  const i64 taps = config_.kernel_h * config_.kernel_w, N = height * width;
  const Tensor alpha = alpha_ ? alpha_->get() : Tensor::scalar(config_.alpha, t);
  const Tensor centres = centres_ ? centres_->get()
                                  : grid(config_.kernel_h, config_.kernel_w, -static_cast<double>(config_.kernel_h / 2),
                                         -static_cast<double>(config_.kernel_w / 2), t);
  const Tensor q = grid(height, width, -static_cast<double>(height / 2), -static_cast<double>(width / 2), t);
  const Tensor targets = ops::add(ops::reshape(q, {1, 1, N, 2}), ops::reshape(centres, {1, taps, 1, 2}));
  return ops::mul(ops::concat({ops::scale(targets, 2), Tensor::full({1, taps, N, 1}, -1, t)}, 3), alpha);
}

Tensor ConvAsAttention::forward(const Tensor& image) const {
  if (image.rank() != 4 || image.dim(1) != config_.in)
    throw ShapeError(
        fmt::format("[conv_as_attention] got an image of {}, expected [B, {}, height, width]", image.shape().str(), config_.in));
  const i64 B = image.dim(0), C = config_.in, height = image.dim(2), width = image.dim(3), Kh = config_.kernel_h, Kw = config_.kernel_w;
  const i64 N = height * width, M = (height + Kh - 1) * (width + Kw - 1), taps = Kh * Kw;
  // Zeros around the image are keys too: without them the border would see its nearest pixel.
  const Tensor x = ops::pad(ops::pad(ops::permute(image, {2, 3, 0, 1}), 0, Kh / 2, Kh - 1 - Kh / 2), 1, Kw / 2, Kw - 1 - Kw / 2);
  const Tensor k = grid(height + Kh - 1, width + Kw - 1, -static_cast<double>(height / 2 + Kh / 2),
                        -static_cast<double>(width / 2 + Kw / 2), image.dtype());
  const Tensor keys = ops::reshape(ops::concat({k, ops::sum(ops::mul(k, k), {1}, true)}, 1), {1, 1, M, 3});
  // The weights are the same for all samples: their pixels stand side by side as one long value.
  const Tensor seen =
      ops::attention(queries(height, width, image.dtype()), keys, ops::reshape(x, {1, 1, M, B * C}), {.scale = 1.0});  // [1, taps, N, B C]
  const Tensor rows = ops::reshape(ops::permute(ops::reshape(seen, {taps, N, B, C}), {2, 1, 0, 3}), {B, N, taps * C});
  const Tensor W = ops::reshape(ops::permute(W_.get(), {2, 3, 1, 0}), {taps * C, config_.out});
  return ops::permute(ops::reshape(ops::linear(rows, W, b_.get()), {B, height, width, config_.out}), {0, 3, 1, 2});
}

Tensor ConvAsAttention::convolution(const Tensor& image) const {
  const i64 Kh = config_.kernel_h, Kw = config_.kernel_w;
  return ops::permute(ops::conv2d(ops::permute(image, {0, 2, 3, 1}), W_.get(), b_.get(),
                                  {.pad_top = Kh / 2, .pad_bottom = Kh - 1 - Kh / 2, .pad_left = Kw / 2, .pad_right = Kw - 1 - Kw / 2}),
                      {0, 3, 1, 2});
}

}  // namespace tapeformer
