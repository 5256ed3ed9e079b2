#include "core/storage.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "core/error.h"

namespace tapeformer {
namespace {

constexpr std::size_t kAlign = 64;
constexpr std::size_t kHugePage = std::size_t{2} << 20;

// Best-fit allocator with coalescing over one reserved address range. Pages are touched only when first used, so reserving
// much costs nothing. Under the sanitizers every block is its own allocation, so that overruns are seen.
class Pool {
 public:
  std::byte* allocate(std::size_t bytes) {
    const std::size_t size = round_up(bytes);
    std::lock_guard lock(mutex_);
    if (hook_) hook_(bytes);
    std::byte* p = take(size);
    sizes_[p] = size;
    stats_.live += size;
    stats_.peak = std::max(stats_.peak, stats_.live);
    if (poison_) std::memset(p, 0xff, size);
    return p;
  }

  void release(std::byte* p) {
    std::lock_guard lock(mutex_);
    const auto it = sizes_.find(p);
    const std::size_t size = it->second;
    sizes_.erase(it);
    stats_.live -= size;
    if (!owns(p)) return std::free(p);
    give_back(p, size);
  }

  memory::Stats stats() {
    std::lock_guard lock(mutex_);
    return stats_;
  }
  void reset_peak() {
    std::lock_guard lock(mutex_);
    stats_.peak = stats_.live;
  }
  void set_hook(std::function<void(std::size_t)> hook) {
    std::lock_guard lock(mutex_);
    hook_ = std::move(hook);
  }
  void set_poison(bool on) { poison_ = on; }

 private:
  static std::size_t round_up(std::size_t bytes) { return (std::max<std::size_t>(bytes, 1) + kAlign - 1) / kAlign * kAlign; }
  bool owns(const std::byte* p) const { return p >= base_ && p < base_ + capacity_; }

  void reserve() {
#ifndef TAPEFORMER_SANITIZED
    std::size_t want = 2 * static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    for (; want >= (std::size_t{256} << 20); want /= 2) {
      void* p = mmap(nullptr, want, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (p == MAP_FAILED) continue;
      const auto address = reinterpret_cast<std::uintptr_t>(p);
      const std::size_t skip = (kHugePage - address % kHugePage) % kHugePage;
      base_ = static_cast<std::byte*>(p) + skip;
      capacity_ = want - skip;
      madvise(base_, capacity_, MADV_HUGEPAGE);
      break;
    }
#endif
    reserved_ = true;
  }

  std::byte* take(std::size_t size) {
    if (!reserved_) reserve();
    const auto fit = by_size_.lower_bound({size, nullptr});
    if (fit != by_size_.end()) {
      auto [have, p] = *fit;
      by_size_.erase(fit);
      by_address_.erase(p);
      if (have > size) add_free(p + size, have - size);
      return p;
    }
    std::byte* start = base_ + stats_.reserved;
    std::size_t missing = size;
    if (!by_address_.empty()) {  // a free block at the end of the range is extended instead of left behind
      auto last = std::prev(by_address_.end());
      if (last->first + last->second == start) {
        start = last->first;
        missing = size - last->second;
      }
    }
    if (stats_.reserved + missing <= capacity_) {
      if (missing != size) remove_free(start);
      stats_.reserved += missing;
      ++stats_.growths;
      return start;
    }
    void* p = std::aligned_alloc(kAlign, size);
    if (p == nullptr) throw MemoryError(fmt::format("out of memory: could not allocate {} bytes beside the {} in use", size, stats_.live));
    ++stats_.growths;
    return static_cast<std::byte*>(p);
  }

  void add_free(std::byte* p, std::size_t size) {
    by_address_[p] = size;
    by_size_.insert({size, p});
  }
  void remove_free(std::byte* p) {
    const auto it = by_address_.find(p);
    by_size_.erase({it->second, p});
    by_address_.erase(it);
  }
  void give_back(std::byte* p, std::size_t size) {
    auto next = by_address_.lower_bound(p);
    if (next != by_address_.end() && p + size == next->first) {
      size += next->second;
      remove_free(next->first);
    }
    auto before = by_address_.lower_bound(p);
    if (before != by_address_.begin() && (--before)->first + before->second == p) {
      p = before->first;
      size += before->second;
      remove_free(p);
    }
    add_free(p, size);
  }

  std::mutex mutex_;
  std::byte* base_ = nullptr;
  std::size_t capacity_ = 0;
  bool reserved_ = false, poison_ = false;
  std::map<std::byte*, std::size_t> sizes_, by_address_;
  std::set<std::pair<std::size_t, std::byte*>> by_size_;
  memory::Stats stats_;
  std::function<void(std::size_t)> hook_;
};

Pool& pool() {
  static Pool* p = new Pool;  // never destroyed: tensors in static objects may outlive it
  return *p;
}

}  // namespace

Storage::Storage(std::size_t bytes) : data_(pool().allocate(bytes)), bytes_(bytes) {}
Storage::~Storage() { pool().release(data_); }

namespace memory {
Stats stats() { return pool().stats(); }
void reset_peak() { pool().reset_peak(); }
void set_allocation_hook(std::function<void(std::size_t)> hook) { pool().set_hook(std::move(hook)); }
void set_poison(bool on) { pool().set_poison(on); }
}  // namespace memory

}  // namespace tapeformer
