// gemm.h: the one matrix product. f32 goes to oneDNN (or OpenBLAS in fixed row tiles); f64 is a plain blocked loop. Every operand is
// addressed by strides, so transposed and head-split views are never copied unless a back end cannot read them.
// Same bits for any thread count.
#pragma once
#include <string>

#include "core/shape.h"

namespace tapeformer::kernels {

template <class T>
struct MatrixView {  // element (b0, b1, i, j) at p[b0*batch0 + b1*batch1 + i*row + j*col]
  T* p = nullptr;
  i64 row = 0, col = 1;
  i64 batch0 = 0, batch1 = 0;  // 0 = the same matrix for every batch index
};

template <class T>
struct Gemm {  // C = A B (+ bias) or C += A B
  i64 batch0 = 1, batch1 = 1;
  i64 m = 0, n = 0, k = 0;
  MatrixView<const T> a;    // [m, k]
  MatrixView<const T> b;    // [k, n]
  MatrixView<T> c;          // [m, n], col stride 1
  const T* bias = nullptr;  // [n], added to every row; only when not accumulating
  bool accumulate = false;
};
template <class T>
void gemm(const Gemm<T>&);  // T: float, double. k = 0 gives zeros (+ bias)
// out [m, n] = x [m, k] y [k, n], or += it; rows of out are `row` elements apart.
template <class T>
void product(i64 m, i64 n, i64 k, MatrixView<const T> x, MatrixView<const T> y, T* out, i64 row, bool accumulate = false) {
  Gemm<T> g;
  g.m = m;
  g.n = n;
  g.k = k;
  g.a = x;
  g.b = y;
  g.c = {out, row, 1};
  g.accumulate = accumulate;
  gemm(g);
}

enum class Math { F32, BF16 };
class PrecisionScope {  // while alive, large f32 products on this thread round their inputs to bf16
 public:
  explicit PrecisionScope(Math);
  ~PrecisionScope();
  PrecisionScope(const PrecisionScope&) = delete;

 private:
  Math previous_;
};

// Which library multiplies f32 matrices: "onednn" (default) or "openblas". Fixed for a run and stored in its configuration, never chosen
// by a timing, since the two differ in the last bits.
void set_gemm_backend(const std::string& name);
const std::string& gemm_backend();

}  // namespace tapeformer::kernels
