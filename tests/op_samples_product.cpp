// Rows for matrix products and convolutions.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "tests/op_samples.h"

namespace tapeformer::samples {
namespace {

using Plains = std::vector<Plain>;

OpRow matmul_row() {
  OpRow row{"matmul", true, {}, {}, {}};
  const Call call = [](const Inputs& in) { return ops::matmul(in[0], in[1]); };
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{{{3, 4}, {4, 5}},
                                                                 {{2, 3, 4}, {4, 5}},
                                                                 {{2, 1, 3, 4}, {5, 4, 2}},
                                                                 {{1, 1}, {1, 1}},
                                                                 {{2, 3, 0}, {0, 4}},
                                                                 {{0, 4}, {4, 3}},
                                                                 {{2, 3, 2, 3, 4}, {3, 1, 4, 2}},
                                                                 {{1, 7}, {7, 1}}})
    row.samples.push_back({a.str() + " " + b.str(),
                           {numbers(a, 1), numbers(b, 2)},
                           call,
                           [](const Plains& in) {
                             const Shape &a = in[0].shape, &b = in[1].shape;
                             Shape s = broadcast(a.without(-1).without(-1), b.without(-1).without(-1), "matmul");
                             s.push_back(a.dim(-2));
                             s.push_back(b.dim(-1));
                             return plain(s, [&](const Index& i) {
                               Index p = i, q = i;
                               double sum = 0;
                               for (i64 k = 0; k < a.dim(-1); ++k) {
                                 p.back() = q[q.size() - 2] = k;
                                 sum += at(in[0], p) * at(in[1], q);
                               }
                               return sum;
                             });
                           },
                           64});
  row.errors = {{[] {
                   ops::matmul(numbers({8, 512}, 1), numbers({256, 64}, 1));
                 },
                 "[matmul] inner dimensions differ: got a [8, 512] and b [256, 64], expected a [..., m, k] and b [..., k, n]"},
                {[] {
                   ops::matmul(numbers({3}, 1), numbers({3, 2}, 1));
                 },
                 "[matmul] inner dimensions differ: got a [3]"},
                {[] {
                   ops::matmul(numbers({2, 3}, 1), Tensor::zeros({3, 2}));
                 },
                 "[matmul] element types differ: got f64 and f32"},
                {[] {
                   ops::matmul(numbers({2, 1, 3}, 1), numbers({3, 3, 2}, 1));
                 },
                 "[matmul] shapes do not broadcast: got [2] and [3]"},
                {[] {
                   ops::matmul(flags({2, 3}, 1), flags({3, 2}, 1));
                 },
                 "[matmul] got element type u8"}};
  row.large = [call](i64 n) {
    const i64 m = n / 512;
    return make_large({numbers({2, m, 256}, 1), numbers({2, 256, 192}, 2)}, call, 2.0 * 2 * static_cast<double>(m) * 256 * 192,
                      2 * m * 192);
  };
  return row;
}

OpRow linear_row() {
  OpRow row{"linear", true, {}, {}, {}};
  for (const auto& [x, w] : std::vector<std::pair<Shape, Shape>>{
           {{2, 3, 4}, {4, 5}}, {{4}, {4, 3}}, {{7, 1}, {1, 1}}, {{0, 3}, {3, 2}}, {{3, 0}, {0, 2}}, {{3, 2}, {2, 0}}})
    for (bool biased : {false, true}) {
      Inputs in{numbers(x, 1), numbers(w, 2)};
      if (biased) in.push_back(numbers({w[1]}, 3));
      row.samples.push_back({fmt::format("{} {} bias {}", x.str(), w.str(), biased), std::move(in),
                             [](const Inputs& in) { return in.size() == 3 ? ops::linear(in[0], in[1], in[2]) : ops::linear(in[0], in[1]); },
                             [](const Plains& in) {
                               Shape s = in[0].shape.without(-1);
                               s.push_back(in[1].shape[1]);
                               return plain(s, [&](const Index& i) {
                                 double sum = in.size() == 3 ? at(in[2], {i.back()}) : 0;
                                 Index p = i;
                                 for (p.back() = 0; p.back() < in[1].shape[0]; ++p.back())
                                   sum += at(in[0], p) * at(in[1], {p.back(), i.back()});
                                 return sum;
                               });
                             },
                             64});
    }
  row.errors = {{[] {
                   ops::linear(numbers({2, 3}, 1), numbers({4, 5}, 1));
                 },
                 "[linear] got x [2, 3], w [4, 5], bias none, expected x [..., in]"},
                {[] {
                   ops::linear(numbers({2, 4}, 1), numbers({4, 5}, 1), numbers({4}, 1));
                 },
                 "[linear] got x [2, 4], w [4, 5], bias [4]"},
                {[] {
                   ops::linear(numbers({2, 4}, 1), Tensor::zeros({4, 5}));
                 },
                 "[linear] element types differ: got f64 and f32"}};
  row.large = [](i64 n) {
    const i64 rows = n / 256;
    return make_large(
        {numbers({rows, 256}, 1), numbers({256, 128}, 2), numbers({128}, 3)},
        [](const Inputs& in) { return ops::linear(in[0], in[1], in[2]); }, 2.0 * static_cast<double>(rows) * 256 * 128, rows * 128);
  };
  return row;
}

struct ConvCase {
  Shape x, w;
  ops::Conv2dOptions o;
  bool biased = true;
};

double conv_at(const Plains& in, const ops::Conv2dOptions& o, const Index& i) {  // i = (b, row, column, output channel)
  const Plain &x = in[0], &w = in[1];
  const i64 per_group = w.shape[1], first = i[3] / (w.shape[0] / o.groups) * per_group;
  double sum = in.size() == 3 ? in[2].v[static_cast<std::size_t>(i[3])] : 0;
  for (i64 c = 0; c < per_group; ++c)
    for (i64 p = 0; p < w.shape[2]; ++p)
      for (i64 q = 0; q < w.shape[3]; ++q) {
        const i64 r = i[1] * o.stride_h + p * o.dilation_h - o.pad_top, s = i[2] * o.stride_w + q * o.dilation_w - o.pad_left;
        if (r >= 0 && r < x.shape[1] && s >= 0 && s < x.shape[2]) sum += at(x, {i[0], r, s, first + c}) * at(w, {i[3], c, p, q});
      }
  return sum;
}

i64 positions(i64 size, i64 taps, i64 stride, i64 dilation, i64 pad) { return (size + pad - dilation * (taps - 1) - 1) / stride + 1; }

Plain conv_of(const Plains& in, const ops::Conv2dOptions& o) {
  const Shape &x = in[0].shape, &w = in[1].shape;
  const Shape out{x[0], positions(x[1], w[2], o.stride_h, o.dilation_h, o.pad_top + o.pad_bottom),
                  positions(x[2], w[3], o.stride_w, o.dilation_w, o.pad_left + o.pad_right), w[0]};
  return plain(out, [&](const Index& i) { return conv_at(in, o, i); });
}

Inputs conv_inputs(const Shape& x, const Shape& w, bool biased) {
  Inputs in{numbers(x, 1), numbers(w, 2)};
  if (biased) in.push_back(numbers({w[0]}, 3));
  return in;
}

Tensor bias_of(const Inputs& in) { return in.size() == 3 ? in[2] : Tensor(); }

OpRow conv2d_row() {
  OpRow row{"conv2d", true, {}, {}, {}};
  const std::vector<ConvCase> cases{
      {{2, 4, 5, 3}, {2, 3, 2, 3}, {}, true},
      {{1, 5, 4, 4}, {6, 2, 3, 3}, {.stride_h = 2, .groups = 2, .pad_top = 1, .pad_bottom = 1, .pad_left = 2}, false},
      {{2, 6, 5, 3}, {3, 1, 2, 2}, {.dilation_h = 2, .dilation_w = 3, .groups = 3, .pad_right = 1}, true},
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {}, true},
      {{2, 7, 7, 2}, {3, 2, 3, 2}, {.stride_h = 3, .stride_w = 2}, true},
      {{0, 3, 3, 1}, {2, 1, 2, 2}, {}, true}};
  for (const ConvCase& c : cases)
    row.samples.push_back({fmt::format("{} {} groups {}", c.x.str(), c.w.str(), c.o.groups), conv_inputs(c.x, c.w, c.biased),
                           [o = c.o](const Inputs& in) { return ops::conv2d(in[0], in[1], bias_of(in), o); },
                           [o = c.o](const Plains& in) { return conv_of(in, o); }, 64});
  const auto run = [](const Shape& x, const Shape& w, const ops::Conv2dOptions& o) { ops::conv2d(numbers(x, 1), numbers(w, 1), {}, o); };
  row.errors = {{[run] {
                   run({2, 4, 5}, {2, 3, 2, 3}, {});
                 },
                 "[conv2d] got x [2, 4, 5] and w [2, 3, 2, 3], expected x [B, H, W, Ci]"},
                {[run] {
                   run({2, 4, 5, 3}, {2, 2, 2, 3}, {});
                 },
                 "[conv2d] got x [2, 4, 5, 3], w [2, 2, 2, 3], bias none, groups 1"},
                {[run] {
                   run({2, 4, 5, 3}, {2, 3, 5, 3}, {});
                 },
                 "[conv2d] the kernel [2, 3, 5, 3] reaches beyond the padded input [2, 4, 5, 3]"},
                {[run] {
                   run({2, 4, 5, 3}, {2, 3, 2, 3}, {.stride_h = 0});
                 },
                 "[conv2d] got stride 0 and dilation 1, expected at least 1"},
                {[run] {
                   run({2, 4, 5, 3}, {2, 3, 2, 3}, {.pad_left = -1});
                 },
                 "[conv2d] got a padding of -1, expected at least 0"},
                {[run] {
                   run({2, 4, 5, 3}, {2, 3, 2, 0}, {});
                 },
                 "[conv2d] got w [2, 3, 2, 0], expected at least one tap"},
                {[] {
                   ops::conv2d(numbers({1, 2, 2, 1}, 1), Tensor::zeros({1, 1, 1, 1}), {});
                 },
                 "[conv2d] element types differ: got f64 and f32"}};
  row.large = [](i64 n) {
    const i64 b = std::max<i64>(1, n / (16 * 16 * 16));
    return make_large(
        conv_inputs({b, 16, 16, 16}, {24, 16, 3, 3}, true),
        [](const Inputs& in) { return ops::conv2d(in[0], in[1], in[2], {.pad_top = 1, .pad_bottom = 1, .pad_left = 1, .pad_right = 1}); },
        2.0 * static_cast<double>(b) * 256 * 16 * 24 * 9, b * 256 * 24);
  };
  return row;
}

