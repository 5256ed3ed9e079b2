// Rows for matrix products, convolutions and attention.
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
  for (const auto& [a, b] : std::vector<std::pair<Shape, Shape>>{{{3, 4}, {4, 5}}, {{2, 3, 4}, {4, 5}}, {{2, 1, 3, 4}, {5, 4, 2}}, {{1, 1}, {1, 1}},
                                                                 {{2, 3, 0}, {0, 4}}, {{0, 4}, {4, 3}}, {{2, 3, 2, 3, 4}, {3, 1, 4, 2}}, {{1, 7}, {7, 1}}})
    row.samples.push_back({a.str() + " " + b.str(), {numbers(a, 1), numbers(b, 2)}, call,
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
  row.errors = {{[] { ops::matmul(numbers({8, 512}, 1), numbers({256, 64}, 1)); },
                 "[matmul] inner dimensions differ: got a [8, 512] and b [256, 64], expected a [..., m, k] and b [..., k, n]"},
                {[] { ops::matmul(numbers({3}, 1), numbers({3, 2}, 1)); }, "[matmul] inner dimensions differ: got a [3]"},
                {[] { ops::matmul(numbers({2, 3}, 1), Tensor::zeros({3, 2})); }, "[matmul] element types differ: got f64 and f32"},
                {[] { ops::matmul(numbers({2, 1, 3}, 1), numbers({3, 3, 2}, 1)); }, "[matmul] shapes do not broadcast: got [2] and [3]"},
                {[] { ops::matmul(flags({2, 3}, 1), flags({3, 2}, 1)); }, "[matmul] got element type u8"}};
  row.large = [call](i64 n) {
    const i64 m = n / 512;
    return make_large({numbers({2, m, 256}, 1), numbers({2, 256, 192}, 2)}, call, 2.0 * 2 * static_cast<double>(m) * 256 * 192, 2 * m * 192);
  };
  return row;
}

OpRow linear_row() {
  OpRow row{"linear", true, {}, {}, {}};
  for (const auto& [x, w] : std::vector<std::pair<Shape, Shape>>{{{2, 3, 4}, {4, 5}}, {{4}, {4, 3}}, {{7, 1}, {1, 1}}, {{0, 3}, {3, 2}}, {{3, 0}, {0, 2}}, {{3, 2}, {2, 0}}})
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
                                 for (p.back() = 0; p.back() < in[1].shape[0]; ++p.back()) sum += at(in[0], p) * at(in[1], {p.back(), i.back()});
                                 return sum;
                               });
                             },
                             64});
    }
  row.errors = {{[] { ops::linear(numbers({2, 3}, 1), numbers({4, 5}, 1)); }, "[linear] got x [2, 3], w [4, 5], bias none, expected x [..., in]"},
                {[] { ops::linear(numbers({2, 4}, 1), numbers({4, 5}, 1), numbers({4}, 1)); }, "[linear] got x [2, 4], w [4, 5], bias [4]"},
                {[] { ops::linear(numbers({2, 4}, 1), Tensor::zeros({4, 5})); }, "[linear] element types differ: got f64 and f32"}};
  row.large = [](i64 n) {
    const i64 rows = n / 256;
    return make_large({numbers({rows, 256}, 1), numbers({256, 128}, 2), numbers({128}, 3)}, [](const Inputs& in) { return ops::linear(in[0], in[1], in[2]); },
                      2.0 * static_cast<double>(rows) * 256 * 128, rows * 128);
  };
  return row;
}

struct ConvCase {
  Shape x, w;
  ops::Conv2dOptions o;
  bool biased = true;
};

