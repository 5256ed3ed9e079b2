// input_stem.h: what a batch holds -> rows of width D for the first block: token table, linear map or image patches, convolutions,
// positions.
#pragma once
#include <memory>
#include <vector>

#include "layers/conv1d.h"
#include "layers/embedding.h"
#include "layers/linear.h"
#include "layers/patch_embedding.h"
#include "models/encoder_config.h"

namespace tapeformer {

class InputStem : public Module {
 public:
  InputStem(const EncoderConfig&, const DataInfo&, RngKey);
  struct Rows {
    Tensor x;     // [B, N, D]
    Tensor mask;  // u8 [B, N], 1 = real
  };
  Rows forward(const Batch&, const Ctx&) const;
  i64 max_len() const { return max_len_; }  // most rows that it gives
  std::vector<Model::LayerSummary> summary();

 private:
  void make_patches(const EncoderConfig&, const DataInfo&, RngKey);
  Tensor hide_tokens(const Tensor& mask, const Ctx&) const;

  EncoderConfig config_;
  i64 max_len_;
  std::optional<DataInfo::Image> image_;  // cut into patches
  std::unique_ptr<Child<PatchEmbedding>> patches_;
  std::unique_ptr<Child<Embedding>> embedding_;
  std::unique_ptr<Child<Linear>> input_;
  std::vector<std::unique_ptr<Child<Conv1d>>> convs_;
  std::vector<std::unique_ptr<Child<Norm>>> norms_;
  std::unique_ptr<Child<Positions>> positions_;
};

}  // namespace tapeformer
