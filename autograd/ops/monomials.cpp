// monomials.cpp: all monomials of a row up to a degree, x^a / sqrt(a!), so that the product of two rows' monomials is the exponential's
// Taylor polynomial of x.y.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/parallel.h"

namespace tapeformer::ops {
namespace {

// Monomial t is its parent times x[variable] times factor; sorted by degree, then by variables in ascending order. The first is 1.
struct Monomials {
  std::vector<i64> parent{0}, variable{0};
  std::vector<double> factor{1};
  Monomials(i64 d, i64 degree) {
    std::vector<i64> power{0};  // of the last variable
    std::size_t begin = 0, end = 1;
    for (i64 p = 0; p < degree; ++p, begin = std::exchange(end, parent.size()))
      for (std::size_t from = begin; from < end; ++from)
        for (i64 e = p == 0 ? 0 : variable[from]; e < d; ++e) {
          power.push_back(p > 0 && e == variable[from] ? power[from] + 1 : 1);
          parent.push_back(static_cast<i64>(from));
          variable.push_back(e);
          factor.push_back(1 / std::sqrt(static_cast<double>(power.back())));
        }
  }
  i64 size() const { return static_cast<i64>(parent.size()); }
};

template <class T>
void fill_row(const Monomials& m, const T* x, T* y) {
  y[0] = 1;
  for (std::size_t t = 1; t < m.parent.size(); ++t) y[t] = y[m.parent[t]] * (x[m.variable[t]] * static_cast<T>(m.factor[t]));
}

struct MonomialsNode final : Node {  // backwards through the same products: nothing is divided by x
  static constexpr std::string_view kName = "monomials";
  SavedTensor x;
  i64 degree;
  MonomialsNode(const Tensor& x_, i64 degree_) : x(x_), degree(degree_) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {
    const Tensor in = x.get(kName).to_contiguous(), dy = up.to_contiguous();
    const Monomials m(in.dim(-1), degree);
    Tensor dx = Tensor::zeros(in.shape(), in.dtype());
    const i64 d = in.dim(-1);
    with_float(kName, in.dtype(), [&](auto zero) {
      using T = decltype(zero);
      T* out = dx.mut_ptr<T>();
      parallel_for(in.numel() / d, std::max<i64>(1, 8192 / m.size()), [&](i64 begin, i64 end) {
        std::vector<T> y(m.parent.size()), g(y.size());
        for (i64 r = begin; r < end; ++r) {
          const T* row = in.ptr<T>() + r * d;
          fill_row(m, row, y.data());
          std::copy_n(dy.ptr<T>() + r * m.size(), m.size(), g.begin());
          for (std::size_t t = m.parent.size() - 1; t > 0; --t) {
            const std::size_t from = static_cast<std::size_t>(m.parent[t]);
            const T send = g[t] * static_cast<T>(m.factor[t]);
            g[from] += send * row[m.variable[t]];
            out[r * d + m.variable[t]] += send * y[from];
          }
        }
      });
    });
    return {dx};
  }
};

}  // namespace

Tensor monomials(const Tensor& x, i64 degree) {
  if (x.rank() < 1 || x.dim(-1) < 1 || degree < 0)
    throw ShapeError(
        fmt::format("[monomials] got x {} and degree {}, expected x [..., d] and a degree of at least 0", x.shape().str(), degree));
  const Monomials m(x.dim(-1), degree);
  const Tensor in = x.detach().to_contiguous();
  Shape shape = x.shape();
  shape[shape.rank() - 1] = m.size();
  Tensor y = Tensor::empty(shape, x.dtype());
  const i64 d = x.dim(-1);
  with_float("monomials", x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    T* out = y.mut_ptr<T>();
    parallel_for(in.numel() / d, std::max<i64>(1, 8192 / m.size()), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) fill_row(m, in.ptr<T>() + r * d, out + r * m.size());
    });
  });
  return record<MonomialsNode>(y, {&x}, x, degree);
}

}  // namespace tapeformer::ops
