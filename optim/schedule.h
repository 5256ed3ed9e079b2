// schedule.h: the learning rate as a pure function of the step. What must be remembered (plateau) lies in the caller's memory, which the
// training state carries, so a schedule object itself never changes.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/registry.h"

namespace tapeformer {

using ScheduleMemory = std::vector<double>;  // empty until the first observation

class Schedule {
 public:
  virtual ~Schedule() = default;
  // Learning rate of step 0, 1, ... as a share of the optimizer's lr.
  virtual double factor(i64 step, const ScheduleMemory&) const = 0;
  virtual void observe(double score, ScheduleMemory&) const { (void)score; }  // after each validation; a higher score is better
};

struct ScheduleEntry {
  std::string summary;
  std::function<std::unique_ptr<Schedule>(const ConfigNode&, i64 total_steps)> build;
  std::function<ConfigNode(const ConfigNode&)> resolve;
  std::function<std::vector<FieldHelp>()> explain;
};
Registry<ScheduleEntry>& schedule_registry();  // by schedule.type
std::unique_ptr<Schedule> build_schedule(const ConfigNode& schedule, i64 total_steps);
ConfigNode resolve_schedule_config(const ConfigNode& schedule);  // every default filled in; ConfigError on mistakes

}  // namespace tapeformer
