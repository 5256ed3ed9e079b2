#include "core/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace tapeformer {

std::size_t size_of(DType t) {
  switch (t) {
    case DType::F64:
    case DType::I64:
      return 8;
    case DType::F32:
    case DType::I32:
      return 4;
    case DType::BF16:
      return 2;
    case DType::U8:
      return 1;
  }
  return 0;
}

std::string_view name_of(DType t) {
  constexpr std::string_view names[] = {"f32", "f64", "bf16", "i64", "i32", "u8"};
  return names[static_cast<int>(t)];
}

BF16 to_bf16(float x) {
  const std::uint32_t u = std::bit_cast<std::uint32_t>(x);
  if ((u & 0x7fffffffu) > 0x7f800000u) return {static_cast<std::uint16_t>((u >> 16) | 0x40)};
  return {static_cast<std::uint16_t>((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}

float to_float(BF16 x) { return std::bit_cast<float>(std::uint32_t{x.bits} << 16); }

Shape::Shape(std::span<const i64> sizes) {
  for (i64 size : sizes) push_back(size);
}

void Shape::push_back(i64 size) {
  if (rank_ == kMaxRank) throw ShapeError(fmt::format("a shape has at most {} dimensions", kMaxRank));
  if (size < 0) throw ShapeError(fmt::format("a dimension cannot be negative: got {}", size));
  sizes_[rank_++] = size;
}

int Shape::axis(int i) const {
  if (i < -rank_ || i >= rank_) throw ShapeError(fmt::format("axis {} is out of range for shape {}", i, str()));
  return i < 0 ? i + rank_ : i;
}

i64 Shape::numel() const {
  i64 n = 1;
  for (i64 size : *this) n *= size;
  return n;
}

Shape Shape::without(int axis_) const {
  Shape out;
  for (int i = 0; i < rank_; ++i)
    if (i != axis(axis_)) out.push_back(sizes_[i]);
  return out;
}

std::string Shape::str() const { return fmt::format("[{}]", fmt::join(begin(), end(), ", ")); }

bool operator==(const Shape& a, const Shape& b) { return std::equal(a.begin(), a.end(), b.begin(), b.end()); }

Shape contiguous_strides(const Shape& shape) {
  Shape strides = shape;
  i64 step = 1;
  for (int i = shape.rank() - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<i64>(shape[i], 1);
  }
  return strides;
}

Shape broadcast(const Shape& a, const Shape& b, std::string_view op) {
  const int rank = std::max(a.rank(), b.rank());
  Shape out;
  for (int i = 0; i < rank; ++i) {
    const int ia = i - (rank - a.rank()), ib = i - (rank - b.rank());
    const i64 x = ia < 0 ? 1 : a[ia], y = ib < 0 ? 1 : b[ib];
    if (x != y && x != 1 && y != 1)
      throw ShapeError(
          fmt::format("[{}] shapes do not broadcast: got {} and {}, expected equal sizes or 1 on each axis", op, a.str(), b.str()));
    out.push_back(x == 1 ? y : x);
  }
  return out;
}

}  // namespace tapeformer
