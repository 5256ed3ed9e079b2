// The network of graph attention layers: shapes, refusals, and that it learns from its neighbours.
#include <gtest/gtest.h>

#include "autograd/ops.h"
#include "models/model.h"

namespace tapeformer {
namespace {

DataInfo nodes() {
  DataInfo d;
  d.input = DataInfo::Input::Features;
  d.target = DataInfo::Target::Frame;
  d.feature_dim = 3;
  d.max_length = 6;
  d.labels = {"a", "b"};
  d.side = {"edges", "edge_batch"};
  return d;
}

Batch batch() {
  Batch b;
  b.features = Tensor::empty({1, 6, 3});
  fill_normal(b.features, RngKey(2), 0, 1);
  b.mask = Tensor::full({1, 6}, 1, DType::U8);
  b.labels = Tensor::from<i64>({0, 1, kIgnoreLabel, 0, 1, kIgnoreLabel}, {1, 6});
  b.side["edges"] = Tensor::from<i64>({0, 1, 4, 5, /**/ 1, 0, 5, 4}, {2, 4});
  b.rows = {0};
  return b;
}

std::unique_ptr<Model> model_of(const std::string& keys, const DataInfo& data = nodes()) {
  ConfigNode node =
      ConfigNode::parse("{dim: 8" + std::string(keys.find("heads") == keys.npos ? ", heads: 2" : "") + keys + "}", "run.yaml");
  node.set("type", ConfigNode::scalar("graph_network"));
  return build_model(node, data, RngKey(1));
}

std::string refusal(const std::string& keys, const DataInfo& data = nodes()) {
  try {
    model_of(keys, data);
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

TEST(GraphNetwork, NodesSeeAsManyStepsAsThereAreLayers) {
  for (const char* keys : {"", ", layers: 1, activation: relu", ", layers: 1, attention: {type: graph}"}) {
    const auto model = model_of(keys);
    Batch b = batch();
    const Output first = model->forward(b, {});
    EXPECT_EQ(first.logits.shape(), (Shape{1, 6, 2}));
    EXPECT_EQ(first.loss.count, 4);
    b.features.slice(1, 5, 6).fill(3);
    const Tensor moved = model->forward(b, {}).logits;
    const std::vector<double> x = first.logits.to_vector(), y = moved.to_vector();
    for (std::size_t n : {0, 1, 2, 3}) EXPECT_EQ(x[2 * n], y[2 * n]) << keys << n;
    EXPECT_NE(x[8], y[8]) << keys << "node 4 looks at node 5";
  }
}

TEST(GraphNetwork, DropoutIsForTraining) {
  const auto model = model_of("");
  const Batch b = batch();
  const Ctx training{.training = true, .key = RngKey(4)};
  const std::vector<double> calm = model->forward(b, {}).logits.to_vector(), wild = model->forward(b, training).logits.to_vector();
  EXPECT_NE(calm, wild);
  EXPECT_EQ(wild, model->forward(b, training).logits.to_vector());
  EXPECT_EQ(calm, model->forward(b, {}).logits.to_vector());
}

TEST(GraphNetwork, SummaryHoldsEveryParameter) {
  const auto model = model_of(", layers: 3");
  i64 all = 0, listed = 0;
  for (const Parameter* p : model->parameters()) all += p->value.numel();
  for (const Model::LayerSummary& row : model->summary()) listed += row.parameters;
  EXPECT_EQ(all, listed);
}

TEST(GraphNetwork, SaysWhatIsWrong) {
  DataInfo plain = nodes(), tokens = nodes();
  plain.side = {};
  tokens.input = DataInfo::Input::Tokens;
  EXPECT_EQ(refusal("", plain), "model.attention: graph needs the side input 'edges', the data offers: none");
  EXPECT_NE(refusal("", tokens).find("graph_network needs data with features"), std::string::npos);
  EXPECT_NE(refusal(", attention: {type: grap}").find("did you mean 'graph'?"), std::string::npos);
  EXPECT_NE(refusal(", heads: 3").find("dim: got 8, expected a multiple of heads (3)"), std::string::npos);
}

TEST(GraphNetwork, ResolvedConfigIsTheSame) {
  const ConfigNode node = ConfigNode::parse("{type: graph_network, layers: 3}", "run.yaml"), resolved = resolve_model_config(node);
  EXPECT_EQ(resolved["attention"]["score"].text(), "gat");
  EXPECT_EQ(resolve_model_config(ConfigNode::parse(resolved.yaml(), "again.yaml")), resolved);
}

}  // namespace
}  // namespace tapeformer
