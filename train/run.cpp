#include "train/run.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/error.h"
#include "core/log.h"
#include "core/parallel.h"
#include "train/process.h"
#include "train/progress.h"
#include "train/run_directory.h"

namespace tapeformer {
namespace {

namespace fs = std::filesystem;

class Recorder final : public TrainObserver {  // observes a run into its directory
 public:
  Recorder(Session& session, RunDirectory& folder, const TrainState& start)
      : s_(session),
        folder_(folder),
        progress_(session.trainer->total_steps(), session.config.train.log_every, session.config.train.metric, start) {}
  void on_step(const StepReport& r) override {
    folder_.write(r);
    progress_.step(r);
    step_ms_.push_back(std::chrono::duration<double, std::milli>(Clock::now() - last_).count());
    last_ = Clock::now();
  }
  void on_validation(const ValidationReport& v) override {
    folder_.write(v, s_.data.valid != nullptr);
    progress_.validation(v, s_.data.valid != nullptr);
    last_ = Clock::now();
  }
  double median_step_ms() {
    if (step_ms_.empty()) return 0;
    const auto middle = step_ms_.begin() + static_cast<std::ptrdiff_t>(step_ms_.size() / 2);
    std::nth_element(step_ms_.begin(), middle, step_ms_.end());
    return *middle;
  }
  void save_last(const TrainState& state) override {
    folder_.sync();  // the metrics of a checkpoint are on disk before it
    tapeformer::save_last(folder_.checkpoints(),
                          {*s_.model, s_.optimizer.get(), s_.ema.get(), state, s_.data.preprocessor.get(), s_.resolved});
  }
  void save_best(const TrainState& state) override {  // the weights that were validated: averaged ones where there are some
    const EmaScope averaged(s_.ema.get());
    save_checkpoint(folder_.checkpoints() + "/best.h5", {*s_.model, nullptr, nullptr, state, s_.data.preprocessor.get(), s_.resolved});
  }
  bool stop_requested() override { return InterruptGuard::received() != 0; }

