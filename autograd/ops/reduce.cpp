// reduce.cpp: sums, means, maxima over axes, cumulative sums.
#include <fmt/format.h>

#include <algorithm>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/kernels/elementwise.h"
#include "core/parallel.h"

namespace tapeformer::ops {
namespace {

struct Axes {
  std::vector<int> order;  // kept axes first, reduced axes last
  Shape kept, keep_shape;  // without, and with size 1 in place of, the reduced axes
  i64 rows = 1, columns = 1;
  bool leading = false;  // the reduced axes are the first ones of a contiguous tensor: sum columns instead of rows
};

Axes plan(const Shape& shape, const std::vector<int>& axes) {
  unsigned reduced = 0;
  for (int a : axes) reduced |= 1u << shape.axis(a);
  if (axes.empty()) reduced = (1u << shape.rank()) - 1;
  Axes p;
  p.keep_shape = shape;
  for (int i = 0; i < shape.rank(); ++i)
    if (!(reduced >> i & 1)) {
      p.order.push_back(i);
      p.kept.push_back(shape[i]);
      p.rows *= shape[i];
    }
  p.leading = !p.order.empty() && p.order.front() == shape.rank() - static_cast<int>(p.order.size()) && p.order.back() == shape.rank() - 1;
  for (int i = 0; i < shape.rank(); ++i)
    if (reduced >> i & 1) {
      p.order.push_back(i);
      p.keep_shape[i] = 1;
      p.columns *= shape[i];
    }
  return p;
}

Tensor total(const Tensor& x, const Axes& p) {
  Tensor y = Tensor::empty(p.kept, x.dtype());
  with_float("sum", x.dtype(), [&](auto t) {
    using T = decltype(t);
    if (p.leading && x.contiguous()) return kernels::column_sums(x.ptr<T>(), p.columns, p.rows, y.mut_ptr<T>());
    const Tensor in = x.permute(p.order).to_contiguous();
    if (p.rows == 1) {  // one long row: fixed chunks
      y.fill(parallel_reduce(
          p.columns, 4096, 0.0,
          [&](i64 begin, i64 end) {
            double s = 0;
            for (i64 i = begin; i < end; ++i) s += static_cast<double>(in.ptr<T>()[i]);
            return s;
          },
          [](double a, double b) { return a + b; }));
    } else {
      kernels::row_sums(in.ptr<T>(), p.rows, p.columns, y.mut_ptr<T>());
    }
  });
  return y;
}

struct Sum final : Node {
  static constexpr std::string_view kName = "sum";
  Shape keep_shape, full;
  Sum(Shape k, Shape f) : keep_shape(k), full(f) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {dy.view(keep_shape).expand(full)}; }
};

// Views x as [outer, n, inner] around one axis.
struct Around {
  i64 outer = 1, n, inner = 1;
  Around(const Shape& s, int axis) : n(s[axis]) {
    for (int i = 0; i < axis; ++i) outer *= s[i];
    for (int i = axis + 1; i < s.rank(); ++i) inner *= s[i];
  }
};

struct Max final : Node {
  static constexpr std::string_view kName = "max";
  Tensor index;  // i64, where the maximum stood, shaped as [outer, inner]
  Shape full;
  int axis;
  Max(Tensor i, Shape f, int a) : index(std::move(i)), full(f), axis(a) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    const Around a(full, axis);
    const Tensor up = dy.to_contiguous();
    Tensor dx = Tensor::zeros(full, dy.dtype());
    const i64* at = index.ptr<i64>();
    with_float(kName, dy.dtype(), [&](auto t) {
      using T = decltype(t);
      T* out = dx.mut_ptr<T>();
      for (i64 o = 0; o < a.outer; ++o)
        for (i64 i = 0; i < a.inner; ++i) out[(o * a.n + at[o * a.inner + i]) * a.inner + i] = up.ptr<T>()[o * a.inner + i];
    });
    return {dx};
  }
};

Tensor running_sum(const Tensor& x, int axis, bool from_end) {
  const Around a(x.shape(), axis);
  const Tensor in = x.detach().to_contiguous();
  Tensor y = Tensor::empty_like(in);
  with_float("cumsum", x.dtype(), [&](auto t) {
    using T = decltype(t);
    T* out = y.mut_ptr<T>();
    parallel_for(a.outer * a.inner, 256, [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const i64 base = r / a.inner * a.n * a.inner + r % a.inner;
        double s = 0;
        for (i64 k = 0; k < a.n; ++k) {
          const i64 at = base + (from_end ? a.n - 1 - k : k) * a.inner;
          out[at] = static_cast<T>(s += static_cast<double>(in.ptr<T>()[at]));
        }
      }
    });
  });
  return y;
}

struct CumSum final : Node {
  static constexpr std::string_view kName = "cumsum";
  int axis;
  explicit CumSum(int a) : axis(a) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {running_sum(dy, axis, true)}; }
};

}  // namespace

Tensor sum(const Tensor& x, std::vector<int> axes, bool keep) {
  const Axes p = plan(x.shape(), axes);
  Tensor y = total(x.detach(), p);
  if (keep) y = y.view(p.keep_shape);
  return record<Sum>(y, {&x}, p.keep_shape, x.shape());
}

Tensor mean(const Tensor& x, std::vector<int> axes, bool keep) {
  const i64 n = plan(x.shape(), axes).columns;
  if (n == 0) throw ShapeError(fmt::format("[mean] of no elements: shape {}", x.shape().str()));
  return scale(sum(x, std::move(axes), keep), 1.0 / static_cast<double>(n));
}

Tensor max(const Tensor& x, int axis, bool keep) {
  const int ax = x.shape().axis(axis);
  const Around a(x.shape(), ax);
  if (a.n == 0) throw ShapeError(fmt::format("[max] of no elements: axis {} of {}", axis, x.shape().str()));
  Shape kept = x.shape().without(ax), keep_shape = x.shape();
  keep_shape[ax] = 1;
  const Tensor in = x.detach().to_contiguous();
  Tensor y = Tensor::empty(keep ? keep_shape : kept, x.dtype());
  Tensor index = Tensor::empty(kept, DType::I64);
  with_float("max", x.dtype(), [&](auto t) {
    using T = decltype(t);
    T* out = y.mut_ptr<T>();
    i64* at = index.mut_ptr<i64>();
    for (i64 o = 0; o < a.outer; ++o)
      for (i64 i = 0; i < a.inner; ++i) {
        const T* p = in.ptr<T>() + o * a.n * a.inner + i;
        i64 best = 0;
        for (i64 k = 1; k < a.n; ++k)
          if (p[k * a.inner] > p[best * a.inner] || (p[k * a.inner] != p[k * a.inner] && p[best * a.inner] == p[best * a.inner])) best = k;
        out[o * a.inner + i] = p[best * a.inner];
        at[o * a.inner + i] = best;
      }
  });
  return record<Max>(y, {&x}, index, x.shape(), ax);
}

Tensor cumsum(const Tensor& x, int axis) {
  const int a = x.shape().axis(axis);
  return record<CumSum>(running_sum(x, a, false), {&x}, a);
}

}  // namespace tapeformer::ops

namespace tapeformer {

Tensor sum_to(const Tensor& g, const Shape& shape) {
  if (g.shape() == shape) return g;
  std::vector<int> axes;
  const int lead = g.rank() - shape.rank();
  for (int i = 0; i < g.rank(); ++i)
    if (i < lead || (shape[i - lead] == 1 && g.shape()[i] != 1)) axes.push_back(i);
  return axes.empty() ? g.view(shape) : ops::sum(g, axes, true).view(shape);
}

}  // namespace tapeformer
