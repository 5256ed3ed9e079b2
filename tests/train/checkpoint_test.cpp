#include "train/checkpoint.h"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/data/temp_dir.h"
#include "tests/train/tiny.h"

namespace tapeformer {
namespace {

namespace fs = std::filesystem;
using tiny::Training;

TrainConfig config() {
  TrainConfig c;
  c.steps = 3;
  c.ema = 0.9;
  return c;
}

std::string bytes_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

void damage(const std::string& path, std::size_t at) {
  std::string b = bytes_of(path);
  b[at] = static_cast<char>(b[at] ^ 0x55);
  std::ofstream(path, std::ios::binary) << b;
}

TEST(Checkpoint, SaveLoadSaveIsTheSame) {
  const TempDir dir;
  Training a(config(), "{type: adamw}", "{}"), b(config(), "{type: adamw}", "{}");
  for (int i = 0; i < 3; ++i) a.trainer->step(a.state);
  a.state.schedule = {1, 0.25, 2};
  a.state.best_score = 0.1 + 0.2;
  a.state.finished = true;
  a.empty.set("seed", ConfigNode::scalar("7"));
  save_checkpoint(dir / "a.h5", a.content());
  const Checkpoint file(dir / "a.h5");
  file.load_weights(b.model);
  file.load_optimizer(*b.optimizer);
  file.load_ema(*b.ema);
  b.state = file.state();
  EXPECT_TRUE(a.everything() == b.everything());
  EXPECT_EQ(b.state.step, 3);
  EXPECT_EQ(b.state.tokens, a.state.tokens);
  EXPECT_EQ(b.state.cursor, a.state.cursor);
  EXPECT_EQ(b.state.best_score, a.state.best_score);
  EXPECT_EQ(b.state.schedule, a.state.schedule);
  EXPECT_EQ(b.state.loss_sum, a.state.loss_sum);
  EXPECT_TRUE(b.state.finished);
  EXPECT_EQ(file.config()["seed"].text(), "7");
  EXPECT_EQ(file.build(), build_version());
  for (const auto& entry : fs::directory_iterator(dir.str())) EXPECT_EQ(entry.path().filename(), "a.h5");  // no temporary is left
}

TEST(Checkpoint, TheBestWeightsAreTheAverage) {
  const TempDir dir;
  Training a(config(), "{type: adamw, lr: 0.1}", "{}"), b(config(), "{type: adamw}", "{}");
  for (int i = 0; i < 3; ++i) a.trainer->step(a.state);
  save_checkpoint(dir / "a.h5", a.content());
  Checkpoint(dir / "a.h5").load_best_weights(b.model);
  EXPECT_NE(a.model.table().to_vector(), b.model.table().to_vector());
  const EmaScope averaged(a.ema.get());
  EXPECT_EQ(a.model.table().to_vector(), b.model.table().to_vector());
}

class Other final : public Module {
 public:
  Weight table{this, "embed.table", {6, 9}, Init::zeros(), RngKey(1)}, scale{this, "scale", {1}, Init::zeros(), RngKey(1)};
};

TEST(Checkpoint, MismatchesAreListedTogetherAndNothingChanges) {
  const TempDir dir;
  Training a(config(), "{type: adamw}", "{}");
  save_checkpoint(dir / "a.h5", a.content());
  Other other;
  const std::string m = message_of([&] { Checkpoint(dir / "a.h5").load_weights(other); });
  EXPECT_TRUE(contains(m, "a.h5: does not fit"));
  EXPECT_TRUE(contains(m, "missing: scale"));
  EXPECT_TRUE(contains(m, "unexpected: seen, head.bias, head.weight"));
  EXPECT_TRUE(contains(m, "embed.table: got shape [6, 8], expected [6, 9]"));
  EXPECT_EQ(other.table.parameter().value.to_vector(), std::vector<double>(54, 0.0));
  Training sgd(config(), "{type: sgd}", "{}");
  EXPECT_TRUE(contains(message_of([&] { Checkpoint(dir / "a.h5").load_optimizer(*sgd.optimizer); }), "unexpected: embed.table/v"));
}

TEST(Checkpoint, AnyDamagedByteIsNoticed) {
  const TempDir dir;
  Training a(config(), "{type: adamw}", "{}");
  save_checkpoint(dir / "a.h5", a.content());
  const std::string good = bytes_of(dir / "a.h5");
  ASSERT_GT(good.size(), 2000u);
  for (std::size_t at = 0; at < good.size(); at = at < 49 ? at + 1 : at < 512 ? 512 : at + good.size() / 97) {  // 50 to 511 hold nothing
    std::ofstream(dir / "b.h5", std::ios::binary) << good;
    damage(dir / "b.h5", at);
    EXPECT_TRUE(contains(message_of([&] { Checkpoint file(dir / "b.h5"); }), "b.h5: is")) << "byte " << at;
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{10}, std::size_t{512}, good.size() / 2, good.size() - 1}) {
    std::ofstream(dir / "b.h5", std::ios::binary) << good.substr(0, size);
    EXPECT_TRUE(contains(message_of([&] { Checkpoint file(dir / "b.h5"); }), "b.h5: is")) << size << " bytes";
  }
  EXPECT_TRUE(contains(message_of([&] { Checkpoint file(dir / "none.h5"); }), "none.h5: no such file"));
}

TEST(Checkpoint, AnotherFormatIsRefused) {
  const TempDir dir;
  save_checked(dir / "new.h5", [](Hdf5File& f) {
    f.write_attribute("/", "format", i64{99});
    f.write_attribute("/", "config", "{}");
  });
  EXPECT_TRUE(contains(message_of([&] { Checkpoint file(dir / "new.h5"); }), "new.h5: has format 99, this program ("));
  save_checked(dir / "none.h5", [](Hdf5File& f) { f.write("/x", Tensor::zeros({1})); });
  EXPECT_TRUE(contains(message_of([&] { Checkpoint file(dir / "none.h5"); }), "is not a checkpoint"));
}

TEST(LastCheckpoint, ADamagedOneFallsBackToThePrevious) {
  const TempDir dir;
  EXPECT_EQ(open_last(dir.str()).checkpoint, nullptr);
  Training a(config(), "{type: adamw}", "{}");
  for (int i = 1; i <= 2; ++i) {
    a.trainer->step(a.state);
    save_last(dir.str(), a.content());
  }
  Recovered r = open_last(dir.str());
  EXPECT_EQ(r.checkpoint->state().step, 2);
  EXPECT_EQ(r.warning, "");
  damage(dir / "last.h5", 3000);
  r = open_last(dir.str());
  ASSERT_NE(r.checkpoint, nullptr);
  EXPECT_EQ(r.checkpoint->state().step, 1);
  EXPECT_TRUE(contains(r.warning, "last.h5: is damaged"));
  EXPECT_TRUE(contains(r.warning, "using " + dir / "previous.h5"));
  EXPECT_TRUE(fs::exists(dir / "last.h5.damaged"));
  EXPECT_EQ(open_last(dir.str()).checkpoint->state().step, 1);  // last.h5 is good again
  fs::remove(dir / "last.h5");
  EXPECT_EQ(open_last(dir.str()).checkpoint->state().step, 1);
  damage(dir / "last.h5", 3000);
  damage(dir / "previous.h5", 3000);
  const std::string m = message_of([&] { open_last(dir.str()); });
  EXPECT_TRUE(contains(m, "last.h5: is damaged"));
  EXPECT_TRUE(contains(m, "previous.h5: is damaged"));
}

}  // namespace
}  // namespace tapeformer
