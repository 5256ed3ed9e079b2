// storage.h: the only owner of tensor bytes. Memory comes from one process-wide pool that merges freed neighbours and never
// returns pages while a run is steady, so a training step that repeats allocates nothing from the system.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace tapeformer {

class Storage {  // 64-byte aligned; not copyable
 public:
  explicit Storage(std::size_t bytes);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  std::uint32_t version() const { return version_; }  // raised by every write through Tensor::mut
  void touch() { ++version_; }

 private:
  std::byte* data_;
  std::size_t bytes_;
  std::uint32_t version_ = 0;
};

namespace memory {

struct Stats {
  std::size_t live = 0;      // bytes held by tensors now
  std::size_t peak = 0;      // most bytes held since reset_peak()
  std::size_t reserved = 0;  // bytes the pool has taken from the system, in use or not
  std::size_t growths = 0;   // times the pool had to take more from the system
};
Stats stats();
void reset_peak();

// Called with the size of every allocation while set; for tests that assert "nothing of size N x N". Not thread-safe to change.
void set_allocation_hook(std::function<void(std::size_t bytes)>);

// Fills new memory with 0xff bytes (NaN for floats), so that reading what was never written shows.
void set_poison(bool);

}  // namespace memory
}  // namespace tapeformer
