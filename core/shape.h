// shape.h: sizes, strides, element types. A Shape is a small value of at most eight dimensions.
#pragma once
#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace tapeformer {

using i64 = std::int64_t;

enum class DType : std::uint8_t { F32, F64, BF16, I64, I32, U8 };

std::size_t size_of(DType);       // bytes of one element
std::string_view name_of(DType);  // "f32", "f64", "bf16", "i64", "i32", "u8"
inline bool is_float(DType t) { return t == DType::F32 || t == DType::F64 || t == DType::BF16; }

struct BF16 {  // storage only: arithmetic happens in f32
  std::uint16_t bits;
};
BF16 to_bf16(float);  // rounds to nearest, ties to even; NaN stays NaN
float to_float(BF16);

template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
  static constexpr DType value = DType::F32;
};
template <>
struct DTypeOf<double> {
  static constexpr DType value = DType::F64;
};
template <>
struct DTypeOf<BF16> {
  static constexpr DType value = DType::BF16;
};
template <>
struct DTypeOf<i64> {
  static constexpr DType value = DType::I64;
};
template <>
struct DTypeOf<std::int32_t> {
  static constexpr DType value = DType::I32;
};
template <>
struct DTypeOf<std::uint8_t> {
  static constexpr DType value = DType::U8;
};
template <class T>
inline constexpr DType dtype_of = DTypeOf<T>::value;

class Shape {
 public:
  static constexpr int kMaxRank = 8;
  Shape() = default;
  Shape(std::initializer_list<i64> sizes) : Shape(std::span<const i64>(sizes.begin(), sizes.size())) {}
  explicit Shape(std::span<const i64> sizes);

  int rank() const { return rank_; }
  i64 operator[](int i) const { return sizes_[i]; }
  i64& operator[](int i) { return sizes_[i]; }
  i64 dim(int i) const { return sizes_[axis(i)]; }  // negative counts from the end
  int axis(int i) const;                            // 0 <= result < rank, or ShapeError
  i64 numel() const;
  const i64* begin() const { return sizes_.data(); }
  const i64* end() const { return sizes_.data() + rank_; }
  void push_back(i64 size);
  Shape without(int axis) const;
  std::string str() const;  // "[8, 512]"
  friend bool operator==(const Shape& a, const Shape& b);

 private:
  std::array<i64, kMaxRank> sizes_{};
  int rank_ = 0;
};

Shape contiguous_strides(const Shape&);                                // in elements, row-major
Shape broadcast(const Shape& a, const Shape& b, std::string_view op);  // NumPy rules, ShapeError names the op

}  // namespace tapeformer
