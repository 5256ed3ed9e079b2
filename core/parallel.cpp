#include "core/parallel.h"

#include <omp.h>
#include <sched.h>

#include <atomic>
#include <cmath>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>

#include "core/error.h"

namespace tapeformer {
namespace {

int cgroup_quota() {  // cores the cgroup (v2) allows, or a large number
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
  return std::max(1, static_cast<int>(std::lround(std::stod(quota) / period)));
}

std::atomic<int>& threads() {
  static std::atomic<int> n{usable_cores()};
  return n;
}

}  // namespace

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int mask = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return std::max(1, std::min(mask, cgroup_quota()));
}

int thread_count() { return threads(); }

void set_thread_count(int n) {
  if (n < 1) throw ConfigError("threads: got " + std::to_string(n) + ", expected at least 1");
  threads() = n;
  omp_set_dynamic(0);
  omp_set_num_threads(n);
}

namespace detail {

void run_chunks(i64 chunks, void* context, ChunkFunction f) {
  const int team = static_cast<int>(std::min<i64>(thread_count(), chunks));
  if (team <= 1 || omp_in_parallel()) {
    for (i64 c = 0; c < chunks; ++c) f(context, c);
    return;
  }
  std::exception_ptr failure;
  std::mutex mutex;
#pragma omp parallel for schedule(dynamic, 1) num_threads(team)
  for (i64 c = 0; c < chunks; ++c) {
    try {
      f(context, c);
    } catch (...) {
      std::lock_guard lock(mutex);
      if (!failure) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace detail
}  // namespace tapeformer
