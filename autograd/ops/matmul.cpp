// matmul.cpp: batched matrix products and the linear layer's product. Transposed and head-split operands are passed by stride.
#include <fmt/format.h>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/gemm.h"

namespace tapeformer::ops {
namespace {

// [b0, b1, rows, columns]; more than two batch axes are merged, by a copy where strides do not allow a view.
Tensor four_axes(const Tensor& x, const Shape& batch) {
  Shape full = batch;
  full.push_back(x.dim(-2));
  full.push_back(x.dim(-1));
  Tensor t = x.detach().expand(full);
  if (batch.rank() > 2) {
    i64 b0 = 1;
    for (int i = 0; i < batch.rank() - 1; ++i) b0 *= batch[i];
    t = t.view({b0, batch[batch.rank() - 1], x.dim(-2), x.dim(-1)});
  }
  while (t.rank() < 4) {
    Shape s{1};
    for (i64 d : t.shape()) s.push_back(d);
    t = t.expand(s);
  }
  return t;
}

template <class T>
kernels::MatrixView<const T> view_of(const Tensor& t) {
  return {t.ptr<T>(), t.stride(2), t.stride(3), t.dim(0) == 1 ? 0 : t.stride(0), t.dim(1) == 1 ? 0 : t.stride(1)};
}

Tensor product(const Tensor& a, const Tensor& b, std::string_view op) {
  if (a.rank() < 2 || b.rank() < 2 || a.dim(-1) != b.dim(-2))
    throw ShapeError(fmt::format("[{}] inner dimensions differ: got a {} and b {}, expected a [..., m, k] and b [..., k, n]", op,
                                 a.shape().str(), b.shape().str()));
  if (a.dtype() != b.dtype())
    throw ShapeError(fmt::format("[{}] element types differ: got {} and {}", op, name_of(a.dtype()), name_of(b.dtype())));
  const Shape batch = broadcast(a.shape().without(-1).without(-1), b.shape().without(-1).without(-1), op);
  Shape out = batch;
  out.push_back(a.dim(-2));
  out.push_back(b.dim(-1));
  Tensor y = Tensor::empty(out, a.dtype());
  if (y.numel() == 0) return y;
  const Tensor x4 = four_axes(a, batch), w4 = four_axes(b, batch);
  with_float(op, a.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::Gemm<T> g;
    g.batch0 = x4.dim(0);
    g.batch1 = x4.dim(1);
    g.m = a.dim(-2);
    g.n = b.dim(-1);
    g.k = a.dim(-1);
    g.a = view_of<T>(x4);
    g.b = view_of<T>(w4);
    g.c = {y.mut_ptr<T>(), g.n, 1, g.batch1 * g.m * g.n, g.m * g.n};
    kernels::gemm(g);
  });
  return y;
}

// The gradient of an operand of shape `to`: x y, summed over the batch axes it was repeated on. An operand that the whole batch shares
// takes every product into one matrix.
Tensor product_for(const Tensor& x, const Tensor& y, const Shape& to, std::string_view op) {
  const Shape batch = broadcast(x.shape().without(-1).without(-1), y.shape().without(-1).without(-1), "matmul");
  const i64 m = x.dim(-2), n = y.dim(-1);
  if (batch.numel() <= 1 || to.numel() != m * n) return sum_to(product(x, y, op), to);
  const Tensor x4 = four_axes(x, batch), y4 = four_axes(y, batch);
  Tensor sum = Tensor::zeros(to, x.dtype());
  with_float(op, x.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::Gemm<T> g{
        .m = m, .n = n, .k = x.dim(-1), .a = view_of<T>(x4), .b = view_of<T>(y4), .c = {sum.mut_ptr<T>(), n}, .accumulate = true};
    const auto a = g.a, b = g.b;
    for (i64 i = 0; i < x4.dim(0); ++i)
      for (i64 j = 0; j < x4.dim(1); ++j) {
        g.a.p = a.p + i * a.batch0 + j * a.batch1;
        g.b.p = b.p + i * b.batch0 + j * b.batch1;
        kernels::gemm(g);
      }
  });
  return sum;
}

