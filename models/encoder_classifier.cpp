// encoder_classifier.cpp: tokens or feature vectors -> Transformer encoder -> one label a sequence (after pooling) or one label a position.
#include <algorithm>

#include "autograd/ops.h"
#include "layers/conv1d.h"
#include "layers/embedding.h"
#include "layers/pooling.h"
#include "models/model.h"
#include "models/transformer.h"

namespace tapeformer {
namespace {

struct StemConfig {
  i64 layers = 0, kernel = 3, stride = 1;
};
template <class V>
void visit_fields(V& v, StemConfig& c) {
  v("layers", c.layers, Range{0, 16}, "convolutions (with activation and norm) before the first block; 0 = none");
  v("kernel", c.kernel, Range{1, 1024}, "taps of each");
  v("stride", c.stride, Range{1, 64}, "of the first convolution; shortens the sequence (one label a sequence only)");
}

std::vector<std::string> with_external(std::vector<std::string> names) {
  names.push_back("external");
  return names;
}

struct EncoderConfig {
  TransformerConfig t;
  std::string positions = "learned", pooling = "mean";
  double embedding_dropout = 0, token_dropout = 0, embedding_std = 0.1, label_smoothing = 0;
  std::vector<double> class_weights;
  StemConfig stem;
  ConfigNode attention;
};
template <class V>
void visit_fields(V& v, EncoderConfig& c) {
  v("dim", c.t.dim, Range{1, 65536}, "width of the model, D");
  v("layers", c.t.layers, Range{0, 1000}, "blocks");
  v("heads", c.t.heads, Range{1, 1024}, "attention heads, H");
  v("head_dim", c.t.head_dim, Range{1, 65536}, "width of a head; null = dim / heads");
  v("ff_dim", c.t.ff_dim, Range{1, 1 << 20}, "hidden width of the feed-forward half; null = 4 dim");
  v("dropout", c.t.dropout, Range{0, 0.95}, "on each half's output and on the feed-forward's hidden layer");
  v("attention_dropout", c.t.attention_dropout, Range{0, 0.95}, "on the attention weights");
  v("embedding_dropout", c.embedding_dropout, Range{0, 0.95}, "on the input of the first block");
  v("token_dropout", c.token_dropout, Range{0, 0.95}, "probability that training hides a token, as if it were padding");
  v("embedding_std", c.embedding_std, above(0), "standard deviation of the token table's start values");
  v("activation", c.t.activation, OneOf{"relu", "gelu", "gelu_tanh", "silu", "tanh", "swiglu"}, "of the feed-forward half");
  v("norm", c.t.norm, OneOf{"layer_norm", "rms_norm"}, "kind of normalisation");
  v("norm_position", c.t.norm_position, OneOf{"pre", "post"}, "before each half, or after the residual sum");
  v("norm_eps", c.t.norm_eps, above(0), "added to the variance");
  v("bias", c.t.bias, "biases in the attention projections");
  v("causal", c.t.causal, "each position sees itself and earlier ones only");
  v("positions", c.positions, OneOf{"learned", "sinusoidal", "rotary", "none"}, "how positions enter");
  v("pooling", c.pooling, OneOf(with_external(pooling_names())),
    "one vector a sequence from its rows (one label a sequence); external: the first external token");
  v("recompute", c.t.recompute, "drop a block's inner values and compute them again in backward: less memory, about a third more time");
  v("label_smoothing", c.label_smoothing, Range{0, 0.9}, "share of the target spread over all classes, in training");
  v("class_weights", c.class_weights, above(0), "factor of each class in the training loss, in label order; [] = 1 each");
  v("stem", c.stem, "convolutions before the first block");
  v("attention", c.attention, "{type: ..., its keys}, or a list with one for each layer; see --explain attention.TYPE");
}

std::vector<ConfigNode> attention_list(const ConfigNode& node) {
  if (node.is_sequence()) return node.items();
  if (!node || node.is_null()) return {};
  return {node};
}

EncoderConfig read(const ConfigNode& node) {
  EncoderConfig c = read_config<EncoderConfig>(node, {}, {"type"});
  c.t.rotary = c.positions == "rotary";
  c.t.attention = attention_list(node["attention"]);
  if (node["attention"].is_sequence() && static_cast<i64>(c.t.attention.size()) != c.t.layers)
    throw ConfigError(fmt::format("{}: the list has {} entries, expected one for each of the {} layers", node["attention"].place(),
                                  c.t.attention.size(), c.t.layers));
  for (const ConfigNode& a : c.t.attention) attention_type(a);
  try {
    validate(c.t);
  } catch (const ConfigError& e) {
    throw ConfigError(fmt::format("{}: {}", node.place(), e.what()));
  }
  return c;
}

class EncoderClassifier final : public Model {
 public:
  EncoderClassifier(EncoderConfig c, const DataInfo& data, RngKey key) : config_(std::move(c)), target_(data.target) {
    const i64 D = config_.t.dim;
    config_.t.max_len = (data.max_length + config_.stem.stride - 1) / config_.stem.stride;
    check(data);
    if (data.input == DataInfo::Input::Tokens)
      embedding_ = std::make_unique<Child<Embedding>>(
          this, "embedding", std::make_unique<Embedding>(data.vocab, D, key.fold_in("embedding"), config_.embedding_std));
    else if (config_.stem.layers == 0)
      input_ = std::make_unique<Child<Linear>>(this, "input", std::make_unique<Linear>(data.feature_dim, D, key.fold_in("input")));
    for (i64 i = 0; i < config_.stem.layers; ++i) {
      const i64 in = i == 0 && data.input == DataInfo::Input::Features ? data.feature_dim : D;
      const Conv1dOptions o{.kernel = config_.stem.kernel, .stride = i == 0 ? config_.stem.stride : 1, .causal = config_.t.causal};
      const std::string n = std::to_string(i);
      convs_.push_back(
          std::make_unique<Child<Conv1d>>(this, "stem." + n, std::make_unique<Conv1d>(in, D, o, key.fold_in("stem").fold_in(n))));
      norms_.push_back(
          std::make_unique<Child<Norm>>(this, "stem_norm." + n, std::make_unique<Norm>(config_.t.norm, D, config_.t.norm_eps, key)));
    }
    if (config_.positions == "learned" || config_.positions == "sinusoidal")
      positions_ = std::make_unique<Child<Positions>>(
          this, "positions",
          std::make_unique<Positions>(config_.positions == "learned" ? Positions::Kind::Learned : Positions::Kind::Sinusoidal,
                                      config_.t.max_len, D, key.fold_in("positions")));
    encoder_ = std::make_unique<Child<Transformer>>(this, "encoder", std::make_unique<Transformer>(config_.t, key.fold_in("encoder")));
    check_encoder(data);
    if (target_ == DataInfo::Target::Sequence && config_.pooling != "external")
      pooling_ = std::make_unique<Child<Pooling>>(this, "pooling", std::make_unique<Pooling>(config_.pooling, D, key.fold_in("pooling")));
    head_ = std::make_unique<Child<Linear>>(this, "head", std::make_unique<Linear>(D, data.classes(), key.fold_in("head")));
    if (!config_.class_weights.empty()) weights_ = Tensor::from<double>(config_.class_weights, {data.classes()});
  }