OpRow conv1d_row() {
  OpRow row{"conv1d", true, {}, {}, {}};
  struct Case {
    Shape x, w;
    ops::ConvOptions o;
    bool biased;
  };
  const std::vector<Case> cases{{{2, 6, 3}, {4, 3, 3}, {}, true},
                                {{2, 7, 4}, {4, 1, 3}, {.dilation = 2, .groups = 4, .pad_before = 4}, true},
                                {{1, 9, 4}, {6, 2, 2}, {.stride = 3, .groups = 2, .pad_before = 1, .pad_after = 2}, false},
                                {{3, 1, 1}, {1, 1, 1}, {}, true},
                                {{0, 4, 2}, {3, 2, 2}, {}, true}};
  for (const Case& c : cases)
    row.samples.push_back(
        {fmt::format("{} {} groups {}", c.x.str(), c.w.str(), c.o.groups), conv_inputs(c.x, c.w, c.biased),
         [o = c.o](const Inputs& in) { return ops::conv1d(in[0], in[1], bias_of(in), o); },
         [o = c.o](const Plains& in) {
           Plains wide = in;
           wide[0].shape = {in[0].shape[0], 1, in[0].shape[1], in[0].shape[2]};
           wide[1].shape = {in[1].shape[0], in[1].shape[1], 1, in[1].shape[2]};
           Plain y = conv_of(
               wide,
               {.stride_w = o.stride, .dilation_w = o.dilation, .groups = o.groups, .pad_left = o.pad_before, .pad_right = o.pad_after});
           y.shape = {y.shape[0], y.shape[2], y.shape[3]};
           return y;
         },
         64});
  const auto run = [](const Shape& x, const Shape& w, const ops::ConvOptions& o) { ops::conv1d(numbers(x, 1), numbers(w, 1), {}, o); };
  row.errors = {{[run] {
                   run({2, 6}, {4, 3, 3}, {});
                 },
                 "[conv1d] got x [2, 6] and w [4, 3, 3], expected x [B, N, Ci] and w [Co, Ci / groups, taps]"},
                {[run] {
                   run({2, 6, 3}, {4, 3, 3}, {.groups = 2});
                 },
                 "[conv1d] got x [2, 6, 3], w [4, 3, 3], bias none, groups 2"},
                {[run] {
                   run({2, 6, 3}, {4, 3, 7}, {});
                 },
                 "[conv1d] the kernel [4, 3, 7] reaches beyond the padded input [2, 6, 3]"},
                {[run] {
                   run({2, 6, 3}, {4, 3, 3}, {.dilation = 0});
                 },
                 "[conv1d] got stride 1 and dilation 0, expected at least 1"},
                {[run] {
                   run({2, 6, 3}, {4, 3, 3}, {.pad_before = -2});
                 },
                 "[conv1d] got a padding of -2, expected at least 0"}};
  row.large = [](i64 n) {
    const i64 b = std::max<i64>(1, n / (64 * 32));
    return make_large(
        conv_inputs({b, 64, 32}, {48, 32, 3}, true), [](const Inputs& in) { return ops::conv1d(in[0], in[1], in[2], {.pad_before = 2}); },
        2.0 * static_cast<double>(b) * 64 * 32 * 48 * 3, b * 64 * 48);
  };
  return row;
}

}  // namespace

void add_products(std::vector<OpRow>& rows) {
  for (auto make : {matmul_row, linear_row, conv1d_row, conv2d_row}) rows.push_back(make());
}

}  // namespace tapeformer::samples
