// config_test.cpp: what is refused after the configuration was resolved still names the file and line that it came from.
#include "train/config.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace tapeformer {
namespace {

const char* const kRun = R"(data:
  type: text
  train: train.csv
model:
  type: encoder_classifier
  attention:
    type: local
    window: 3
optim:
  type: sgd
schedule:
  type: cosine
)";

TEST(RunConfig, ResolvedSectionsKeepTheirPlaces) {
  const RunConfig c = resolve_run_config(ConfigNode::parse(kRun, "run.yaml"));
  EXPECT_EQ(c.data["train"].place(), "run.yaml:3: data.train");
  EXPECT_EQ(c.model["attention"]["window"].place(), "run.yaml:8: model.attention.window");
  EXPECT_EQ(c.optim["type"].place(), "run.yaml:10: optim.type");
  EXPECT_EQ(c.schedule["type"].place(), "run.yaml:12: schedule.type");
  EXPECT_EQ(write_run_config(c).located("model.attention.window: got 3"), "run.yaml:8: model.attention.window: got 3");
}

}  // namespace
}  // namespace tapeformer
