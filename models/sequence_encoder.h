// sequence_encoder.h: input stem, Transformer and pooling: what models put their heads on.
#pragma once
#include <memory>
#include <vector>

#include "models/input_stem.h"

namespace tapeformer {

class SequenceEncoder : public Module {
 public:
  SequenceEncoder(const EncoderConfig&, const DataInfo&, RngKey);  // ConfigError when the data lacks what a variant needs
  Tensor forward(const Batch&, const Ctx&) const;                  // [B, D], or [B, N, D] for one label a frame
  std::vector<Model::LayerSummary> summary();

 private:
  void check(const DataInfo&) const;

  EncoderConfig config_;
  DataInfo::Target target_;
  Child<InputStem> stem_;
  Child<Transformer> encoder_;
  std::unique_ptr<Child<Pooling>> pooling_;
};

}  // namespace tapeformer
