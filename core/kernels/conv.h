// conv.h: 1-D and 2-D cross-correlation, channels last, through oneDNN for f32 and plain loops for f64.
#pragma once
#include "core/shape.h"

namespace tapeformer::kernels {

struct Conv2d {  // x [B, Hi, Wi, Ci], w [Co, Ci/groups, Kh, Kw], y [B, Ho, Wo, Co]; all contiguous
  i64 B, Hi, Wi, Ci, Co, Kh, Kw;
  i64 stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1, groups = 1;
  i64 pad_top = 0, pad_bottom = 0, pad_left = 0, pad_right = 0;
  i64 Ho() const { return (Hi + pad_top + pad_bottom - dilation_h * (Kh - 1) - 1) / stride_h + 1; }
  i64 Wo() const { return (Wi + pad_left + pad_right - dilation_w * (Kw - 1) - 1) / stride_w + 1; }
};
// bias, db: [Co] or null. A 1-D convolution is the case Hi = Kh = 1. T: float, double.
template <class T>
void conv2d(const Conv2d&, const T* x, const T* w, const T* bias, T* y);
template <class T>
void conv2d_grad(const Conv2d&, const T* x, const T* w, const T* dy, T* dx, T* dw, T* db);  // each output may be null
template <class T>
void conv2d_reference(const Conv2d&, const T* x, const T* w, const T* bias, T* y);
template <class T>
void conv2d_grad_reference(const Conv2d&, const T* x, const T* w, const T* dy, T* dx, T* dw, T* db);

}  // namespace tapeformer::kernels
