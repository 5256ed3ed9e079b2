// Centroids of routing follow training: once a step, whatever cuts the step into pieces; exact under resume.
#include <gtest/gtest.h>

#include "tests/data/temp_dir.h"
#include "tests/train/tiny.h"
#include "train/checkpoint.h"

namespace tapeformer {
namespace {

struct Setting {
  std::string model = "{}";  // keys over those below
  i64 batch = 8, accumulate = 1, samples = 24;
  std::string attention = "{type: routing, num_clusters: 3, commitment: 0.5, decay: 0.5}";
};

struct RoutedRun {
  explicit RoutedRun(const Setting& s) : train(s.samples, 5, false), info(tiny::info()) {
    ConfigNode node = ConfigNode::parse("{dim: 8, layers: 2, heads: 2, ff_dim: 8, dropout: 0}", "run.yaml");
    const ConfigNode over = ConfigNode::parse(s.model, "run.yaml");
    for (const auto& [key, value] : over.entries()) node.set(key, value);
    node.set("type", ConfigNode::scalar("encoder_classifier"));
    node.set("attention", ConfigNode::parse(s.attention, "run.yaml"));
    model = build_model(node, info, RngKey(1));
    config.steps = 6;
    config.clip = 0;
    config.batch_size = config.eval_batch_size = s.batch;
    config.accumulate = s.accumulate;
    optimizer = build_optimizer(ConfigNode::parse("{type: sgd, lr: 0.1, momentum: 0.5}", "o"), model->parameters());
    schedule = build_schedule(ConfigNode::parse("{}", "s"), 6);
    trainer =
        std::make_unique<Trainer>(TrainerParts{*model, *optimizer, *schedule, nullptr, train, nullptr, info, reducer}, config, RngKey(9));
  }
  StepReport step() { return trainer->step(state); }
  CheckpointContent content() { return {*model, optimizer.get(), nullptr, state, nullptr, empty}; }
  std::vector<double> buffers() const {
    std::vector<double> out;
    for (const auto& b : model->buffers())
      for (double x : b.tensor->to_vector()) out.push_back(x);
    return out;
  }
  std::vector<double> everything() const {
    std::vector<double> out = buffers();
    for (const Parameter* p : model->parameters())
      for (double x : p->value.to_vector()) out.push_back(x);
    return out;
  }
  tiny::Data train;
  DataInfo info;
  std::unique_ptr<Model> model;
  TrainConfig config;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Schedule> schedule;
  SingleReducer reducer;
  std::unique_ptr<Trainer> trainer;
  TrainState state;
  ConfigNode empty = ConfigNode::map();
};

void expect_near(const std::vector<double>& a, const std::vector<double>& b, double tolerance) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << i;
}

TEST(Routing, MicroBatchesGiveOneUpdate) {
  // Random centroids (those of a first batch are its own), and clusters that do not depend on the padded length.
  const std::string attention = "{type: routing, num_clusters: 3, decay: 0.5, init: random, assignment: argmax}";
  RoutedRun whole({.batch = 24, .attention = attention}), parts({.batch = 8, .accumulate = 3, .attention = attention});
  const std::vector<double> start = whole.buffers();
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(whole.step().loss, parts.step().loss, 1e-5);
    expect_near(whole.buffers(), parts.buffers(), 1e-4);
  }
  EXPECT_NE(whole.buffers(), start);
}

TEST(Routing, RecomputedBlocksTrainTheSame) {
  RoutedRun kept({}), again({.model = "{recompute: true}"});
  for (int i = 0; i < 3; ++i) {
    const StepReport x = kept.step(), y = again.step();
    EXPECT_EQ(x.loss, y.loss);
    EXPECT_EQ(x.extra_losses, y.extra_losses);
    expect_near(kept.everything(), again.everything(), 1e-6);
  }
  RoutedRun none({.attention = "{type: routing, num_clusters: 3, decay: 0.5}"});
  none.step();
  RoutedRun first({});
  first.step();
  EXPECT_NE(none.model->parameters()[2]->value.to_vector(), first.model->parameters()[2]->value.to_vector())
      << "commitment has no gradient";
}

TEST(Routing, ResumeGivesTheSameBits) {
  const TempDir dir;
  for (const char* assignment : {"topk", "argmax"}) {
    const Setting s{.attention = std::string("{type: routing, num_clusters: 3, commitment: 0.1, assignment: ") + assignment + "}"};
    RoutedRun whole(s), first(s), second(s);
    for (int i = 0; i < 5; ++i) whole.step();
    for (int i = 0; i < 2; ++i) first.step();
    save_checkpoint(dir / "a.h5", first.content());
    const Checkpoint file(dir / "a.h5");
    file.load_weights(*second.model);
    file.load_optimizer(*second.optimizer);
    second.state = file.state();
    for (int i = 0; i < 3; ++i) second.step();
    EXPECT_EQ(whole.everything(), second.everything()) << assignment;
  }
}

TEST(Routing, EvaluationChangesNothing) {
  RoutedRun run({});
  Loader loader(run.train, run.info, training_batches(run.config, run.reducer), RngKey(4));
  Cursor cursor;
  const Batch batch = loader.next(cursor);
  const std::vector<double> before = run.buffers();
  const Tensor fresh = run.model->forward(batch, {}).logits;  // works before any training
  EXPECT_EQ(run.buffers(), before);
  StepEffects effects;
  run.model->forward(batch, {.training = true, .effects = &effects});
  const std::vector<double> found = run.buffers();
  EXPECT_NE(found, before);  // the first training batch gives the centroids
  run.model->forward(batch, {.training = true, .effects = &effects});
  EXPECT_EQ(run.buffers(), found);
  effects.commit();
  EXPECT_NE(run.buffers(), found);
}

}  // namespace
}  // namespace tapeformer
