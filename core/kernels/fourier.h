// fourier.h: the real part of a discrete Fourier transform over positions and features (Lee-Thorp et al. 2022, section 3.2):
//   y[k, c] = factor Re sum_{n, a} x[n, a] exp(-2 pi i (n k / L + a c / D))
// Symmetric in x and y, so that it is its own gradient. f32 runs through KISS FFT, lengths with a large prime factor by Bluestein's chirp
// transform ("A linear filtering approach to the computation of discrete Fourier transform", 1970); f64 is the plain sum.
#pragma once
#include <cstdint>

#include "core/shape.h"

namespace tapeformer::kernels {

struct FourierMix {
  i64 B = 0, N = 0, D = 0;
  const std::uint8_t* mask = nullptr;  // [B, N], 1 = real; null = all. Rows of padding are not read and become 0
  bool ortho = true;                   // factor (L D)^-1/2, otherwise 1
  bool trim = true;                    // each sample over its real rows in their order; otherwise over all N, padding as zeros
};
template <class T>
void fourier_mix(const FourierMix&, const T* x, T* y);  // x, y [B, N, D]; T: float in N D (log N + log D), double in N D (N + D)

}  // namespace tapeformer::kernels
