#include "train/run_directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/log.h"

namespace tapeformer {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& path, const std::string& what) {
  throw IoError(fmt::format("{}: {}: {}", path, what, std::strerror(errno)));
}

std::string quoted(const std::string& s) { return ConfigNode::parse("", "").set("v", detail::write_node(s)).json(); }

// The step a line begins with, or -1.
i64 step_of(std::string_view line) {
  constexpr std::string_view kStart = "{\"step\": ";
  i64 step = -1;
  if (line.substr(0, kStart.size()) != kStart) return -1;
  const auto [end, error] = std::from_chars(line.data() + kStart.size(), line.data() + line.size(), step);
  return error == std::errc{} && end != line.data() + line.size() && line.back() == '}' ? step : -1;
}

// Removes what a kill in the middle of writing left behind: NAME.tmp, NAME.tmp<process>.
void remove_leftovers(const std::string& folder) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string extension = entry.path().extension().string();
    if (extension.rfind(".tmp", 0) == 0 && extension.find_first_not_of("0123456789", 4) == std::string::npos) fs::remove(entry.path());
  }
}

}  // namespace

JsonLines::JsonLines(const std::string& path, i64 keep_until) : path_(path) {
  std::ifstream in(path, std::ios::binary);
  std::stringstream text;
  if (in) text << in.rdbuf();
  const std::string all = text.str();
  std::string keep;
  for (std::size_t start = 0, end; (end = all.find('\n', start)) != std::string::npos; start = end + 1) {
    const std::string_view line(all.data() + start, end - start);
    const i64 step = step_of(line);
    if (step < 1 || step > keep_until) break;
    keep.append(line).push_back('\n');
    ++kept_;
  }
  if (keep != all || !in) write_file_atomically(path, keep);
  fd_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  if (fd_ < 0) fail(path, "cannot be opened");
}

JsonLines::~JsonLines() {
  if (fd_ >= 0) ::close(fd_);
}

void JsonLines::write(const std::string& line) {
  const std::string whole = line + "\n";
  const ssize_t n = ::write(fd_, whole.data(), whole.size());
  if (n != static_cast<ssize_t>(whole.size())) fail(path_, "cannot be written (is the disk full?)");
}

void JsonLines::sync() { ::fdatasync(fd_); }

RunDirectory::RunDirectory(const std::string& path) : path_(path) {
  std::error_code error;
  fs::create_directories(checkpoints(), error);
  if (error) throw IoError(fmt::format("{}: cannot be made: {}", checkpoints(), error.message()));
  lock_ = ::open(file(".lock").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0644);
  if (lock_ < 0) fail(path, "cannot be written");
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    ::close(lock_);
    throw IoError(path + ": another process is training in this run directory");
  }
  remove_leftovers(path_);
  remove_leftovers(checkpoints());
}

RunDirectory::~RunDirectory() {
  if (lock_ >= 0) ::close(lock_);
}

bool RunDirectory::has_checkpoints() const {
  for (const auto& entry : fs::directory_iterator(checkpoints()))
    if (entry.path().extension() == ".h5") return true;
  return false;
}

void RunDirectory::remove_checkpoints() {
  for (const auto& entry : fs::directory_iterator(checkpoints())) fs::remove(entry.path());
}

void RunDirectory::open_metrics(const TrainState& s) {
  steps_ = std::make_unique<JsonLines>(file("steps.jsonl"), s.step);
  validations_ = std::make_unique<JsonLines>(file("validations.jsonl"), s.step);
  if (steps_->kept() != s.step)
    log::warn(fmt::format("{}: holds {} steps, the checkpoint {}", file("steps.jsonl"), steps_->kept(), s.step));
}

void RunDirectory::write(const StepReport& r) {
  std::string line = fmt::format("{{\"step\": {}, \"loss\": {}, \"lr\": {}, \"grad_norm\": {}, \"tokens\": {}", r.step, r.loss, r.lr,
                                 r.grad_norm, r.tokens);
  for (const auto& [name, value] : r.extra_losses) line += fmt::format(", {}: {}", quoted(name), value);
  steps_->write(line + "}");
}

void RunDirectory::write(const ValidationReport& v, bool has_valid) {
  std::string line = fmt::format("{{\"step\": {}, \"epoch\": {}, \"train_loss\": {}", v.step, v.epoch, v.train_loss);
  if (has_valid)
    line += fmt::format(", \"loss\": {}, \"accuracy\": {}, \"macro_f1\": {}, \"best\": {}", v.metrics.loss(), v.metrics.accuracy(),
                        v.metrics.macro_f1(), v.best);
  validations_->write(line + "}");
}

void RunDirectory::sync() {
  steps_->sync();
  validations_->sync();
}

}  // namespace tapeformer
