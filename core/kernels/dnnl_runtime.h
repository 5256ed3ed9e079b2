// dnnl_runtime.h: what the users of oneDNN share: the engine, one stream and one scratchpad per thread, and a guard
// that keeps oneDNN on the calling thread. oneDNN picks its blocking by the number of threads it sees, so it always
// sees one and the bits of a result cannot depend on the thread count; the tiles around it run in parallel_for.
#pragma once
#include <dnnl.hpp>

namespace tapeformer::kernels::dnnl_runtime {

const dnnl::engine& engine();
dnnl::stream& stream();                            // of this thread
void* scratchpad(std::size_t bytes);               // of this thread; valid until its next call
inline bool is_fast(const char* implementation) {  // neither the reference nor a generic loop
  return std::string_view(implementation).substr(0, 3) != "ref";
}

class SingleThread {
 public:
  SingleThread();
  ~SingleThread();
  SingleThread(const SingleThread&) = delete;

 private:
  int previous_;
};

}  // namespace tapeformer::kernels::dnnl_runtime
