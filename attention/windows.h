// windows.h: fewer rows along the length, by windows or by learned combinations. Window number t covers positions [t stride, t stride +
// kernel). Positions behind the end are rows of zeros; a window is never moved. One place for values and masks alike, so that they cannot
// disagree.
#pragma once
#include "core/tensor.h"

namespace tapeformer {

class Windows {
 public:
  Windows(i64 length, i64 kernel, i64 stride) : length_(length), kernel_(kernel), stride_(stride) {}
  i64 count() const { return (length_ + stride_ - 1) / stride_; }
  i64 last(i64 t) const { return t * stride_ + kernel_ - 1; }  // its last position; may lie behind the end

  // Real rows in each window, i64 [B, windows]; mask u8 [B, length] or undefined (then B must be given).
  Tensor real_rows(const Tensor& mask, i64 batch) const;
  // Windows with a real row, u8 [B, windows]; undefined when mask is.
  Tensor visible(const Tensor& mask) const;

  // x [B, H, length, d], zero where not real, -> [B, H, windows, d'].
  Tensor mean(const Tensor& x, const Tensor& mask) const;  // of the real rows; 0 where there is none
  Tensor convolve(const Tensor& x, const Tensor& filters,
                  const Tensor& bias) const;  // filters [H, d', d, kernel], bias [H, d'] or undefined
  Tensor convolve_each(const Tensor& x, const Tensor& filters, const Tensor& bias) const;  // every feature alone: filters [H, d, kernel]

 private:
  Tensor grouped(const Tensor& x, const Tensor& filters, const Tensor& bias, i64 groups) const;
  i64 length_, kernel_, stride_;
};

// E x along the length for all samples and heads in one product: E [He, r, length], x [B, H, length, d] -> [B, H, r, d], He = H or 1.
Tensor project_length(const Tensor& E, const Tensor& x);

}  // namespace tapeformer
