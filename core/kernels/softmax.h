// softmax.h: softmax and log-softmax over the last axis, by rows.
#pragma once
#include <cstdint>

#include "core/shape.h"

namespace tapeformer::kernels {

// y[r, j] = exp(x[r, j] - max_r) / sum over kept columns. keep: null, or u8 [rows, columns]; columns with keep 0 give exactly 0,
// a row without kept columns is all 0.
template <class T>
void softmax(const T* x, const std::uint8_t* keep, i64 rows, i64 columns, T* y);
template <class T>
void softmax_grad(const T* y, const T* dy, i64 rows, i64 columns, T* dx);  // dx = y (dy - sum(y dy))
// Kept columns: x - max - log(sum exp(x - max)) over them; others 0. keep as above, one row of it for every row of x.
template <class T>
void log_softmax(const T* x, const std::uint8_t* keep, i64 rows, i64 columns, T* y);
// dx = dy - exp(y) sum(dy), over the kept columns.
template <class T>
void log_softmax_grad(const T* y, const std::uint8_t* keep, const T* dy, i64 rows, i64 columns, T* dx);

}  // namespace tapeformer::kernels
