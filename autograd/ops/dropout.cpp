// dropout.cpp: y = x keep / (1 - p). The mask is a function of (key, global sample index, position): nothing is stored, and it is the same
// for any split into micro-batches.
#include <fmt/format.h>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/kernels/elementwise.h"

namespace tapeformer::ops {
namespace {

Tensor apply(const Tensor& x, double p, RngKey key, const std::vector<i64>& rows, Tensor y = {}) {
  const Tensor in = x.detach().to_contiguous();
  if (!y.defined()) y = Tensor::empty_like(in);
  const i64 n = in.rank() == 0 ? 1 : in.dim(0);
  with_float("dropout", x.dtype(), [&](auto t) {
    using T = decltype(t);
    if (n > 0) kernels::dropout(p, key, rows.empty() ? nullptr : rows.data(), n, in.numel() / n, in.ptr<T>(), y.mut_ptr<T>());
  });
  return y;
}

struct Dropout final : Node {
  static constexpr std::string_view kName = "dropout";
  double p;
  RngKey key;
  std::vector<i64> rows;
  SavedTensor x;  // only when that costs nothing: then the output need not be kept either
  Dropout(const Tensor& x_, double p_, RngKey k, std::vector<i64> r) : p(p_), key(k), rows(std::move(r)) {
    if (is_replayable(x_)) x = SavedTensor(x_);
  }
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {apply(dy, p, key, rows, gradient_buffer(dy))}; }
  bool can_replay() const override { return x.free_to_keep(); }
  int replay_depth() const override { return x.replay_depth() + 1; }
  Tensor replay() const override { return apply(x.get(kName), p, key, rows); }
};

}  // namespace

Tensor dropout(const Tensor& x, double p, RngKey key, std::span<const i64> rows) {
  if (!(p >= 0 && p < 1)) throw ShapeError(fmt::format("[dropout] got p = {}, expected 0 <= p < 1", p));
  if (p == 0) return x;
  if (!rows.empty() && (x.rank() == 0 || x.dim(0) != static_cast<i64>(rows.size())))
    throw ShapeError(
        fmt::format("[dropout] got {} sample indices for x {}, expected one for each row of axis 0", rows.size(), x.shape().str()));
  std::vector<i64> ids(rows.begin(), rows.end());
  Tensor y = apply(x, p, key, ids);
  return record<Dropout>(y, {&x}, x, p, key, std::move(ids));
}

}  // namespace tapeformer::ops
