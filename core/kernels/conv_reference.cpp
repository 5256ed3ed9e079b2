// The plain loops behind conv.h, in double: the oracle for tests and the f64 path.
#include <vector>

#include "core/kernels/conv.h"
#include "core/parallel.h"

namespace tapeformer::kernels {
namespace {

// f(y position, x position, w position) for every product of output row (b, ho); positions address channel 0 of a
// group.
template <class F>
void for_each_tap(const Conv2d& c, i64 b, i64 ho, F&& f) {
  const i64 in = c.Ci / c.groups, out = c.Co / c.groups;
  for (i64 wo = 0; wo < c.Wo(); ++wo)
    for (i64 kh = 0; kh < c.Kh; ++kh)
      for (i64 kw = 0; kw < c.Kw; ++kw) {
        const i64 hi = ho * c.stride_h - c.pad_top + kh * c.dilation_h, wi = wo * c.stride_w - c.pad_left + kw * c.dilation_w;
        if (hi < 0 || hi >= c.Hi || wi < 0 || wi >= c.Wi) continue;
        for (i64 co = 0; co < c.Co; ++co)
          for (i64 ci = 0; ci < in; ++ci) {
            f(((b * c.Ho() + ho) * c.Wo() + wo) * c.Co + co, ((b * c.Hi + hi) * c.Wi + wi) * c.Ci + co / out * in + ci,
              ((co * in + ci) * c.Kh + kh) * c.Kw + kw);
          }
      }
}

}  // namespace

template <class T>
void conv2d_reference(const Conv2d& c, const T* x, const T* w, const T* bias, T* y) {
  const i64 row = c.Wo() * c.Co;
  parallel_for(c.B * c.Ho(), 1, [&](i64 begin, i64 end) {
    std::vector<double> sum(static_cast<std::size_t>(row));
    for (i64 r = begin; r < end; ++r) {
      for (i64 i = 0; i < row; ++i) sum[i] = bias ? double(bias[i % c.Co]) : 0.0;
      for_each_tap(c, r / c.Ho(), r % c.Ho(), [&](i64 yi, i64 xi, i64 wi) { sum[yi - r * row] += double(x[xi]) * double(w[wi]); });
      for (i64 i = 0; i < row; ++i) y[r * row + i] = static_cast<T>(sum[i]);
    }
  });
}

template <class T>
void conv2d_grad_reference(const Conv2d& c, const T* x, const T* w, const T* dy, T* dx, T* dw, T* db) {
  const i64 image = c.Hi * c.Wi * c.Ci, weights = c.Co * (c.Ci / c.groups) * c.Kh * c.Kw, rows = c.B * c.Ho() * c.Wo();
  if (dx) {
    parallel_for(c.B, 1, [&](i64 begin, i64 end) {
      for (i64 b = begin; b < end; ++b) {
        std::vector<double> sum(static_cast<std::size_t>(image), 0.0);
        for (i64 ho = 0; ho < c.Ho(); ++ho) {
          for_each_tap(c, b, ho, [&](i64 yi, i64 xi, i64 wi) { sum[xi - b * image] += double(dy[yi]) * double(w[wi]); });
        }
        for (i64 i = 0; i < image; ++i) dx[b * image + i] = static_cast<T>(sum[i]);
      }
    });
  }
  if (dw) {
    std::vector<double> sum(static_cast<std::size_t>(weights), 0.0);
    for (i64 r = 0; r < c.B * c.Ho(); ++r) {
      for_each_tap(c, r / c.Ho(), r % c.Ho(), [&](i64 yi, i64 xi, i64 wi) { sum[wi] += double(dy[yi]) * double(x[xi]); });
    }
    for (i64 i = 0; i < weights; ++i) dw[i] = static_cast<T>(sum[i]);
  }
  if (db) {
    std::vector<double> sum(static_cast<std::size_t>(c.Co), 0.0);
    for (i64 i = 0; i < rows * c.Co; ++i) sum[i % c.Co] += double(dy[i]);
    for (i64 i = 0; i < c.Co; ++i) db[i] = static_cast<T>(sum[i]);
  }
}

template void conv2d_reference(const Conv2d&, const float*, const float*, const float*, float*);
template void conv2d_reference(const Conv2d&, const double*, const double*, const double*, double*);
template void conv2d_grad_reference(const Conv2d&, const float*, const float*, const float*, float*, float*, float*);
template void conv2d_grad_reference(const Conv2d&, const double*, const double*, const double*, double*, double*, double*);

}  // namespace tapeformer::kernels
