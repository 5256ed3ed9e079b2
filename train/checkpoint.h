// checkpoint.h: a run in one HDF5 file. /model/<path> weights, /buffers/<path>, /optim/<path>/<slot>, /ema/<path>, /state/*,
// /preprocessor; attributes of the file: format, config (the resolved configuration), build. Written whole or not at all, verified by
// checksum, loaded strictly: every missing, unexpected and misshapen name in one message.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/config.h"
#include "core/hdf5_file.h"
#include "data/loader.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace tapeformer {

inline constexpr i64 kCheckpointFormat = 1;

// Everything a run must remember between two steps, beside the weights and the optimizer's state.
struct TrainState {
  i64 step = 0, tokens = 0;  // optimizer steps done; real tokens or frames seen
  Cursor cursor;             // the next batch
  double best_score = 0;     // higher is better; valid once best_step > 0
  i64 best_step = 0, bad_validations = 0;
  ScheduleMemory schedule;
  double loss_sum = 0, loss_count = 0;  // training loss since the last validation
  bool finished = false;
};

struct CheckpointContent {
  Module& model;
  Optimizer* optimizer = nullptr;  // null: weights only
  Ema* ema = nullptr;
  const TrainState& state;
  const Preprocessor* preprocessor = nullptr;
  const ConfigNode& config;  // resolved
};
void save_checkpoint(const std::string& path, const CheckpointContent&);

class Checkpoint {  // opened and verified; IoError when missing, damaged or of a newer format
 public:
  explicit Checkpoint(const std::string& path);
  const std::string& path() const { return path_; }
  const ConfigNode& config() const { return config_; }
  std::string build() const;
  TrainState state() const;
  void load_weights(Module&) const;       // to go on training
  void load_best_weights(Module&) const;  // to use the model: the averaged weights where there are some
  void load_optimizer(Optimizer&) const;
  void load_ema(Ema&) const;
  std::shared_ptr<Preprocessor> preprocessor() const;

 private:
  std::string path_;
  Hdf5File file_;
  ConfigNode config_;
};

// FOLDER/last.h5 and, of the time before, FOLDER/previous.h5.
void save_last(const std::string& folder, const CheckpointContent&);
struct Recovered {
  std::unique_ptr<Checkpoint> checkpoint;  // null: there is none yet
  std::string warning;                     // not empty: last.h5 was damaged and previous.h5 is used
};
Recovered open_last(const std::string& folder);  // a damaged last.h5 becomes last.h5.damaged; IoError when both are

std::string build_version();  // "0.1.0"

}  // namespace tapeformer
