// trainer.h: the training loop. A step is `accumulate` batches (fewer at the end of an epoch), whose summed gradients are divided once by
// the number of labels they held, so that a ragged last window is exact. Everything that changes from step to step is in the weights, the
// optimizer, the average and TrainState; a run continued from these gives the same bits.
#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/loader.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/metrics.h"
#include "train/reducer.h"

namespace tapeformer {

struct StepReport {
  i64 step = 0;                                              // 1 after the first
  double loss = 0, lr = 0, grad_norm = 0;                    // mean loss over the step's labels; norm before clipping
  i64 tokens = 0;                                            // real tokens or frames so far
  std::vector<std::pair<std::string, double>> extra_losses;  // means of what layers added
};
struct ValidationReport {
  i64 step = 0, epoch = 0;  // epochs completed
  double train_loss = 0;    // mean since the last validation
  Metrics metrics;
  bool best = false;
};

class TrainObserver {  // all do nothing unless overridden
 public:
  virtual ~TrainObserver() = default;
  virtual void on_step(const StepReport&) {}
  virtual void on_validation(const ValidationReport&) {}
  virtual void save_last(const TrainState&) {}  // the state can be continued from here
  virtual void save_best(const TrainState&) {}
  virtual bool stop_requested() { return false; }  // asked after every step
};

struct TrainerParts {
  Model& model;
  Optimizer& optimizer;
  const Schedule& schedule;
  Ema* ema = nullptr;
  const Dataset& train;
  const Dataset* valid = nullptr;
  const DataInfo& info;
  Reducer& reducer;
};

enum class Ending { Finished, Patience, Stopped };  // all steps done; no better metric for long; stop_requested

class Trainer {
 public:
  Trainer(const TrainerParts&, const TrainConfig&, RngKey root);
  ~Trainer();
  Ending run(TrainState&, TrainObserver&);
  StepReport step(TrainState&);  // one step; NumericError when loss or gradient is not finite, weights untouched
  i64 total_steps() const { return total_steps_; }
  i64 steps_in_epoch(i64 epoch) const;
  Loader& loader() { return loader_; }

 private:
  struct Window;  // the sums of a step's batches
  void micro_batch(const Batch&, bool last, i64 step, Window&);
  [[noreturn]] void report_bad_loss(const Batch&, i64 step, double loss);
  [[noreturn]] void report_bad_gradient(const Window&, i64 step, double norm);
  std::string describe(const std::vector<i64>& rows) const;
  bool validation_due(const TrainState&, i64 epoch_before) const;
  void validate(TrainState&, TrainObserver&);

  TrainerParts parts_;
  TrainConfig config_;
  RngKey root_;
  std::vector<Parameter*> parameters_;
  Loader loader_;
  i64 total_steps_;
};

// Steps of a run: `steps`, or those of `epochs`, whose last window of batches may be ragged.
i64 count_steps(const Loader&, const TrainConfig&);
LoaderConfig training_batches(const TrainConfig&, const Reducer&);

}  // namespace tapeformer
