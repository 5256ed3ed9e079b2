// shape.cpp: other views of the same elements, joining, padding, and moving rows by index.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "autograd/node.h"
#include "autograd/ops.h"
#include "core/kernels/elementwise.h"
#include "core/parallel.h"

namespace tapeformer::ops {
namespace {

template <class N>
struct Keeper : Node {  // a view of something cheap is cheap as well
  SavedTensor source;
  explicit Keeper(const Tensor& x) {
    if (is_replayable(x)) source = SavedTensor(x);
  }
  std::string_view name() const override { return N::kName; }
  bool can_replay() const override { return source.free_to_keep(); }
  int replay_depth() const override { return source.replay_depth() + 1; }
  Tensor replay() const override { return static_cast<const N*>(this)->forward(source.get(N::kName)); }
};

struct Reshape final : Keeper<Reshape> {
  static constexpr std::string_view kName = "reshape";
  Shape from, to;
  Reshape(const Tensor& x, Shape t) : Keeper(x), from(x.shape()), to(t) {}
  Tensor forward(const Tensor& x) const { return x.view(to); }
  Grads backward(const Tensor& dy) override { return {dy.view(from)}; }
};

struct Permute final : Keeper<Permute> {
  static constexpr std::string_view kName = "permute";
  std::vector<int> axes;
  Permute(const Tensor& x, std::vector<int> a) : Keeper(x), axes(std::move(a)) {}
  Tensor forward(const Tensor& x) const { return x.permute(axes); }
  Grads backward(const Tensor& dy) override {
    std::vector<int> inverse(axes.size());
    for (std::size_t i = 0; i < axes.size(); ++i) inverse[static_cast<std::size_t>(dy.shape().axis(axes[i]))] = static_cast<int>(i);
    return {dy.permute(inverse)};
  }
};

void add_strided(const Tensor& x, Tensor target) {  // target (a view) += x
  const Tensor sum = add(target.detach(), x.detach());
  target.copy_from(sum);
}

struct Slice final : Node {
  static constexpr std::string_view kName = "slice";
  int axis;
  i64 from, to;
  Slice(int a, i64 f, i64 t) : axis(a), from(f), to(t) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor&) override { return {}; }
  bool adds_into_buffer() const override { return true; }
  void backward_into(const Tensor& dy, Tensor& buffer) override { add_strided(dy, buffer.slice(axis, from, to)); }
};

struct Concat final : Node {
  static constexpr std::string_view kName = "concat";
  int axis;
  std::vector<i64> sizes;
  Concat(int a, std::vector<i64> s) : axis(a), sizes(std::move(s)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override {
    Grads g;
    i64 at = 0;
    for (i64 size : sizes) {
      g.push_back(dy.slice(axis, at, at + size));
      at += size;
    }
    return g;
  }
};

struct Pad final : Node {
  static constexpr std::string_view kName = "pad";
  int axis;
  i64 before, size;
  Pad(int a, i64 b, i64 s) : axis(a), before(b), size(s) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {dy.slice(axis, before, before + size)}; }
};

struct Expand final : Node {
  static constexpr std::string_view kName = "expand";
  Shape from;
  explicit Expand(Shape f) : from(f) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {sum_to(dy, from)}; }
};

// x as [outer, n, inner] around an axis.
struct Around {
  i64 outer = 1, n, inner = 1;
  Around(const Shape& s, int axis) : n(s[axis]) {
    for (int i = 0; i < axis; ++i) outer *= s[i];
    for (int i = axis + 1; i < s.rank(); ++i) inner *= s[i];
  }
};

void check_index(std::string_view op, const Tensor& index, i64 n) {
  if (index.dtype() != DType::I64) throw ShapeError(fmt::format("[{}] the index is {}, expected i64", op, name_of(index.dtype())));
  for (i64 i : index.data<i64>())
    if (i < -1 || i >= n) throw ShapeError(fmt::format("[{}] index {}, expected -1 to {}", op, i, n - 1));
}

