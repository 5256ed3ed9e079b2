#include "core/counters.h"

#include <atomic>
#include <chrono>

namespace tapeformer::counters {
namespace {

std::atomic<std::int64_t> matmul{0}, attention{0}, pairs{0}, nanoseconds{0};
std::atomic<bool> on{false};

double clock_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

}  // namespace

Counts now() { return {matmul, attention, pairs, static_cast<double>(nanoseconds) * 1e-9}; }
void add_matmul(std::int64_t flops) { matmul += flops; }
void add_attention(std::int64_t flops, std::int64_t n) {
  attention += flops;
  pairs += n;
}
void set_timing(bool value) { on = value; }
bool timing() { return on; }
void add_seconds(double s) { nanoseconds += static_cast<std::int64_t>(s * 1e9); }
Timed::Timed() : start_(on ? clock_now() : 0) {}
Timed::~Timed() {
  if (on && start_ > 0) add_seconds(clock_now() - start_);
}

}  // namespace tapeformer::counters
