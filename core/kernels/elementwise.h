// elementwise.h: loops bound by memory: activations and their derivatives, arithmetic with broadcasting, sums, dropout. f32 runs through
// Highway on the widest vectors of the CPU; f64 is a plain loop. *_reference are the plain loops that check the fast ones.
#pragma once
#include "core/rng.h"
#include "core/shape.h"

namespace tapeformer::kernels {

enum class Unary { Relu, Gelu, GeluTanh, Silu, Tanh, Sigmoid, Elu, Elu1, Softplus, Exp, Log, Sqrt, Neg, Abs, Sin, Cos };
enum class Binary { Add, Sub, Mul, Div, Max, Min };

template <class T>
void unary(Unary f, const T* x, T* y, i64 n);  // y = f(x)
template <class T>
void unary_grad(Unary f, const T* x, const T* dy, T* dx, i64 n);  // dx = dy f'(x)
template <class T>
T unary_value(Unary f, T x);  // the plain definition
template <class T>
T unary_slope(Unary f, T x);

// y = f(a, b) over `shape`; y contiguous; strides of a and b in elements, 0 on broadcast axes.
template <class T>
void binary(Binary f, const Shape& shape, const T* a, const Shape& a_strides, const T* b, const Shape& b_strides, T* y);

template <class T>
void add_into(const T* x, T* y, i64 n);  // y += x
template <class T>
void axpy(double a, const T* x, T* y, i64 n);  // y += a x
template <class T>
void scale(double a, double shift, const T* x, T* y, i64 n);  // y = a x + shift
template <class T>
void power(double p, const T* x, T* y, i64 n);  // y = x^p
template <class T>
void column_sums(const T* x, i64 rows, i64 columns, T* out);  // out[j] = sum_i x[i,j]; fixed chunks of rows
template <class T>
void row_sums(const T* x, i64 rows, i64 columns, T* out);
template <class T>
double sum_of_squares(const T* x, i64 n);  // in double, fixed chunks

// y[r, i] = x[r, i] keep(r, i) / (1 - p); keep is a pure function of (key, ids[r], i), so backward calls it again on dy. ids null: r.
template <class T>
void dropout(double p, RngKey key, const i64* ids, i64 rows, i64 columns, const T* x, T* y);

}  // namespace tapeformer::kernels
