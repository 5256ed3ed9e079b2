// tensor.h: the one tensor type: a small value over shared Storage. Copying a Tensor copies no data. Views (slice, permute,
// expand) are strided. It carries a GradRef for autograd, which core stores and never interprets.
#pragma once
#include <algorithm>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/shape.h"
#include "core/storage.h"

namespace tapeformer {

struct GradRef {
  std::uint64_t tape = 0;
  std::int32_t entry = -1;
  explicit operator bool() const { return entry >= 0; }
};

class Tensor {
 public:
  Tensor() = default;  // undefined
  static Tensor empty(Shape, DType = DType::F32);
  static Tensor zeros(Shape, DType = DType::F32);
  static Tensor full(Shape, double value, DType = DType::F32);
  static Tensor empty_like(const Tensor&);  // contiguous
  static Tensor zeros_like(const Tensor&);
  static Tensor scalar(double value, DType = DType::F32);  // shape []
  template <class T>
  static Tensor from(std::span<const T> values, Shape);
  template <class T>
  static Tensor from(const std::vector<T>& values, Shape s) {
    return from(std::span<const T>(values), s);
  }
  template <class T>
  static Tensor from(std::initializer_list<T> values, Shape s) {
    return from(std::span<const T>(values.begin(), values.size()), s);
  }

  bool defined() const { return storage_ != nullptr; }
  explicit operator bool() const { return defined(); }
  const Shape& shape() const { return shape_; }
  i64 dim(int axis) const { return shape_.dim(axis); }
  int rank() const { return shape_.rank(); }
  i64 numel() const { return shape_.numel(); }
  DType dtype() const { return dtype_; }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * size_of(dtype_); }
  i64 stride(int axis) const { return strides_[shape_.axis(axis)]; }  // in elements; 0 on an expanded axis
  bool contiguous() const;
  bool unique() const { return storage_.use_count() == 1; }  // nobody else holds this storage
  const std::shared_ptr<Storage>& storage() const { return storage_; }

  // First element; follow stride() when not contiguous. Throws ShapeError when T is not the element type.
  template <class T>
  const T* ptr() const {
    return reinterpret_cast<const T*>(raw(dtype_of<T>));
  }
  template <class T>
  T* mut_ptr() {
    return reinterpret_cast<T*>(raw_mut(dtype_of<T>));
  }  // raises the version
  // All elements of a contiguous tensor.
  template <class T>
  std::span<const T> data() const {
    return {contiguous_raw<T>(), static_cast<std::size_t>(numel())};
  }
  template <class T>
  std::span<T> mut() {
    contiguous_raw<T>();
    return {mut_ptr<T>(), static_cast<std::size_t>(numel())};
  }
  double item() const;                    // the value of a one-element tensor
  std::vector<double> to_vector() const;  // every element, row-major

  Tensor view(Shape) const;                        // same elements; a copy only where strides allow no view
  Tensor slice(int axis, i64 from, i64 to) const;  // strided view of [from, to)
  Tensor permute(std::span<const int> axes) const;
  Tensor transpose(int a, int b) const;
  Tensor expand(Shape) const;    // broadcast view, stride 0 on repeated axes
  Tensor to_contiguous() const;  // this when already contiguous
  Tensor clone() const;          // own storage, contiguous, no GradRef
  Tensor detach() const;         // same storage, no GradRef
  Tensor to(DType) const;        // converted copy; this when already so
  void fill(double value);
  void copy_from(const Tensor& source);  // same shape; converts the type

  GradRef grad_ref() const { return grad_; }
  void set_grad_ref(GradRef g) { grad_ = g; }
  std::string str() const;  // for messages: "f32 [2, 3]" and the first values

 private:
  const std::byte* raw(DType want) const;
  std::byte* raw_mut(DType want);
  template <class T>
  const T* contiguous_raw() const;
  void require_contiguous() const;

  std::shared_ptr<Storage> storage_;
  Shape shape_, strides_;
  i64 offset_ = 0;  // in elements
  DType dtype_ = DType::F32;
  GradRef grad_;
};

template <class T>
const T* Tensor::contiguous_raw() const {
  require_contiguous();
  return ptr<T>();
}

void check_value_count(std::size_t got, const Shape& shape);  // ShapeError when the count differs

template <class T>
Tensor Tensor::from(std::span<const T> values, Shape s) {
  Tensor t = empty(s, dtype_of<T>);
  check_value_count(values.size(), s);
  std::copy(values.begin(), values.end(), t.mut<T>().begin());
  return t;
}

}  // namespace tapeformer
