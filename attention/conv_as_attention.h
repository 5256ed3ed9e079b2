// conv_as_attention.h: self-attention that is a convolution, a demonstration of Theorem 1 of Cordonnier et al., "On the Relationship
// between Self-Attention and Convolutional Layers", ICLR 2020. One head a tap, scores from relative positions alone: head h looks at the
// pixel that is Delta_h away,
//   score(q, k) = -alpha |k - q - Delta_h|^2,   o = b + sum_h softmax_k(score) X W_h
// and for alpha -> infinity this is the convolution with the taps W_h. In time (height width)^2 Kh Kw: no layer to train with.
#pragma once
#include "layers/module.h"

namespace tapeformer {

struct ConvAsAttentionConfig {
  i64 in = 0, out = 0;             // channels, C and O
  i64 kernel_h = 3, kernel_w = 3;  // the centre tap is K div 2
  double alpha = 46;               // what misses the target is about 4 e^-alpha: nothing in f64; 18 does in f32
  bool learn_centres = false;      // Delta and alpha are parameters
};

class ConvAsAttention : public Module {
 public:
  ConvAsAttention(const ConvAsAttentionConfig&, RngKey);  // ConfigError
  Tensor forward(const Tensor& image) const;              // [B, C, height, width] -> [B, O, height, width]
  Tensor convolution(const Tensor& image) const;          // what it tends to: conv2d with the same weights and zeros around

 private:
  Tensor queries(i64 height, i64 width, DType) const;
  ConvAsAttentionConfig config_;
  Weight W_, b_;                             // [O, C, Kh, Kw], [O]
  std::unique_ptr<Weight> centres_, alpha_;  // [Kh Kw, 2], []
};

}  // namespace tapeformer
