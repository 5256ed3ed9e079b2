// progress.h: what a person sees while training: a bar on a terminal, one plain line an interval elsewhere. Speeds are shown here and in
// log.txt only; the metric files hold nothing that depends on time.
#pragma once
#include <chrono>
#include <string>

#include "train/trainer.h"

namespace tapeformer {

class Progress {
 public:
  Progress(i64 total_steps, i64 log_every, std::string metric, const TrainState& start);
  ~Progress();
  void step(const StepReport&);
  void validation(const ValidationReport&, bool has_valid);

 private:
  double seconds() const;
  void draw(const StepReport&);
  void clear();
  const bool terminal_;
  const i64 total_, every_;
  const std::string metric_name_;
  std::string metric_;  // the last validation's, for the bar
  i64 first_step_, first_tokens_, last_tokens_, tokens_;
  std::chrono::steady_clock::time_point start_, last_, drawn_;
  bool shown_ = false;
};

std::string human(double n);             // 41200 -> "41.2k"
std::string human_bytes(double n);       // 1536 -> "1.5 KiB"
std::string human_time(double seconds);  // 75 -> "1:15"

}  // namespace tapeformer
