// softmax.h: softmax and log-softmax over the last axis, by rows.
#pragma once
#include <cstdint>

#include "core/shape.h"

namespace tapeformer::kernels {

// y[r, j] = exp(x[r, j] - max_r) / sum over kept columns. keep: null, or u8 with row r at keep + (r / rows_per_keep) * columns; columns with
// keep 0 give exactly 0, a row without kept columns is all 0.
template <class T> void softmax(const T* x, const std::uint8_t* keep, i64 rows_per_keep, i64 rows, i64 columns, T* y);
template <class T> void softmax_grad(const T* y, const T* dy, i64 rows, i64 columns, T* dx);          // dx = y (dy - sum(y dy))
template <class T> void log_softmax(const T* x, i64 rows, i64 columns, T* y);
template <class T> void log_softmax_grad(const T* y, const T* dy, i64 rows, i64 columns, T* dx);      // dx = dy - exp(y) sum(dy)

}  // namespace tapeformer::kernels
