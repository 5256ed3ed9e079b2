// graph_network.cpp: layers of attention with an activation after each and nothing else: no residual sums, norms or feed-forward halves.
// With graph attention this is the network of Velickovic et al. 2018 (arXiv 1710.10903), section 3.3. One label a node.
#include "autograd/ops.h"
#include "layers/linear.h"
#include "models/class_loss.h"
#include "models/transformer.h"

namespace tapeformer {
namespace {

struct GraphNetworkConfig {
  i64 dim = 64, layers = 2, heads = 8;
  double dropout = 0.5, attention_dropout = 0.5;
  std::string activation = "elu";
  bool bias = true;
  ConfigNode attention;
  ClassLossConfig loss;
};
template <class V>
void visit_fields(V& v, GraphNetworkConfig& c) {
  v("dim", c.dim, Range{1, 65536}, "width of the layers, D");
  v("layers", c.layers, Range{0, 1000}, "attention layers");
  v("heads", c.heads, Range{1, 1024}, "attention heads, H");
  v("dropout", c.dropout, Range{0, 0.95}, "on the features, on the input of each layer and on that of the head");
  v("attention_dropout", c.attention_dropout, Range{0, 0.95}, "on the attention weights");
  v("activation", c.activation, OneOf{"elu", "relu", "gelu", "tanh"}, "after each layer");
  v("bias", c.bias, "biases in the attention projections");
  v("attention", c.attention, "{type: ..., its keys} of every layer; none = {type: graph, score: gat}; see --explain attention.TYPE");
  visit_fields(v, c.loss);
}

ConfigNode attention_of(const ConfigNode& model) {
  const ConfigNode& given = model["attention"];
  return given && !given.is_null() ? given : ConfigNode::parse("{type: graph, score: gat}", model.place());
}

GraphNetworkConfig read(const ConfigNode& node) {
  auto c = read_config<GraphNetworkConfig>(node, {}, {"type"});
  c.attention = attention_of(node);
  attention_type(c.attention);
  if (c.dim % c.heads != 0)
    throw ConfigError(fmt::format("{}: dim: got {}, expected a multiple of heads ({})", node.place(), c.dim, c.heads));
  return c;
}

class GraphNetwork final : public Model {
 public:
  GraphNetwork(const GraphNetworkConfig& c, const DataInfo& data, RngKey key)
      : config_(c),
        loss_(c.loss, checked(data)),
        input_(this, "input", std::make_unique<Linear>(data.feature_dim, c.dim, key.fold_in("input"))) {
    const AttentionSpec spec{
        .dim = c.dim, .heads = c.heads, .head_dim = c.dim / c.heads, .max_len = data.max_length, .dropout = c.attention_dropout};
    for (i64 i = 0; i < c.layers; ++i) {
      auto layer =
          std::make_unique<AttentionLayer>(c.attention, spec, c.bias, false, key.fold_in("layers").fold_in(static_cast<std::uint64_t>(i)));
      const AttentionCore& core = layer->core();
      require_side(core.info(), data.side);
      if (core.shortens() || core.external_tokens() > 0)
        throw ConfigError(
            fmt::format("model.attention: '{}' changes the number of rows, a graph_network needs one for each node", core.info().name));
      layers_.emplace_back(this, "layers." + std::to_string(i), std::move(layer));
    }
    head_ = std::make_unique<Child<Linear>>(this, "head", std::make_unique<Linear>(c.dim, data.classes(), key.fold_in("head")));
  }

  Output forward(const Batch& batch, const Ctx& ctx) const override {
    const auto drop = [&](const Tensor& x, i64 place) {
      return ctx.training ? ops::dropout(x, config_.dropout, ctx.at("dropout").at(place).key, ctx.rows) : x;
    };
    const SideInputs side{batch.side};
    i64 place = 0;
    Tensor x = input_->forward(drop(batch.features.to(default_dtype()), place++));
    for (const Child<AttentionLayer>& layer : layers_) {
      x = activated(layer->forward(drop(x, place), batch.mask, side, ctx.at("layers").at(place)));
      ++place;
    }
    return loss_((*head_)->forward(drop(x, place)), batch.labels, ctx);
  }

  std::vector<LayerSummary> summary() override {
    std::vector<LayerSummary> rows{{"input", "linear", count_parameters(*input_)}};
    for (std::size_t i = 0; i < layers_.size(); ++i)
      rows.push_back(
          {"layer " + std::to_string(i), "attention " + std::string(layers_[i]->core().info().name), count_parameters(*layers_[i])});
    rows.push_back({"head", "linear", count_parameters(**head_)});
    return rows;
  }

 private:
  static const DataInfo& checked(const DataInfo& data) {
    if (data.input != DataInfo::Input::Features || data.target != DataInfo::Target::Frame)
      throw ConfigError("model.type: graph_network needs data with features and one label for each row of them (data.type: graph)");
    return data;
  }
  Tensor activated(const Tensor& x) const {
    const std::string& a = config_.activation;
    return a == "elu" ? ops::elu(x) : a == "relu" ? ops::relu(x) : a == "gelu" ? ops::gelu(x) : ops::tanh(x);
  }

  GraphNetworkConfig config_;
  ClassLoss loss_;
  Child<Linear> input_;
  std::vector<Child<AttentionLayer>> layers_;
  std::unique_ptr<Child<Linear>> head_;
};

ConfigNode resolve(const ConfigNode& node) {
  const GraphNetworkConfig c = read(node);
  ConfigNode out = ConfigNode::map();
  out.set("type", ConfigNode::scalar("graph_network"));
  const ConfigNode fields = write_config(c);
  for (const auto& [key, value] : fields.entries()) out.set(key, value);
  out.set("attention", resolve_attention_config(c.attention));
  return out;
}

[[maybe_unused]] const bool kRegistered =
    model_registry().add("graph_network", {.summary = "layers of attention with an activation after each: one label a node",
                                           .build = [](const ConfigNode& node, const DataInfo& data, RngKey key) -> std::unique_ptr<Model> {
                                             return std::make_unique<GraphNetwork>(read(node), data, key);
                                           },
                                           .resolve = resolve,
                                           .explain = [] { return explain_config<GraphNetworkConfig>(); }});

}  // namespace
}  // namespace tapeformer