Tensor take(const Tensor& x, int axis, const Tensor& index) {  // -1 gives 0
  const Tensor in = x.detach().to_contiguous();
  const Around a(x.shape(), axis);
  Shape shape = x.shape();
  shape[axis] = index.numel();
  Tensor y = Tensor::empty(shape, x.dtype());
  const auto at = index.data<i64>();
  const i64 m = index.numel();
  with_float("gather", x.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* p = in.ptr<T>();
    T* o = y.mut_ptr<T>();
    parallel_for(a.outer * m, std::max<i64>(1, 8192 / std::max<i64>(a.inner, 1)), [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r) {
        const i64 from = at[static_cast<std::size_t>(r % m)];
        if (from < 0)
          std::fill_n(o + r * a.inner, a.inner, T(0));
        else
          std::copy_n(p + (r / m * a.n + from) * a.inner, a.inner, o + r * a.inner);
      }
    });
  });
  return y;
}

Tensor put_add(const Tensor& x, int axis, const Tensor& index, i64 size) {  // rows with the same index are added in order of position
  const Tensor in = x.detach().to_contiguous();
  const Around a(x.shape(), axis);
  Shape shape = x.shape();
  shape[axis] = size;
  Tensor y = Tensor::zeros(shape, x.dtype());
  const auto at = index.data<i64>();
  with_float("scatter_add", x.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* p = in.ptr<T>();
    T* o = y.mut_ptr<T>();
    parallel_for(a.outer, 1, [&](i64 begin, i64 end) {
      for (i64 r = begin; r < end; ++r)
        for (i64 i = 0; i < a.n; ++i) {
          const i64 to = at[static_cast<std::size_t>(i)];
          if (to < 0) continue;
          T* row = o + (r * size + to) * a.inner;
          const T* from = p + (r * a.n + i) * a.inner;
          for (i64 j = 0; j < a.inner; ++j) row[j] += from[j];
        }
    });
  });
  return y;
}

struct Gather final : Node {
  static constexpr std::string_view kName = "gather";
  int axis;
  Tensor index;
  i64 size;
  Gather(int a, Tensor i, i64 s) : axis(a), index(std::move(i)), size(s) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {put_add(dy, axis, index, size)}; }
};

struct ScatterAdd final : Node {
  static constexpr std::string_view kName = "scatter_add";
  int axis;
  Tensor index;
  ScatterAdd(int a, Tensor i) : axis(a), index(std::move(i)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {take(dy, axis, index)}; }
};

// The index has its own row for every leading position of x [..., n, D].
template <class F>
void for_each_pair(const Shape& x, const Tensor& index, F&& f) {
  const i64 n = x.dim(-2), m = index.dim(-1), outer = index.numel() / std::max<i64>(m, 1);
  const auto at = index.data<i64>();
  parallel_for(outer, 1, [&](i64 begin, i64 end) {
    for (i64 o = begin; o < end; ++o)
      for (i64 i = 0; i < m; ++i) f(o * n, at[static_cast<std::size_t>(o * m + i)], o * m + i);
  });
}

Tensor take_along(const Tensor& x, const Tensor& index) {
  const Tensor in = x.detach().to_contiguous();
  const i64 width = x.dim(-1);
  Shape shape = index.shape();
  shape.push_back(width);
  Tensor y = Tensor::empty(shape, x.dtype());
  with_float("gather_along", x.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* p = in.ptr<T>();
    T* o = y.mut_ptr<T>();
    for_each_pair(x.shape(), index, [&](i64 base, i64 from, i64 to) {
      if (from < 0)
        std::fill_n(o + to * width, width, T(0));
      else
        std::copy_n(p + (base + from) * width, width, o + to * width);
    });
  });
  return y;
}

