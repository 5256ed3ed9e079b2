// counters.h: arithmetic done so far, counted by the kernels, so that speed-ups and costs can be checked on a noisy machine.
#pragma once
#include <cstdint>

namespace tapeformer::counters {

struct Counts {
  std::int64_t matmul_flops = 0;     // 2 m n k of every matrix product outside the tile engine
  std::int64_t attention_flops = 0;  // products inside the attention tile engine, forward and backward
  std::int64_t attention_pairs = 0;  // (query, key) pairs the tile engine computed in forward
  double matmul_seconds = 0;         // wall time inside both, as seen by the calling thread; 0 unless timing is on
};
Counts now();
void add_matmul(std::int64_t flops);
void add_attention(std::int64_t flops, std::int64_t pairs);
void set_timing(bool);
bool timing();
void add_seconds(double);

class Timed {  // adds its life time to matmul_seconds when timing is on; use outside parallel regions
 public:
  Timed();
  ~Timed();

 private:
  double start_;
};

}  // namespace tapeformer::counters