 private:
  using Clock = std::chrono::steady_clock;
  Session& s_;
  RunDirectory& folder_;
  Progress progress_;
  Clock::time_point last_ = Clock::now();
  std::vector<double> step_ms_;
};

std::string run_folder(const RunOptions& o) {
  if (!o.run_dir.empty()) return o.run_dir;
  std::string name = "runs/" + fs::path(o.config_file).stem().string();
  for (const std::string& file : o.overlays) name += "-" + fs::path(file).stem().string();
  return name;
}

void check_same(const RunConfig& config, const Checkpoint& checkpoint) {
  const std::vector<std::string> changed = changes_that_matter(write_run_config(config), checkpoint.config());
  if (!changed.empty())
    throw ConfigError(
        fmt::format("--resume: the configuration differs from that of {} in: {}; a run is continued as it began (another --run-dir "
                    "starts a new one)",
                    checkpoint.path(), join(changed)));
}

void log_opening(const Session& s, const std::string& folder, const TrainState& state) {
  i64 parameters = 0;
  for (const Parameter* p : s.model->parameters()) parameters += p->value.numel();
  const auto size = [](const std::unique_ptr<Dataset>& d) { return d ? std::to_string(d->size()) : "none"; };
  log::info(fmt::format("tapeformer {}, {} threads, seed {}, run directory {}", build_version(), thread_count(), s.config.seed, folder));
  log::info(fmt::format("data: {} samples to train, {} to validate, {} to test; {} classes", size(s.data.train), size(s.data.valid),
                        size(s.data.test), s.data.preprocessor->info().classes()));
  log::info(fmt::format("model: {}, {} parameters; {} optimizer, {} schedule", s.config.model["type"].text(),
                        human(static_cast<double>(parameters)), s.config.optim["type"].text(), s.config.schedule["type"].text()));
  log::info(fmt::format("{} steps ({} an epoch), from step {}", s.trainer->total_steps(), s.trainer->steps_in_epoch(0), state.step));
}

void log_closing(const Session& s, const TrainState& state, Ending ending, double seconds, double step_ms) {
  const char* const how = ending == Ending::Finished   ? "finished"
                          : ending == Ending::Patience ? "stopped early (patience)"
                                                       : "interrupted, checkpoint saved";
  std::string best;
  if (state.best_step > 0) {
    const double value = s.config.train.metric == "loss" ? -state.best_score : state.best_score;
    best = fmt::format("; best {} {:.4f} at step {}", s.config.train.metric, value, state.best_step);
  }
  log::info(fmt::format("{} at step {}{}; {}, {:.1f} ms a step, peak memory {}", how, state.step, best, human_time(seconds), step_ms,
                        human_bytes(static_cast<double>(peak_memory()))));
}

struct LogFile {
  explicit LogFile(const std::string& path) { log::to_file(path); }
  ~LogFile() { log::to_file(""); }
};

}  // namespace

RunConfig load_run_config(const RunOptions& o) {
  ConfigNode file = ConfigNode::load(o.config_file);
  for (const std::string& overlay : o.overlays) file.overlay(ConfigNode::load(overlay));
  for (const std::string& assignment : o.set) {
    const std::size_t equals = assignment.find('=');
    if (equals == std::string::npos || equals == 0)
      throw ConfigError(fmt::format("--set {}: expected KEY=VALUE, such as train.steps=100", assignment));
    file.set_path(assignment.substr(0, equals), assignment.substr(equals + 1));
  }
  return resolve_run_config(file);
}

void apply_settings(const RunConfig& c, int threads) {
  if (threads == 0) threads = c.threads > 0 ? c.threads : usable_cores();
  set_thread_count(threads);
  kernels::set_gemm_backend(c.train.matmul);
}

Session::Session(RunConfig c, std::shared_ptr<Preprocessor> fitted) : config(std::move(c)), resolved(write_run_config(config)) {
  try {
    build(std::move(fitted));
  } catch (const ConfigError& e) {
    throw ConfigError(resolved.located(e.what()));
  }
}

void Session::build(std::shared_ptr<Preprocessor> fitted) {
  data = fitted ? load_data(config.data, std::move(fitted)) : load_data(config.data);
  if (!data.train) throw ConfigError("data.train: no training data is named");
  const RngKey root(static_cast<std::uint64_t>(config.seed));
  const DataInfo& info = data.preprocessor->info();
  model = build_model(config.model, info, root.fold_in("init"));
  const std::vector<Parameter*> parameters = model->parameters();
  optimizer = build_optimizer(config.optim, parameters);
  if (config.train.ema > 0) ema = std::make_unique<Ema>(parameters, config.train.ema);
  LoaderConfig plan = training_batches(config.train, reducer);
  plan.prefetch = 0;
  const Loader loader(*data.train, info, plan, root.fold_in("data"));
  schedule = build_schedule(config.schedule, count_steps(loader, config.train));
  trainer = std::make_unique<Trainer>(TrainerParts{*model, *optimizer, *schedule, ema.get(), *data.train, data.valid.get(), info, reducer},
                                      config.train, root);
}

int run_training(const RunOptions& o) {
  const RunConfig config = load_run_config(o);
  apply_settings(config, o.threads);
  const std::string path = run_folder(o);
  RunDirectory folder(path);
  if (folder.has_checkpoints() && !o.resume && !o.overwrite)
    throw IoError(fmt::format("{}: holds checkpoints; use --resume to continue, --overwrite to start again, or another --run-dir", path));
  Recovered last;
  if (o.resume) last = open_last(folder.checkpoints());
  const LogFile log_file(folder.file("log.txt"));
  if (!last.warning.empty()) log::warn(last.warning);
  if (last.checkpoint)
    check_same(config, *last.checkpoint);
  else if (o.resume)
    log::info(fmt::format("{}: no checkpoint yet, starting from the beginning", path));

  Session session(config, last.checkpoint ? last.checkpoint->preprocessor() : nullptr);
  TrainState state;
  if (last.checkpoint) {
    state = last.checkpoint->state();
    last.checkpoint->load_weights(*session.model);
    last.checkpoint->load_optimizer(*session.optimizer);
    if (session.ema) last.checkpoint->load_ema(*session.ema);
    last.checkpoint.reset();
  }
  if (!o.resume) folder.remove_checkpoints();  // not before data and model are known to be sound
  write_file_atomically(folder.file("config.yaml"), session.resolved.yaml());
  folder.open_metrics(state);
  log_opening(session, path, state);

  const auto start = std::chrono::steady_clock::now();
  const InterruptGuard interrupts;
  Ending ending;
  double step_ms = 0;
  {
    Recorder recorder(session, folder, state);
    ending = session.trainer->run(state, recorder);
    step_ms = recorder.median_step_ms();
  }
  log_closing(session, state, ending, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), step_ms);
  return ending == Ending::Stopped ? 128 + InterruptGuard::received() : 0;
}

}  // namespace tapeformer
