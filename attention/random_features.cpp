#include "attention/random_features.h"

#include <bit>
#include <cmath>
#include <vector>

namespace tapeformer {
namespace {

Tensor holding(i64 value) {
  Tensor t = Tensor::empty({1}, DType::I64);
  t.mut_ptr<i64>()[0] = value;
  return t;
}
i64 held(const Buffer& b) { return b.get().ptr<i64>()[0]; }

RngKey numbered(std::uint64_t key, i64 draw) { return RngKey(key).fold_in(static_cast<std::uint64_t>(draw)); }

}  // namespace

RandomFeatures::RandomFeatures(Module* owner, i64 every, RngKey key, Draw draw)
    : every_(every),
      draw_(std::move(draw)),
      W_(owner, "W", draw_(numbered(key.value(), 0))),
      number_(owner, "W_draw", holding(0)),
      key_(owner, "W_key", holding(std::bit_cast<i64>(key.value()))) {}

Tensor RandomFeatures::get(const Ctx& ctx) const {
  if (!ctx.training || every_ == 0 || ctx.step / every_ == held(number_)) return W_.get();
  const i64 draw = ctx.step / every_;
  const Tensor W = draw_(numbered(std::bit_cast<std::uint64_t>(held(key_)), draw)).to(W_.get().dtype());
  if (ctx.effects) {
    ctx.effects->assign(&W_.value(), W);
    ctx.effects->assign(&number_.value(), holding(draw));
  }
  return W;
}

Tensor gaussian_rows(Shape shape, RngKey key) {
  Tensor w = Tensor::empty(shape, default_dtype());
  fill_normal(w, key, 0, 1);
  return w;
}

Tensor orthogonal_rows(i64 blocks, i64 m, i64 d, bool chi_norms, RngKey key) {
  const RngKey directions = key.fold_in("directions"), norms = key.fold_in("norms");
  std::vector<double> w(static_cast<std::size_t>(blocks * m * d));
  const auto dot = [d](const double* x, const double* y) {
    double s = 0;
    for (i64 e = 0; e < d; ++e) s += x[e] * y[e];
    return s;
  };
  for (i64 r = 0; r < blocks * m; ++r) {
    double* row = w.data() + r * d;
    for (i64 e = 0; e < d; ++e) row[e] = directions.normal(static_cast<std::uint64_t>(r * d + e));
    // Gram-Schmidt, twice for full precision. Its R has a positive diagonal, which is what makes Q uniform (Mezzadri 2007).
    const i64 first = r % m / d * d;
    for (int pass = 0; pass < 2; ++pass)
      for (i64 other = first - r % m; other < 0; ++other) {
        const double* done = row + other * d;
        const double along = dot(row, done);
        for (i64 e = 0; e < d; ++e) row[e] -= along * done[e];
      }
    const double length = std::sqrt(dot(row, row));
    for (i64 e = 0; e < d; ++e) row[e] /= length;
  }
  for (i64 r = 0; r < blocks * m; ++r) {
    double square = static_cast<double>(d);
    if (chi_norms) {
      square = 0;
      for (i64 e = 0; e < d; ++e) {
        const double x = norms.normal(static_cast<std::uint64_t>(r * d + e));
        square += x * x;
      }
    }
    for (i64 e = 0; e < d; ++e) w[static_cast<std::size_t>(r * d + e)] *= std::sqrt(square);
  }
  return Tensor::from<double>(w, {blocks, m, d}).to(default_dtype());
}

}  // namespace tapeformer
