#include "core/kernels/dnnl_runtime.h"

#include <omp.h>

#include <memory>
#include <new>

namespace tapeformer::kernels::dnnl_runtime {

const dnnl::engine& engine() {
  static const dnnl::engine* e = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *e;
}

dnnl::stream& stream() {
  thread_local dnnl::stream s(engine());
  return s;
}

void* scratchpad(std::size_t bytes) {
  struct Free {
    void operator()(void* p) const { ::operator delete (p, std::align_val_t{64}); }
  };
  thread_local std::unique_ptr<void, Free> buffer;
  thread_local std::size_t capacity = 0;
  if (bytes > capacity) {
    buffer.reset(::operator new (bytes, std::align_val_t{64}));
    capacity = bytes;
  }
  return buffer.get();
}

SingleThread::SingleThread() : previous_(omp_get_max_threads()) { omp_set_num_threads(1); }
SingleThread::~SingleThread() { omp_set_num_threads(previous_); }

}  // namespace tapeformer::kernels::dnnl_runtime
