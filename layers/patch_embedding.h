// patch_embedding.h: an image as a sequence of tokens, one for each square patch (Dosovitskiy et al. 2021, eq. 1): a convolution whose
// kernel and stride are the patch, patches row by row, then an optional class token in front and learned positions.
#pragma once
#include <memory>

#include "layers/module.h"

namespace tapeformer {

struct PatchEmbeddingConfig {
  i64 patch = 4;
  i64 height = 0, width = 0, channels = 0, dim = 0;
  bool class_token = true;
  bool positions = true;  // learned
};

class PatchEmbedding : public Module {
 public:
  PatchEmbedding(const PatchEmbeddingConfig&, RngKey);  // ConfigError when the patch does not divide height and width
  Tensor forward(const Tensor& image) const;            // [B, C, height, width] -> [B, n (+ 1), D], n = height width / patch^2
  i64 tokens() const;                                   // n (+ 1)

 private:
  PatchEmbeddingConfig config_;
  Weight W_, b_;                       // [D, C, patch, patch], [D]
  std::unique_ptr<Weight> cls_, pos_;  // [1, D], [n (+ 1), D]
};

// A position table for a grid of other size: bilinear between the centres of its cells, the border continued. table [rows columns (+ 1),
// D]; the class token's row, when there is one, comes first and stays as it is. ShapeError when the table is not of the grid `from`.
struct PatchGrid {
  i64 rows = 0, columns = 0;
};
Tensor resize_positions(const Tensor& table, PatchGrid from, PatchGrid to, bool class_token);

}  // namespace tapeformer
