// loss.cpp: losses as sums over the labels that count; the caller divides by the number of labels, whatever the split into batches.
#include <fmt/format.h>

#include <cmath>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/kernels/elementwise.h"
#include "core/kernels/softmax.h"
#include "core/parallel.h"

namespace tapeformer::ops {
namespace {

// l = -sum_c q_c log p_c,  q = (1 - s) onehot(t) + s / C, each class term times its weight w_c; dl/dx = p sum(q w) - q w.
struct CrossEntropy final : Node {
  static constexpr std::string_view kName = "cross_entropy";
  SavedTensor log_p;
  Tensor targets;
  CrossEntropyOptions o;
  CrossEntropy(const Tensor& l, Tensor t, CrossEntropyOptions options)
      : log_p(l, Keep::Exact), targets(std::move(t)), o(std::move(options)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    const Tensor lp = log_p.get(kName);
    Tensor dx = Tensor::empty_like(lp);
    const i64 classes = lp.dim(-1);
    const double up = dy.item();
    const i64* target = targets.ptr<i64>();
    with_float(kName, lp.dtype(), [&](auto t) {
      using T = decltype(t);
      const T* weights = o.class_weights.defined() ? o.class_weights.ptr<T>() : nullptr;
      const T* in = lp.ptr<T>();
      T* out = dx.mut_ptr<T>();
      double total_weight = 0;
      for (i64 c = 0; c < classes; ++c) total_weight += weights ? static_cast<double>(weights[c]) : 1.0;
      parallel_for(targets.numel(), 64, [&](i64 begin, i64 end) {
        for (i64 r = begin; r < end; ++r) {
          T* row = out + r * classes;
          if (target[r] == o.ignore) {
            std::fill_n(row, classes, T(0));
            continue;
          }
          const auto weight = [&](i64 c) { return weights ? static_cast<double>(weights[c]) : 1.0; };
          const double low = o.smoothing / static_cast<double>(classes);
          const double mass = (1 - o.smoothing) * weight(target[r]) + low * total_weight;
          for (i64 c = 0; c < classes; ++c) {
            const double q = (low + (c == target[r] ? 1 - o.smoothing : 0)) * weight(c);
            row[c] = static_cast<T>(up * (std::exp(static_cast<double>(in[r * classes + c])) * mass - q));
          }
        }
      });
    });
    return {dx};
  }
};

template <class T>
double cross_entropy_sum(const T* log_p, const i64* target, i64 rows, i64 classes, const CrossEntropyOptions& o) {
  const T* weights = o.class_weights.defined() ? o.class_weights.ptr<T>() : nullptr;
  return parallel_reduce(
      rows, 64, 0.0,
      [&](i64 begin, i64 end) {
        double sum = 0;
        for (i64 r = begin; r < end; ++r) {
          if (target[r] == o.ignore) continue;
          const T* row = log_p + r * classes;
          const auto term = [&](i64 c) { return static_cast<double>(row[c]) * (weights ? static_cast<double>(weights[c]) : 1.0); };
          sum -= (1 - o.smoothing) * term(target[r]);
          if (o.smoothing > 0)
            for (i64 c = 0; c < classes; ++c) sum -= o.smoothing / static_cast<double>(classes) * term(c);
        }
        return sum;
      },
      [](double a, double b) { return a + b; });
}

struct BinaryCrossEntropy final : Node {  // dl/dx = sigmoid(x) - t
  static constexpr std::string_view kName = "binary_cross_entropy";
  SavedTensor x, target;
  BinaryCrossEntropy(const Tensor& x_, const Tensor& t) : x(x_), target(t) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    const Tensor in = x.get(kName);
    return {scale(sub(sigmoid(in), target.get(kName)), dy.item()), scale(in, -dy.item())};
  }
};

struct SquaredError final : Node {
  static constexpr std::string_view kName = "mean_squared_error";
  SavedTensor x, target;
  SquaredError(const Tensor& x_, const Tensor& t) : x(x_), target(t) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    const Tensor g = scale(sub(x.get(kName), target.get(kName)), 2 * dy.item());
    return {g, neg(g)};
  }
};