double conv_at(const Plains& in, const ops::Conv2dOptions& o, const Index& i) {   // i = (b, row, column, output channel)
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
  row.errors = {{[run] { run({2, 4, 5}, {2, 3, 2, 3}, {}); }, "[conv2d] got x [2, 4, 5] and w [2, 3, 2, 3], expected x [B, H, W, Ci]"},
                {[run] { run({2, 4, 5, 3}, {2, 2, 2, 3}, {}); }, "[conv2d] got x [2, 4, 5, 3], w [2, 2, 2, 3], bias none, groups 1"},
                {[run] { run({2, 4, 5, 3}, {2, 3, 5, 3}, {}); }, "[conv2d] the kernel [2, 3, 5, 3] reaches beyond the padded input [2, 4, 5, 3]"},
                {[run] { run({2, 4, 5, 3}, {2, 3, 2, 3}, {.stride_h = 0}); }, "[conv2d] got stride 0 and dilation 1, expected at least 1"},
                {[run] { run({2, 4, 5, 3}, {2, 3, 2, 3}, {.pad_left = -1}); }, "[conv2d] got a padding of -1, expected at least 0"},
                {[run] { run({2, 4, 5, 3}, {2, 3, 2, 0}, {}); }, "[conv2d] got w [2, 3, 2, 0], expected at least one tap"},
                {[] { ops::conv2d(numbers({1, 2, 2, 1}, 1), Tensor::zeros({1, 1, 1, 1}), {}); }, "[conv2d] element types differ: got f64 and f32"}};
  row.large = [](i64 n) {
    const i64 b = std::max<i64>(1, n / (16 * 16 * 16));
    return make_large(conv_inputs({b, 16, 16, 16}, {24, 16, 3, 3}, true),
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
    row.samples.push_back({fmt::format("{} {} groups {}", c.x.str(), c.w.str(), c.o.groups), conv_inputs(c.x, c.w, c.biased),
                           [o = c.o](const Inputs& in) { return ops::conv1d(in[0], in[1], bias_of(in), o); },
                           [o = c.o](const Plains& in) {
                             Plains wide = in;
                             wide[0].shape = {in[0].shape[0], 1, in[0].shape[1], in[0].shape[2]};
                             wide[1].shape = {in[1].shape[0], in[1].shape[1], 1, in[1].shape[2]};
                             Plain y = conv_of(wide, {.stride_w = o.stride, .dilation_w = o.dilation, .groups = o.groups, .pad_left = o.pad_before, .pad_right = o.pad_after});
                             y.shape = {y.shape[0], y.shape[2], y.shape[3]};
                             return y;
                           },
                           64});
  const auto run = [](const Shape& x, const Shape& w, const ops::ConvOptions& o) { ops::conv1d(numbers(x, 1), numbers(w, 1), {}, o); };
  row.errors = {{[run] { run({2, 6}, {4, 3, 3}, {}); }, "[conv1d] got x [2, 6] and w [4, 3, 3], expected x [B, N, Ci] and w [Co, Ci / groups, taps]"},
                {[run] { run({2, 6, 3}, {4, 3, 3}, {.groups = 2}); }, "[conv1d] got x [2, 6, 3], w [4, 3, 3], bias none, groups 2"},
                {[run] { run({2, 6, 3}, {4, 3, 7}, {}); }, "[conv1d] the kernel [4, 3, 7] reaches beyond the padded input [2, 6, 3]"},
                {[run] { run({2, 6, 3}, {4, 3, 3}, {.dilation = 0}); }, "[conv1d] got stride 1 and dilation 0, expected at least 1"},
                {[run] { run({2, 6, 3}, {4, 3, 3}, {.pad_before = -2}); }, "[conv1d] got a padding of -2, expected at least 0"}};
  row.large = [](i64 n) {
    const i64 b = std::max<i64>(1, n / (64 * 32));
    return make_large(conv_inputs({b, 64, 32}, {48, 32, 3}, true), [](const Inputs& in) { return ops::conv1d(in[0], in[1], in[2], {.pad_before = 2}); },
                      2.0 * static_cast<double>(b) * 64 * 32 * 48 * 3, b * 64 * 48);
  };
  return row;
}

struct AttentionCase {
  std::string label;
  Shape q, k, v;
  bool causal = false;
  double scale = 0;                  // 0: default
  Shape key_mask{}, query_mask{}, key_bias{}, pair_bias{};   // rank 0: none
  double dropout = 0;
};

// Inputs: q, k, v, then those of key_mask, query_mask, key_bias, pair_bias that the case has, in this order.
template <class T> struct Named {
  const std::vector<T>& in;
  const AttentionCase& c;
  const T* find(const Shape AttentionCase::*which) const {
    std::size_t k = 3;
    for (auto member : {&AttentionCase::key_mask, &AttentionCase::query_mask, &AttentionCase::key_bias, &AttentionCase::pair_bias}) {
      if (member == which) return (c.*member).rank() > 0 ? &in[k] : nullptr;
      if ((c.*member).rank() > 0) ++k;
    }
    return nullptr;
  }
};

Tensor attend(const Inputs& in, const AttentionCase& c) {
  ops::AttentionOptions o;
  const Named<Tensor> named{in, c};
  if (c.scale != 0) o.scale = c.scale;
  o.causal = c.causal;
  if (auto* t = named.find(&AttentionCase::key_mask)) o.key_mask = *t;
  if (auto* t = named.find(&AttentionCase::query_mask)) o.query_mask = *t;
  if (auto* t = named.find(&AttentionCase::key_bias)) o.key_bias = *t;
  if (auto* t = named.find(&AttentionCase::pair_bias)) o.pair_bias = *t;
  o.dropout = c.dropout;
  o.key = RngKey(5);
  return ops::attention(in[0], in[1], in[2], o);
}

Plain attention_of(const Plains& in, const AttentionCase& c) {
  const Named<Plain> named{in, c};
  const Plain *key_mask = named.find(&AttentionCase::key_mask), *query_mask = named.find(&AttentionCase::query_mask);
  const Plain *key_bias = named.find(&AttentionCase::key_bias), *pair_bias = named.find(&AttentionCase::pair_bias);
  const Plain &q = in[0], &k = in[1], &v = in[2];
  const i64 M = k.shape[2], d = q.shape[3];
  const double scale = c.scale != 0 ? c.scale : 1 / std::sqrt(static_cast<double>(d));
  return plain({q.shape[0], q.shape[1], q.shape[2], v.shape[3]}, [&](const Index& i) {
    if (query_mask && at(*query_mask, {i[0], i[2]}) == 0) return 0.0;
    double total = 0, sum = 0;
    for (i64 j = 0; j < M; ++j) {
      if ((c.causal && j > i[2]) || (key_mask && at(*key_mask, {i[0], j}) == 0)) continue;
      double s = 0;
      for (i64 e = 0; e < d; ++e) s += at(q, {i[0], i[1], i[2], e}) * at(k, {i[0], i[1], j, e});
      s *= scale;
      if (key_bias) s += at(*key_bias, {i[0], i[1], j});
      if (pair_bias) s += at(*pair_bias, {i[0], i[1], i[2], j});
      total += std::exp(s);
      sum += std::exp(s) * at(v, {i[0], i[1], j, i[3]});
    }
    return total == 0 ? 0.0 : sum / total;
  });
}

OpRow attention_row() {
  OpRow row{"attention", true, {}, {}, {}};
  const std::vector<AttentionCase> cases{
      {"plain", {2, 2, 3, 4}, {2, 2, 5, 4}, {2, 2, 5, 3}},
      {"one of each", {1, 1, 1, 1}, {1, 1, 1, 1}, {1, 1, 1, 1}},
      {"causal", {1, 2, 5, 3}, {1, 2, 5, 3}, {1, 2, 5, 3}, true, 0.7},
      {"shared keys and values", {2, 3, 3, 2}, {1, 1, 4, 2}, {2, 1, 4, 2}},
      {"masks", {2, 2, 4, 3}, {2, 2, 5, 3}, {2, 2, 5, 2}, false, 0, {2, 5}, {2, 4}},
      {"biases", {2, 2, 3, 2}, {2, 2, 4, 2}, {2, 2, 4, 2}, false, 0, {}, {}, {2, 2, 4}, {2, 2, 3, 4}},
      {"shared biases, causal, masked", {2, 2, 3, 2}, {2, 2, 4, 2}, {2, 2, 4, 2}, true, 0, {2, 4}, {}, {1, 2, 4}, {2, 1, 3, 4}},
      {"dropout", {2, 2, 3, 2}, {2, 2, 6, 2}, {2, 2, 6, 2}, false, 0, {}, {}, {}, {}, 0.3}};
  for (const AttentionCase& c : cases) {
    Inputs in{numbers(c.q, 1), numbers(c.k, 2), numbers(c.v, 3)};
    if (c.key_mask.rank()) in.push_back(flags(c.key_mask, 11));
    if (c.query_mask.rank()) in.push_back(flags(c.query_mask, 5));
    if (c.key_bias.rank()) in.push_back(numbers(c.key_bias, 6));
    if (c.pair_bias.rank()) in.push_back(numbers(c.pair_bias, 7));
    row.samples.push_back({c.label, std::move(in), [c](const Inputs& x) { return attend(x, c); },
                           c.dropout > 0 ? Reference() : [c](const Plains& x) { return attention_of(x, c); }, 128});
  }
  const auto run = [](const Shape& q, const Shape& k, const Shape& v, const ops::AttentionOptions& o) { ops::attention(numbers(q, 1), numbers(k, 1), numbers(v, 1), o); };
  const auto with = [](auto set) {
    ops::AttentionOptions o;
    set(o);
    return o;
  };
  const Shape s{2, 2, 3, 4};
  row.errors = {
      {[=] { run({2, 3, 4}, s, s, {}); }, "[attention] got q [2, 3, 4], k [2, 2, 3, 4], v [2, 2, 3, 4], expected q [B, H, N, d]"},
      {[=] { run(s, {2, 2, 3, 5}, s, {}); }, "[attention] got q [2, 2, 3, 4], k [2, 2, 3, 5]"},
      {[=] { run(s, {2, 2, 2, 4}, {2, 2, 2, 4}, with([](auto& o) { o.causal = true; })); }, "[attention] causal needs a key for every query: got N = 3 and M = 2"},
      {[=] { run(s, s, s, with([](auto& o) { o.key_mask = flags({3}, 1); })); }, "[attention] key_mask is u8 [3], expected u8 [2, 3] with 1 = real"},
      {[=] { run(s, s, s, with([](auto& o) { o.query_mask = numbers({2, 3}, 1); })); }, "[attention] query_mask is f64 [2, 3], expected u8 [2, 3]"},
      {[=] { run(s, s, s, with([](auto& o) { o.key_bias = numbers({2, 3}, 1); })); }, "[attention] key_bias is [2, 3], expected [B, H, M]"},
      {[=] { run(s, s, s, with([](auto& o) { o.pair_bias = numbers({2, 3, 3, 3}, 1); })); }, "[attention] pair_bias is [2, 3, 3, 3], expected [B, H, N, M]"},
      {[=] { run(s, s, s, with([](auto& o) { o.dropout = 1; })); }, "[attention] dropout is 1, expected 0 to below 1"},
      {[=] { run(s, s, s, with([](auto& o) { static const std::vector<i64> one{0}; o.rows = one; })); }, "[attention] got 1 sample indices for q [2, 2, 3, 4]"},
      {[=] { ops::attention(numbers(s, 1), Tensor::zeros(s), numbers(s, 1)); }, "[attention] element types differ: got f64, f32 and f64"}};
  row.large = [](i64 n) {
    const i64 length = std::max<i64>(8, n / (2 * 4 * 32));
    const Shape shape{2, 4, length, 32};
    return make_large({numbers(shape, 1), numbers(shape, 2), numbers(shape, 3)},
                      [](const Inputs& in) { return ops::attention(in[0], in[1], in[2], ops::AttentionOptions()); },
                      4.0 * 8 * static_cast<double>(length * length) * 32, shape.numel());
  };
  return row;
}

struct LinearCase {
  std::string label;
  Shape q, v;
  bool causal = false, masked = false, normalize = true, state = false;
  double scale = 1;
  i64 chunk = 64;
};

Tensor attend_linear(const Inputs& in, const LinearCase& c) {   // q, k, v, then mask, then S0 and z0
  ops::LinearAttentionOptions o;
  o.causal = c.causal;
  o.normalize = c.normalize;
  o.scale = c.scale;
  o.eps = 0.01;
  o.chunk = c.chunk;
  if (c.masked) o.mask = in[3];
  if (c.state) {
    o.S0 = in[in.size() - 2];
    o.z0 = in[in.size() - 1];
  }
  return ops::linear_attention(in[0], in[1], in[2], o);
}

Plain linear_of(const Plains& in, const LinearCase& c) {
  const i64 N = c.q[2], d = c.q[3];
  return plain(c.v, [&](const Index& i) {
    const auto real = [&](i64 n) { return !c.masked || at(in[3], {i[0], n}) != 0; };
    if (!real(i[2])) return 0.0;
    double sum = 0, total = 0.01;
    for (i64 e = 0; c.state && e < d; ++e) {
      sum += at(in[0], {i[0], i[1], i[2], e}) * at(in[in.size() - 2], {i[0], i[1], e, i[3]});
      total += at(in[0], {i[0], i[1], i[2], e}) * at(in.back(), {i[0], i[1], e});
    }
    for (i64 j = 0; j < N; ++j) {
      if (!real(j) || (c.causal && j > i[2])) continue;
      double s = 0;
      for (i64 e = 0; e < d; ++e) s += at(in[0], {i[0], i[1], i[2], e}) * at(in[1], {i[0], i[1], j, e});
      sum += s * at(in[2], {i[0], i[1], j, i[3]});
      total += s;
    }
    return c.normalize ? sum / total : sum * c.scale;
  });
}

OpRow linear_attention_row() {
  OpRow row{"linear_attention", true, {}, {}, {}};
  const std::vector<LinearCase> cases{{"plain", {2, 2, 5, 3}, {2, 2, 5, 2}},
                                      {"one of each", {1, 1, 1, 1}, {1, 1, 1, 1}},
                                      {"causal in chunks", {2, 1, 7, 2}, {2, 1, 7, 3}, true, false, true, false, 1, 3},
                                      {"masked", {2, 2, 4, 2}, {2, 2, 4, 2}, false, true},
                                      {"causal, masked, from a state", {2, 1, 5, 2}, {2, 1, 5, 3}, true, true, true, true, 1, 2},
                                      {"not normalised", {1, 2, 4, 3}, {1, 2, 4, 2}, false, true, false, false, 0.7},
                                      {"causal, not normalised", {1, 2, 4, 3}, {1, 2, 4, 2}, true, false, false, false, 0.7, 2}};
  for (const LinearCase& c : cases) {
    Inputs in{numbers(c.q, 1, 0.1, 1), numbers(c.q, 2, 0.1, 1), numbers(c.v, 3)};
    if (c.masked) in.push_back(flags({c.q[0], c.q[2]}, 4));
    if (c.state) {
      in.push_back(numbers({c.q[0], c.q[1], c.q[3], c.v[3]}, 5));
      in.push_back(numbers({c.q[0], c.q[1], c.q[3]}, 6, 0.1, 1));
    }
    row.samples.push_back({c.label, std::move(in), [c](const Inputs& x) { return attend_linear(x, c); },
                           [c](const Plains& x) { return linear_of(x, c); }, 128});
  }
  const Shape s{2, 2, 3, 4};
  const auto run = [s](auto set) {
    ops::LinearAttentionOptions o;
    set(o);
    ops::linear_attention(numbers(s, 1), numbers(s, 1), numbers(s, 1), o);
  };
  row.errors = {{[s] { ops::linear_attention(numbers(s, 1), numbers({2, 2, 4, 4}, 1), numbers(s, 1)); }, "[linear_attention] got q [2, 2, 3, 4], k [2, 2, 4, 4]"},
                {[=] { run([](auto& o) { o.mask = flags({3}, 1); }); }, "[linear_attention] mask is u8 [3], expected u8 [2, 3] with 1 = real"},
                {[=] { run([](auto& o) { o.chunk = 0; }); }, "[linear_attention] chunk is 0, expected at least 1"},
                {[=] { run([](auto& o) { o.S0 = numbers({2, 2, 4, 4}, 1); }); }, "[linear_attention] a state is S0 and z0 together, with causal"},
                {[s] { ops::linear_attention(numbers(s, 1), Tensor::zeros(s), numbers(s, 1)); }, "f64"}};
  row.large = [](i64 n) {
    const i64 length = std::max<i64>(8, n / (2 * 4 * 32));
    const Shape shape{2, 4, length, 32};
    return make_large({numbers(shape, 1, 0, 1), numbers(shape, 2, 0, 1), numbers(shape, 3)},
                      [](const Inputs& in) {
                        ops::LinearAttentionOptions o;
                        o.causal = true;
                        return ops::linear_attention(in[0], in[1], in[2], o);
                      },
                      4.0 * 8 * static_cast<double>(length) * 32 * 32, shape.numel());
  };
  return row;
}

}  // namespace

void add_products(std::vector<OpRow>& rows) {
  for (auto make : {matmul_row, linear_row, conv1d_row, conv2d_row, attention_row, linear_attention_row}) rows.push_back(make());
}

}  // namespace tapeformer::samples
