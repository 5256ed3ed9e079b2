// conv.cpp: oneDNN convolutions on pieces of the batch, one thread each; how the batch is cut follows from its size
// alone.
#include "core/kernels/conv.h"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <vector>

#include "core/counters.h"
#include "core/kernels/dnnl_runtime.h"
#include "core/parallel.h"
#include "core/storage.h"

namespace tapeformer::kernels {
namespace {

using dnnl::memory;
enum class Direction { Forward, Data, Weights };

struct Plan {
  dnnl::primitive primitive;
  memory::desc x, w, y, bias, scratchpad;
  memory::desc w_plain;  // the caller's layout; w is what the primitive wants
};

using Key = std::array<i64, 18>;
Key key_of(const Conv2d& c, Direction direction, bool bias) {
  return {c.B,
          c.Hi,
          c.Wi,
          c.Ci,
          c.Co,
          c.Kh,
          c.Kw,
          c.stride_h,
          c.stride_w,
          c.dilation_h,
          c.dilation_w,
          c.groups,
          c.pad_top,
          c.pad_bottom,
          c.pad_left,
          c.pad_right,
          static_cast<i64>(direction),
          bias};
}

Plan create(const Conv2d& c, Direction direction, bool bias) {
  using dnnl::algorithm, dnnl::prop_kind;
  const auto f32 = memory::data_type::f32;
  const auto tag = memory::format_tag::nhwc;
  const bool grouped = c.groups > 1;
  const memory::dims w_dims =
      grouped ? memory::dims{c.groups, c.Co / c.groups, c.Ci / c.groups, c.Kh, c.Kw} : memory::dims{c.Co, c.Ci, c.Kh, c.Kw};
  const memory::dims strides{c.stride_h, c.stride_w}, dilates{c.dilation_h - 1, c.dilation_w - 1};
  const memory::dims before{c.pad_top, c.pad_left}, after{c.pad_bottom, c.pad_right};
  Plan p;
  p.x = memory::desc({c.B, c.Ci, c.Hi, c.Wi}, f32, tag);
  p.y = memory::desc({c.B, c.Co, c.Ho(), c.Wo()}, f32, tag);
  p.bias = memory::desc({c.Co}, f32, memory::format_tag::a);
  p.w_plain = memory::desc(w_dims, f32, grouped ? memory::format_tag::goihw : memory::format_tag::oihw);
  const memory::desc any(w_dims, f32, memory::format_tag::any);
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const auto& engine = dnnl_runtime::engine();
  const auto direct = algorithm::convolution_direct;
  const auto kind = direction == Direction::Forward ? prop_kind::forward_inference : prop_kind::forward_training;
  const memory::desc b = bias ? p.bias : memory::desc();
  const dnnl::convolution_forward::primitive_desc forward(
      dnnl::convolution_forward::desc(kind, direct, p.x, any, b, p.y, strides, dilates, before, after), attr, engine);
  if (direction == Direction::Forward) {
    p.w = forward.weights_desc();
    p.scratchpad = forward.scratchpad_desc();
    p.primitive = dnnl::convolution_forward(forward);
  } else if (direction == Direction::Data) {
    const dnnl::convolution_backward_data::primitive_desc chosen(
        dnnl::convolution_backward_data::desc(direct, p.x, any, p.y, strides, dilates, before, after), attr, engine, forward);
    p.w = chosen.weights_desc();
    p.scratchpad = chosen.scratchpad_desc();
    p.primitive = dnnl::convolution_backward_data(chosen);
  } else {
    const dnnl::convolution_backward_weights::primitive_desc chosen(
        dnnl::convolution_backward_weights::desc(direct, p.x, any, p.y, strides, dilates, before, after), attr, engine, forward);
    p.w = chosen.diff_weights_desc();
    p.scratchpad = chosen.scratchpad_desc();
    p.primitive = dnnl::convolution_backward_weights(chosen);
  }
  return p;
}

Plan plan_for(const Conv2d& c, Direction direction, bool bias) {
  static std::mutex mutex;
  static auto* plans = new std::map<Key, Plan>;
  const Key key = key_of(c, direction, bias);
  std::lock_guard lock(mutex);
  const auto it = plans->find(key);
  if (it != plans->end()) return it->second;
  if (plans->size() >= 1024) plans->clear();
  const dnnl_runtime::SingleThread guard;
  return plans->emplace(key, create(c, direction, bias)).first->second;
}

memory at(const memory::desc& d, const void* p) { return memory(d, dnnl_runtime::engine(), const_cast<void*>(p)); }

void reorder(const memory::desc& from, const float* source, const memory::desc& to, float* target) {
  const dnnl_runtime::SingleThread guard;
  memory x = at(from, source), y = at(to, target);
  dnnl::reorder(x, y).execute(dnnl_runtime::stream(), x, y);
}

void execute(const Plan& p, std::unordered_map<int, memory> arguments) {
  const dnnl_runtime::SingleThread guard;
  arguments.emplace(DNNL_ARG_SCRATCHPAD, at(p.scratchpad, dnnl_runtime::scratchpad(p.scratchpad.get_size())));
  p.primitive.execute(dnnl_runtime::stream(), arguments);
}

// The weights in the layout the primitive wants.
class Weights {
 public:
  Weights(const Plan& p, const float* w) : storage_(p.w.get_size()) { reorder(p.w_plain, w, p.w, data()); }
  float* data() { return reinterpret_cast<float*>(storage_.data()); }

