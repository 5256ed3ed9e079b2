#include "train/checkpoint.h"

#include <filesystem>
#include <map>

#ifndef TAPEFORMER_VERSION
#define TAPEFORMER_VERSION "unknown"
#endif

namespace tapeformer {
namespace {

namespace fs = std::filesystem;
using Named = std::map<std::string, Tensor*>;  // dataset path -> where it goes

void add_weights(Module& model, const std::string& group, Named& out) {
  for (Parameter* p : model.parameters()) out[group + "/" + p->name] = &p->value;
}

void add_buffers(Module& model, Named& out) {
  for (const Module::NamedBuffer& b : model.buffers()) out["/buffers/" + b.path] = b.tensor;
}

bool below(const std::string& path, const std::string& group) { return path.rfind(group + "/", 0) == 0; }

std::string tidy(const std::string& path) { return path.substr(path.find('/', 1) + 1); }

// Fills every tensor of `wanted` from the datasets below `groups`; the two must agree exactly. Nothing changes unless all fits.
void load_strictly(const Hdf5File& file, const std::string& name, const std::vector<std::string>& groups, const Named& wanted) {
  std::vector<std::string> missing, unexpected, misshapen;
  std::map<std::string, Tensor> found;
  for (const std::string& path : file.datasets()) {
    if (std::none_of(groups.begin(), groups.end(), [&](const std::string& g) { return below(path, g); })) continue;
    const auto it = wanted.find(path);
    if (it == wanted.end()) {
      unexpected.push_back(tidy(path));
      continue;
    }
    Tensor t = file.read(path);
    if (t.shape() != it->second->shape())
      misshapen.push_back(fmt::format("{}: got shape {}, expected {}", tidy(path), t.shape().str(), it->second->shape().str()));
    found[path] = std::move(t);
  }
  for (const auto& [path, tensor] : wanted)
    if (!found.count(path)) missing.push_back(tidy(path));
  std::string problems;
  if (!missing.empty()) problems += "\n  missing: " + join(missing);
  if (!unexpected.empty()) problems += "\n  unexpected: " + join(unexpected);
  for (const std::string& m : misshapen) problems += "\n  " + m;
  if (!problems.empty()) throw IoError(fmt::format("{}: does not fit (/{}):{}", name, groups[0].substr(1), problems));
  for (const auto& [path, tensor] : wanted) tensor->copy_from(found[path]);
}

Named optimizer_state(Optimizer& o) {
  Named out;
  o.visit_state([&](const std::string& parameter, const std::string& slot, Tensor& t) { out["/optim/" + parameter + "/" + slot] = &t; });
  return out;
}

Named averages(Ema& ema) {
  Named out;
  ema.visit([&](const std::string& parameter, Tensor& t) { out["/ema/" + parameter] = &t; });
  return out;
}

void write_all(Hdf5File& file, const Named& tensors) {
  for (const auto& [path, tensor] : tensors) file.write(path, *tensor);
}

void write_state(Hdf5File& file, const TrainState& s) {
  const auto integer = [&](const char* name, i64 v) { file.write(std::string("/state/") + name, Tensor::from<i64>({v}, {1})); };
  const auto real = [&](const char* name, double v) { file.write(std::string("/state/") + name, Tensor::from<double>({v}, {1})); };
  integer("step", s.step);
  integer("tokens", s.tokens);
  integer("epoch", s.cursor.epoch);
  integer("batch", s.cursor.batch);
  real("best_score", s.best_score);
  integer("best_step", s.best_step);
  integer("bad_validations", s.bad_validations);
  real("loss_sum", s.loss_sum);
  real("loss_count", s.loss_count);
  integer("finished", s.finished);
  if (!s.schedule.empty()) file.write("/state/schedule", Tensor::from<double>(s.schedule, {static_cast<i64>(s.schedule.size())}));
}

}  // namespace

std::string build_version() { return TAPEFORMER_VERSION; }

void save_checkpoint(const std::string& path, const CheckpointContent& c) {
  save_checked(path, [&](Hdf5File& file) {
    file.write_attribute("/", "format", kCheckpointFormat);
    file.write_attribute("/", "build", build_version());
    file.write_attribute("/", "config", c.config.yaml());
    Named tensors;
    add_weights(c.model, "/model", tensors);
    add_buffers(c.model, tensors);
    write_all(file, tensors);
    if (c.optimizer) write_all(file, optimizer_state(*c.optimizer));
    if (c.ema) write_all(file, averages(*c.ema));
    write_state(file, c.state);
    if (c.preprocessor) c.preprocessor->save(file, "/preprocessor");
  });
}

Checkpoint::Checkpoint(const std::string& path) : path_(path), file_(open_checked(path)) {
  if (!file_.has_attribute("/", "format")) throw IoError(path + ": is not a checkpoint (it has no attribute 'format')");
  const i64 format = static_cast<i64>(file_.read_number("/", "format"));
  if (format != kCheckpointFormat)
    throw IoError(fmt::format("{}: has format {}, this program ({}) reads format {}", path, format, build_version(), kCheckpointFormat));
  config_ = ConfigNode::parse(file_.read_text("/", "config"), path);
}

std::string Checkpoint::build() const { return file_.read_text("/", "build"); }

TrainState Checkpoint::state() const {
  const auto value = [&](const char* name) { return file_.read(std::string("/state/") + name).to_vector().at(0); };
  const auto integer = [&](const char* name) { return file_.read(std::string("/state/") + name).data<i64>()[0]; };
  TrainState s;
  s.step = integer("step");
  s.tokens = integer("tokens");
  s.cursor = {integer("epoch"), integer("batch")};
  s.best_score = value("best_score");
  s.best_step = integer("best_step");
  s.bad_validations = integer("bad_validations");
  s.loss_sum = value("loss_sum");
  s.loss_count = value("loss_count");
  s.finished = integer("finished") != 0;
  if (file_.exists("/state/schedule")) s.schedule = file_.read("/state/schedule").to_vector();
  return s;
}

void Checkpoint::load_weights(Module& model) const {
  Named wanted;
  add_weights(model, "/model", wanted);
  add_buffers(model, wanted);
  load_strictly(file_, path_, {"/model", "/buffers"}, wanted);
}

void Checkpoint::load_best_weights(Module& model) const {
  if (!file_.exists("/ema")) return load_weights(model);
  Named wanted;
  add_weights(model, "/ema", wanted);
  add_buffers(model, wanted);
  load_strictly(file_, path_, {"/ema", "/buffers"}, wanted);
}

void Checkpoint::load_optimizer(Optimizer& o) const { load_strictly(file_, path_, {"/optim"}, optimizer_state(o)); }

void Checkpoint::load_ema(Ema& ema) const { load_strictly(file_, path_, {"/ema"}, averages(ema)); }

std::shared_ptr<Preprocessor> Checkpoint::preprocessor() const { return load_preprocessor(file_, "/preprocessor"); }

void save_last(const std::string& folder, const CheckpointContent& c) {
  const fs::path last = fs::path(folder) / "last.h5", previous = fs::path(folder) / "previous.h5",
                 link = fs::path(folder) / "previous.h5.tmp";
  if (fs::exists(last)) {
    std::error_code failed;
    fs::remove(link, failed);
    fs::create_hard_link(last, link, failed);
    if (failed) fs::copy_file(last, link, fs::copy_options::overwrite_existing);  // a file system without hard links
    fs::rename(link, previous);
  }
  save_checkpoint(last.string(), c);
}

Recovered open_last(const std::string& folder) {
  const fs::path last = fs::path(folder) / "last.h5", previous = fs::path(folder) / "previous.h5";
  if (!fs::exists(last) && !fs::exists(previous)) return {};
  Recovered out;
  std::string damage;
  try {
    out.checkpoint = std::make_unique<Checkpoint>(last.string());
    return out;
  } catch (const IoError& e) {
    damage = e.what();
  }
  try {
    out.checkpoint = std::make_unique<Checkpoint>(previous.string());
  } catch (const IoError& e) {
    throw IoError(fmt::format("{}\n{}\nno good checkpoint is left in {}; --overwrite starts again", damage, e.what(), folder));
  }
  out.warning = fmt::format("{}; using {}", damage, previous.string());
  if (fs::exists(last)) fs::rename(last, last.string() + ".damaged");
  fs::copy_file(previous, last.string() + ".tmp", fs::copy_options::overwrite_existing);
  fs::rename(last.string() + ".tmp", last);
  return out;
}

}  // namespace tapeformer
