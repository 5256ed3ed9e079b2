#include "train/progress.h"

#include <unistd.h>

#include <cstdio>

#include "core/log.h"

namespace tapeformer {

using Clock = std::chrono::steady_clock;

std::string human(double n) {
  const char* const units[] = {"", "k", "M", "G", "T", "P"};
  int u = 0;
  while (n >= 1000 && u < 5) {
    n /= 1000;
    ++u;
  }
  return u == 0 ? fmt::format("{:.0f}", n) : fmt::format("{:.1f}{}", n, units[u]);
}

std::string human_bytes(double n) {
  const char* const units[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  int u = 0;
  while (n >= 1024 && u < 4) {
    n /= 1024;
    ++u;
  }
  return u == 0 ? fmt::format("{:.0f} B", n) : fmt::format("{:.1f} {}", n, units[u]);
}

std::string human_time(double seconds) {
  const i64 s = static_cast<i64>(seconds + 0.5);
  return s < 3600 ? fmt::format("{}:{:02}", s / 60, s % 60) : fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

Progress::Progress(i64 total_steps, i64 log_every, std::string metric, const TrainState& start)
    : terminal_(::isatty(STDERR_FILENO) != 0),
      total_(total_steps),
      every_(log_every),
      metric_name_(std::move(metric)),
      first_step_(start.step),
      first_tokens_(start.tokens),
      last_tokens_(start.tokens),
      tokens_(start.tokens),
      start_(Clock::now()),
      last_(start_),
      drawn_(start_) {}

Progress::~Progress() { clear(); }

void Progress::clear() {
  if (!shown_) return;
  std::fputs("\r\033[K", stderr);
  std::fflush(stderr);
  shown_ = false;
}

void Progress::draw(const StepReport& r) {
  constexpr int kWidth = 24;
  const double spent = std::chrono::duration<double>(Clock::now() - start_).count();
  const double speed = static_cast<double>(r.tokens - first_tokens_) / std::max(spent, 1e-9);
  const double left = spent / static_cast<double>(std::max<i64>(r.step - first_step_, 1)) * static_cast<double>(total_ - r.step);
  const int full = static_cast<int>(kWidth * r.step / std::max<i64>(total_, 1));
  const std::string bar = std::string(static_cast<std::size_t>(full), '#') + std::string(static_cast<std::size_t>(kWidth - full), '.');
  const std::string line =
      fmt::format("[{}] {}/{} loss {:.4f}{} {} tok/s {} left", bar, r.step, total_, r.loss, metric_, human(speed), human_time(left));
  std::fprintf(stderr, "\r\033[K%s", line.c_str());
  std::fflush(stderr);
  shown_ = true;
}

void Progress::step(const StepReport& r) {
  const auto now = Clock::now();
  if (r.step % every_ == 0 || r.step == total_) {
    const double spent = std::chrono::duration<double>(now - last_).count();
    std::string extra;
    for (const auto& [name, value] : r.extra_losses) extra += fmt::format(" {} {:.4g}", name, value);
    if (terminal_) log::set_quiet(true);  // the bar shows it; the file gets the line
    log::info(fmt::format("step {}/{} loss {:.4f}{} lr {:.2e} grad {:.3g} tok/s {}", r.step, total_, r.loss, extra, r.lr, r.grad_norm,
                          human(static_cast<double>(r.tokens - last_tokens_) / std::max(spent, 1e-9))));
    if (terminal_) log::set_quiet(false);
    last_ = now;
    last_tokens_ = r.tokens;
  }
  tokens_ = r.tokens;
  if (terminal_ && (now - drawn_ > std::chrono::milliseconds(100) || r.step == total_)) {
    draw(r);
    drawn_ = now;
  }
}

void Progress::validation(const ValidationReport& v, bool has_valid) {
  clear();
  if (!has_valid) {
    log::info(fmt::format("step {}: train loss {:.4f} (no validation data)", v.step, v.train_loss));
    return;
  }
  metric_ = fmt::format(" {} {:.4f}", metric_name_, v.metrics.value(metric_name_));
  log::info(fmt::format("step {}: train loss {:.4f}, validation loss {:.4f} accuracy {:.4f} macro F1 {:.4f}{}", v.step, v.train_loss,
                        v.metrics.loss(), v.metrics.accuracy(), v.metrics.macro_f1(), v.best ? "  (best)" : ""));
  last_ = Clock::now();  // the time of a validation is no training time
  last_tokens_ = tokens_;
}

}  // namespace tapeformer
