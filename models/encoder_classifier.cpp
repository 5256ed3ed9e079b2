// encoder_classifier.cpp: Transformer encoder -> one label a sequence (after pooling) or one label a position.
#include "layers/linear.h"
#include "models/class_loss.h"
#include "models/sequence_encoder.h"

namespace tapeformer {
namespace {

struct EncoderClassifierConfig {
  EncoderConfig encoder;
  ClassLossConfig loss;
};
template <class V>
void visit_fields(V& v, EncoderClassifierConfig& c) {
  visit_fields(v, c.encoder);
  visit_fields(v, c.loss);
}

class EncoderClassifier final : public Model {
 public:
  using Config = EncoderClassifierConfig;
  EncoderClassifier(const Config& c, const DataInfo& data, RngKey key)
      : loss_(c.loss, data),
        encoder_(this, "", std::make_unique<SequenceEncoder>(c.encoder, data, key)),
        head_(this, "head", std::make_unique<Linear>(c.encoder.t.dim, data.classes(), key.fold_in("head"))) {
    if (data.pair)
      throw ConfigError("model.type: got encoder_classifier, but the data has pairs (data.columns.text2); matching reads them");
  }

  Output forward(const Batch& batch, const Ctx& ctx) const override {
    return loss_(head_->forward(encoder_->forward(batch, ctx)), batch.labels, ctx);
  }

  std::vector<LayerSummary> summary() override {
    std::vector<LayerSummary> rows = encoder_->summary();
    rows.push_back({"head", "linear", count_parameters(*head_)});
    return rows;
  }

 private:
  ClassLoss loss_;
  Child<SequenceEncoder> encoder_;
  Child<Linear> head_;
};

[[maybe_unused]] const bool kRegistered = register_encoder_model<EncoderClassifier>(
    "encoder_classifier", "Transformer encoder with one label a sequence or one label a position");

}  // namespace
}  // namespace tapeformer
