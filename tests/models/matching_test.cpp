// Models of pairs and of image patches.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops.h"
#include "core/error.h"
#include "layers/patch_embedding.h"
#include "models/model.h"

namespace tapeformer {
namespace {

Sample tokens(std::vector<i64> ids) {
  Sample s;
  s.tokens = std::move(ids);
  return s;
}
Sample pair(std::vector<i64> a, std::vector<i64> b, i64 label) {
  Sample s = tokens(std::move(a));
  s.second = std::make_shared<const Sample>(tokens(std::move(b)));
  s.label = label;
  return s;
}
DataInfo pairs() { return {.vocab = 9, .max_length = 8, .labels = {"no", "yes"}, .pair = true}; }
std::unique_ptr<Model> build(const std::string& keys, const DataInfo& data) {
  return build_model(ConfigNode::parse("{dim: 8, layers: 1, heads: 2, dropout: 0, " + keys + "}", "run.yaml"), data, RngKey(1));
}
template <class F>
std::string message(F&& f) {
  try {
    f();
  } catch (const ConfigError& e) {
    return e.what();
  }
  return "";
}

double difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double worst = x.size() == y.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
  return worst;
}

TEST(Matching, EverySettingRunsAndEveryWeightLearns) {
  for (const char* keys : {"", "interaction: concat", "hidden: []", "hidden: [5]", "pooling: cls", "attention: {type: local, window: 1}"}) {
    SCOPED_TRACE(keys);
    const DataInfo data = pairs();
    const auto model =
        build(std::string("type: matching, ") + (std::string(keys).find("hidden") == 0 ? "" : "hidden: [6, 4], ") + keys, data);
    const Batch batch = collate({pair({3, 4, 5}, {6}, 1), pair({7}, {3, 4, 5, 6, 7}, 0)}, {0, 1}, data);
    Tape tape;
    const Output out = model->forward(batch, {.training = true, .key = RngKey(2), .rows = batch.rows});
    EXPECT_EQ(out.logits.shape(), (Shape{2, 2}));
    EXPECT_EQ(out.loss.count, 2);
    tape.backward(out.loss.sum);
    i64 counted = 0, all = 0;
    for (const Parameter* p : model->parameters()) {
      EXPECT_TRUE(p->grad.defined()) << p->name;
      all += p->value.numel();
    }
    for (const Model::LayerSummary& row : model->summary()) counted += row.parameters;
    EXPECT_EQ(counted, all);
  }
}

// The towers share their weights and do not see each other: padding of the one follows neither from the other nor from the batch.
TEST(Matching, PairsAreIndependentOfTheirBatch) {
  const DataInfo data = pairs();
  const auto model = build("type: matching, hidden: [6]", data);
  const Sample a = pair({3, 4, 5}, {6}, 1), b = pair({7}, {3, 4, 5, 6, 7}, 0);
  const Tensor both = model->forward(collate({a, b}, {0, 1}, data), {}).logits;
  EXPECT_LE(difference(both.slice(0, 0, 1), model->forward(collate({a}, {0}, data), {}).logits), 1e-6);
  EXPECT_LE(difference(both.slice(0, 1, 2), model->forward(collate({b}, {1}, data), {}).logits), 1e-6);
}

TEST(Matching, KindOfDataAndModelMustFit) {
  DataInfo single = pairs();
  single.pair = false;
  EXPECT_EQ(message([&] { build("type: matching", single); }),
            "model.type: matching needs pairs with one label each (data.columns.text2); the data has single inputs");
  EXPECT_EQ(message([&] { build("type: encoder_classifier", pairs()); }),
            "model.type: got encoder_classifier, but the data has pairs (data.columns.text2); matching reads them");
}

DataInfo images() {
  return {.input = DataInfo::Input::Features, .feature_dim = 3, .max_length = 24, .labels = {"a", "b"}, .image = DataInfo::Image{4, 6, 3}};
}

TEST(Patches, ModelReadsAnImageAsPatches) {
  const DataInfo data = images();
  Sample s;
  s.features = Tensor::empty({24, 3});
  fill_normal(s.features, RngKey(4), 0, 1);
  s.label = 1;
  const Batch batch = collate({s, s}, {0, 1}, data);
  for (const char* keys : {"patch: 2", "patch: 2, pooling: cls", "patch: 1", "patch: 2, positions: sinusoidal", "patch: 2, positions: none",
                           "patch: 2, token_dropout: 0.3"}) {
    SCOPED_TRACE(keys);
    const auto model = build(keys, data);
    Tape tape;
    const Output out = model->forward(batch, {.training = true, .key = RngKey(2), .rows = batch.rows});
    EXPECT_EQ(out.logits.shape(), (Shape{2, 2}));
    tape.backward(out.loss.sum);
    for (const Parameter* p : model->parameters()) EXPECT_TRUE(p->grad.defined()) << p->name;
  }
}

TEST(Patches, Mistakes) {
  EXPECT_EQ(message([] { build("patch: 4", images()); }), "model.patch: got 4, which does not divide the image of 4 x 6 pixels");
  EXPECT_EQ(message([] { build("patch: 2, stem: {layers: 1}", images()); }), "model.patch: cannot be combined with model.stem");
  DataInfo tokens = pairs();
  tokens.pair = false;
  EXPECT_EQ(message([&] { build("patch: 2", tokens); }), "model.patch: needs images as features (data.type: image, data.input: features)");
}

// tok_t = b + sum_{c,a,e} W[:,c,a,e] img[c, uP+a, vP+e], with the class token in front, plus positions.
TEST(Patches, EmbeddingFollowsItsFormula) {
  PatchEmbedding layer({.patch = 2, .height = 4, .width = 6, .channels = 3, .dim = 5}, RngKey(3));
  Tensor image = Tensor::empty({2, 3, 4, 6});
  fill_normal(image, RngKey(5), 0, 1);
  const Tensor out = layer.forward(image);
  ASSERT_EQ(out.shape(), (Shape{2, 7, 5}));
  const auto parameters = layer.parameters();
  const std::vector<double> W = parameters[0]->value.to_vector(), pos = parameters[3]->value.to_vector(), x = image.to_vector(),
                            y = out.to_vector();
  EXPECT_EQ(parameters[3]->name, "pos");
  for (std::size_t n = 0; n < 2; ++n)
    for (std::size_t d = 0; d < 5; ++d) {
      EXPECT_NEAR(y[n * 35 + d], pos[d], 1e-6);
      for (std::size_t u = 0; u < 2; ++u)
        for (std::size_t v = 0; v < 3; ++v) {
          const std::size_t t = u * 3 + v;
          double sum = pos[(t + 1) * 5 + d];
          for (std::size_t c = 0; c < 3; ++c)
            for (std::size_t a = 0; a < 2; ++a)
              for (std::size_t e = 0; e < 2; ++e)
                sum += W[((d * 3 + c) * 2 + a) * 2 + e] * x[((n * 3 + c) * 4 + 2 * u + a) * 6 + 2 * v + e];
          EXPECT_NEAR(y[n * 35 + (t + 1) * 5 + d], sum, 1e-5);
        }
    }
}

}  // namespace
}  // namespace tapeformer