 private:
  Storage storage_;
};

// The batch as equal pieces: at least 16 of them when there are so many samples.
Conv2d piece_of(const Conv2d& c) {
  Conv2d piece = c;
  piece.B = 1;
  for (i64 n = c.B / 16; n > 1 && piece.B == 1; --n) {
    if (c.B % n == 0) piece.B = n;
  }
  return piece;
}

i64 multiply_adds(const Conv2d& c) { return c.B * c.Ho() * c.Wo() * c.Co * (c.Ci / c.groups) * c.Kh * c.Kw; }
i64 input_floats(const Conv2d& c) { return c.B * c.Hi * c.Wi * c.Ci; }
i64 output_floats(const Conv2d& c) { return c.B * c.Ho() * c.Wo() * c.Co; }

void grad_data(const Conv2d& c, const float* w, const float* dy, float* dx) {
  const Conv2d piece = piece_of(c);
  const Plan plan = plan_for(piece, Direction::Data, false);
  Weights weights(plan, w);
  parallel_for(c.B / piece.B, 1, [&](i64 begin, i64 end) {
    for (i64 x = begin; x < end; ++x) {
      execute(plan, {{DNNL_ARG_DIFF_SRC, at(plan.x, dx + x * input_floats(piece))},
                     {DNNL_ARG_WEIGHTS, at(plan.w, weights.data())},
                     {DNNL_ARG_DIFF_DST, at(plan.y, dy + x * output_floats(piece))}});
    }
  });
}

// Slot s adds up pieces s, s + slots, ...; then the slots are added in order.
void grad_weights(const Conv2d& c, const float* x, const float* dy, float* dw) {
  const Conv2d piece = piece_of(c);
  const Plan plan = plan_for(piece, Direction::Weights, false);
  const i64 pieces = c.B / piece.B, slots = std::min<i64>(pieces, 8), size = static_cast<i64>(plan.w.get_size() / sizeof(float));
  Storage storage(static_cast<std::size_t>(2 * slots * size) * sizeof(float));
  float* sums = reinterpret_cast<float*>(storage.data());
  parallel_for(slots, 1, [&](i64 begin, i64 end) {
    for (i64 s = begin; s < end; ++s) {
      float *sum = sums + s * size, *one = sums + (slots + s) * size;
      for (i64 i = s; i < pieces; i += slots) {
        execute(plan, {{DNNL_ARG_SRC, at(plan.x, x + i * input_floats(piece))},
                       {DNNL_ARG_DIFF_WEIGHTS, at(plan.w, i == s ? sum : one)},
                       {DNNL_ARG_DIFF_DST, at(plan.y, dy + i * output_floats(piece))}});
        for (i64 v = 0; v < size && i != s; ++v) sum[v] += one[v];
      }
    }
  });
  parallel_for(size, 16384, [&](i64 begin, i64 end) {
    for (i64 s = 1; s < slots; ++s)
      for (i64 v = begin; v < end; ++v) sums[v] += sums[s * size + v];
  });
  reorder(plan.w, sums, plan.w_plain, dw);
}

void grad_bias(const Conv2d& c, const float* dy, float* db) {
  const i64 rows = output_floats(c) / c.Co, grain = std::max<i64>((rows + 31) / 32, 256), chunks = (rows + grain - 1) / grain;
  std::vector<float> sums(static_cast<std::size_t>(chunks * c.Co), 0.0f);
  parallel_for(rows, grain, [&](i64 begin, i64 end) {
    float* sum = sums.data() + begin / grain * c.Co;
    for (i64 r = begin; r < end; ++r)
      for (i64 o = 0; o < c.Co; ++o) sum[o] += dy[r * c.Co + o];
  });
  for (i64 o = 0; o < c.Co; ++o) {
    double total = 0;
    for (i64 chunk = 0; chunk < chunks; ++chunk) total += double(sums[chunk * c.Co + o]);
    db[o] = static_cast<float>(total);
  }
}

}  // namespace

template <>
void conv2d(const Conv2d& c, const float* x, const float* w, const float* bias, float* y) {
  if (output_floats(c) == 0) return;
  counters::add_matmul(2 * multiply_adds(c));
  const counters::Timed timed;
  const Conv2d piece = piece_of(c);
  const Plan plan = plan_for(piece, Direction::Forward, bias != nullptr);
  Weights weights(plan, w);
  parallel_for(c.B / piece.B, 1, [&](i64 begin, i64 end) {
    for (i64 i = begin; i < end; ++i) {
      std::unordered_map<int, memory> arguments{{DNNL_ARG_SRC, at(plan.x, x + i * input_floats(piece))},
                                                {DNNL_ARG_WEIGHTS, at(plan.w, weights.data())},
                                                {DNNL_ARG_DST, at(plan.y, y + i * output_floats(piece))}};
      if (bias != nullptr) arguments.emplace(DNNL_ARG_BIAS, at(plan.bias, bias));
      execute(plan, std::move(arguments));
    }
  });
}

template <>
void conv2d_grad(const Conv2d& c, const float* x, const float* w, const float* dy, float* dx, float* dw, float* db) {
  counters::add_matmul(2 * multiply_adds(c) * ((dx != nullptr) + (dw != nullptr)));
  const counters::Timed timed;
  if (output_floats(c) == 0) {
    if (dx) std::fill(dx, dx + input_floats(c), 0.0f);
    if (dw) std::fill(dw, dw + c.Co * (c.Ci / c.groups) * c.Kh * c.Kw, 0.0f);
    if (db) std::fill(db, db + c.Co, 0.0f);
    return;
  }
  if (dx) grad_data(c, w, dy, dx);
  if (dw) grad_weights(c, x, dy, dw);
  if (db) grad_bias(c, dy, db);
}

template <>
void conv2d(const Conv2d& c, const double* x, const double* w, const double* bias, double* y) {
  counters::add_matmul(2 * multiply_adds(c));
  const counters::Timed timed;
  conv2d_reference(c, x, w, bias, y);
}

template <>
void conv2d_grad(const Conv2d& c, const double* x, const double* w, const double* dy, double* dx, double* dw, double* db) {
  counters::add_matmul(2 * multiply_adds(c) * ((dx != nullptr) + (dw != nullptr)));
  const counters::Timed timed;
  conv2d_grad_reference(c, x, w, dy, dx, dw, db);
}

}  // namespace tapeformer::kernels