Tensor put_along(const Tensor& x, const Tensor& index, i64 size) {  // rows with the same index are added in order of position
  const Tensor in = x.detach().to_contiguous();
  const i64 width = x.dim(-1);
  Shape shape = x.shape();
  shape[shape.axis(-2)] = size;
  Tensor y = Tensor::zeros(shape, x.dtype());
  with_float("scatter_along", x.dtype(), [&](auto t) {
    using T = decltype(t);
    const T* p = in.ptr<T>();
    T* o = y.mut_ptr<T>();
    for_each_pair(shape, index, [&](i64 base, i64 to, i64 from) {
      if (to < 0) return;
      for (i64 j = 0; j < width; ++j) o[(base + to) * width + j] += p[from * width + j];
    });
  });
  return y;
}

struct GatherAlong final : Node {
  static constexpr std::string_view kName = "gather_along";
  Tensor index;
  i64 size;
  GatherAlong(Tensor i, i64 n) : index(std::move(i)), size(n) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {put_along(dy, index, size)}; }
};

struct ScatterAlong final : Node {
  static constexpr std::string_view kName = "scatter_along";
  Tensor index;
  explicit ScatterAlong(Tensor i) : index(std::move(i)) {}
  std::string_view name() const override { return kName; }
  Grads backward(const Tensor& dy) override { return {take_along(dy, index)}; }
};

}  // namespace

Tensor reshape(const Tensor& x, Shape shape) { return record<Reshape>(x.detach().view(shape), {&x}, x, shape); }

Tensor reshape(const Tensor& x, std::initializer_list<i64> sizes) {
  i64 known = 1;
  int open = -1, at = 0;
  for (i64 s : sizes) {
    if (s == -1 && open >= 0) throw ShapeError("[reshape] only one size may be -1");
    if (s == -1)
      open = at;
    else
      known *= s;
    ++at;
  }
  std::vector<i64> v(sizes);
  if (open >= 0) {
    if (known == 0 || x.numel() % known != 0)
      throw ShapeError(fmt::format("[reshape] got [{}] for {}, whose elements do not divide", fmt::join(v, ", "), x.shape().str()));
    v[static_cast<std::size_t>(open)] = x.numel() / known;
  }
  return reshape(x, Shape(std::span<const i64>(v)));
}

Tensor permute(const Tensor& x, std::vector<int> axes) {
  Tensor y = x.detach().permute(axes);
  return record<Permute>(y, {&x}, x, std::move(axes));
}

Tensor transpose(const Tensor& x, int a, int b) {
  std::vector<int> axes(static_cast<std::size_t>(x.rank()));
  std::iota(axes.begin(), axes.end(), 0);
  std::swap(axes[static_cast<std::size_t>(x.shape().axis(a))], axes[static_cast<std::size_t>(x.shape().axis(b))]);
  return permute(x, std::move(axes));
}

Tensor slice(const Tensor& x, int axis, i64 from, i64 to) {
  return record<Slice>(x.detach().slice(axis, from, to), {&x}, x.shape().axis(axis), from, to);
}

Tensor concat(const std::vector<Tensor>& parts, int axis) {
  if (parts.empty()) throw ShapeError("[concat] of nothing");
  const int a = parts[0].shape().axis(axis);
  Shape shape = parts[0].shape();
  shape[a] = 0;
  std::vector<i64> sizes;
  for (const Tensor& p : parts) {
    if (p.rank() != shape.rank() || p.shape().without(a) != shape.without(a) || p.dtype() != parts[0].dtype())
      throw ShapeError(fmt::format("[concat] got {} {} beside {} {}, expected equal sizes except on axis {}", name_of(p.dtype()),
                                   p.shape().str(), name_of(parts[0].dtype()), parts[0].shape().str(), axis));
    sizes.push_back(p.shape()[a]);
    shape[a] += sizes.back();
  }
  Tensor y = Tensor::empty(shape, parts[0].dtype());
  i64 at = 0;
  for (const Tensor& p : parts) {
    y.slice(a, at, at + p.shape()[a]).copy_from(p);
    at += p.shape()[a];
  }
  if (Tape::current() == nullptr) return y;
  std::vector<GradRef> refs;
  bool any = false;
  for (const Tensor& p : parts) {
    refs.push_back(p.grad_ref());
    any = any || p.grad_ref();
  }
  return any ? Tape::current()->push(std::move(y), std::make_unique<Concat>(a, std::move(sizes)), std::move(refs)) : y;
}

