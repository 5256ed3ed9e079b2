#include "core/kernels/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "core/kernels/norm.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "core/parallel.h"

HWY_BEFORE_NAMESPACE();
namespace tapeformer::kernels::HWY_NAMESPACE {

constexpr int kLanes = 16;  // independent partial sums, so that the compiler may vectorise; added up in a fixed order

template <class T>
HWY_INLINE T total(const T* lanes) {
  T sum = 0;
  for (int l = 0; l < kLanes; ++l) sum += lanes[l];
  return sum;
}
template <class T, class F>
HWY_INLINE T reduce(i64 n, F&& term) {
  T lanes[kLanes] = {};
  i64 i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += term(i + l);
  for (; i < n; ++i) lanes[i % kLanes] += term(i);
  return total(lanes);
}

template <class T>
void statistics(const T* x, double eps, i64 n, bool centred, T* mean, T* rstd) {
  const T inverse = T(1) / static_cast<T>(n);
  const T m = centred ? reduce<T>(n, [&](i64 i) { return x[i]; }) * inverse : T(0);
  const T var = reduce<T>(n, [&](i64 i) { return (x[i] - m) * (x[i] - m); }) * inverse;
  if (centred) *mean = m;
  *rstd = T(1) / std::sqrt(var + static_cast<T>(eps));
}

template <class T>
HWY_INLINE void apply(const T* HWY_RESTRICT x, const T* HWY_RESTRICT g, const T* HWY_RESTRICT b, i64 n, T m, T r, T* HWY_RESTRICT y) {
  if (b)
    for (i64 i = 0; i < n; ++i) y[i] = (x[i] - m) * r * g[i] + b[i];
  else
    for (i64 i = 0; i < n; ++i) y[i] = (x[i] - m) * r * g[i];
}

// One row: dx = r (a - mean(a) - xh mean(a xh)) with a = dy g, xh = (x - m) r; RMS norm has no mean(a). Adds dy xh to dg and dy to db.
template <class T>
HWY_INLINE void row_grad(const T* HWY_RESTRICT x, const T* HWY_RESTRICT g, const T* HWY_RESTRICT dy, i64 n, bool centred, T m, T r,
                         T* HWY_RESTRICT dx, T* HWY_RESTRICT dg, T* HWY_RESTRICT db) {
  const T inverse = T(1) / static_cast<T>(n);
  const T a_mean = centred ? reduce<T>(n, [&](i64 i) { return dy[i] * g[i]; }) * inverse : T(0);
  const T ax_mean = reduce<T>(n, [&](i64 i) { return dy[i] * g[i] * (x[i] - m); }) * r * inverse;
  for (i64 i = 0; i < n; ++i) {
    const T xh = (x[i] - m) * r;
    dx[i] = r * (dy[i] * g[i] - a_mean - xh * ax_mean);
    dg[i] += dy[i] * xh;
  }
  if (db)
    for (i64 i = 0; i < n; ++i) db[i] += dy[i];
}

void rows_f32(const float* x, const float* g, const float* b, double eps, i64 n, i64 begin, i64 end, float* y, float* mean, float* rstd,
              bool replay) {
  for (i64 r = begin; r < end; ++r) {
    if (!replay) statistics(x + r * n, eps, n, mean != nullptr, mean ? mean + r : nullptr, rstd + r);
    apply(x + r * n, g, mean ? b : nullptr, n, mean ? mean[r] : 0.0f, rstd[r], y + r * n);
  }
}
void rows_f64(const double* x, const double* g, const double* b, double eps, i64 n, i64 begin, i64 end, double* y, double* mean,
              double* rstd, bool replay) {
  for (i64 r = begin; r < end; ++r) {
    if (!replay) statistics(x + r * n, eps, n, mean != nullptr, mean ? mean + r : nullptr, rstd + r);
    apply(x + r * n, g, mean ? b : nullptr, n, mean ? mean[r] : 0.0, rstd[r], y + r * n);
  }
}
void grads_f32(const float* x, const float* g, const float* mean, const float* rstd, const float* dy, i64 n, i64 begin, i64 end, float* dx,
               float* dg, float* db) {
  for (i64 r = begin; r < end; ++r)
    row_grad(x + r * n, g, dy + r * n, n, mean != nullptr, mean ? mean[r] : 0.0f, rstd[r], dx + r * n, dg, db);
}
void grads_f64(const double* x, const double* g, const double* mean, const double* rstd, const double* dy, i64 n, i64 begin, i64 end,
               double* dx, double* dg, double* db) {
  for (i64 r = begin; r < end; ++r)
    row_grad(x + r * n, g, dy + r * n, n, mean != nullptr, mean ? mean[r] : 0.0, rstd[r], dx + r * n, dg, db);
}

}  // namespace tapeformer::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tapeformer::kernels {
namespace {
HWY_EXPORT(rows_f32);
HWY_EXPORT(rows_f64);
HWY_EXPORT(grads_f32);
HWY_EXPORT(grads_f64);

constexpr i64 kRows = 64;  // rows a chunk

template <class T>
void run(const T* x, const T* g, const T* b, double eps, i64 rows, i64 columns, T* y, T* mean, T* rstd, bool replay) {
  parallel_for(rows, kRows, [&](i64 begin, i64 end) {
    if constexpr (std::is_same_v<T, float>)
      HWY_DYNAMIC_DISPATCH(rows_f32)(x, g, b, eps, columns, begin, end, y, mean, rstd, replay);
    else
      HWY_DYNAMIC_DISPATCH(rows_f64)(x, g, b, eps, columns, begin, end, y, mean, rstd, replay);
  });
}

}  // namespace

