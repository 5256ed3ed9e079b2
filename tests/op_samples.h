// op_samples.h: one row for every function of autograd/ops.h: sample inputs, the call, an independent plain loop in
// double, error samples, and a large sample for timing. The table drives the op tests
// (tests/autograd/op_table_test.cpp) and the speed program.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace tapeformer::samples {

struct Plain {  // a tensor of the reference's world
  Shape shape;
  std::vector<double> v;  // row-major
};
using Inputs = std::vector<Tensor>;
using Call = std::function<Tensor(const Inputs&)>;
using Reference = std::function<Plain(const std::vector<Plain>&)>;

struct Sample {
  std::string label;
  Inputs inputs;        // contiguous; f64 (values that f32 holds exactly), i64 or u8
  Call call;            // the driver passes f64 or f32 inputs, plain or as strided views
  Reference reference;  // null: gradients are checked only
  double error = 16;    // allowed difference in units of the type's epsilon, relative to 1 + |value|
};

struct ErrorSample {
  std::function<void()> call;
  std::string text;  // part of the message
};

struct Large {  // f32, enough elements for several chunks
  Inputs inputs;
  Call call;
  double flops = 0, bytes = 0;  // of one forward call
};

struct OpRow {
  std::string name;  // as in ops.h
  bool differentiable = true;
  std::vector<Sample> samples;
  std::vector<ErrorSample> errors;
  std::function<Large(i64 size)> large;  // size: about this many elements in the main input
};

const std::vector<OpRow>& op_rows();

// For the files of the table.
void add_arithmetic(std::vector<OpRow>&);
void add_reductions(std::vector<OpRow>&);
void add_shapes(std::vector<OpRow>&);
void add_products(std::vector<OpRow>&);
void add_attention(std::vector<OpRow>&);
void add_position_attention(std::vector<OpRow>&);
void add_mixing(std::vector<OpRow>&);

Tensor numbers(const Shape&, std::uint64_t seed, double low = -2, double high = 2);  // f64
Tensor off_zero(const Shape&, std::uint64_t seed);                                   // magnitudes 0.2 to 2: away from kinks at 0
Tensor distinct(const Shape&, std::uint64_t seed, double shift = 0);                 // 0.125 apart, in random order
Tensor integers(const Shape&, std::uint64_t seed, i64 low, i64 high);                // i64, low <= x < high
Tensor flags(const Shape&, std::uint64_t seed, double ones = 0.6);                   // u8
Large make_large(Inputs, Call, double flops, i64 output_elements);                   // f64 inputs become f32; counts the bytes

using Index = std::vector<i64>;
i64 flat_at(const Shape&, const Index&);  // aligned at the last axis; size 1 repeats
template <class F>
void for_each_index(const Shape& shape, F&& f) {  // f(index), row-major
  Index at(static_cast<std::size_t>(shape.rank()), 0);
  for (i64 n = shape.numel(); n > 0; --n) {
    f(static_cast<const Index&>(at));
    for (std::size_t axis = at.size(); axis-- > 0;) {
      if (++at[axis] < shape[static_cast<int>(axis)]) break;
      at[axis] = 0;
    }
  }
}
// y[index] = f(index) over `shape`.
template <class F>
Plain plain(const Shape& shape, F&& f) {
  Plain y{shape, {}};
  for_each_index(shape, [&](const Index& at) { y.v.push_back(f(at)); });
  return y;
}
inline double at(const Plain& x, const Index& index) { return x.v[static_cast<std::size_t>(flat_at(x.shape, index))]; }

}  // namespace tapeformer::samples
