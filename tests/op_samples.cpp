#include "tests/op_samples.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/rng.h"

namespace tapeformer::samples {

namespace {

template <class F>
Tensor generate(const Shape& shape, F&& value) {
  std::vector<double> v;
  for (i64 i = 0; i < shape.numel(); ++i) v.push_back(static_cast<double>(static_cast<float>(value(static_cast<std::uint64_t>(i)))));
  return Tensor::from(v, shape);
}

}  // namespace

Tensor numbers(const Shape& shape, std::uint64_t seed, double low, double high) {
  return generate(shape, [&](std::uint64_t i) { return low + (high - low) * RngKey(seed).uniform(i); });
}

Tensor off_zero(const Shape& shape, std::uint64_t seed) {
  return generate(shape, [&](std::uint64_t i) {
    const double u = 2 * RngKey(seed).uniform(i) - 1;
    return u < 0 ? 1.8 * u - 0.2 : 1.8 * u + 0.2;
  });
}

Tensor distinct(const Shape& shape, std::uint64_t seed, double shift) {
  const KeyedPermutation order(static_cast<std::uint64_t>(std::max<i64>(shape.numel(), 1)), RngKey(seed));
  return generate(
      shape, [&](std::uint64_t i) { return shift + 0.125 * (static_cast<double>(order(i)) - static_cast<double>(shape.numel() / 2)); });
}

Tensor integers(const Shape& shape, std::uint64_t seed, i64 low, i64 high) {
  std::vector<i64> v;
  for (i64 i = 0; i < shape.numel(); ++i)
    v.push_back(low + static_cast<i64>(RngKey(seed).below(static_cast<std::uint64_t>(i), static_cast<std::uint64_t>(high - low))));
  return Tensor::from(v, shape);
}

Tensor flags(const Shape& shape, std::uint64_t seed, double ones) {
  std::vector<std::uint8_t> v;
  for (i64 i = 0; i < shape.numel(); ++i) v.push_back(RngKey(seed).uniform(static_cast<std::uint64_t>(i)) < ones);
  return Tensor::from(v, shape);
}

Large make_large(Inputs inputs, Call call, double flops, i64 output_elements) {
  Large large{{}, std::move(call), flops, 4.0 * static_cast<double>(output_elements)};
  for (const Tensor& x : inputs) {
    large.inputs.push_back(x.dtype() == DType::F64 ? x.to(DType::F32) : x);
    large.bytes += static_cast<double>(large.inputs.back().bytes());
  }
  return large;
}

i64 flat_at(const Shape& shape, const Index& index) {
  i64 flat = 0;
  const int lead = static_cast<int>(index.size()) - shape.rank();
  for (int i = 0; i < shape.rank(); ++i) flat = flat * shape[i] + (shape[i] == 1 ? 0 : index[static_cast<std::size_t>(i + lead)]);
  return flat;
}

const std::vector<OpRow>& op_rows() {
  static const std::vector<OpRow> rows = [] {
    std::vector<OpRow> all;
    add_arithmetic(all);
    add_reductions(all);
    add_shapes(all);
    add_products(all);
    add_attention(all);
    add_position_attention(all);
    add_mixing(all);
    return all;
  }();
  return rows;
}

namespace {

using Make = std::function<Tensor(const Shape&, std::uint64_t)>;
using Unary = Tensor (*)(const Tensor&);
using Binary = Tensor (*)(const Tensor&, const Tensor&);

Tensor any(const Shape& s, std::uint64_t seed) { return numbers(s, seed); }
Tensor positive(const Shape& s, std::uint64_t seed) { return numbers(s, seed, 0.2, 3); }
Tensor whole(const Shape& s, std::uint64_t seed) { return integers(s, seed, -2, 3).to(DType::F64); }  // with ties

OpRow unary_row(const std::string& name, Unary op, double (*f)(double), const Make& make) {
  OpRow row{name, true, {}, {}, {}};
  const Call call = [op](const Inputs& in) { return op(in[0]); };
  for (const Shape& s : {Shape{7}, {3, 5}, {2, 1, 3, 4}, {}, {0, 3}, {1}, {41}})
    row.samples.push_back({s.str(), {make(s, 1)}, call, [f](const std::vector<Plain>& in) {
                             return plain(in[0].shape, [&](const Index& i) { return f(at(in[0], i)); });
                           }});
  row.errors = {{[op] { op(integers({3}, 1, 0, 5)); }, "[" + name + "] got element type i64, expected f32 or f64"}};
  row.large = [call, make](i64 n) { return make_large({make({n / 250, 250}, 1)}, call, static_cast<double>(n), n); };
  return row;
}

Reference broadcast_reference(double (*f)(double, double)) {
  return [f](const std::vector<Plain>& in) {
    return plain(broadcast(in[0].shape, in[1].shape, "reference"), [&](const Index& i) { return f(at(in[0], i), at(in[1], i)); });
  };
}

std::vector<std::pair<Shape, Shape>> shape_pairs() {
  return {{{3, 4}, {3, 4}}, {{2, 3, 4}, {4}}, {{3, 1}, {1, 4}},       {{}, {2, 3}}, {{5, 1, 2}, {3, 1}},
          {{0, 3}, {1, 3}}, {{1}, {}},        {{3, 1, 2}, {3, 4, 2}}, {{1, 1}, {2}}};
}

OpRow binary_row(const std::string& name, bool differentiable, Binary op, double (*f)(double, double), const Make& make_a,
                 const Make& make_b) {
  OpRow row{name, differentiable, {}, {}, {}};
  const Call call = [op](const Inputs& in) { return op(in[0], in[1]); };
  for (const auto& [a, b] : shape_pairs())
    row.samples.push_back({a.str() + " " + b.str(), {make_a(a, 1), make_b(b, 2)}, call, broadcast_reference(f)});
  row.errors = {{[op] {
                   op(numbers({2, 3}, 1), numbers({4}, 2));
                 },
                 "[" + name + "] shapes do not broadcast: got [2, 3] and [4]"},
                {[op] { op(numbers({2}, 1), Tensor::zeros({2})); }, "[" + name + "] element types differ: got f64 and f32"},
                {[op] { op(flags({2}, 1), flags({2}, 1)); }, "[" + name + "] got element type u8, expected f32 or f64"}};
  row.large = [call, make_a, make_b](i64 n) {
    return make_large({make_a({n / 250, 250}, 1), make_b({250}, 2)}, call, static_cast<double>(n), n);
  };
  return row;
}

OpRow compare_row(const std::string& name, Binary op, double (*f)(double, double)) {
  OpRow row = binary_row(name, false, op, f, whole, whole);
  row.samples.push_back({"i64", {integers({3, 4}, 1, 0, 3), integers({4}, 2, 0, 3)}, row.samples[0].call, broadcast_reference(f)});
  return row;
}

OpRow scale_row() {
  OpRow row{"scale", true, {}, {}, {}};
  const Call call = [](const Inputs& in) { return ops::scale(in[0], -1.75, 0.5); };
  for (const Shape& s : {Shape{5}, {2, 3, 4}, {}, {0}})
    row.samples.push_back({s.str(), {any(s, 1)}, call, [](const std::vector<Plain>& in) {
                             return plain(in[0].shape, [&](const Index& i) { return -1.75 * at(in[0], i) + 0.5; });
                           }});
  row.errors = {{[] { ops::scale(flags({2}, 1), 2); }, "[scale] got element type u8"}};
  row.large = [call](i64 n) { return make_large({any({n}, 1)}, call, 2.0 * static_cast<double>(n), n); };
  return row;
}

OpRow pow_row() {
  OpRow row{"pow", true, {}, {}, {}};
  for (double p : {2.0, 3.0, -1.0, 0.5, 0.0, 1.0, 2.5}) {
    const Call call = [p](const Inputs& in) { return ops::pow(in[0], p); };
    for (const Shape& s : {Shape{3, 5}, {}, {0, 2}})
      row.samples.push_back({fmt::format("{} {}", p, s.str()), {positive(s, 1)}, call, [p](const std::vector<Plain>& in) {
                               return plain(in[0].shape, [&](const Index& i) { return std::pow(at(in[0], i), p); });
                             }});
  }
  row.samples.push_back({"negative base",
                         {off_zero({9}, 3)},
                         [](const Inputs& in) { return ops::pow(in[0], 3); },
                         [](const std::vector<Plain>& in) {
                           return plain(in[0].shape, [&](const Index& i) { return at(in[0], i) * at(in[0], i) * at(in[0], i); });
                         }});
  row.errors = {{[] { ops::pow(flags({2}, 1), 2); }, "[pow] got element type u8"}};
  row.large = [](i64 n) {
    return make_large(
        {positive({n}, 1)}, [](const Inputs& in) { return ops::pow(in[0], 1.5); }, static_cast<double>(n), n);
  };
  return row;
}

OpRow where_row() {
  OpRow row{"where", true, {}, {}, {}};
  const Call call = [](const Inputs& in) { return ops::where(in[0], in[1], in[2]); };
  const auto add = [&](const Shape& c, const Shape& a, const Shape& b) {
    row.samples.push_back({c.str() + a.str() + b.str(), {flags(c, 1), any(a, 2), any(b, 3)}, call, [](const std::vector<Plain>& in) {
                             const Shape s = broadcast(in[0].shape, broadcast(in[1].shape, in[2].shape, "where"), "where");
                             return plain(s, [&](const Index& i) { return at(in[0], i) != 0 ? at(in[1], i) : at(in[2], i); });
                           }});
  };
  add({3, 4}, {3, 4}, {3, 4});
  add({2, 1, 4}, {3, 1}, {});
  add({}, {2, 3}, {3});
  add({5}, {}, {});
  add({0, 2}, {1, 2}, {2});
  row.errors = {{[] { ops::where(any({2}, 1), any({2}, 1), any({2}, 1)); }, "[where] the condition is f64, expected u8"},
                {[] { ops::where(flags({2}, 1), any({3}, 1), any({2}, 1)); }, "[where] shapes do not broadcast: got [3] and [2]"},
                {[] { ops::where(flags({2}, 1), any({2}, 1), Tensor::zeros({2})); }, "[where] element types differ: got f64 and f32"}};
  row.large = [call](i64 n) {
    return make_large({flags({n / 250, 250}, 1), any({n / 250, 250}, 2), any({250}, 3)}, call, static_cast<double>(n), n);
  };
  return row;
}

OpRow mask_rows_row() {
  OpRow row{"mask_rows", true, {}, {}, {}};
  const Call call = [](const Inputs& in) { return ops::mask_rows(in[0], in[1]); };
  for (const auto& [x, m] :
       std::vector<std::pair<Shape, Shape>>{{{2, 3, 4}, {2, 3}}, {{5, 1}, {5}}, {{3}, {}}, {{0, 3}, {0}}, {{3, 0}, {3}}})
    row.samples.push_back(
        {x.str(), {any(x, 1), flags(m, 2)}, call, [](const std::vector<Plain>& in) {
           return plain(in[0].shape, [&](const Index& i) { return at(in[1], Index(i.begin(), i.end() - 1)) != 0 ? at(in[0], i) : 0.0; });
         }});
  row.errors = {{[] {
                   ops::mask_rows(any({2, 3}, 1), flags({3}, 1));
                 },
                 "[mask_rows] got x [2, 3] and mask u8 [3], expected x [..., D] and u8 mask [...]"},
                {[] {
                   ops::mask_rows(any({2, 3}, 1), any({2}, 1));
                 },
                 "[mask_rows] got x [2, 3] and mask f64 [2]"}};
  row.large = [call](i64 n) { return make_large({any({n / 50, 50}, 1), flags({n / 50}, 2)}, call, 0, n); };
  return row;
}

OpRow straight_through_row() {  // value and soft are the same numbers here, so that central differences see the
                                // gradient that soft gets
  OpRow row{"straight_through", true, {}, {}, {}};
  const Call call = [](const Inputs& in) { return ops::straight_through(in[0].detach(), in[0]); };
  for (const Shape& s : {Shape{3, 5}, {}, {0, 2}})
    row.samples.push_back({s.str(), {any(s, 1)}, call, [](const std::vector<Plain>& in) { return in[0]; }, 0});
  row.errors = {
      {[] { ops::straight_through(any({2}, 1), any({3}, 1)); }, "[straight_through] got [2] and [3], expected the same shape and type"},
      {[] { ops::straight_through(any({2}, 1), Tensor::zeros({2})); },
       "[straight_through] got [2] and [2], expected the same shape and type"}};
  row.large = [call](i64 n) { return make_large({any({n}, 1)}, call, 0, n); };
  return row;
}

double normal_cdf(double x) { return 0.5 * std::erfc(-x / std::sqrt(2.0)); }
double logistic(double x) { return 1 / (1 + std::exp(-x)); }

}  // namespace

void add_arithmetic(std::vector<OpRow>& rows) {
  using D = double;
  const Make upper = [](const Shape& s, std::uint64_t seed) { return distinct(s, seed, 0.0625); };
  const Make lower = [](const Shape& s, std::uint64_t seed) { return distinct(s, seed); };
  rows.push_back(binary_row(
      "add", true, ops::add, [](D a, D b) { return a + b; }, any, any));
  rows.push_back(binary_row(
      "sub", true, ops::sub, [](D a, D b) { return a - b; }, any, any));
  rows.push_back(binary_row(
      "mul", true, ops::mul, [](D a, D b) { return a * b; }, any, any));
  rows.push_back(binary_row(
      "div", true, ops::div, [](D a, D b) { return a / b; }, any, off_zero));
  rows.push_back(binary_row(
      "maximum", true, ops::maximum, [](D a, D b) { return a > b ? a : b; }, lower, upper));
  rows.push_back(binary_row(
      "minimum", true, ops::minimum, [](D a, D b) { return a < b ? a : b; }, lower, upper));
  rows.push_back(scale_row());
  rows.push_back(pow_row());
  rows.push_back(unary_row(
      "neg", ops::neg, [](D x) { return -x; }, any));
  rows.push_back(unary_row(
      "exp", ops::exp, [](D x) { return std::exp(x); }, any));
  rows.push_back(unary_row(
      "log", ops::log, [](D x) { return std::log(x); }, positive));
  rows.push_back(unary_row(
      "sqrt", ops::sqrt, [](D x) { return std::sqrt(x); }, positive));
  rows.push_back(unary_row(
      "abs", ops::abs, [](D x) { return x < 0 ? -x : x; }, off_zero));
  rows.push_back(unary_row(
      "sin", ops::sin, [](D x) { return std::sin(x); }, any));
  rows.push_back(unary_row(
      "cos", ops::cos, [](D x) { return std::cos(x); }, any));
  rows.push_back(compare_row("equal", ops::equal, [](D a, D b) { return D(a == b); }));
  rows.push_back(compare_row("less", ops::less, [](D a, D b) { return D(a < b); }));
  rows.push_back(compare_row("less_equal", ops::less_equal, [](D a, D b) { return D(a <= b); }));
  rows.push_back(compare_row("greater", ops::greater, [](D a, D b) { return D(a > b); }));
  rows.push_back(compare_row("greater_equal", ops::greater_equal, [](D a, D b) { return D(a >= b); }));
  rows.push_back(where_row());
  rows.push_back(mask_rows_row());
  rows.push_back(straight_through_row());
  rows.push_back(unary_row(
      "relu", ops::relu, [](D x) { return x > 0 ? x : 0; }, off_zero));
  rows.push_back(unary_row(
      "gelu", ops::gelu, [](D x) { return x * normal_cdf(x); }, any));
  rows.push_back(unary_row(
      "gelu_tanh", ops::gelu_tanh, [](D x) { return x / 2 * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }, any));
  rows.push_back(unary_row(
      "silu", ops::silu, [](D x) { return x * logistic(x); }, any));
  rows.push_back(unary_row(
      "tanh", ops::tanh, [](D x) { return std::tanh(x); }, any));
  rows.push_back(unary_row(
      "sigmoid", ops::sigmoid, [](D x) { return logistic(x); }, any));
  rows.push_back(unary_row(
      "elu", ops::elu, [](D x) { return x > 0 ? x : std::exp(x) - 1; }, off_zero));
  rows.push_back(unary_row(
      "elu1", ops::elu1, [](D x) { return x > 0 ? x + 1 : std::exp(x); }, off_zero));
  rows.push_back(unary_row(
      "softplus", ops::softplus, [](D x) { return std::log(1 + std::exp(x)); }, any));
}

}  // namespace tapeformer::samples
