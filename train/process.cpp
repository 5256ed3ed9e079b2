#include "train/process.h"

#include <unistd.h>

#include <fstream>
#include <string>

namespace tapeformer {
namespace {

volatile std::sig_atomic_t signal_received = 0;

void remember(int number) {
  if (signal_received != 0) ::_exit(128 + number);
  signal_received = number;
}

}  // namespace

InterruptGuard::InterruptGuard() {
  signal_received = 0;
  struct sigaction action {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  sigaction(SIGTERM, &action, &old_term_);
  sigaction(SIGINT, &action, &old_int_);
}

InterruptGuard::~InterruptGuard() {
  sigaction(SIGTERM, &old_term_, nullptr);
  sigaction(SIGINT, &old_int_, nullptr);
}

int InterruptGuard::received() { return signal_received; }

std::size_t peak_memory() {
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word)
    if (word == "VmHWM:") {
      std::size_t kib = 0;
      status >> kib;
      return kib * 1024;
    }
  return 0;
}

}  // namespace tapeformer
