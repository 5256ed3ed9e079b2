#include "train/run_directory.h"

#include <gtest/gtest.h>

#include <sstream>

#include "tests/data/temp_dir.h"

namespace tapeformer {
namespace {

std::string text_of(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

TEST(JsonLines, AreCutBackToAStepAndContinued) {
  const TempDir dir;
  const std::string three = "{\"step\": 1, \"x\": 1}\n{\"step\": 2}\n{\"step\": 3}\n";
  const std::string path = dir.write("m.jsonl", three + "{\"step\": 4, \"lo");
  {
    JsonLines lines(path, 100);
    EXPECT_EQ(lines.kept(), 3);
    lines.write("{\"step\": 4}");
  }
  EXPECT_EQ(text_of(path), three + "{\"step\": 4}\n");
  { EXPECT_EQ(JsonLines(path, 2).kept(), 2); }
  EXPECT_EQ(text_of(path), "{\"step\": 1, \"x\": 1}\n{\"step\": 2}\n");
  { EXPECT_EQ(JsonLines(path, 0).kept(), 0); }
  EXPECT_EQ(text_of(path), "");
  JsonLines fresh(dir / "new.jsonl", 5);
  fresh.write("{\"step\": 1}");
  EXPECT_EQ(text_of(dir / "new.jsonl"), "{\"step\": 1}\n");
}

TEST(RunDirectory, IsHeldByOneRunAtATime) {
  const TempDir dir;
  {
    const RunDirectory held(dir / "run");
    EXPECT_FALSE(held.has_checkpoints());
    EXPECT_TRUE(contains(message_of([&] { RunDirectory second(dir / "run"); }), "another process is training"));
  }
  const RunDirectory again(dir / "run");
  dir.write("file", "");
  EXPECT_TRUE(contains(message_of([&] { RunDirectory bad(dir / "file"); }), "cannot be made"));
}

TEST(RunDirectory, WritesNumbersThatReadBackExactly) {
  const TempDir dir;
  RunDirectory run(dir / "run");
  run.open_metrics({});
  run.write(StepReport{.step = 1, .loss = 0.1 + 0.2, .lr = 1e-3, .grad_norm = 2, .tokens = 7, .extra_losses = {{"commit", 0.5}}});
  EXPECT_EQ(text_of(run.file("steps.jsonl")),
            "{\"step\": 1, \"loss\": 0.30000000000000004, \"lr\": 0.001, \"grad_norm\": 2, \"tokens\": 7, \"commit\": 0.5}\n");
}

}  // namespace
}  // namespace tapeformer
