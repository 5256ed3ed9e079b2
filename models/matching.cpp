// matching.cpp: one label for a pair of inputs. Both go through the same encoder, each on its own (no attention between them), and an MLP
// reads [a, b, a b, a - b] of the pooled vectors (Mou et al. 2016, section 3.2), or [a, b] (Tay et al. 2021, section 2.2.3).
#include "autograd/ops.h"
#include "models/class_loss.h"
#include "models/sequence_encoder.h"

namespace tapeformer {
namespace {

struct MatchingConfig {
  EncoderConfig encoder;
  std::string interaction = "products";
  std::vector<i64> hidden{512, 256};
  double head_dropout = 0;
  ClassLossConfig loss;
};
template <class V>
void visit_fields(V& v, MatchingConfig& c) {
  visit_fields(v, c.encoder);
  v("interaction", c.interaction, OneOf{"products", "concat"}, "what the head reads of the vectors a and b: [a, b, a b, a - b], or [a, b]");
  v("hidden", c.hidden, Range{1, 65536}, "widths of the head's hidden layers (ReLU); [] = none");
  v("head_dropout", c.head_dropout, Range{0, 0.95}, "on the head's input and hidden layers");
  visit_fields(v, c.loss);
}

class Matching final : public Model {
 public:
  using Config = MatchingConfig;
  Matching(const Config& c, const DataInfo& data, RngKey key)
      : config_(c), loss_(c.loss, data), encoder_(this, "", std::make_unique<SequenceEncoder>(c.encoder, data, key)) {
    if (!data.pair || data.target != DataInfo::Target::Sequence)
      throw ConfigError("model.type: matching needs pairs with one label each (data.columns.text2); the data has single inputs");
    i64 in = (c.interaction == "products" ? 4 : 2) * c.encoder.t.dim;
    for (std::size_t i = 0; i < c.hidden.size(); in = c.hidden[i++]) add_layer("hidden." + std::to_string(i), in, c.hidden[i], key);
    add_layer("head", in, data.classes(), key);
  }

  Output forward(const Batch& batch, const Ctx& ctx) const override {
    TAPEFORMER_ASSERT(batch.second != nullptr, "a batch of pairs has no second inputs");
    const Tensor a = encoder_->forward(batch, ctx.at("first")), b = encoder_->forward(*batch.second, ctx.at("second"));
    std::vector<Tensor> parts{a, b};
    if (config_.interaction == "products") {
      parts.push_back(ops::mul(a, b));
      parts.push_back(ops::sub(a, b));
    }
    Tensor x = ops::concat(parts, 1);
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      if (i > 0) x = ops::relu(x);
      if (ctx.training) x = ops::dropout(x, config_.head_dropout, ctx.at("head").at(static_cast<i64>(i)).key, ctx.rows);
      x = layers_[i]->forward(x);
    }
    return loss_(x, batch.labels, ctx);
  }

  std::vector<LayerSummary> summary() override {
    std::vector<LayerSummary> rows = encoder_->summary();
    for (std::size_t i = 0; i < layers_.size(); ++i)
      rows.push_back({i + 1 < layers_.size() ? "hidden." + std::to_string(i) : "head", "linear", count_parameters(*layers_[i])});
    return rows;
  }

 private:
  void add_layer(const std::string& name, i64 in, i64 out, RngKey key) {
    layers_.emplace_back(this, name, std::make_unique<Linear>(in, out, key.fold_in(name)));
  }
  Config config_;
  ClassLoss loss_;
  Child<SequenceEncoder> encoder_;
  std::vector<Child<Linear>> layers_;  // the last one gives the logits
};

[[maybe_unused]] const bool kRegistered =
    register_encoder_model<Matching>("matching", "one label for a pair of inputs, which share one Transformer encoder");

}  // namespace
}  // namespace tapeformer