void check_same(std::string_view op, const Tensor& x, const Tensor& t) {
  if (x.shape() != t.shape() || x.dtype() != t.dtype())
    throw ShapeError(fmt::format("[{}] got {} {} and targets {} {}, expected the same shape and type", op, name_of(x.dtype()),
                                 x.shape().str(), name_of(t.dtype()), t.shape().str()));
}

// Sum of term(x_i, t_i) in double over fixed chunks.
template <class F>
Tensor pair_sum(std::string_view op, const Tensor& x, const Tensor& t, F&& term) {
  const Tensor a = x.detach().to_contiguous(), b = t.detach().to_contiguous();
  double sum = 0;
  with_float(op, x.dtype(), [&](auto zero) {
    using T = decltype(zero);
    const T *p = a.ptr<T>(), *q = b.ptr<T>();
    sum = parallel_reduce(
        a.numel(), 4096, 0.0,
        [&](i64 begin, i64 end) {
          double s = 0;
          for (i64 i = begin; i < end; ++i) s += term(static_cast<double>(p[i]), static_cast<double>(q[i]));
          return s;
        },
        [](double u, double v) { return u + v; });
  });
  return Tensor::scalar(sum, x.dtype());
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets, const CrossEntropyOptions& options) {
  if (logits.rank() < 1 || targets.shape() != logits.shape().without(-1) || targets.dtype() != DType::I64)
    throw ShapeError(fmt::format("[cross_entropy] got logits {} and targets {} {}, expected [..., C] and i64 [...]", logits.shape().str(),
                                 name_of(targets.dtype()), targets.shape().str()));
  const i64 classes = logits.dim(-1);
  CrossEntropyOptions o = options;
  if (!(o.smoothing >= 0 && o.smoothing < 1))
    throw ShapeError(fmt::format("[cross_entropy] smoothing is {}, expected 0 to below 1", o.smoothing));
  if (o.class_weights.defined()) {
    if (o.class_weights.shape() != Shape{classes})
      throw ShapeError(fmt::format("[cross_entropy] class weights are {}, expected [{}]", o.class_weights.shape().str(), classes));
    o.class_weights = o.class_weights.to(logits.dtype()).to_contiguous();
  }
  const Tensor index = targets.to_contiguous();
  for (i64 t : index.data<i64>())
    if (t != o.ignore && (t < 0 || t >= classes))
      throw ShapeError(fmt::format("[cross_entropy] target {}, expected 0 to {} or {}", t, classes - 1, o.ignore));
  Tensor log_p;
  {
    const NoGrad no_grad;
    log_p = log_softmax(logits);
  }
  double sum = 0;
  with_float("cross_entropy", logits.dtype(), [&](auto t) {
    using T = decltype(t);
    sum = cross_entropy_sum(log_p.ptr<T>(), index.ptr<i64>(), index.numel(), classes, o);
  });
  return record<CrossEntropy>(Tensor::scalar(sum, logits.dtype()), {&logits}, log_p, index, o);
}

Tensor binary_cross_entropy(const Tensor& logits, const Tensor& targets) {
  check_same("binary_cross_entropy", logits, targets);
  Tensor y = pair_sum("binary_cross_entropy", logits, targets,
                      [](double x, double t) { return std::max(x, 0.0) - x * t + std::log1p(std::exp(-std::abs(x))); });
  return record<BinaryCrossEntropy>(y, {&logits, &targets}, logits, targets);
}

Tensor mean_squared_error(const Tensor& x, const Tensor& target) {
  check_same("mean_squared_error", x, target);
  Tensor y = pair_sum("mean_squared_error", x, target, [](double a, double b) { return (a - b) * (a - b); });
  return record<SquaredError>(y, {&x, &target}, x, target);
}

}  // namespace tapeformer::ops