template <class T>
void norm(const T* x, const T* g, const T* b, double eps, i64 rows, i64 columns, T* y, T* mean, T* rstd) {
  run(x, g, b, eps, rows, columns, y, mean, rstd, false);
}

template <class T>
void norm_replay(const T* x, const T* g, const T* b, i64 rows, i64 columns, const T* mean, const T* rstd, T* y) {
  run(x, g, b, 0, rows, columns, y, const_cast<T*>(mean), const_cast<T*>(rstd), true);
}

template <class T>
void norm_grad(const T* x, const T* g, const T* mean, const T* rstd, const T* dy, i64 rows, i64 columns, T* dx, T* dg, T* db) {
  const i64 chunks = std::max<i64>(1, (rows + kRows - 1) / kRows);
  std::vector<T> partial(static_cast<std::size_t>(2 * chunks * columns), T(0));
  parallel_for(rows, kRows, [&](i64 begin, i64 end) {
    T* pg = partial.data() + begin / kRows * 2 * columns;
    T* pb = db ? pg + columns : nullptr;
    if constexpr (std::is_same_v<T, float>)
      HWY_DYNAMIC_DISPATCH(grads_f32)(x, g, mean, rstd, dy, columns, begin, end, dx, pg, pb);
    else
      HWY_DYNAMIC_DISPATCH(grads_f64)(x, g, mean, rstd, dy, columns, begin, end, dx, pg, pb);
  });
  std::fill_n(dg, columns, T(0));
  if (db) std::fill_n(db, columns, T(0));
  for (i64 c = 0; c < chunks; ++c) {
    const T* pg = partial.data() + c * 2 * columns;
    for (i64 j = 0; j < columns; ++j) dg[j] += pg[j];
    if (db)
      for (i64 j = 0; j < columns; ++j) db[j] += pg[columns + j];
  }
}

#define INSTANTIATE(T)                                                                       \
  template void norm(const T*, const T*, const T*, double, i64, i64, T*, T*, T*);            \
  template void norm_replay(const T*, const T*, const T*, i64, i64, const T*, const T*, T*); \
  template void norm_grad(const T*, const T*, const T*, const T*, const T*, i64, i64, T*, T*, T*);
INSTANTIATE(float)
INSTANTIATE(double)

}  // namespace tapeformer::kernels
#endif
