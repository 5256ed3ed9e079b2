// process.h: what training asks of the process: signals that ask it to stop, and memory it has used.
#pragma once
#include <csignal>
#include <cstddef>

namespace tapeformer {

class InterruptGuard {  // while alive, SIGTERM and SIGINT are remembered instead of ending the process; a second one ends it
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  static int received();  // the signal's number, 0 = none

 private:
  struct sigaction old_term_, old_int_;
};

std::size_t peak_memory();  // bytes this process has had in memory at most (VmHWM)

}  // namespace tapeformer
