#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/error.h"

namespace tapeformer {
namespace {

std::unique_ptr<Schedule> schedule(const std::string& yaml, i64 total) { return build_schedule(ConfigNode::parse(yaml, "s.yaml"), total); }

TEST(Schedule, WarmupRisesInAStraightLine) {
  for (const char* type : {"constant", "linear", "cosine", "plateau", "exponential"}) {
    const auto s = schedule(std::string("{type: ") + type + ", warmup: 10}", 100);
    EXPECT_DOUBLE_EQ(s->factor(0, {}), 0.1) << type;
    EXPECT_DOUBLE_EQ(s->factor(4, {}), 0.5) << type;
    EXPECT_DOUBLE_EQ(s->factor(9, {}), 1) << type;
    EXPECT_DOUBLE_EQ(s->factor(10, {}), 1) << type;
    const auto share = schedule(std::string("{type: ") + type + ", warmup: 0.1}", 100);
    EXPECT_DOUBLE_EQ(share->factor(4, {}), 0.5) << type;
    EXPECT_DOUBLE_EQ(schedule(std::string("{type: ") + type + "}", 100)->factor(0, {}), 1) << type;
  }
}

TEST(Schedule, Shapes) {
  EXPECT_DOUBLE_EQ(schedule("{type: constant}", 100)->factor(1000000, {}), 1);
  EXPECT_DOUBLE_EQ(schedule("{type: linear, warmup: 20, end: 0.1}", 120)->factor(70, {}), 0.55);
  EXPECT_DOUBLE_EQ(schedule("{type: linear}", 100)->factor(100, {}), 0);
  EXPECT_DOUBLE_EQ(schedule("{type: linear}", 100)->factor(500, {}), 0);
  EXPECT_NEAR(schedule("{type: cosine, warmup: 20, end: 0.2}", 120)->factor(70, {}), 0.6, 1e-12);
  EXPECT_NEAR(schedule("{type: cosine}", 100)->factor(25, {}), (1 + std::cos(M_PI / 4)) / 2, 1e-12);
  const auto noam = schedule("{type: inverse_sqrt, warmup: 100}", 1000);
  EXPECT_DOUBLE_EQ(noam->factor(49, {}), 0.5);
  EXPECT_DOUBLE_EQ(noam->factor(99, {}), 1);
  EXPECT_DOUBLE_EQ(noam->factor(399, {}), 0.5);
  const auto cycle = schedule("{type: one_cycle, warmup: 0.25, start: 0.1, end: 0.01}", 100);
  EXPECT_NEAR(cycle->factor(0, {}), 0.1, 1e-12);
  EXPECT_NEAR(cycle->factor(25, {}), 1, 1e-12);
  EXPECT_NEAR(cycle->factor(100, {}), 0.01, 1e-12);
  EXPECT_NEAR(schedule("{type: exponential, factor: 0.5, every: 10}", 100)->factor(20, {}), 0.25, 1e-12);
  EXPECT_NEAR(schedule("{type: exponential, factor: 0.5, every: 10, stairs: true}", 100)->factor(29, {}), 0.25, 1e-12);
}

TEST(Schedule, PlateauHalvesAfterPatience) {
  const auto s = schedule("{type: plateau, patience: 1, factor: 0.5, threshold: 0.01}", 100);
  ScheduleMemory m;
  const auto after = [&](double score) {
    s->observe(score, m);
    return s->factor(50, m);
  };
  EXPECT_EQ(s->factor(50, m), 1);
  EXPECT_EQ(after(0.5), 1);
  EXPECT_EQ(after(0.505), 1);  // no progress, waited for
  EXPECT_EQ(after(0.5), 0.5);  // patience is over
  EXPECT_EQ(after(0.7), 0.5);
  EXPECT_EQ(after(0.7), 0.5);
  EXPECT_EQ(after(0.7), 0.25);
}

TEST(Schedule, UnknownTypeAndKey) {
  const auto message = [](const std::string& yaml) -> std::string {
    try {
      resolve_schedule_config(ConfigNode::parse("\nschedule: " + yaml, "run.yaml")["schedule"]);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(message("{type: cosin}").find("run.yaml:2: schedule.type: got 'cosin', expected one of: constant, cosine,"), std::string::npos);
  EXPECT_NE(message("{type: cosin}").find("(did you mean 'cosine'?)"), std::string::npos);
  EXPECT_NE(message("{type: cosine, warmpu: 3}").find("run.yaml:2: schedule.warmpu: unknown key"), std::string::npos);
  EXPECT_EQ(resolve_schedule_config(ConfigNode()).json(), R"({"type": "constant", "warmup": 0})");
}

}  // namespace
}  // namespace tapeformer
