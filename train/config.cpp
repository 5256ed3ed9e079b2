#include "train/config.h"

#include <algorithm>

#include "data/dataset.h"
#include "models/model.h"
#include "optim/optimizer.h"
#include "optim/schedule.h"

namespace tapeformer {
namespace {

struct TopLevel {
  i64 seed = 1;
  int threads = 0;
};
template <class V>
void visit_fields(V& v, TopLevel& c) {
  v("seed", c.seed, at_least(0), "everything random follows from it");
  v("threads", c.threads, Range{0, 4096}, "0: every usable core; changes speed only, no result");
}

TrainConfig read_train(const ConfigNode& node) {
  TrainConfig t = read_config<TrainConfig>(node);
  if (t.steps > 0 && t.epochs > 0)
    throw ConfigError(node.place() + ": got both steps and epochs, expected one of them; 0 takes one of them back");
  if (t.steps == 0 && t.epochs == 0) t.epochs = 10;
  if (t.eval_batch_size == 0) t.eval_batch_size = t.batch_size;
  return t;
}

void compare(const std::string& path, const ConfigNode& a, const ConfigNode& b, std::vector<std::string>& out) {
  static const std::vector<std::string> free = {"threads",          "train.steps",    "train.epochs",  "train.log_every",
                                                "train.save_every", "train.prefetch", "train.patience"};
  if (std::find(free.begin(), free.end(), path) != free.end() || a == b) return;
  if (a.is_map() && b.is_map()) {
    for (const std::string& key : a.keys()) compare(path.empty() ? key : path + "." + key, a[key], b[key], out);
    for (const std::string& key : b.keys())
      if (!a[key]) out.push_back((path.empty() ? "" : path + ".") + key);
    return;
  }
  if (a.json() != b.json()) out.push_back(path);
}

}  // namespace

kernels::Math math_of(const TrainConfig& c) { return c.math == "bf16" ? kernels::Math::BF16 : kernels::Math::F32; }

RunConfig resolve_run_config(const ConfigNode& file) {
  RunConfig c;
  std::vector<std::string> errors;
  const auto attempt = [&](const auto& f) {
    try {
      f();
    } catch (const ConfigError& e) {
      errors.push_back(file.located(e.what()));
    }
  };
  attempt([&] {
    const TopLevel top = read_config<TopLevel>(file, {}, {"data", "model", "optim", "schedule", "train"});
    c.seed = top.seed;
    c.threads = top.threads;
  });
  const auto section = [&](const char* key, auto&& resolve) {  // keeps the places: what is refused later still names its file and line
    ConfigNode resolved = resolve(file[key]);
    resolved.place_as(file[key]);
    return resolved;
  };
  attempt([&] {
    if (!file["data"]) throw ConfigError(file.place() + ": the section 'data' is missing");
    c.data = section("data", resolve_data_config);
  });
  attempt([&] { c.model = section("model", resolve_model_config); });
  attempt([&] { c.optim = section("optim", resolve_optimizer_config); });
  attempt([&] { c.schedule = section("schedule", resolve_schedule_config); });
  attempt([&] { c.train = read_train(file["train"]); });
  if (!errors.empty()) throw ConfigError(join(errors, "\n"));
  return c;
}

ConfigNode write_run_config(const RunConfig& c) {
  ConfigNode out = write_config(TopLevel{c.seed, c.threads});
  out.set("data", c.data);
  out.set("model", c.model);
  out.set("optim", c.optim);
  out.set("schedule", c.schedule);
  out.set("train", write_config(c.train));
  return out;
}

std::vector<std::string> changes_that_matter(const ConfigNode& a, const ConfigNode& b) {
  std::vector<std::string> out;
  compare("", a, b, out);
  return out;
}

}  // namespace tapeformer
