#include "train/trainer.h"

#include <gtest/gtest.h>

#include <limits>

#include "core/parallel.h"
#include "core/storage.h"
#include "tests/data/temp_dir.h"
#include "tests/train/tiny.h"
#include "train/evaluation.h"

namespace tapeformer {
namespace {

using tiny::Training;

TrainConfig short_config() {
  TrainConfig c;
  c.steps = 10;
  c.batch_size = 4;
  c.accumulate = 3;
  c.bucket = 2;
  c.validate_every = 3;
  c.ema = 0.8;
  return c;
}

constexpr const char* kOptim = "{type: adamw, lr: 0.05}";
constexpr const char* kPlateau = "{type: plateau, warmup: 3, patience: 0}";

TEST(Resume, TenStepsEqualFiveSavedLoadedAndFiveMore) {
  const TempDir dir;
  for (const std::string& type : optimizer_registry().names()) {
    const std::string optim = "{type: " + type + ", lr: 0.05}";
    Training whole(short_config(), optim, kPlateau, {.extras = true});
    tiny::Recorder all;
    EXPECT_EQ(whole.trainer->run(whole.state, all), Ending::Finished);

    Training first(short_config(), optim, kPlateau, {.extras = true});
    tiny::Recorder half;
    half.stop_at = 5;
    EXPECT_EQ(first.trainer->run(first.state, half), Ending::Stopped);
    save_checkpoint(dir / "five.h5", first.content());

    Training second(short_config(), optim, kPlateau, {.extras = true});
    fill_normal(second.model.bias(), RngKey(3), 0, 1);  // whatever was there is replaced
    const Checkpoint file(dir / "five.h5");
    second.state = file.state();
    EXPECT_EQ(second.state.step, 5);
    file.load_weights(second.model);
    file.load_optimizer(*second.optimizer);
    file.load_ema(*second.ema);
    EXPECT_TRUE(second.everything() == first.everything());
    half.stop_at = 0;
    EXPECT_EQ(second.trainer->run(second.state, half), Ending::Finished);
    EXPECT_TRUE(half.numbers == all.numbers) << type;
    EXPECT_TRUE(second.everything() == whole.everything()) << type;
    EXPECT_EQ(second.state.cursor, whole.state.cursor);
    EXPECT_EQ(second.state.schedule, whole.state.schedule);
    EXPECT_EQ(all.validations, 4);  // after 3, 6, 9 and the last step
  }
}

TEST(Trainer, SameBitsForAnyThreadCount) {
  std::vector<double> numbers, weights;
  for (const int threads : {1, 2, 3, 8}) {
    set_thread_count(threads);
    Training run(short_config(), kOptim, kPlateau);
    tiny::Recorder seen;
    run.trainer->run(run.state, seen);
    if (numbers.empty()) {
      numbers = seen.numbers;
      weights = run.everything();
    }
    EXPECT_TRUE(seen.numbers == numbers && run.everything() == weights) << threads << " threads";
  }
  set_thread_count(usable_cores());
}

// One epoch of 10 samples as 4 + 4 + 2 in one step is the step of all 10 together, dropout and unlabelled samples included.
TEST(Trainer, AccumulationIsExactForARaggedWindow) {
  TrainConfig parts, whole;
  parts.steps = whole.steps = 1;
  parts.clip = whole.clip = 0;
  parts.batch_size = 4;
  parts.accumulate = 5;
  whole.batch_size = 10;
  Training a(parts, "{type: sgd, lr: 1, momentum: 0}", "{}", {}, 10), b(whole, "{type: sgd, lr: 1, momentum: 0}", "{}", {}, 10);
  const StepReport x = a.trainer->step(a.state), y = b.trainer->step(b.state);
  EXPECT_EQ(a.state.cursor, (Cursor{1, 0}));
  EXPECT_EQ(x.tokens, y.tokens);
  EXPECT_NEAR(x.loss, y.loss, 1e-6);
  EXPECT_NEAR(x.grad_norm, y.grad_norm, 1e-6);
  EXPECT_GT(x.grad_norm, 0.01);
  const std::vector<double> p = a.everything(), q = b.everything();
  for (std::size_t i = 0; i < p.size(); ++i) EXPECT_NEAR(p[i], q[i], 1e-6) << i;
}

TEST(Trainer, StepsOfAnEpochCountTheRaggedWindow) {
  TrainConfig c = short_config();
  c.steps = 0;
  c.epochs = 2;
  Training run(c, kOptim, "{}");  // 41 samples: 11 batches: 4 windows
  EXPECT_EQ(run.trainer->steps_in_epoch(0), 4);
  EXPECT_EQ(run.trainer->total_steps(), 8);
  c.validate_every = 0;
  Training each(c, kOptim, "{}");
  tiny::Recorder seen;
  each.trainer->run(each.state, seen);
  EXPECT_EQ(seen.validations, 2);
  EXPECT_EQ(each.state.cursor, (Cursor{2, 0}));
}

TEST(Trainer, ExtraLossesCountAsMeansAndBuffersFollowTheStep) {
  TrainConfig c = short_config();
  c.steps = 1;
  c.clip = 0;
  Training plain(c, "{type: sgd, lr: 1, momentum: 0}", "{}"), extra(c, "{type: sgd, lr: 1, momentum: 0}", "{}", {.extras = true});
  const std::vector<double> start = extra.parameters[1]->value.to_vector();
  plain.trainer->step(plain.state);
  const StepReport r = extra.trainer->step(extra.state);
  ASSERT_EQ(r.extra_losses.size(), 1u);
  EXPECT_EQ(r.extra_losses[0].first, "size");
  EXPECT_EQ(extra.model.buffers()[0].tensor->item(), 12);  // three batches of four
  const std::vector<double> a = plain.parameters[1]->value.to_vector(), b = extra.parameters[1]->value.to_vector();
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(b[i], a[i] - 2 * start[i], 1e-5);  // gradient of the mean of w^2
}

TEST(Trainer, ValidatesAndSavesTheAverage) {
  TrainConfig c = short_config();
  c.steps = 3;
  Training run(c, kOptim, "{}");
  struct Check final : TrainObserver {
    Training& run;
    double loss = 0;
    explicit Check(Training& r) : run(r) {}
    void on_validation(const ValidationReport& v) override { loss = v.metrics.loss(); }
  } check(run);
  run.trainer->run(run.state, check);
  EXPECT_NE(evaluate(run.model, run.valid, run.data_info, run.config).loss(), check.loss);
  const EmaScope averaged(run.ema.get());
  EXPECT_EQ(evaluate(run.model, run.valid, run.data_info, run.config).loss(), check.loss);
}

TEST(Trainer, StopsEarlyWithoutProgress) {
  TrainConfig c = short_config();
  c.steps = 40;
  c.validate_every = 2;
  c.patience = 3;
  c.ema = 0;
  Training run(c, "{type: sgd, lr: 1e-12, momentum: 0}", "{}");
  tiny::Recorder seen;
  EXPECT_EQ(run.trainer->run(run.state, seen), Ending::Patience);
  EXPECT_EQ(run.state.step, 8);
  EXPECT_EQ(run.state.best_step, 2);
  EXPECT_EQ(seen.bests, 1);
  EXPECT_TRUE(run.state.finished);
  EXPECT_EQ(run.trainer->run(run.state, seen), Ending::Patience);  // stays ended
  EXPECT_EQ(run.state.step, 8);
}

TEST(Trainer, NamesWhatIsNotFinite) {
  TrainConfig c = short_config();
  c.ema = 0;
  {
    Training run(c, kOptim, "{}");
    tiny::Recorder seen;
    run.model.bias().mut<float>()[0] = std::numeric_limits<float>::quiet_NaN();
    const std::string m = message_of([&] { run.trainer->run(run.state, seen); });
    EXPECT_TRUE(contains(m, "step 1: the loss is NaN: [linear]"));
    EXPECT_TRUE(contains(m, "the weights of 'head.bias' are not finite"));
    EXPECT_TRUE(contains(m, "samples: tiny.csv:"));
    EXPECT_EQ(seen.saves + seen.bests + seen.steps, 0);
  }
  {
    Training run(c, kOptim, "{}");
    run.model.table().fill(3e38);
    const std::string m = message_of([&] { run.trainer->step(run.state); });
    EXPECT_TRUE(contains(m, "step 1: the loss is"));
    EXPECT_TRUE(contains(m, "gave a value that is not finite"));
    EXPECT_EQ(run.state.step, 0);
  }
}

TEST(Trainer, ANonFiniteValidationIsNeverBest) {
  TrainConfig c = short_config();
  c.ema = 0;
  c.metric = "loss";
  c.validate_every = 1;
  Training run(c, "{type: sgd, lr: 1e30, momentum: 0}", "{}");
  tiny::Recorder seen;
  const std::string m = message_of([&] { run.trainer->run(run.state, seen); });
  EXPECT_TRUE(contains(m, "step "));
  EXPECT_EQ(run.state.best_step, seen.bests);  // 0, or the last finite one
  EXPECT_LE(seen.bests, 1);
}

TEST(Trainer, LearnsTheTinyTask) {
  TrainConfig c;
  c.steps = 150;
  c.batch_size = 16;
  Training run(c, kOptim, "{type: cosine, warmup: 10}", {.dropout = 0}, 300);
  tiny::Recorder seen;
  run.trainer->run(run.state, seen);
  EXPECT_GT(evaluate(run.model, run.train, run.data_info, run.config).accuracy(), 0.9);
}

TEST(Trainer, KeepsNothingFromStepToStep) {
  TrainConfig c = short_config();
  c.prefetch = 0;
  Training run(c, kOptim, "{}");
  for (int i = 0; i < 5; ++i) run.trainer->step(run.state);
  const std::size_t live = memory::stats().live;
  for (int i = 0; i < 20; ++i) run.trainer->step(run.state);
  EXPECT_EQ(memory::stats().live, live);
}

}  // namespace
}  // namespace tapeformer
