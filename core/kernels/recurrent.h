// recurrent.h: recurrent networks over padded sequences. The input's part gi = W_ih x + b_ih is given for every position at once; what is
// left is one small product a step, gh = W_hh h_{t-1} + b_hh. Steps are sequential, samples run side by side. Gate blocks in the order
//   rnn   h' = tanh(gi + gh)                                                                          (Elman 1990)
//   lstm  (i, f, g, o) = gi + gh;  c' = s(f) c + s(i) tanh(g);  h' = s(o) tanh(c')                    (Hochreiter and Schmidhuber 1997)
//   gru   r, z = s(gi + gh);  n = tanh(gi_n + r gh_n);  h' = (1 - z) n + z h                          (Cho et al. 2014)
// with s the logistic function. Initial states are 0. A padded step keeps the state and gives 0.
#pragma once
#include <cstdint>

#include "core/shape.h"

namespace tapeformer::kernels {

enum class Cell { Rnn, Lstm, Gru };
i64 gates_of(Cell);     // G: blocks in gi
i64 kept_blocks(Cell);  // K: blocks that backward needs beside h

struct Recurrent {
  Cell cell = Cell::Lstm;
  i64 B = 0, N = 0, hidden = 0;        // H
  bool reverse = false;                // from the last position to the first
  const std::uint8_t* mask = nullptr;  // [B, N], 1 = real; null = all
};

// gi [B, N, G H], w [G H, H], b [G H] -> h [B, N, H]; kept [B, N, K H] or null.
template <class T>
void recurrent(const Recurrent&, const T* gi, const T* w, const T* b, T* h, T* kept);

template <class T>
struct RecurrentGrads {
  T* gi;  // [B, N, G H]
  T* w;   // [G H, H]
  T* b;   // [G H]
};
template <class T>
void recurrent_grad(const Recurrent&, const T* w, const T* h, const T* kept, const T* dh, const RecurrentGrads<T>&);

}  // namespace tapeformer::kernels
