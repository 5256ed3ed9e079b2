// embedding.cpp: rows of a table. The gradient is added row by row in the order of (id, position), never with atomics.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/parallel.h"

namespace tapeformer::ops {
namespace {

struct Embedding final : Node {
  static constexpr std::string_view kName = "embedding";
  Tensor ids;
  explicit Embedding(Tensor i) : ids(std::move(i)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor&) override { return {}; }
  bool adds_into_buffer() const override { return true; }
  void backward_into(const Tensor& up, Tensor& buffer) override {
    const Tensor dy = up.to_contiguous();
    const i64 width = buffer.dim(1), n = ids.numel();
    const i64* id = ids.ptr<i64>();
    std::vector<i64> order(static_cast<std::size_t>(n)), starts;
    std::iota(order.begin(), order.end(), i64{0});
    std::stable_sort(order.begin(), order.end(), [&](i64 a, i64 b) { return id[a] < id[b]; });
    for (i64 i = 0; i < n; ++i)
      if (i == 0 || id[order[static_cast<std::size_t>(i)]] != id[order[static_cast<std::size_t>(i - 1)]]) starts.push_back(i);
    starts.push_back(n);
    with_float(kName, dy.dtype(), [&](auto t) {
      using T = decltype(t);
      T* out = buffer.mut_ptr<T>();
      const T* in = dy.ptr<T>();
      parallel_for(static_cast<i64>(starts.size()) - 1, 16, [&](i64 begin, i64 end) {
        for (i64 s = begin; s < end; ++s)
          for (i64 i = starts[static_cast<std::size_t>(s)]; i < starts[static_cast<std::size_t>(s + 1)]; ++i) {
            const i64 from = order[static_cast<std::size_t>(i)];
            T* row = out + id[from] * width;
            for (i64 j = 0; j < width; ++j) row[j] += in[from * width + j];
          }
      });
    });
  }
};

}  // namespace

Tensor embedding(const Tensor& table, const Tensor& ids) {
  if (table.rank() != 2 || ids.dtype() != DType::I64)
    throw ShapeError(
        fmt::format("[embedding] got table {} and ids {}, expected table [V, D] and i64 ids", table.shape().str(), name_of(ids.dtype())));
  const Tensor index = ids.to_contiguous();
  const i64 width = table.dim(1), rows = table.dim(0), n = index.numel();
  const i64* id = index.ptr<i64>();
  for (i64 i = 0; i < n; ++i)
    if (id[i] < 0 || id[i] >= rows) throw ShapeError(fmt::format("[embedding] id {} at position {}, expected 0 to {}", id[i], i, rows - 1));
  Shape shape = ids.shape();
  shape.push_back(width);
  Tensor y = Tensor::empty(shape, table.dtype());
  const Tensor source = table.detach().to_contiguous();
  with_float("embedding", table.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* in = source.ptr<T>();
    T* out = y.mut_ptr<T>();
    parallel_for(n, 256, [&](i64 begin, i64 end) {
      for (i64 i = begin; i < end; ++i) std::copy_n(in + id[i] * width, width, out + i * width);
    });
  });
  return record<Embedding>(y, {&table}, index);
}

}  // namespace tapeformer::ops
