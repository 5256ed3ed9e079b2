#include <cmath>

#include "core/kernels/attention.h"
#include "core/parallel.h"

namespace tapeformer::kernels {
namespace {

template <class T>
void merge_row(T* o, i64 dv, T& max, T& lse, const T* more, T more_max, T more_lse) {
  if (more_max == T(kEmptyRow)) return;
  if (max == T(kEmptyRow)) {
    std::copy(more, more + dv, o);
    max = more_max;
    lse = more_lse;
    return;
  }
  const double top = std::max(max, more_max);
  const double a = std::exp(double(max) - top + double(lse)), b = std::exp(double(more_max) - top + double(more_lse));
  const T keep = static_cast<T>(a / (a + b)), take = static_cast<T>(b / (a + b));
  for (i64 c = 0; c < dv; ++c) o[c] = keep * o[c] + take * more[c];
  max = static_cast<T>(top);
  lse = static_cast<T>(std::log(a + b));
}

}  // namespace

template <class T>
void attention_merge(i64 B, i64 H, i64 N, i64 dv, RowsView<T> o, T* row_max, T* row_lse, RowsView<const T> more, const T* more_max,
                     const T* more_lse) {
  parallel_for(B * H * N, std::max<i64>(1, 8192 / std::max<i64>(dv, 1)), [&](i64 begin, i64 end) {
    for (i64 x = begin; x < end; ++x) {
      const i64 i = x % N, h = x / N % H, b = x / N / H;
      merge_row(o.p + b * o.b + h * o.h + i * o.n, dv, row_max[x], row_lse[x], more.p + b * more.b + h * more.h + i * more.n, more_max[x],
                more_lse[x]);
    }
  });
}

template void attention_merge(i64, i64, i64, i64, RowsView<float>, float*, float*, RowsView<const float>, const float*, const float*);
template void attention_merge(i64, i64, i64, i64, RowsView<double>, double*, double*, RowsView<const double>, const double*, const double*);

}  // namespace tapeformer::kernels
