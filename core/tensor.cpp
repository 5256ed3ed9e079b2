#include "core/tensor.h"

#include <fmt/format.h>

#include <cstring>

#include "core/error.h"

namespace tapeformer {
namespace {

template <class F>
decltype(auto) dispatch(DType t, F&& f) {
  switch (t) {
    case DType::F32:
      return f(float{});
    case DType::F64:
      return f(double{});
    case DType::BF16:
      return f(BF16{});
    case DType::I64:
      return f(i64{});
    case DType::I32:
      return f(std::int32_t{});
    case DType::U8:
      break;
  }
  return f(std::uint8_t{});
}

template <class To, class From>
To convert(From x) {
  if constexpr (std::is_same_v<To, From>)
    return x;
  else if constexpr (std::is_same_v<From, BF16>)
    return static_cast<To>(to_float(x));
  else if constexpr (std::is_same_v<To, BF16>)
    return to_bf16(static_cast<float>(x));
  else
    return static_cast<To>(x);
}

// Visits rows of the last axis: f(element offset of the row in a, in b, length).
template <class F>
void for_each_row(const Shape& shape, const Shape& sa, const Shape& sb, F&& f) {
  if (shape.numel() == 0) return;
  const int outer = std::max(shape.rank() - 1, 0);
  const i64 length = shape.rank() == 0 ? 1 : shape[outer];
  std::array<i64, Shape::kMaxRank> index{};
  i64 a = 0, b = 0;
  while (true) {
    f(a, b, length);
    int axis = outer - 1;
    for (; axis >= 0; --axis) {
      a += sa[axis];
      b += sb[axis];
      if (++index[axis] < shape[axis]) break;
      a -= sa[axis] * shape[axis];
      b -= sb[axis] * shape[axis];
      index[axis] = 0;
    }
    if (axis < 0) return;
  }
}

// Strides under which the elements of (from, from_strides) read as `to` without a copy; false when there are none.
bool strides_for_view(const Shape& from, const Shape& from_strides, const Shape& to, Shape& to_strides) {
  if (from.numel() == 0) return true;
  int i = from.rank() - 1, j = to.rank() - 1;
  while (j >= 0) {
    if (to[j] == 1) {
      to_strides[j--] = 1;
      continue;
    }
    while (i >= 0 && from[i] == 1) --i;
    // One group of axes of `from` that walk like one axis.
    const i64 step = from_strides[i];
    i64 run = from[i];
    while (i > 0 && (from[i - 1] == 1 || from_strides[i - 1] == step * run)) run *= from[--i];
    --i;
    i64 covered = 1;
    while (j >= 0 && (covered < run || to[j] == 1)) {
      to_strides[j] = step * covered;
      covered *= to[j--];
    }
    if (covered != run) return false;
  }
  return true;
}

}  // namespace

void check_value_count(std::size_t got, const Shape& shape) {
  if (got != static_cast<std::size_t>(shape.numel()))
    throw ShapeError(fmt::format("got {} values for shape {}, expected {}", got, shape.str(), shape.numel()));
}

Tensor Tensor::empty(Shape shape, DType dtype) {
  Tensor t;
  t.shape_ = shape;
  t.strides_ = contiguous_strides(shape);
  t.dtype_ = dtype;
  t.storage_ = std::make_shared<Storage>(t.bytes());
  return t;
}

Tensor Tensor::zeros(Shape shape, DType dtype) {
  Tensor t = empty(shape, dtype);
  std::memset(t.raw_mut(dtype), 0, t.bytes());
  return t;
}

Tensor Tensor::full(Shape shape, double value, DType dtype) {
  Tensor t = empty(shape, dtype);
  t.fill(value);
  return t;
}

Tensor Tensor::empty_like(const Tensor& t) { return empty(t.shape(), t.dtype()); }
Tensor Tensor::zeros_like(const Tensor& t) { return zeros(t.shape(), t.dtype()); }
Tensor Tensor::scalar(double value, DType dtype) { return full({}, value, dtype); }

bool Tensor::contiguous() const {
  i64 step = 1;
  for (int i = shape_.rank() - 1; i >= 0; --i) {
    if (shape_[i] != 1 && strides_[i] != step) return shape_.numel() == 0;
    step *= shape_[i];
  }
  return true;
}

const std::byte* Tensor::raw(DType want) const {
  TAPEFORMER_ASSERT(defined(), "read of an undefined tensor");
  if (want != dtype_) throw ShapeError(fmt::format("tensor holds {}, read as {}", name_of(dtype_), name_of(want)));
  return storage_->data() + offset_ * static_cast<i64>(size_of(dtype_));
}

std::byte* Tensor::raw_mut(DType want) {
  raw(want);
  storage_->touch();
  return storage_->data() + offset_ * static_cast<i64>(size_of(dtype_));
}

void Tensor::require_contiguous() const { TAPEFORMER_ASSERT(contiguous(), "a span was asked of a strided view"); }

double Tensor::item() const {
  if (numel() != 1) throw ShapeError(fmt::format("item() needs one element, got shape {}", shape_.str()));
  return to_vector()[0];
}

std::vector<double> Tensor::to_vector() const {
  const Tensor t = to(DType::F64).to_contiguous();
  const auto values = t.data<double>();
  return {values.begin(), values.end()};
}

Tensor Tensor::view(Shape shape) const {
  if (shape.numel() != numel())
    throw ShapeError(fmt::format("[reshape] got {} for {}, expected the same number of elements", shape.str(), shape_.str()));
  Tensor t = *this;
  Shape strides = contiguous_strides(shape);
  if (!contiguous() && !strides_for_view(shape_, strides_, shape, strides)) {
    t = clone();
    strides = contiguous_strides(shape);  // what the failed attempt left is no use
  }
  t.grad_ = grad_;
  t.shape_ = shape;
  t.strides_ = strides;
  return t;
}

Tensor Tensor::slice(int axis, i64 from, i64 to) const {
  const int a = shape_.axis(axis);
  if (from < 0 || to < from || to > shape_[a])
    throw ShapeError(fmt::format("[slice] got [{}, {}) on axis {} of {}", from, to, axis, shape_.str()));
  Tensor t = *this;
  t.offset_ += from * strides_[a];
  t.shape_[a] = to - from;
  return t;
}

Tensor Tensor::permute(std::span<const int> axes) const {
  if (static_cast<int>(axes.size()) != rank())
    throw ShapeError(fmt::format("[permute] got {} axes for shape {}", axes.size(), shape_.str()));
  Tensor t = *this;
  unsigned seen = 0;
  for (int i = 0; i < rank(); ++i) {
    const int a = shape_.axis(axes[i]);
    seen |= 1u << a;
    t.shape_[i] = shape_[a];
    t.strides_[i] = strides_[a];
  }
  if (seen != (1u << rank()) - 1) throw ShapeError(fmt::format("[permute] an axis of {} is named twice", shape_.str()));
  return t;
}

Tensor Tensor::transpose(int a, int b) const {
  Tensor t = *this;
  const int x = shape_.axis(a), y = shape_.axis(b);
  std::swap(t.shape_[x], t.shape_[y]);
  std::swap(t.strides_[x], t.strides_[y]);
  return t;
}

Tensor Tensor::expand(Shape shape) const {
  if (broadcast(shape_, shape, "expand") != shape)
    throw ShapeError(fmt::format("[expand] got {} for {}, expected a shape it broadcasts to", shape.str(), shape_.str()));
  Tensor t = *this;
  t.shape_ = shape;
  t.strides_ = shape;
  const int lead = shape.rank() - rank();
  for (int i = 0; i < shape.rank(); ++i) t.strides_[i] = i < lead || (shape_[i - lead] == 1 && shape[i] != 1) ? 0 : strides_[i - lead];
  return t;
}

Tensor Tensor::to_contiguous() const { return contiguous() ? *this : clone(); }

Tensor Tensor::clone() const {
  Tensor t = empty(shape_, dtype_);
  t.copy_from(*this);
  return t;
}

Tensor Tensor::detach() const {
  Tensor t = *this;
  t.grad_ = {};
  return t;
}

Tensor Tensor::to(DType dtype) const {
  if (dtype == dtype_) return *this;
  Tensor t = empty(shape_, dtype);
  t.copy_from(*this);
  return t;
}

void Tensor::fill(double value) {
  dispatch(dtype_, [&](auto zero) {
    using T = decltype(zero);
    T* p = mut_ptr<T>();
    const T v = convert<T>(value);
    for_each_row(shape_, strides_, strides_, [&](i64 at, i64, i64 n) {
      const i64 step = rank() == 0 ? 1 : strides_[rank() - 1];
      for (i64 i = 0; i < n; ++i) p[at + i * step] = v;
    });
  });
}

void Tensor::copy_from(const Tensor& source) {
  if (source.shape() != shape_) throw ShapeError(fmt::format("[copy] got {}, expected {}", source.shape().str(), shape_.str()));
  const i64 to_step = rank() == 0 ? 1 : strides_[rank() - 1], from_step = rank() == 0 ? 1 : source.strides_[rank() - 1];
  dispatch(dtype_, [&](auto to_zero) {
    dispatch(source.dtype_, [&](auto from_zero) {
      using To = decltype(to_zero);
      using From = decltype(from_zero);
      To* to = mut_ptr<To>();
      const From* from = source.ptr<From>();
      for_each_row(shape_, strides_, source.strides_, [&](i64 a, i64 b, i64 n) {
        if (std::is_same_v<To, From> && to_step == 1 && from_step == 1) {
          std::memcpy(to + a, from + b, static_cast<std::size_t>(n) * sizeof(To));
        } else {
          for (i64 i = 0; i < n; ++i) to[a + i * to_step] = convert<To>(from[b + i * from_step]);
        }
      });
    });
  });
}

std::string Tensor::str() const {
  if (!defined()) return "undefined";
  std::string text = fmt::format("{} {}", name_of(dtype_), shape_.str());
  if (numel() == 0) return text;
  const std::vector<double> values = to_vector();
  const std::size_t shown = std::min<std::size_t>(values.size(), 8);
  return fmt::format("{} {}{}", text, fmt::join(values.begin(), values.begin() + static_cast<i64>(shown), " "),
                     shown < values.size() ? " ..." : "");
}

}  // namespace tapeformer