struct Matmul final : Node {  // da = dy b^T,  db = a^T dy
  static constexpr std::string_view kName = "matmul";
  SavedTensor a, b;
  Shape sa, sb;
  bool need_a, need_b;
  Matmul(const Tensor& a_, const Tensor& b_)
      : a(b_.grad_ref() ? SavedTensor(a_) : SavedTensor()),
        b(a_.grad_ref() ? SavedTensor(b_) : SavedTensor()),
        sa(a_.shape()),
        sb(b_.shape()),
        need_a(static_cast<bool>(a_.grad_ref())),
        need_b(static_cast<bool>(b_.grad_ref())) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    return {need_a ? product_for(dy, b.get(kName).transpose(-1, -2), sa, kName) : Tensor(),
            need_b ? product_for(a.get(kName).transpose(-1, -2), dy, sb, kName) : Tensor()};
  }
};

Tensor flat(const Tensor& x) { return x.view({x.shape().without(-1).numel(), x.dim(-1)}); }

Tensor affine(const Tensor& x, const Tensor& w, const Tensor& bias) {
  const Tensor rows = flat(x.detach());
  Shape out = x.shape();
  out[out.rank() - 1] = w.dim(1);
  Tensor y = Tensor::empty(out, x.dtype());
  if (y.numel() == 0) return y;
  const Tensor b = bias.defined() ? bias.detach().to_contiguous() : Tensor();
  with_float("linear", x.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::Gemm<T> g;
    g.m = rows.dim(0);
    g.k = rows.dim(1);
    g.n = w.dim(1);
    g.a = {rows.ptr<T>(), rows.stride(0), rows.stride(1)};
    g.b = {w.ptr<T>(), w.stride(0), w.stride(1)};
    g.c = {y.mut_ptr<T>(), g.n, 1};
    if (b.defined()) g.bias = b.ptr<T>();
    kernels::gemm(g);
  });
  return y;
}

struct Linear final : Node {  // dx = dy w^T,  dw = x^T dy,  db = column sums of dy; batch and length are one axis
  static constexpr std::string_view kName = "linear";
  SavedTensor x, w;
  Shape shape;
  bool need_x, need_w, need_b;
  Linear(const Tensor& x_, const Tensor& w_, const Tensor& b)
      : x(w_.grad_ref() ? SavedTensor(x_) : SavedTensor()),
        w(x_.grad_ref() ? SavedTensor(w_, Keep::Exact) : SavedTensor()),
        shape(x_.shape()),
        need_x(static_cast<bool>(x_.grad_ref())),
        need_w(static_cast<bool>(w_.grad_ref())),
        need_b(static_cast<bool>(b.grad_ref())) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& up) override {
    const Tensor dy = flat(up.to_contiguous());
    Grads g(3);
    if (need_w) g[1] = product(flat(x.get(kName)).transpose(0, 1), dy, kName);
    if (need_b) {
      g[2] = Tensor::empty({dy.dim(1)}, dy.dtype());
      with_float(kName, dy.dtype(), [&](auto t) {
        using T = decltype(t);
        kernels::column_sums(dy.ptr<T>(), dy.dim(0), dy.dim(1), g[2].mut_ptr<T>());
      });
    }
    if (need_x) g[0] = product(dy, w.get(kName).transpose(0, 1), kName).view(shape);
    return g;
  }
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) { return record<Matmul>(product(a, b, "matmul"), {&a, &b}, a, b); }

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& bias) {
  if (x.rank() < 1 || w.rank() != 2 || x.dim(-1) != w.dim(0) || (bias.defined() && bias.shape() != Shape{w.dim(1)}))
    throw ShapeError(fmt::format("[linear] got x {}, w {}, bias {}, expected x [..., in], w [in, out], bias [out]", x.shape().str(),
                                 w.shape().str(), bias.defined() ? bias.shape().str() : "none"));
  for (const Tensor* t : {&w, &bias})
    if (t->defined() && t->dtype() != x.dtype())
      throw ShapeError(fmt::format("[linear] element types differ: got {} and {}", name_of(x.dtype()), name_of(t->dtype())));
  return record<Linear>(affine(x, w, bias), {&x, &w, &bias}, x, w, bias);
}

}  // namespace tapeformer::ops
