// parallel.h: loops over chunks whose borders come from the problem's shape, never from the thread count, so results are the
// same bits for any number of threads. The one place that starts threads for computing: a team of its own that sleeps soon when there is
// nothing to do (OpenMP's spins, which costs a shared machine dearly). The libraries beneath are always called for one thread.
#pragma once
#include <algorithm>
#include <type_traits>
#include <vector>

#include "core/shape.h"

namespace tapeformer {

int thread_count();          // threads that parallel loops use
void set_thread_count(int);  // at least 1; default: what the affinity mask and the cgroup quota allow
int usable_cores();
bool in_parallel();     // inside a chunk of a parallel loop on this thread
int parallel_member();  // 0 <= member < thread_count(): for per-thread scratch inside a chunk; 0 outside

namespace detail {
using ChunkFunction = void (*)(void* context, i64 chunk);
void run_chunks(i64 chunks, void* context, ChunkFunction);  // the first exception is rethrown after all chunks ended
}  // namespace detail

// f(begin, end) for each chunk [c*grain, (c+1)*grain) of [0, n). Chunks run in any order on any thread. Nested calls run serially.
template <class F>
void parallel_for(i64 n, i64 grain, F&& f) {
  if (n <= 0) return;
  grain = std::max<i64>(grain, 1);
  const i64 chunks = (n + grain - 1) / grain;
  if (chunks == 1) return f(i64{0}, n);
  struct Context {
    i64 n, grain;
    std::remove_reference_t<F>* f;
  } context{n, grain, &f};
  detail::run_chunks(chunks, &context, [](void* p, i64 c) {
    auto& x = *static_cast<Context*>(p);
    (*x.f)(c * x.grain, std::min(x.n, (c + 1) * x.grain));
  });
}

// combine(combine(zero, map(chunk 0)), map(chunk 1)) ...: partial results are combined in chunk order.
template <class T, class Map, class Combine>
T parallel_reduce(i64 n, i64 grain, T zero, Map&& map, Combine&& combine) {
  if (n <= 0) return zero;
  grain = std::max<i64>(grain, 1);
  std::vector<T> partial(static_cast<std::size_t>((n + grain - 1) / grain), zero);
  parallel_for(n, grain, [&](i64 begin, i64 end) { partial[static_cast<std::size_t>(begin / grain)] = map(begin, end); });
  T result = zero;
  for (const T& p : partial) result = combine(result, p);
  return result;
}

}  // namespace tapeformer
