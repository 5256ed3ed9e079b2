// norm.h: layer norm and RMS norm over the last axis.
//   layer norm  y = (x - mean) rstd g + b,  rstd = 1 / sqrt(var + eps) with the biased variance     (Ba et al. 2016, eq. 4)
//   RMS norm    y = x rstd g,               rstd = 1 / sqrt(mean(x^2) + eps)                        (Zhang & Sennrich 2019, eq. 4)
#pragma once
#include "core/shape.h"

namespace tapeformer::kernels {

// mean, rstd: [rows]; g, b: [columns]. mean null: RMS norm (b is then ignored); b null: no shift.
template <class T>
void norm(const T* x, const T* g, const T* b, double eps, i64 rows, i64 columns, T* y, T* mean, T* rstd);
// y again from the saved statistics, the same bits.
template <class T>
void norm_replay(const T* x, const T* g, const T* b, i64 rows, i64 columns, const T* mean, const T* rstd, T* y);
// dx: [rows, columns]; dg, db: [columns] (db null for none).
template <class T>
void norm_grad(const T* x, const T* g, const T* mean, const T* rstd, const T* dy, i64 rows, i64 columns, T* dx, T* dg, T* db);

}  // namespace tapeformer::kernels
