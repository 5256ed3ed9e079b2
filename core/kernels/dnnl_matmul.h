// dnnl_matmul.h: one single-threaded oneDNN matrix product; the only user is gemm.cpp, which cuts large products into
// tiles.
#pragma once
#include "core/shape.h"

namespace tapeformer::kernels::dnnl_matmul {

struct Spec {  // c[b] (+)= a[b] B[b] + bias, element (b, i, j) at b*batch + i*row + j*col; batch stride 0 = shared
  i64 batch = 1, m = 0, n = 0, k = 0;
  i64 a_batch = 0, a_row = 0, a_col = 1;
  i64 b_batch = 0, b_row = 0, b_col = 1;
  i64 c_batch = 0, c_row = 0;
  bool bias = false, accumulate = false;
  bool bf16 = false;  // a and b hold BF16; c stays f32
};

bool has_bf16();      // the CPU has bf16 instructions
bool bf16_is_fast();  // and they beat f32: true on AMD and with AMX; Intel's AVX-512 bf16 runs at half the rate of f32

// Runs on the calling thread alone. False when oneDNN has no fast code for these strides: pack the operands and call
// again.
bool run(const Spec&, const void* a, const void* b, float* c, const float* bias);

}  // namespace tapeformer::kernels::dnnl_matmul
