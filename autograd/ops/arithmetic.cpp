// arithmetic.cpp: element by element, with NumPy broadcasting. The gradient of a broadcast operand is summed over the repeated axes.
#include <fmt/format.h>

#include <cmath>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/kernels/elementwise.h"
#include "core/parallel.h"

namespace tapeformer::ops {

using kernels::Binary;
using kernels::Unary;

namespace {

Shape strides_in(const Tensor& t) {
  Shape s;
  for (int i = 0; i < t.rank(); ++i) s.push_back(t.stride(i));
  return s;
}

Tensor apply(std::string_view op, Binary f, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype())
    throw ShapeError(fmt::format("[{}] element types differ: got {} and {}", op, name_of(a.dtype()), name_of(b.dtype())));
  const Shape shape = broadcast(a.shape(), b.shape(), op);
  const Tensor x = a.detach().expand(shape), y = b.detach().expand(shape);
  Tensor out = Tensor::empty(shape, a.dtype());
  with_float(op, a.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::binary(f, shape, x.ptr<T>(), strides_in(x), y.ptr<T>(), strides_in(y), out.mut_ptr<T>());
  });
  return out;
}

struct Add final : Node {
  static constexpr std::string_view kName = "add";
  Shape a, b;
  Add(Shape a_, Shape b_) : a(a_), b(b_) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {sum_to(dy, a), sum_to(dy, b)}; }
};

struct Sub final : Node {
  static constexpr std::string_view kName = "sub";
  Shape a, b;
  Sub(Shape a_, Shape b_) : a(a_), b(b_) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {sum_to(dy, a), sum_to(neg(dy), b)}; }
};

struct Mul final : Node {
  static constexpr std::string_view kName = "mul";
  SavedTensor a, b;
  Shape sa, sb;
  bool need_a, need_b;
  Mul(const Tensor& a_, const Tensor& b_)
      : a(b_.grad_ref() ? SavedTensor(a_) : SavedTensor()),
        b(a_.grad_ref() ? SavedTensor(b_) : SavedTensor()),
        sa(a_.shape()),
        sb(b_.shape()),
        need_a(static_cast<bool>(a_.grad_ref())),
        need_b(static_cast<bool>(b_.grad_ref())) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    return {need_a ? sum_to(mul(dy, b.get(kName)), sa) : Tensor(), need_b ? sum_to(mul(dy, a.get(kName)), sb) : Tensor()};
  }
};

struct Div final : Node {  // da = dy / b,  db = -dy a / b^2
  static constexpr std::string_view kName = "div";
  SavedTensor a, b;
  Shape sa, sb;
  Div(const Tensor& a_, const Tensor& b_) : a(a_), b(b_), sa(a_.shape()), sb(b_.shape()) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    const Tensor denominator = b.get(kName), da = div(dy, denominator);
    return {sum_to(da, sa), sum_to(neg(div(mul(da, a.get(kName)), denominator)), sb)};
  }
};

// 1 where a wins, 0.5 where equal, 0 elsewhere, as a float tensor.
Tensor winner(const Tensor& a, const Tensor& b, bool larger) {
  const DType t = a.dtype();
  const Tensor win = (larger ? greater(a, b) : less(a, b)).to(t), tie = equal(a, b).to(t);
  return add(win, scale(tie, 0.5));
}

template <bool kLarger>
struct Extreme final : Node {
  static constexpr std::string_view kName = kLarger ? "maximum" : "minimum";
  SavedTensor a, b;
  Shape sa, sb;
  Extreme(const Tensor& a_, const Tensor& b_) : a(a_, Keep::Exact), b(b_, Keep::Exact), sa(a_.shape()), sb(b_.shape()) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    const Tensor x = a.get(kName), y = b.get(kName);
    return {sum_to(mul(dy, winner(x, y, kLarger)), sa), sum_to(mul(dy, winner(y, x, kLarger)), sb)};
  }
};

struct Scale final : Node {
  static constexpr std::string_view kName = "scale";
  double factor, shift;
  SavedTensor x;  // only when that costs nothing: then the output need not be kept either
  Scale(const Tensor& x_, double f, double s) : factor(f), shift(s) {
    if (is_replayable(x_)) x = SavedTensor(x_);
  }
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {scale(dy, factor)}; }
  bool can_replay() const override { return x.free_to_keep(); }
  int replay_depth() const override { return x.replay_depth() + 1; }
  Tensor replay() const override { return scale(x.get(kName), factor, shift); }
};

struct Pow final : Node {
  static constexpr std::string_view kName = "pow";
  SavedTensor x;
  double p;
  Pow(const Tensor& x_, double p_) : x(x_), p(p_) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {p == 0 ? Tensor::zeros_like(dy) : mul(dy, scale(pow(x.get(kName), p - 1), p))}; }
};

Tensor run_unary(Unary f, const Tensor& x, std::string_view op) {
  const Tensor in = x.detach().to_contiguous();
  Tensor y = Tensor::empty_like(in);
  with_float(op, x.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::unary(f, in.ptr<T>(), y.mut_ptr<T>(), in.numel());
  });
  return y;
}

