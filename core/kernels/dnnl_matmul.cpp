#include "core/kernels/dnnl_matmul.h"

#include <array>
#include <map>
#include <mutex>
#include <optional>

#include "core/kernels/dnnl_runtime.h"

namespace tapeformer::kernels::dnnl_matmul {
namespace {

using dnnl::memory;
using Key = std::array<i64, 15>;

struct Product {  // an empty primitive means: no fast code for these strides
  dnnl::matmul primitive;
  memory::desc a, b, c, bias, scratchpad;
};

Key key_of(const Spec& s) {
  return {s.batch, s.m,     s.n,       s.k,     s.a_batch, s.a_row,      s.a_col, s.b_batch,
          s.b_row, s.b_col, s.c_batch, s.c_row, s.bias,    s.accumulate, s.bf16};
}

// A dimension of size one takes the stride a dense matrix would have, since oneDNN judges layouts by strides alone.
memory::desc matrix(i64 batch, i64 rows, i64 cols, i64 s_batch, i64 s_row, i64 s_col, memory::data_type type) {
  if (cols == 1) s_col = 1;
  if (rows == 1) s_row = s_col == 1 ? cols : 1;
  if (batch == 1) return memory::desc({rows, cols}, type, memory::dims{s_row, s_col});
  if (s_batch == 0) return memory::desc({1, rows, cols}, type, memory::dims{rows * cols, s_row, s_col});
  return memory::desc({batch, rows, cols}, type, memory::dims{s_batch, s_row, s_col});
}

Product create(const Spec& s) {
  Product p;
  const auto type = s.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
  const auto f32 = memory::data_type::f32;
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  if (s.accumulate) {
    dnnl::post_ops sum;
    sum.append_sum(1.0f);
    attr.set_post_ops(sum);
  }
  try {
    p.a = matrix(s.batch, s.m, s.k, s.a_batch, s.a_row, s.a_col, type);
    p.b = matrix(s.batch, s.k, s.n, s.b_batch, s.b_row, s.b_col, type);
    p.c = matrix(s.batch, s.m, s.n, s.c_batch, s.c_row, 1, f32);
    p.bias = matrix(s.batch, 1, s.n, 0, s.n, 1, f32);
    const auto desc = s.bias ? dnnl::matmul::desc(p.a, p.b, p.bias, p.c) : dnnl::matmul::desc(p.a, p.b, p.c);
    const dnnl::matmul::primitive_desc chosen(desc, attr, dnnl_runtime::engine());
    if (!dnnl_runtime::is_fast(chosen.impl_info_str())) return p;
    p.scratchpad = chosen.scratchpad_desc();
    p.primitive = dnnl::matmul(chosen);
  } catch (const dnnl::error&) {  // overlapping or unordered strides
  }
  return p;
}

class Cache {
 public:
  Product get(const Spec& spec) {
    const Key key = key_of(spec);
    {
      std::lock_guard lock(mutex_);
      const auto it = products_.find(key);
      if (it != products_.end()) return it->second;
    }
    Product made = create(spec);
    std::lock_guard lock(mutex_);
    if (products_.size() >= kMost) products_.clear();
    products_.emplace(key, made);
    return made;
  }

 private:
  static constexpr std::size_t kMost = 4096;
  std::mutex mutex_;
  std::map<Key, Product> products_;
};

Cache& cache() {
  static Cache* c = new Cache;
  return *c;
}

}  // namespace

bool has_bf16() {
#if defined(__x86_64__)
  static const bool yes = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl");
  return yes;
#else
  return false;
#endif
}

bool bf16_is_fast() {
#if defined(__x86_64__)
  static const bool amx = dnnl::get_effective_cpu_isa() == dnnl::cpu_isa::avx512_core_amx;
  static const bool slow = __builtin_cpu_is("intel") && !__builtin_cpu_is("cooperlake") && !amx;
  return has_bf16() && !slow;
#else
  return false;
#endif
}

bool run(const Spec& spec, const void* a, const void* b, float* c, const float* bias) {
  const dnnl_runtime::SingleThread guard;
  const Product p = cache().get(spec);
  if (!p.primitive) return false;
  const auto& engine = dnnl_runtime::engine();
  const auto at = [&](const memory::desc& d, const void* data) { return memory(d, engine, const_cast<void*>(data)); };
  std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, at(p.a, a)},
                                            {DNNL_ARG_WEIGHTS, at(p.b, b)},
                                            {DNNL_ARG_DST, at(p.c, c)},
                                            {DNNL_ARG_SCRATCHPAD, at(p.scratchpad, dnnl_runtime::scratchpad(p.scratchpad.get_size()))}};
  if (spec.bias) arguments.emplace(DNNL_ARG_BIAS, at(p.bias, bias));
  p.primitive.execute(dnnl_runtime::stream(), arguments);
  return true;
}

}  // namespace tapeformer::kernels::dnnl_matmul
