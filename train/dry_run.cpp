// dry_run.cpp: what a run will take, measured on a few steps whose result is thrown away.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "core/counters.h"
#include "core/parallel.h"
#include "train/evaluation.h"
#include "train/process.h"
#include "train/progress.h"
#include "train/run.h"

namespace tapeformer {
namespace {

std::string data_table(const Session& s) {
  const DataInfo& info = s.data.preprocessor->info();
  std::string out = fmt::format("{:<8}{:>10}{:>10}{:>10}\n", "part", "samples", "batches", "padding");
  const auto row = [&](const char* name, const Dataset* d, const Loader* training) {
    if (d == nullptr) return;
    std::unique_ptr<Loader> own;
    if (training == nullptr) {
      LoaderConfig c = evaluation_batches(s.config.train);
      c.prefetch = 0;
      own = std::make_unique<Loader>(*d, info, c, RngKey(0));
    }
    const Loader& l = training ? *training : *own;
    out += fmt::format("{:<8}{:>10}{:>10}{:>9.1f}%\n", name, d->size(), l.batches(0), 100 * l.padding_share(0));
  };
  row("train", s.data.train.get(), &s.trainer->loader());
  row("valid", s.data.valid.get(), nullptr);
  row("test", s.data.test.get(), nullptr);
  return out;
}

std::string model_table(Session& s) {
  const std::vector<Model::LayerSummary> layers = s.model->summary();
  std::size_t width = 5, kind = 4;
  i64 total = 0;
  for (const Model::LayerSummary& l : layers) {
    width = std::max(width, l.name.size());
    kind = std::max(kind, l.kind.size());
    total += l.parameters;
  }
  std::string out = fmt::format("{:<{}}  {:<{}}  {:>12}\n", "layer", width, "kind", kind, "parameters");
  for (const Model::LayerSummary& l : layers) out += fmt::format("{:<{}}  {:<{}}  {:>12}\n", l.name, width, l.kind, kind, l.parameters);
  return out + fmt::format("{:<{}}  {:<{}}  {:>12}\n", "total", width, "", kind, total);
}

double flops() {
  const counters::Counts c = counters::now();
  return static_cast<double>(c.matmul_flops + c.attention_flops);
}

void validate_largest(const Session& s) {
  if (!s.data.valid) return;
  const DataInfo& info = s.data.preprocessor->info();
  Loader loader(*s.data.valid, info, evaluation_batches(s.config.train), RngKey(0));
  Cursor cursor = loader.largest_batch(0);
  const NoGrad no_grad;
  const EmaScope averaged(s.ema.get());
  const Batch batch = loader.next(cursor);
  (void)s.model->forward(batch, {.rows = batch.rows});
}

// What saving needs is part of the peak; the file is removed again.
void save_once(const Session& s, const TrainState& state) {
  const std::string path = (std::filesystem::temp_directory_path() / fmt::format("tapeformer_dry_run_{}.h5", ::getpid())).string();
  save_checkpoint(path, {*s.model, s.optimizer.get(), s.ema.get(), state, s.data.preprocessor.get(), s.resolved});
  { const Checkpoint read_back(path); }
  std::filesystem::remove(path);
}

}  // namespace

std::string dry_run(const RunOptions& o) {
  // Memory settles only after batches of many shapes: as many steps as fit into some seconds, at least six.
  constexpr double kSeconds = 8;
  constexpr i64 kLeast = 6;
  const RunConfig config = load_run_config(o);
  apply_settings(config, o.threads);
  Session s(config);
  Trainer& t = *s.trainer;
  std::string out = data_table(s) + "\n" + model_table(s) + "\n";
  const i64 most = t.total_steps();
  TrainState state;
  const double before = flops();
  const auto start = std::chrono::steady_clock::now();
  i64 steps = 0;
  for (; steps < most; ++steps) {
    if (steps >= kLeast && std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() > kSeconds) break;
    (void)t.step(state);
  }
  const double each = (flops() - before) / static_cast<double>(std::max<i64>(steps, 1));
  state.cursor = t.loader().largest_batch(0);
  (void)t.step(state);
  validate_largest(s);
  save_once(s, state);
  out += fmt::format("steps                  {} ({} an epoch, {} {} a step)\n", t.total_steps(), t.steps_in_epoch(0),
                     config.train.accumulate, config.train.accumulate == 1 ? "batch" : "batches");
  out += fmt::format("arithmetic a step      {}FLOP in matrix products and attention\n", human(each));
  out += fmt::format("predicted peak memory  {} ({} bytes)\n", human_bytes(static_cast<double>(peak_memory())), peak_memory());
  return out + fmt::format("threads                {}\n", thread_count());
}

}  // namespace tapeformer
