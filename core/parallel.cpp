#include "core/parallel.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <cmath>
#include <exception>
#include <fstream>
#include <mutex>
#include <string>
#include <thread>

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

thread_local int worker_index = 0;
thread_local bool inside = false;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Waits until value != old: a short spin, since the next loop of a step usually follows at once, then sleep. Spinning longer would take
// the core from whoever shares it.
template <class T>
void wait_while(const std::atomic<T>& value, T old) {
  for (int i = 0; i < 400; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    relax();
  }
  value.wait(old, std::memory_order_acquire);
}

// One team of threads for the whole process. The caller works as member 0; workers sleep between loops.
class Team {
 public:
  // False when another thread is using the team: the caller then works alone.
  bool run(int members, i64 chunks, void* context, detail::ChunkFunction f) {
    const std::unique_lock lock(mutex_, std::try_to_lock);
    if (!lock) return false;
    while (static_cast<int>(workers_.size()) < members - 1) start_worker();
    f_ = f;
    context_ = context;
    chunks_ = chunks;
    members_ = members;
    failure_ = nullptr;
    next_ = 0;
    busy_.store(static_cast<int>(workers_.size()), std::memory_order_relaxed);
    generation_.fetch_add(1, std::memory_order_release);
    generation_.notify_all();
    work();
    for (int left = busy_.load(std::memory_order_acquire); left != 0; left = busy_.load(std::memory_order_acquire)) wait_while(busy_, left);
    if (failure_) std::rethrow_exception(failure_);
    return true;
  }

 private:
  void start_worker() {
    const int index = static_cast<int>(workers_.size()) + 1;
    workers_.emplace_back([this, index, seen = generation_.load()]() mutable {
      worker_index = index;
      while (true) {
        wait_while(generation_, seen);
        seen = generation_.load(std::memory_order_acquire);
        if (index < members_) work();
        if (busy_.fetch_sub(1, std::memory_order_acq_rel) == 1) busy_.notify_one();
      }
    });
    workers_.back().detach();
  }

  void work() {
    inside = true;
    for (i64 c; (c = next_.fetch_add(1, std::memory_order_relaxed)) < chunks_;) {
      try {
        f_(context_, c);
      } catch (...) {
        const std::lock_guard lock(failure_mutex_);
        if (!failure_) failure_ = std::current_exception();
      }
    }
    inside = false;
  }

  std::mutex mutex_, failure_mutex_;
  std::vector<std::thread> workers_;
  detail::ChunkFunction f_ = nullptr;
  void* context_ = nullptr;
  i64 chunks_ = 0;
  int members_ = 0;
  std::exception_ptr failure_;
  std::atomic<i64> next_{0};
  std::atomic<int> busy_{0};
  std::atomic<std::uint32_t> generation_{0};
};

std::atomic<Team*>& team() {
  static std::atomic<Team*> t = [] {                              // never destroyed: sleeping workers outlive main
    pthread_atfork(nullptr, nullptr, [] { team() = new Team; });  // threads do not survive a fork
    return new Team;
  }();
  return t;
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
}

bool in_parallel() { return inside; }
int parallel_member() { return inside ? worker_index : 0; }

namespace detail {

void run_chunks(i64 chunks, void* context, ChunkFunction f) {
  const int members = static_cast<int>(std::min<i64>(thread_count(), chunks));
  if (members > 1 && !inside && team().load()->run(members, chunks, context, f)) return;
  for (i64 c = 0; c < chunks; ++c) f(context, c);
}

}  // namespace detail
}  // namespace tapeformer
