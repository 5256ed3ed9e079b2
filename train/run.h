// run.h: a training run from a configuration file: what apps/train does, without the command line.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace tapeformer {

struct RunOptions {
  std::string config_file;
  std::vector<std::string> overlays;  // configurations laid over it in order; later keys win
  std::vector<std::string> set;       // "train.steps=100"
  std::string run_dir;                // "" = runs/<name of the configuration>, with -<name> for each overlay
  bool resume = false, overwrite = false;
  int threads = 0;  // 0 = as the configuration says
};

RunConfig load_run_config(const RunOptions&);  // file, --set, defaults; ConfigError lists all mistakes
// Trains until the end, or until SIGTERM or SIGINT: then 128 + the signal's number, else 0.
int run_training(const RunOptions&);
// Data, parameters by layer, arithmetic of a step, predicted peak memory; trains nothing that lasts.
std::string dry_run(const RunOptions&);

// Everything of a run but its state.
struct Session {
  RunConfig config;
  ConfigNode resolved;
  DataSet data;
  std::unique_ptr<Model> model;
  std::unique_ptr<Optimizer> optimizer;
  std::unique_ptr<Schedule> schedule;
  std::unique_ptr<Ema> ema;
  SingleReducer reducer;
  std::unique_ptr<Trainer> trainer;
  // fitted: of a checkpoint; null fits on the training part.
  explicit Session(RunConfig, std::shared_ptr<Preprocessor> fitted = nullptr);

 private:
  void build(std::shared_ptr<Preprocessor> fitted);
};
void apply_settings(const RunConfig&, int threads);  // threads, library of the matrix products

}  // namespace tapeformer
