// rows_view.h: tensors [B, H, N, d] as kernels read them: three strides and rows whose elements lie side by side.
#pragma once
#include "core/kernels/attention.h"
#include "core/tensor.h"

namespace tapeformer {

// The tensor without its GradRef when its last stride is 1, else a copy.
inline Tensor rows_ready(const Tensor& t) { return t.dim(3) <= 1 || t.stride(3) == 1 ? t.detach() : t.detach().clone(); }

template <class T>
kernels::RowsView<const T> rows_view(const Tensor& t) {
  return {t.ptr<T>(), t.stride(0), t.stride(1), t.stride(2)};
}
template <class T>
kernels::RowsView<T> rows_view_mut(Tensor& t) {  // undefined: a null view
  if (!t.defined()) return {};
  return {t.mut_ptr<T>(), t.stride(0), t.stride(1), t.stride(2)};
}

}  // namespace tapeformer