  Output forward(const Batch& batch, const Ctx& ctx) const override {
    Tensor mask = ctx.training && config_.token_dropout > 0 ? hide_tokens(batch.mask, ctx) : batch.mask;
    Tensor x = embedding_ ? (*embedding_)->forward(batch.tokens) : batch.features.to(default_dtype());
    if (input_) x = (*input_)->forward(x);
    for (std::size_t i = 0; i < convs_.size(); ++i) {
      x = (*norms_[i])->forward(ops::gelu((*convs_[i])->forward(x, mask)));
      mask = (*convs_[i])->strided_mask(mask);
    }
    if (positions_) x = (*positions_)->forward(x);
    if (ctx.training) x = ops::dropout(x, config_.embedding_dropout, ctx.at("embedding").key, ctx.rows);
    SideInputs side{batch.side};
    if (batch.tokens.defined() && config_.stem.stride == 1) side.tensors["token_ids"] = batch.tokens;
    const Encoded e = (*encoder_)->forward(x, mask, side, ctx.at("encoder"));
    Output out;
    out.logits = (*head_)->forward(pool(e));
    if (batch.labels.defined()) out.loss = loss(out.logits, batch.labels, ctx);
    return out;
  }

  std::vector<LayerSummary> summary() override {
    std::vector<LayerSummary> rows;
    const auto count = [](Module& m) {
      i64 n = 0;
      for (const Parameter* p : m.parameters()) n += p->value.numel();
      return n;
    };
    const auto row = [&](const std::string& name, const std::string& kind, Module& m) { rows.push_back({name, kind, count(m)}); };
    if (embedding_) row("embedding", "token table", **embedding_);
    if (input_) row("input", "linear", **input_);
    for (std::size_t i = 0; i < convs_.size(); ++i) row("stem." + std::to_string(i), "convolution", **convs_[i]);
    if (positions_) row("positions", config_.positions, **positions_);
    for (std::size_t i = 0; i < (*encoder_)->blocks().size(); ++i) {
      TransformerBlock& block = **(*encoder_)->blocks()[i];
      row("block " + std::to_string(i), "attention " + std::string(block.attention().core().info().name), block.attention());
      if (block.feed_forward()) row("", "feed-forward " + config_.t.activation, *block.feed_forward());
    }
    i64 norms = count(*this) - count(**head_) - (pooling_ ? count(**pooling_) : 0);  // what no other row holds
    for (const LayerSummary& r : rows) norms -= r.parameters;
    rows.push_back({"norms", config_.t.norm, norms});
    if (pooling_) row("pooling", config_.pooling, **pooling_);
    row("head", "linear", **head_);
    return rows;
  }