constexpr std::string_view kUnaryNames[] = {"relu",     "gelu", "gelu_tanh", "silu", "tanh", "sigmoid", "elu", "elu1",
                                            "softplus", "exp",  "log",       "sqrt", "neg",  "abs",     "sin", "cos"};

struct UnaryNode final : Node {  // keeps its input; whoever needs its output again computes it from there
  static constexpr std::string_view kName = "unary";
  Unary f;
  SavedTensor x;
  UnaryNode(Unary f_, const Tensor& x_) : f(f_), x(x_) {}
  std::string_view name() const override { return kUnaryNames[static_cast<int>(f)]; }
  Grads backward(const Tensor& dy) override {
    Tensor dx = gradient_buffer(dy);
    const Tensor in = x.get(name()).to_contiguous(), up = dy.to_contiguous();
    with_float(name(), in.dtype(), [&](auto t) {
      using T = decltype(t);
      kernels::unary_grad(f, in.ptr<T>(), up.ptr<T>(), dx.mut_ptr<T>(), in.numel());
    });
    return {dx};
  }
  bool can_replay() const override { return true; }
  int replay_depth() const override { return x.replay_depth() + 1; }
  Tensor replay() const override { return run_unary(f, x.get(name()), name()); }
};

Tensor unary(Unary f, const Tensor& x) {
  const std::string_view name = kUnaryNames[static_cast<int>(f)];
  Tensor y = run_unary(f, x, name);
  if (const Tape* tape = Tape::current(); tape && tape->options().check_finite && !x.grad_ref()) check_finite_output(y, name);
  return record<UnaryNode>(std::move(y), {&x}, f, x);
}

template <class F>
Tensor compare(std::string_view op, const Tensor& a, const Tensor& b, F&& f) {
  if (a.dtype() != b.dtype())
    throw ShapeError(fmt::format("[{}] element types differ: got {} and {}", op, name_of(a.dtype()), name_of(b.dtype())));
  const Shape shape = broadcast(a.shape(), b.shape(), op);
  const Tensor x = a.detach().expand(shape).to_contiguous(), y = b.detach().expand(shape).to_contiguous();
  Tensor out = Tensor::empty(shape, DType::U8);
  std::uint8_t* o = out.mut_ptr<std::uint8_t>();
  const auto run = [&](auto t) {
    using T = decltype(t);
    const T *p = x.ptr<T>(), *q = y.ptr<T>();
    parallel_for(shape.numel(), 16384, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) o[i] = f(p[i], q[i]);
    });
  };
  if (a.dtype() == DType::I64)
    run(i64{});
  else
    with_float(op, a.dtype(), run);
  return out;
}

Tensor select(const Tensor& condition, const Tensor& a, const Tensor& b, const Shape& shape) {
  const Tensor c = condition.expand(shape).to_contiguous(), x = a.detach().expand(shape).to_contiguous(),
               y = b.detach().expand(shape).to_contiguous();
  Tensor out = Tensor::empty(shape, a.dtype());
  with_float("where", a.dtype(), [&](auto t) {
    using T = decltype(t);
    const std::uint8_t* k = c.ptr<std::uint8_t>();
    const T *p = x.ptr<T>(), *q = y.ptr<T>();
    T* o = out.mut_ptr<T>();
    parallel_for(shape.numel(), 16384, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) o[i] = k[i] ? p[i] : q[i];
    });
  });
  return out;
}

struct Where final : Node {
  static constexpr std::string_view kName = "where";
  Tensor condition;
  Shape sa, sb;
  Where(Tensor c, Shape a, Shape b) : condition(std::move(c)), sa(a), sb(b) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    const Tensor zero = Tensor::zeros({}, dy.dtype());
    return {sum_to(select(condition, dy, zero, dy.shape()), sa), sum_to(select(condition, zero, dy, dy.shape()), sb)};
  }
};

Tensor masked(const Tensor& x, const Tensor& mask) {
  const Tensor in = x.detach().to_contiguous(), keep = mask.to_contiguous();
  Tensor y = Tensor::empty_like(in);
  const i64 width = in.dim(-1);
  with_float("mask_rows", x.dtype(), [&](auto t) {
    using T = decltype(t);
    const std::uint8_t* m = keep.ptr<std::uint8_t>();
    const T* p = in.ptr<T>();
    T* o = y.mut_ptr<T>();
    parallel_for(keep.numel(), 64, [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        if (m[r])
          std::copy_n(p + r * width, width, o + r * width);
        else
          std::fill_n(o + r * width, width, T(0));
      }
    });
  });
  return y;
}

struct MaskRows final : Node {
  static constexpr std::string_view kName = "mask_rows";
  Tensor mask;
  explicit MaskRows(Tensor m) : mask(std::move(m)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {masked(dy, mask)}; }
};

struct StraightThrough final : Node {
  static constexpr std::string_view kName = "straight_through";
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {dy}; }
};

}  // namespace

