#include "core/log.h"

#include <spdlog/sinks/basic_file_sink.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/error.h"

namespace tapeformer::log {
namespace {

struct Sinks {
  std::shared_ptr<spdlog::sinks::sink> terminal = std::make_shared<spdlog::sinks::stderr_sink_mt>();
  std::shared_ptr<spdlog::logger> logger = std::make_shared<spdlog::logger>("tapeformer", terminal);
  Sinks() { terminal->set_pattern("%v"); }
};
Sinks& sinks() {
  static Sinks* s = new Sinks;
  return *s;
}

}  // namespace

void info(const std::string& message) { sinks().logger->info("{}", message); }
void warn(const std::string& message) { sinks().logger->warn("warning: {}", message); }
void error(const std::string& message) { sinks().logger->error("error: {}", message); }
void set_quiet(bool quiet) { sinks().terminal->set_level(quiet ? spdlog::level::warn : spdlog::level::info); }

void to_file(const std::string& path) {
  auto& list = sinks().logger->sinks();
  list.resize(1);
  if (path.empty()) return;
  try {
    auto file = std::make_shared<spdlog::sinks::basic_file_sink_mt>(path);
    file->set_pattern("%Y-%m-%d %H:%M:%S %v");
    list.push_back(file);
    sinks().logger->flush_on(spdlog::level::info);
  } catch (const spdlog::spdlog_ex& e) {
    throw IoError(path + ": cannot write the log: " + e.what());
  }
}

}  // namespace tapeformer::log