 private:
  void check(const DataInfo& data) const {
    if (data.classes() < 2)
      throw ConfigError(fmt::format("data: the training part has {} label(s), a classifier needs at least 2", data.classes()));
    if (config_.stem.stride > 1 && (config_.stem.layers == 0 || target_ == DataInfo::Target::Frame))
      throw ConfigError("model.stem.stride: more than 1 needs stem.layers > 0 and one label a sequence");
    if (!config_.class_weights.empty() && static_cast<i64>(config_.class_weights.size()) != data.classes())
      throw ConfigError(fmt::format("model.class_weights: got {} values, the data has {} classes: {}", config_.class_weights.size(),
                                    data.classes(), join(data.labels)));
  }

  void check_encoder(const DataInfo& data) const {
    const Transformer& encoder = **encoder_;
    if (target_ == DataInfo::Target::Frame && encoder.shortens())
      throw ConfigError("model.attention: reduced_query shortens N tokens to M outputs; this task needs one output per token");
    if (config_.pooling == "external" && encoder.external_tokens() == 0)
      throw ConfigError("model.pooling: got 'external', but no attention layer asks for external tokens");
    std::vector<std::string> offered = data.side;
    if (data.input == DataInfo::Input::Tokens && config_.stem.stride == 1) offered.push_back("token_ids");
    for (const auto& block : encoder.blocks()) {
      const AttentionInfo& info = (*block)->attention().core().info();
      for (const std::string& name : info.side)
        if (std::find(offered.begin(), offered.end(), name) == offered.end())
          throw ConfigError(fmt::format("model.attention: {} needs the side input '{}', the data offers: {}", info.name, name,
                                        offered.empty() ? "none" : join(offered)));
    }
  }

  Tensor pool(const Encoded& e) const {
    if (target_ == DataInfo::Target::Frame) return e.x;
    if (pooling_) return (*pooling_)->forward(e.x, e.mask);
    return ops::reshape(ops::slice(e.external, 1, 0, 1), {e.external.dim(0), -1});
  }

  LossSum loss(const Tensor& logits, const Tensor& labels, const Ctx& ctx) const {
    ops::CrossEntropyOptions o{.ignore = kIgnoreLabel};
    if (ctx.training) {
      o.smoothing = config_.label_smoothing;
      o.class_weights = weights_;
    }
    double count = 0;
    for (double label : labels.to_vector()) count += label != kIgnoreLabel;
    return {ops::cross_entropy(logits, labels, o), count};
  }

  // A sample keeps all its tokens when the draw would hide every one of them.
  Tensor hide_tokens(const Tensor& mask, const Ctx& ctx) const {
    Tensor out = mask.clone();
    const i64 B = mask.dim(0), N = mask.dim(1);
    const RngKey key = ctx.at("tokens").key;
    std::uint8_t* m = out.mut_ptr<std::uint8_t>();
    for (i64 b = 0; b < B; ++b) {
      const RngKey row = key.fold_in(static_cast<std::uint64_t>(ctx.rows.empty() ? b : ctx.rows[static_cast<std::size_t>(b)]));
      i64 left = 0;
      for (i64 n = 0; n < N; ++n)
        left += m[b * N + n] = m[b * N + n] && row.uniform(static_cast<std::uint64_t>(n)) >= config_.token_dropout;
      if (left == 0) out.slice(0, b, b + 1).copy_from(mask.slice(0, b, b + 1));
    }
    return out;
  }

  EncoderConfig config_;
  DataInfo::Target target_;
  std::unique_ptr<Child<Embedding>> embedding_;
  std::unique_ptr<Child<Linear>> input_;
  std::vector<std::unique_ptr<Child<Conv1d>>> convs_;
  std::vector<std::unique_ptr<Child<Norm>>> norms_;
  std::unique_ptr<Child<Positions>> positions_;
  std::unique_ptr<Child<Transformer>> encoder_;
  std::unique_ptr<Child<Pooling>> pooling_;
  std::unique_ptr<Child<Linear>> head_;
  Tensor weights_;
};

ConfigNode resolve(const ConfigNode& node) {
  const EncoderConfig c = read(node);
  ConfigNode out = ConfigNode::map();
  out.set("type", ConfigNode::scalar("encoder_classifier"));
  const ConfigNode fields = write_config(c);
  for (const auto& [key, value] : fields.entries()) out.set(key, value);
  if (c.t.attention.size() <= 1) {
    out.set("attention", resolve_attention_config(c.t.attention.empty() ? ConfigNode() : c.t.attention[0]));
  } else {
    ConfigNode list = ConfigNode::sequence();
    for (const ConfigNode& a : c.t.attention) list.push_back(resolve_attention_config(a));
    out.set("attention", list);
  }
  return out;
}

[[maybe_unused]] const bool kRegistered = model_registry().add(
    "encoder_classifier", {.summary = "Transformer encoder with one label a sequence or one label a position",
                           .build = [](const ConfigNode& node, const DataInfo& data, RngKey key) -> std::unique_ptr<Model> {
                             return std::make_unique<EncoderClassifier>(read(node), data, key);
                           },
                           .resolve = resolve,
                           .explain = [] { return explain_config<EncoderConfig>(); }});

}  // namespace
}  // namespace tapeformer