Tensor pad(const Tensor& x, int axis, i64 before, i64 after, double value) {
  if (before < 0 || after < 0) throw ShapeError(fmt::format("[pad] got {} before and {} after, expected at least 0", before, after));
  const int a = x.shape().axis(axis);
  Shape shape = x.shape();
  shape[a] += before + after;
  Tensor y = Tensor::full(shape, value, x.dtype());
  y.slice(a, before, before + x.shape()[a]).copy_from(x);
  return record<Pad>(y, {&x}, a, before, x.shape()[a]);
}

Tensor expand(const Tensor& x, Shape shape) { return record<Expand>(x.detach().expand(shape), {&x}, x.shape()); }

Tensor gather(const Tensor& x, int axis, const Tensor& index) {
  const int a = x.shape().axis(axis);
  if (index.rank() != 1) throw ShapeError(fmt::format("[gather] got index {}, expected one axis", index.shape().str()));
  const Tensor at = index.to_contiguous();
  check_index("gather", at, x.shape()[a]);
  return record<Gather>(take(x, a, at), {&x}, a, at, x.shape()[a]);
}

Tensor gather_along(const Tensor& x, const Tensor& index) {
  if (x.rank() < 2 || index.rank() != x.rank() - 1 || index.shape().without(-1) != x.shape().without(-1).without(-1))
    throw ShapeError(fmt::format("[gather_along] got x {} and index {}, expected x [..., n, D] and index [..., m]", x.shape().str(),
                                 index.shape().str()));
  const Tensor at = index.to_contiguous();
  check_index("gather_along", at, x.dim(-2));
  return record<GatherAlong>(take_along(x, at), {&x}, at, x.dim(-2));
}

Tensor scatter_add(const Tensor& x, int axis, const Tensor& index, i64 size) {
  const int a = x.shape().axis(axis);
  if (index.shape() != Shape{x.shape()[a]})
    throw ShapeError(fmt::format("[scatter_add] got index {}, expected [{}]", index.shape().str(), x.shape()[a]));
  if (size < 0) throw ShapeError(fmt::format("[scatter_add] got size {}, expected at least 0", size));
  const Tensor at = index.to_contiguous();
  check_index("scatter_add", at, size);
  return record<ScatterAdd>(put_add(x, a, at, size), {&x}, a, at);
}

Tensor scatter_along(const Tensor& x, const Tensor& index, i64 size) {
  if (x.rank() < 2 || index.shape() != x.shape().without(-1))
    throw ShapeError(fmt::format("[scatter_along] got x {} and index {}, expected x [..., m, D] and index [..., m]", x.shape().str(),
                                 index.shape().str()));
  if (size < 0) throw ShapeError(fmt::format("[scatter_along] got size {}, expected at least 0", size));
  const Tensor at = index.to_contiguous();
  check_index("scatter_along", at, size);
  return record<ScatterAlong>(put_along(x, at, size), {&x}, at);
}

Tensor split_heads(const Tensor& x, i64 heads) {
  if (x.rank() != 3 || heads < 1 || x.dim(2) % heads != 0)
    throw ShapeError(fmt::format("[split_heads] got x {} and {} heads, expected [B, N, H d]", x.shape().str(), heads));
  return permute(reshape(x, {x.dim(0), x.dim(1), heads, x.dim(2) / heads}), {0, 2, 1, 3});
}

Tensor merge_heads(const Tensor& x) {
  if (x.rank() != 4) throw ShapeError(fmt::format("[merge_heads] got {}, expected [B, H, N, d]", x.shape().str()));
  return reshape(permute(x, {0, 2, 1, 3}), {x.dim(0), x.dim(2), x.dim(1) * x.dim(3)});
}

}  // namespace tapeformer::ops
