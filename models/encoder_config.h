// encoder_config.h: the keys of every model that reads its input with a Transformer encoder.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "layers/pooling.h"
#include "models/model.h"
#include "models/transformer.h"

namespace tapeformer {

struct ConvStemConfig {
  i64 layers = 0, kernel = 3, stride = 1;
};
template <class V>
void visit_fields(V& v, ConvStemConfig& c) {
  v("layers", c.layers, Range{0, 16}, "convolutions (with activation and norm) before the first block; 0 = none");
  v("kernel", c.kernel, Range{1, 1024}, "taps of each");
  v("stride", c.stride, Range{1, 64}, "of the first convolution; shortens the sequence (one label a sequence only)");
}

struct EncoderConfig {
  TransformerConfig t;
  std::string positions = "learned", pooling = "mean";
  double embedding_dropout = 0, token_dropout = 0, embedding_std = 0.1;
  ConvStemConfig stem;
  i64 patch = 0;
  ConfigNode attention;
};
std::vector<std::string> encoder_poolings();  // those of Pooling, and external
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
  v("pooling", c.pooling, OneOf(encoder_poolings()),
    "one vector a sequence from its rows (one label a sequence); external: the first external token");
  v("recompute", c.t.recompute, "drop a block's inner values and compute them again in backward: less memory, about a third more time");
  v("reversible", c.t.reversible,
    "reversible residual blocks: two streams, whose values backward computes from the last ones; memory flat in depth");
  v("stem", c.stem, "convolutions before the first block");
  v("patch", c.patch, Range{0, 4096},
    "images: side of the square patches that are the tokens (pooling cls adds a class token); 0 = every pixel");
  v("attention", c.attention, "{type: ..., its keys}, or a list with one for each layer; see --explain attention.TYPE");
}

void finish(EncoderConfig&, const ConfigNode& model);                      // fills what follows from other keys; ConfigError
void resolve_attention(const EncoderConfig&, ConfigNode& resolved_model);  // its attention with every default

// M: a Config with an EncoderConfig `encoder`, a constructor (Config, DataInfo, RngKey).
template <class M>
bool register_encoder_model(const char* name, const char* summary) {
  using Config = typename M::Config;
  const auto read = [](const ConfigNode& node) {
    Config c = read_config<Config>(node, {}, {"type"});
    finish(c.encoder, node);
    return c;
  };
  ModelEntry e;
  e.summary = summary;
  e.build = [read](const ConfigNode& node, const DataInfo& data, RngKey key) -> std::unique_ptr<Model> {
    return std::make_unique<M>(read(node), data, key);
  };
  e.resolve = [read, name](const ConfigNode& node) {
    const Config c = read(node);
    ConfigNode out = ConfigNode::map();
    out.set("type", ConfigNode::scalar(name));
    const ConfigNode fields = write_config(c);
    for (const auto& [key, value] : fields.entries()) out.set(key, value);
    resolve_attention(c.encoder, out);
    return out;
  };
  e.explain = [] { return explain_config<Config>(); };
  return model_registry().add(name, std::move(e));
}

}  // namespace tapeformer