Tensor straight_through(const Tensor& value, const Tensor& soft) {
  if (value.shape() != soft.shape() || value.dtype() != soft.dtype())
    throw ShapeError(
        fmt::format("[straight_through] got {} and {}, expected the same shape and type", value.shape().str(), soft.shape().str()));
  return record<StraightThrough>(value.detach(), {&soft});
}

Tensor add(const Tensor& a, const Tensor& b) { return record<Add>(apply("add", Binary::Add, a, b), {&a, &b}, a.shape(), b.shape()); }
Tensor sub(const Tensor& a, const Tensor& b) { return record<Sub>(apply("sub", Binary::Sub, a, b), {&a, &b}, a.shape(), b.shape()); }
Tensor mul(const Tensor& a, const Tensor& b) { return record<Mul>(apply("mul", Binary::Mul, a, b), {&a, &b}, a, b); }
Tensor div(const Tensor& a, const Tensor& b) { return record<Div>(apply("div", Binary::Div, a, b), {&a, &b}, a, b); }
Tensor maximum(const Tensor& a, const Tensor& b) { return record<Extreme<true>>(apply("maximum", Binary::Max, a, b), {&a, &b}, a, b); }
Tensor minimum(const Tensor& a, const Tensor& b) { return record<Extreme<false>>(apply("minimum", Binary::Min, a, b), {&a, &b}, a, b); }

Tensor scale(const Tensor& x, double factor, double shift) {
  const Tensor in = x.detach().to_contiguous();
  Tensor y = Tensor::empty_like(in);
  with_float("scale", x.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::scale(factor, shift, in.ptr<T>(), y.mut_ptr<T>(), in.numel());
  });
  return record<Scale>(y, {&x}, x, factor, shift);
}

Tensor pow(const Tensor& x, double exponent) {
  const Tensor in = x.detach().to_contiguous();
  Tensor y = Tensor::empty_like(in);
  with_float("pow", x.dtype(), [&](auto t) {
    using T = decltype(t);
    kernels::power(exponent, in.ptr<T>(), y.mut_ptr<T>(), in.numel());
  });
  return record<Pow>(y, {&x}, x, exponent);
}

Tensor neg(const Tensor& x) { return unary(Unary::Neg, x); }
Tensor exp(const Tensor& x) { return unary(Unary::Exp, x); }
Tensor log(const Tensor& x) { return unary(Unary::Log, x); }
Tensor sqrt(const Tensor& x) { return unary(Unary::Sqrt, x); }
Tensor abs(const Tensor& x) { return unary(Unary::Abs, x); }
Tensor sin(const Tensor& x) { return unary(Unary::Sin, x); }
Tensor cos(const Tensor& x) { return unary(Unary::Cos, x); }
Tensor relu(const Tensor& x) { return unary(Unary::Relu, x); }
Tensor gelu(const Tensor& x) { return unary(Unary::Gelu, x); }
Tensor gelu_tanh(const Tensor& x) { return unary(Unary::GeluTanh, x); }
Tensor silu(const Tensor& x) { return unary(Unary::Silu, x); }
Tensor tanh(const Tensor& x) { return unary(Unary::Tanh, x); }
Tensor sigmoid(const Tensor& x) { return unary(Unary::Sigmoid, x); }
Tensor elu(const Tensor& x) { return unary(Unary::Elu, x); }
Tensor elu1(const Tensor& x) { return unary(Unary::Elu1, x); }
Tensor softplus(const Tensor& x) { return unary(Unary::Softplus, x); }

Tensor equal(const Tensor& a, const Tensor& b) {
  return compare("equal", a, b, [](auto p, auto q) { return p == q; });
}
Tensor less(const Tensor& a, const Tensor& b) {
  return compare("less", a, b, [](auto p, auto q) { return p < q; });
}
Tensor less_equal(const Tensor& a, const Tensor& b) {
  return compare("less_equal", a, b, [](auto p, auto q) { return p <= q; });
}
Tensor greater(const Tensor& a, const Tensor& b) {
  return compare("greater", a, b, [](auto p, auto q) { return p > q; });
}
Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return compare("greater_equal", a, b, [](auto p, auto q) { return p >= q; });
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  if (condition.dtype() != DType::U8) throw ShapeError(fmt::format("[where] the condition is {}, expected u8", name_of(condition.dtype())));
  if (a.dtype() != b.dtype())
    throw ShapeError(fmt::format("[where] element types differ: got {} and {}", name_of(a.dtype()), name_of(b.dtype())));
  const Shape shape = broadcast(condition.shape(), broadcast(a.shape(), b.shape(), "where"), "where");
  return record<Where>(select(condition, a, b, shape), {&a, &b}, condition.expand(shape), a.shape(), b.shape());
}

Tensor mask_rows(const Tensor& x, const Tensor& mask) {
  if (x.rank() < 1 || mask.shape() != x.shape().without(-1) || mask.dtype() != DType::U8)
    throw ShapeError(fmt::format("[mask_rows] got x {} and mask {} {}, expected x [..., D] and u8 mask [...]", x.shape().str(),
                                 name_of(mask.dtype()), mask.shape().str()));
  return record<MaskRows>(masked(x, mask), {&x}, mask);
}

}  // namespace tapeformer::ops
