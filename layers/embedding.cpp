#include "layers/embedding.h"

#include <fmt/format.h>

#include <cmath>

#include "autograd/ops.h"
#include "core/error.h"

namespace tapeformer {

Embedding::Embedding(i64 vocab, i64 dim, RngKey key, double stddev) : table_(this, "table", {vocab, dim}, Init::normal(stddev), key) {}

Tensor Embedding::forward(const Tensor& ids) const { return ops::embedding(table_.get(), ids); }

Positions::Positions(Kind kind, i64 max_len, i64 dim, RngKey key) : max_len_(max_len) {
  if (kind == Kind::Learned) {
    learned_ = std::make_unique<Weight>(this, "table", Shape{max_len, dim}, Init::normal(0.02), key);
    return;
  }
  Tensor table = Tensor::empty({max_len, dim}, DType::F64);
  double* p = table.mut_ptr<double>();
  for (i64 n = 0; n < max_len; ++n)
    for (i64 i = 0; i < dim; ++i) {
      const double angle = static_cast<double>(n) / std::pow(10000.0, static_cast<double>(i / 2 * 2) / static_cast<double>(dim));
      p[n * dim + i] = i % 2 == 0 ? std::sin(angle) : std::cos(angle);
    }
  fixed_ = table.to(default_dtype());
}

Tensor Positions::forward(const Tensor& x) const {
  const i64 n = x.dim(1);
  if (n > max_len_) throw ShapeError(fmt::format("[positions] the input has {} positions, the model accepts at most {}", n, max_len_));
  const Tensor table = learned_ ? learned_->get() : fixed_;
  return ops::add(x, n == max_len_ ? table : ops::slice(table, 0, 0, n));
}

Tensor rotary(const Tensor& x, const Tensor& positions, double base) {
  const i64 n = x.dim(2), d = x.dim(3), half = d / 2;
  if (d % 2 != 0) throw ShapeError(fmt::format("[rotary] needs an even head size, got {}", d));
  const i64 samples = positions.defined() ? x.dim(0) : 1;
  if (positions.defined() && (positions.dtype() != DType::I64 || positions.shape() != Shape{samples, n}))
    throw ShapeError(fmt::format("[rotary] positions are {} {}, expected i64 {}", name_of(positions.dtype()), positions.shape().str(),
                                 Shape{samples, n}.str()));
  const Tensor at = positions.defined() ? positions.to_contiguous() : Tensor();
  Tensor cosine = Tensor::empty({samples, 1, n, half}, DType::F64), sine = Tensor::empty({samples, 1, n, half}, DType::F64);
  for (i64 p = 0; p < samples * n; ++p)
    for (i64 i = 0; i < half; ++i) {
      const double position = static_cast<double>(at.defined() ? at.ptr<i64>()[p] : p);
      const double angle = position * std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(d));
      cosine.mut_ptr<double>()[p * half + i] = std::cos(angle);
      sine.mut_ptr<double>()[p * half + i] = std::sin(angle);
    }
  const Tensor c = cosine.to(x.dtype()), s = sine.to(x.dtype());
  const Tensor a = ops::slice(x, 3, 0, half), b = ops::slice(x, 3, half, d);
  return ops::concat({ops::sub(ops::mul(a, c), ops::mul(b, s)), ops::add(ops::mul(a, s), ops::mul(b, c))}, 3);
}

}  // namespace tapeformer
