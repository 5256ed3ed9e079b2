#include "models/sequence_encoder.h"

#include "autograd/ops.h"

namespace tapeformer {
namespace {

TransformerConfig with_length(TransformerConfig c, i64 max_len) {
  c.max_len = max_len;
  return c;
}

}  // namespace

SequenceEncoder::SequenceEncoder(const EncoderConfig& c, const DataInfo& data, RngKey key)
    : config_(c),
      target_(data.target),
      stem_(this, "", std::make_unique<InputStem>(c, data, key)),
      encoder_(this, "encoder", std::make_unique<Transformer>(with_length(c.t, stem_->max_len()), key.fold_in("encoder"))) {
  check(data);
  if (target_ == DataInfo::Target::Sequence && c.pooling != "external")
    pooling_ = std::make_unique<Child<Pooling>>(this, "pooling", std::make_unique<Pooling>(c.pooling, c.t.dim, key.fold_in("pooling")));
}

void SequenceEncoder::check(const DataInfo& data) const {
  if (target_ == DataInfo::Target::Frame && encoder_->shortens())
    throw ConfigError("model.attention: reduced_query shortens N tokens to M outputs; this task needs one output per token");
  if (config_.pooling == "external" && encoder_->external_tokens() == 0)
    throw ConfigError("model.pooling: got 'external', but no attention layer asks for external tokens");
  std::vector<std::string> offered = data.side;
  if (data.input == DataInfo::Input::Tokens && config_.stem.stride == 1) offered.push_back("token_ids");
  for (const auto& block : encoder_->blocks()) require_side((*block)->attention().core().info(), offered);
}

Tensor SequenceEncoder::forward(const Batch& batch, const Ctx& ctx) const {
  const InputStem::Rows in = stem_->forward(batch, ctx);
  SideInputs side{batch.side};
  if (batch.tokens.defined() && config_.stem.stride == 1) side.tensors["token_ids"] = batch.tokens;
  const Encoded e = encoder_->forward(in.x, in.mask, side, ctx.at("encoder"));
  if (target_ == DataInfo::Target::Frame) return e.x;
  if (pooling_) return (*pooling_)->forward(e.x, e.mask);
  return ops::reshape(ops::slice(e.external, 1, 0, 1), {e.external.dim(0), -1});
}

std::vector<Model::LayerSummary> SequenceEncoder::summary() {
  std::vector<Model::LayerSummary> rows = stem_->summary();
  for (std::size_t i = 0; i < encoder_->blocks().size(); ++i) {
    TransformerBlock& block = **encoder_->blocks()[i];
    rows.push_back({"block " + std::to_string(i), "attention " + std::string(block.attention().core().info().name),
                    count_parameters(block.attention())});
    if (block.feed_forward()) rows.push_back({"", "feed-forward " + config_.t.activation, count_parameters(*block.feed_forward())});
  }
  i64 norms = count_parameters(*this) - (pooling_ ? count_parameters(**pooling_) : 0);  // what no other row holds
  for (const Model::LayerSummary& r : rows) norms -= r.parameters;
  rows.push_back({"norms", config_.t.norm, norms});
  if (pooling_) rows.push_back({"pooling", config_.pooling, count_parameters(**pooling_)});
  return rows;
}

}  // namespace tapeformer
