// Rows for attention.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "tests/op_samples.h"

namespace tapeformer::samples {
namespace {

using Plains = std::vector<Plain>;

struct AttentionCase {
  std::string label;
  Shape q, k, v;
  bool causal = false;
  double scale = 0;                                         // 0: default
  Shape key_mask{}, query_mask{}, key_bias{}, pair_bias{};  // rank 0: none
  double dropout = 0;
  Shape left{}, right{};  // of the outer product
};

// Inputs: q, k, v, then those of key_mask, query_mask, key_bias, pair_bias, left, right that the case has, in this order.
template <class T>
struct Named {
  const std::vector<T>& in;
  const AttentionCase& c;
  const T* find(const Shape AttentionCase::*which) const {
    std::size_t k = 3;
    for (auto member : {&AttentionCase::key_mask, &AttentionCase::query_mask, &AttentionCase::key_bias, &AttentionCase::pair_bias,
                        &AttentionCase::left, &AttentionCase::right}) {
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
  if (auto* t = named.find(&AttentionCase::left)) o.outer_left = *t;
  if (auto* t = named.find(&AttentionCase::right)) o.outer_right = *t;
  o.dropout = c.dropout;
  o.key = RngKey(5);
  return ops::attention(in[0], in[1], in[2], o);
}

Plain attention_of(const Plains& in, const AttentionCase& c) {
  const Named<Plain> named{in, c};
  const Plain *key_mask = named.find(&AttentionCase::key_mask), *query_mask = named.find(&AttentionCase::query_mask);
  const Plain *key_bias = named.find(&AttentionCase::key_bias), *pair_bias = named.find(&AttentionCase::pair_bias);
  const Plain *left = named.find(&AttentionCase::left), *right = named.find(&AttentionCase::right);
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
      if (left) s += at(*left, {i[0], i[1], i[2], j / c.right[3]}) * at(*right, {i[0], i[1], i[2], j % c.right[3]});
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
      {"dropout", {2, 2, 3, 2}, {2, 2, 6, 2}, {2, 2, 6, 2}, false, 0, {}, {}, {}, {}, 0.3},
      {"outer product", {2, 2, 3, 2}, {2, 2, 5, 2}, {2, 2, 5, 2}, false, 0, {}, {}, {}, {}, 0, {2, 2, 3, 2}, {2, 2, 3, 3}},
      {"outer product, causal, biases",
       {2, 2, 4, 1},
       {2, 2, 4, 1},
       {2, 2, 4, 2},
       true,
       1,
       {2, 4},
       {},
       {1, 2, 4},
       {},
       0,
       {2, 2, 4, 4},
       {2, 2, 4, 1}}};
  for (const AttentionCase& c : cases) {
    Inputs in{numbers(c.q, 1), numbers(c.k, 2), numbers(c.v, 3)};
    if (c.key_mask.rank()) in.push_back(flags(c.key_mask, 11));
    if (c.query_mask.rank()) in.push_back(flags(c.query_mask, 5));
    if (c.key_bias.rank()) in.push_back(numbers(c.key_bias, 6));
    if (c.pair_bias.rank()) in.push_back(numbers(c.pair_bias, 7));
    if (c.left.rank()) in.push_back(numbers(c.left, 8));
    if (c.right.rank()) in.push_back(numbers(c.right, 9));
    row.samples.push_back({c.label, std::move(in), [c](const Inputs& x) { return attend(x, c); },
                           c.dropout > 0 ? Reference() : [c](const Plains& x) { return attention_of(x, c); }, 128});
  }
  const auto run = [](const Shape& q, const Shape& k, const Shape& v, const ops::AttentionOptions& o) {
    ops::attention(numbers(q, 1), numbers(k, 1), numbers(v, 1), o);
  };
  const auto with = [](auto set) {
    ops::AttentionOptions o;
    set(o);
    return o;
  };
  const Shape s{2, 2, 3, 4};
  row.errors = {
      {[=] {
         run({2, 3, 4}, s, s, {});
       },
       "[attention] got q [2, 3, 4], k [2, 2, 3, 4], v [2, 2, 3, 4], expected q [B, H, N, d]"},
      {[=] {
         run(s, {2, 2, 3, 5}, s, {});
       },
       "[attention] got q [2, 2, 3, 4], k [2, 2, 3, 5]"},
      {[=] {
         run(s, {2, 2, 2, 4}, {2, 2, 2, 4}, with([](auto& o) { o.causal = true; }));
       },
       "[attention] causal needs a key for every query: got N = 3 and M = 2"},
      {[=] { run(s, s, s, with([](auto& o) { o.key_mask = flags({3}, 1); })); },
       "[attention] key_mask is u8 [3], expected u8 [2, 3] with 1 = real"},
      {[=] { run(s, s, s, with([](auto& o) {
                   o.query_mask = numbers({2, 3}, 1);
                 })); },
       "[attention] query_mask is f64 [2, 3], expected u8 [2, 3]"},
      {[=] { run(s, s, s, with([](auto& o) {
                   o.key_bias = numbers({2, 3}, 1);
                 })); }, "[attention] key_bias is [2, 3], expected [B, H, M]"},
      {[=] { run(s, s, s, with([](auto& o) {
                   o.pair_bias = numbers({2, 3, 3, 3}, 1);
                 })); },
       "[attention] pair_bias is [2, 3, 3, 3], expected [B, H, N, M]"},
      {[=] {
         run(s, s, s, with([](auto& o) {
               o.outer_left = numbers({2, 2, 3, 1}, 1);
               o.outer_right = numbers({2, 2, 3, 2}, 1);
             }));
       },
       "[attention] got outer_left [2, 2, 3, 1] and outer_right [2, 2, 3, 2], expected [B, H, N, a] and [B, H, N, c] with a c >= 3"},
      {[=] { run(s, s, s, with([](auto& o) { o.dropout = 1; })); }, "[attention] dropout is 1, expected 0 to below 1"},
      {[=] {
         run(s, s, s, with([](auto& o) {
               static const std::vector<i64> one{0};
               o.rows = one;
             }));
       },
       "[attention] got 1 sample indices for q [2, 2, 3, 4]"},
      {[=] { ops::attention(numbers(s, 1), Tensor::zeros(s), numbers(s, 1)); }, "[attention] element types differ: got f64, f32 and f64"}};
  row.large = [](i64 n) {
    const i64 length = std::max<i64>(8, n / (2 * 4 * 32));
    const Shape shape{2, 4, length, 32};
    return make_large(
        {numbers(shape, 1), numbers(shape, 2), numbers(shape, 3)},
        [](const Inputs& in) { return ops::attention(in[0], in[1], in[2], ops::AttentionOptions()); },
        4.0 * 8 * static_cast<double>(length * length) * 32, shape.numel());
  };
  return row;
}

struct Near final : kernels::IntervalPattern {  // places i - 1 to i + 2
  Range keys(i64, i64, i64 i) const override { return {i - 1, i + 3}; }
};

struct PartsCase {
  std::string label;
  Shape q, k;
  std::vector<std::pair<Tensor, Tensor>> orders;  // of queries and keys, part by part; the parts' keys differ
  bool causal = false, near = false, masked = false, biased = false;
  double dropout = 0;
};

// Inputs: q, k, v, each part's defined orders, then query_mask, key_mask, then key_bias, pair_bias.
std::vector<Tensor> inputs_of(const PartsCase& c) {
  Inputs in{numbers(c.q, 1), numbers(c.k, 2), numbers(c.k, 3)};
  for (const auto& [queries, keys] : c.orders)
    for (const Tensor& t : {queries, keys})
      if (t.defined()) in.push_back(t);
  if (c.masked) {
    in.push_back(flags({c.q[0], c.q[2]}, 5));
    in.push_back(flags({c.q[0], c.k[2]}, 11));
  }
  if (c.biased) {
    in.push_back(numbers({c.q[0], 1, c.k[2]}, 6));
    in.push_back(numbers({1, c.q[1], c.q[2], c.k[2]}, 7));
  }
  return in;
}

Tensor attend_parts(const Inputs& in, const PartsCase& c) {
  std::size_t next = 3;
  std::vector<ops::AttentionPart> parts;
  for (const auto& [queries, keys] : c.orders) {
    ops::AttentionPart part;
    if (queries.defined()) part.queries = in[next++];
    if (keys.defined()) part.keys = in[next++];
    if (c.near) part.pattern = std::make_shared<Near>();
    parts.push_back(part);
  }
  ops::AttentionOptions o{.causal = c.causal};
  if (c.masked) o.query_mask = in[next++];
  if (c.masked) o.key_mask = in[next++];
  if (c.biased) o.key_bias = in[next++];
  if (c.biased) o.pair_bias = in[next++];
  o.dropout = c.dropout;
  o.key = RngKey(5);
  return ops::attention_parts(in[0], in[1], in[2], parts, o);
}

// The rows at the places of an order, for a head.
std::vector<i64> places(const Plain* order, i64 b, i64 h, i64 rows) {
  std::vector<i64> out;
  for (i64 p = 0; p < (order ? order->shape.dim(-1) : rows); ++p)
    out.push_back(order ? static_cast<i64>(order->shape.rank() == 1 ? at(*order, {p}) : at(*order, {b, h, p})) : p);
  return out;
}

Plain parts_of(const Plains& in, const PartsCase& c) {
  std::vector<std::pair<const Plain*, const Plain*>> orders;
  std::size_t next = 3;
  for (const auto& [queries, keys] : c.orders) {
    const Plain* first = queries.defined() ? &in[next++] : nullptr;
    orders.emplace_back(first, keys.defined() ? &in[next++] : nullptr);
  }
  const Plain *query_mask = c.masked ? &in[next] : nullptr, *key_mask = c.masked ? &in[next + 1] : nullptr;
  const Plain *key_bias = c.biased ? &in[in.size() - 2] : nullptr, *pair_bias = c.biased ? &in.back() : nullptr;
  return plain({c.q[0], c.q[1], c.q[2], c.k[3]}, [&](const Index& i) {
    double total = 0, sum = 0;
    for (const auto& [queries, keys] : orders) {
      const std::vector<i64> row = places(queries, i[0], i[1], c.q[2]), column = places(keys, i[0], i[1], c.k[2]);
      for (i64 x = 0; x < static_cast<i64>(row.size()); ++x)
        for (i64 y = 0; y < static_cast<i64>(column.size()); ++y) {
          const i64 j = column[static_cast<std::size_t>(y)];
          if (row[static_cast<std::size_t>(x)] != i[2] || j < 0 || (c.near && (y < x - 1 || y > x + 2)) || (c.causal && j > i[2])) continue;
          if (query_mask && (at(*query_mask, {i[0], i[2]}) == 0 || at(*key_mask, {i[0], j}) == 0)) continue;
          double s = 0;
          for (i64 e = 0; e < c.q[3]; ++e) s += at(in[0], {i[0], i[1], i[2], e}) * at(in[1], {i[0], i[1], j, e});
          s /= std::sqrt(static_cast<double>(c.q[3]));
          if (key_bias) s += at(*key_bias, {i[0], i[1], j}) + at(*pair_bias, {i[0], i[1], i[2], j});
          total += std::exp(s);
          sum += std::exp(s) * at(in[2], {i[0], i[1], j, i[3]});
        }
    }
    return total == 0 ? 0.0 : sum / total;
  });
}

OpRow attention_parts_row() {
  OpRow row{"attention_parts", true, {}, {}, {}};
  const auto index = [](std::initializer_list<i64> values, Shape shape = {}) {
    return Tensor::from<i64>(values, shape.rank() ? shape : Shape{static_cast<i64>(values.size())});
  };
  const Tensor odd = index({3, 1, -1}), even = index({0, 4, 2}), backwards = index({4, 3, 2, 1, 0}), some = index({2, -1, 0});
  const Tensor own = index({0, 1, 2, 4, 3, -1, 1, 2, 4, 0, 3, 1}, {2, 2, 3}), rest = index({3, 4, 0, 1, -1, 0, 2, 4}, {2, 2, 2});
  const Shape s{2, 2, 5, 2};
  const std::vector<PartsCase> cases{
      {"one part, as it is", s, s, {{{}, {}}}},
      {"keys apart", s, s, {{{}, odd}, {backwards, even}}, true},
      {"ranges of places", s, s, {{backwards, odd}, {{}, even}}, false, true, true},
      {"an order for each head, rows left out", s, s, {{own, rest}, {some, own}}, false, false, true, true},
      {"all at once", {2, 1, 5, 2}, s, {{own.slice(1, 0, 1), rest}, {backwards, own}}, true, true, true, true},
      {"dropout", s, s, {{{}, odd}, {backwards, even}}, false, false, false, false, 0.3}};
  for (PartsCase c : cases) {
    if (c.q[1] == 1) c.k[1] = 1, c.orders[0].second = rest.slice(1, 0, 1), c.orders[1].second = own.slice(1, 0, 1);
    Inputs in = inputs_of(c);
    for (Tensor& t : in) t = t.to_contiguous();
    row.samples.push_back({c.label, std::move(in), [c](const Inputs& x) { return attend_parts(x, c); },
                           c.dropout > 0 ? Reference() : [c](const Plains& x) { return parts_of(x, c); }, 128});
  }
  const auto run = [s](std::vector<ops::AttentionPart> parts, const ops::AttentionOptions& o = {}) {
    ops::attention_parts(numbers(s, 1), numbers(s, 1), numbers(s, 1), std::move(parts), o);
  };
  row.errors = {{[=] { run({}); }, "[attention_parts] needs at least one part"},
                {[=] { run({{}}, {.pattern = std::make_shared<Near>()}); }, "the patterns in the parts instead of the options"},
                {[=] {
                   run({{.queries = index({0, 5})}});
                 },
                 "[attention_parts] queries names row 5, expected -1 to 4"},
                {[=] {
                   run({{.keys = index({1, -1, -1, 1})}});
                 },
                 "[attention_parts] keys names row 1 twice"},
                {[=] { run({{.keys = numbers({3}, 1)}}); }, "[attention_parts] keys is f64 [3], expected i64 [places] or [B, H, places]"},
                {[=] {
                   run({{.queries = index({0, 1, 2}, {3, 1, 1})}});
                 },
                 "[attention_parts] queries is i64 [3, 1, 1]"}};
  row.large = [](i64 n) {
    const i64 length = std::max<i64>(8, n / (2 * 4 * 32));
    const Shape shape{2, 4, length, 32};
    Tensor order[2] = {Tensor::empty({length / 2}, DType::I64), Tensor::empty({length - length / 2}, DType::I64)};
    const KeyedPermutation shuffled(static_cast<std::uint64_t>(length), RngKey(4));
    for (i64 i = 0; i < length; ++i)
      order[i >= length / 2].mut_ptr<i64>()[i % (length / 2)] = static_cast<i64>(shuffled(static_cast<std::uint64_t>(i)));
    return make_large(
        {numbers(shape, 1), numbers(shape, 2), numbers(shape, 3), order[0], order[1]},
        [](const Inputs& in) {
          ops::AttentionOptions o{.dropout = 0.1};
          return ops::attention_parts(in[0], in[1], in[2], {{.queries = in[3], .keys = in[4]}, {.keys = in[3]}}, o);
        },
        3.0 * 8 * static_cast<double>(length * length) * 32, shape.numel());
  };
  return row;
}

using kernels::LinearForm;

struct LinearCase {
  std::string label;
  Shape q, v;
  bool causal = false, masked = false, normalize = true, state = false;
  double scale = 1;
  i64 chunk = 64;
  LinearForm form = LinearForm::Features;
  double floor = -1;
  bool gate = false;
  double size = 1;  // of the exponents
};

Tensor attend_linear(const Inputs& in, const LinearCase& c) {  // q, k, v, then mask, then S0 and z0, or the gate
  ops::LinearAttentionOptions o;
  o.form = c.form;
  o.causal = c.causal;
  o.normalize = c.normalize;
  o.scale = c.scale;
  o.eps = 0.01;
  o.chunk = c.chunk;
  if (c.floor >= 0) o.floor = c.floor;
  if (c.masked) o.mask = in[3];
  if (c.gate) o.gate = in.back();
  if (c.state) {
    o.S0 = in[in.size() - 2];
    o.z0 = in[in.size() - 1];
  }
  return ops::linear_attention(in[0], in[1], in[2], o);
}

// What the engine reorders, pair by pair in double.
Plain linear_of(const Plains& in, const LinearCase& c) {
  const i64 N = c.q[2], d = c.q[3];
  return plain(c.v, [&](const Index& i) {
    const auto real = [&](i64 n) { return !c.masked || at(in[3], {i[0], n}) != 0; };
    const auto visible = [&](i64 j) { return real(j) && (!c.causal || j <= i[2]); };
    const auto number = [&](std::size_t which, i64 n, i64 e) { return at(in[which], {i[0], i[1], n, e}); };
    const auto keep = [&](i64 n) { return c.gate && real(n) ? 1 / (1 + std::exp(-at(in.back(), {i[0], i[1], n}))) : 1.0; };
    if (!real(i[2])) return 0.0;
    double sum = 0, total = c.floor >= 0 || c.form != LinearForm::Features ? 0 : 0.01, count = 0;
    for (i64 e = 0; c.state && e < d; ++e) {
      sum += number(0, i[2], e) * at(in[in.size() - 2], {i[0], i[1], e, i[3]});
      total += number(0, i[2], e) * at(in.back(), {i[0], i[1], e});
    }
    std::vector<double> own(static_cast<std::size_t>(d), 0.0);  // PerFeature: sum of exp(k) over the visible keys
    double highest = -1e300;                                    // Exponents
    for (i64 j = 0; j < N; ++j)
      for (i64 e = 0; visible(j) && e < d; ++e) {
        own[static_cast<std::size_t>(e)] += std::exp(number(1, j, e));
        highest = std::max(highest, number(0, i[2], e) + number(1, j, e));
      }
    for (i64 j = 0; j < N; ++j) {
      if (!visible(j)) continue;
      double fade = c.gate ? 1 - keep(j) : 1, s = 0;
      for (i64 t = j + 1; t <= i[2] && c.gate; ++t) fade *= keep(t);
      for (i64 e = 0; e < d; ++e) {
        const double q = number(0, i[2], e), k = number(1, j, e);
        s += c.form == LinearForm::Features    ? q * k
             : c.form == LinearForm::Exponents ? std::exp(q + k - highest)
                                               : q * std::exp(k) / own[static_cast<std::size_t>(e)];
      }
      sum += fade * s * at(in[2], {i[0], i[1], j, i[3]});
      total += fade * s;
      count += fade;
    }
    if (c.form == LinearForm::PerFeature) return sum;
    if (c.floor >= 0) total = std::max(total, c.floor * count);
    return c.normalize ? (total == 0 ? 0 : sum / total) : sum * c.scale;
  });
}

OpRow linear_attention_row() {
  OpRow row{"linear_attention", true, {}, {}, {}};
  std::vector<LinearCase> cases{{"plain", {2, 2, 5, 3}, {2, 2, 5, 2}},
                                {"one of each", {1, 1, 1, 1}, {1, 1, 1, 1}},
                                {"causal in chunks", {2, 1, 7, 2}, {2, 1, 7, 3}, true, false, true, false, 1, 3},
                                {"masked", {2, 2, 4, 2}, {2, 2, 4, 2}, false, true},
                                {"causal, masked, from a state", {2, 1, 5, 2}, {2, 1, 5, 3}, true, true, true, true, 1, 2},
                                {"not normalised", {1, 2, 4, 3}, {1, 2, 4, 2}, false, true, false, false, 0.7},
                                {"causal, not normalised", {1, 2, 4, 3}, {1, 2, 4, 2}, true, false, false, false, 0.7, 2}};
  const auto further = [&](std::string label, LinearForm form, i64 N, auto set) {
    LinearCase c{std::move(label), {2, 2, N, 3}, {2, 2, N, 2}, true, true};
    c.form = form;
    c.chunk = 2;
    set(c);
    cases.push_back(std::move(c));
  };
  further("floor", LinearForm::Features, 5, [](LinearCase& c) { c.floor = 0.9, c.causal = c.masked = false; });
  further("floor, causal, masked", LinearForm::Features, 5, [](LinearCase& c) { c.floor = 0.9; });
  further("floor 0", LinearForm::Features, 5, [](LinearCase& c) { c.floor = 0, c.causal = false; });
  further("gate", LinearForm::Features, 7, [](LinearCase& c) { c.gate = true; });
  further("gate and floor", LinearForm::Features, 7, [](LinearCase& c) { c.gate = true, c.floor = 0.9; });
  for (const auto& [name, form] : {std::pair{"exponents", LinearForm::Exponents}, std::pair{"per feature", LinearForm::PerFeature}}) {
    further(std::string(name), form, 5, [](LinearCase& c) { c.causal = c.masked = false; });
    further(std::string(name) + ", masked", form, 5, [](LinearCase& c) { c.causal = false; });
    further(std::string(name) + ", causal, masked", form, 7, [](LinearCase&) {});
    further(std::string(name) + ", causal, steep", form, 12, [](LinearCase& c) { c.chunk = 8, c.size = 50; });  // chunks are cut
  }
  // Long enough for parts side by side.
  further("parts, not causal", LinearForm::Exponents, 300, [](LinearCase& c) { c.causal = false, c.q[3] = 1; });
  for (LinearForm form : {LinearForm::Features, LinearForm::Exponents, LinearForm::PerFeature})
    further("parts", form, 50, [form](LinearCase& c) { c.q[1] = c.v[1] = 1, c.size = form == LinearForm::Features ? 1 : 10; });
  further("parts and gate", LinearForm::Features, 50, [](LinearCase& c) { c.q[1] = c.v[1] = 1, c.gate = true, c.floor = 0.5; });
  for (const LinearCase& c : cases) {
    Inputs in{numbers(c.q, 1, 0.1, 1), numbers(c.q, 2, 0.1, 1), numbers(c.v, 3)};
    if (c.form == LinearForm::Exponents) in[0] = numbers(c.q, 1, -c.size, c.size);
    if (c.form != LinearForm::Features) in[1] = numbers(c.q, 2, -c.size, c.size);
    if (c.masked) in.push_back(flags({c.q[0], c.q[2]}, 4));
    if (c.gate) in.push_back(numbers({c.q[0], c.q[1], c.q[2]}, 7));
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
  row.errors = {
      {[s] {
         ops::linear_attention(numbers(s, 1), numbers({2, 2, 4, 4}, 1), numbers(s, 1));
       },
       "[linear_attention] got q [2, 2, 3, 4], k [2, 2, 4, 4]"},
      {[=] { run([](auto& o) { o.mask = flags({3}, 1); }); }, "[linear_attention] mask is u8 [3], expected u8 [2, 3] with 1 = real"},
      {[=] { run([](auto& o) { o.chunk = 0; }); }, "[linear_attention] chunk is 0, expected at least 1"},
      {[=] { run([](auto& o) {
               o.S0 = numbers({2, 2, 4, 4}, 1);
             }); }, "[linear_attention] a state is S0 and z0 together, with causal"},
      {[=] { run([](auto& o) {
               o.gate = numbers({2, 2, 3}, 1);
             }); }, "[linear_attention] a gate is for causal sequences from their start"},
      {[=] {
         run([](auto& o) {
           o.gate = numbers({2, 3}, 1);
           o.causal = true;
         });
       },
       "[linear_attention] gate is f64 [2, 3], expected f64 [2, 2, 3]"},
      {[=] { run([](auto& o) { o.floor = -1; }); }, "[linear_attention] floor is -1, expected at least 0"},
      {[=] {
         run([](auto& o) {
           o.form = LinearForm::Exponents;
           o.floor = 1;
         });
       },
       "[linear_attention] exponents have a denominator of their own"},
      {[s] { ops::linear_attention(numbers(s, 1), Tensor::zeros(s), numbers(s, 1)); }, "f64"}};
  row.large = [](i64 n) {
    const i64 length = std::max<i64>(8, n / (2 * 4 * 32));
    const Shape shape{2, 4, length, 32};
    return make_large(
        {numbers(shape, 1, 0, 1), numbers(shape, 2, 0, 1), numbers(shape, 3)},
        [](const Inputs& in) {
          ops::LinearAttentionOptions o;
          o.causal = true;
          return ops::linear_attention(in[0], in[1], in[2], o);
        },
        4.0 * 8 * static_cast<double>(length) * 32 * 32, shape.numel());
  };
  return row;
}

struct GraphCase {
  std::string label;
  Shape q, v;
  std::vector<i64> edges;  // sources, then targets
  kernels::EdgeIndex::Options index{};
  bool additive = false, masked = false, bias = false;
  std::vector<i64> samples{};  // of the edges; empty = shared
  double dropout = 0;
};

i64 count(const GraphCase& c) { return static_cast<i64>(c.edges.size()) / 2; }

Tensor attend_along(const Inputs& in, const GraphCase& c) {  // q, k, v, then mask, then bias
  ops::GraphAttentionOptions o;
  o.edges = std::make_shared<kernels::EdgeIndex>(c.q[2], c.q[0], c.edges.data(), c.samples.empty() ? nullptr : c.samples.data(), count(c),
                                                 c.index);
  o.additive = c.additive;
  if (c.masked) o.mask = in[3];
  if (c.bias) o.edge_bias = in.back();
  o.dropout = c.dropout;
  o.key = RngKey(5);
  return ops::graph_attention(in[0], in[1], in[2], o);
}

Plain along_edges(const Plains& in, const GraphCase& c) {
  const i64 N = c.q[2], E = count(c), d = c.q[3];
  const auto joins = [&](i64 e, i64 source, i64 target) {
    return c.edges[static_cast<std::size_t>(e)] == source && c.edges[static_cast<std::size_t>(E + e)] == target;
  };
  return plain(c.v, [&](const Index& i) {
    const auto real = [&](i64 n) { return !c.masked || at(in[3], {i[0], n}) != 0; };
    double sum = 0, total = 0;
    for (i64 j = 0; j < N; ++j) {
      if (!real(i[2]) || !real(j) || (c.index.causal && j > i[2])) continue;
      bool looks = c.index.self_loops && j == i[2];
      double s = 0;
      for (i64 e = E - 1; e >= 0; --e) {  // the first of equal edges counts
        if (!c.samples.empty() && c.samples[static_cast<std::size_t>(e)] != i[0]) continue;
        if (!joins(e, j, i[2]) && !(c.index.undirected && joins(e, i[2], j))) continue;
        looks = true;
        if (c.bias) s = at(in.back(), {i[1], e});
      }
      if (!looks) continue;
      if (c.additive) {
        const double x = at(in[0], {i[0], i[1], i[2], 0}) + at(in[1], {i[0], i[1], j, 0});
        s = x > 0 ? x : 0.2 * x;
      } else {
        double product = 0;
        for (i64 x = 0; x < d; ++x) product += at(in[0], {i[0], i[1], i[2], x}) * at(in[1], {i[0], i[1], j, x});
        s += product / std::sqrt(static_cast<double>(d));
      }
      total += std::exp(s);
      sum += std::exp(s) * at(in[2], {i[0], i[1], j, i[3]});
    }
    return total == 0 ? 0.0 : sum / total;
  });
}

OpRow graph_attention_row() {
  OpRow row{"graph_attention", true, {}, {}, {}};
  const std::vector<i64> edges{0, 4, 2, 2, 1, 3, 0, 2, /**/ 1, 1, 2, 0, 4, 1, 1, 3};  // 0 -> 1 twice, a loop at 2, nobody else looks at 3
  const std::vector<i64> distinct{0, 4, 2, 2, 1, 3, /**/ 1, 1, 2, 0, 4, 1};
  const std::vector<GraphCase> cases{
      {"shared by samples", {2, 2, 5, 3}, {2, 2, 5, 2}, edges},
      {"one of each", {1, 1, 1, 1}, {1, 1, 1, 1}, {0, 0}},
      {"no edges", {1, 2, 3, 2}, {1, 2, 3, 2}, {}},
      {"both ways with loops", {1, 2, 5, 2}, {1, 2, 5, 3}, edges, {.self_loops = true, .undirected = true}},
      {"causal, masked", {2, 1, 5, 2}, {2, 1, 5, 2}, edges, {.self_loops = true, .causal = true}, false, true},
      {"a graph a sample", {2, 2, 5, 2}, {2, 2, 5, 2}, edges, {}, false, false, false, {0, 1, 1, 0, 1, 0, 1, 1}},
      {"bias", {2, 2, 5, 2}, {2, 2, 5, 2}, distinct, {.self_loops = true, .distinct = true}, false, false, true},
      {"bias, masked, causal", {2, 2, 5, 2}, {2, 2, 5, 2}, distinct, {.causal = true, .distinct = true}, false, true, true},
      {"additive", {2, 2, 5, 1}, {2, 2, 5, 3}, edges, {.self_loops = true}, true},
      {"additive, masked", {2, 1, 5, 1}, {2, 1, 5, 3}, edges, {.undirected = true}, true, true},
      {"dropout", {2, 2, 5, 2}, {2, 2, 5, 2}, edges, {.self_loops = true}, false, false, false, {}, 0.4}};
  for (const GraphCase& c : cases) {
    Inputs in{numbers(c.q, 1), numbers(c.q, 2), numbers(c.v, 3)};
    if (c.masked) in.push_back(flags({c.q[0], c.q[2]}, 4));
    if (c.bias) in.push_back(numbers({c.q[1], count(c)}, 5));
    row.samples.push_back({c.label, std::move(in), [c](const Inputs& x) { return attend_along(x, c); },
                           c.dropout > 0 ? Reference() : [c](const Plains& x) { return along_edges(x, c); }, 128});
  }
  const Shape s{2, 2, 5, 4};
  const auto run = [s, edges](auto set) {
    ops::GraphAttentionOptions o;
    o.edges = std::make_shared<kernels::EdgeIndex>(5, 2, edges.data(), nullptr, 8, kernels::EdgeIndex::Options{});
    set(o);
    ops::graph_attention(numbers(s, 1), numbers(s, 1), numbers(s, 1), o);
  };
  row.errors = {
      {[s] {
         ops::graph_attention(numbers(s, 1), numbers({2, 2, 4, 4}, 1), numbers(s, 1), {});
       },
       "[graph_attention] got q [2, 2, 5, 4], k [2, 2, 4, 4]"},
      {[s] { ops::graph_attention(numbers(s, 1), numbers(s, 1), Tensor::zeros(s), {}); }, "element types differ: got f64, f64 and f32"},
      {[=] { run([](auto& o) { o.edges = nullptr; }); }, "[graph_attention] there are no edges"},
      {[=] {
         run([](auto& o) { o.edges = std::make_shared<kernels::EdgeIndex>(4, 2, nullptr, nullptr, 0, kernels::EdgeIndex::Options{}); });
       },
       "[graph_attention] the edges are of 1 graph(s) with 4 nodes, q is [2, 2, 5, 4]"},
      {[=] { run([](auto& o) { o.additive = true; }); }, "additive scores need one number a node"},
      {[=] { run([](auto& o) { o.mask = flags({5}, 1); }); }, "mask is u8 [5], expected u8 [2, 5] with 1 = real"},
      {[=] { run([](auto& o) {
               o.edge_bias = numbers({2, 7}, 1);
             }); }, "edge_bias is f64 [2, 7], expected f64 [2, 8]"},
      {[=] { run([](auto& o) { o.dropout = -1; }); }, "dropout is -1, expected 0 to below 1"},
      {[=] {
         run([](auto& o) {
           static const std::vector<i64> one{0};
           o.rows = one;
         });
       },
       "[graph_attention] got 1 sample indices for q [2, 2, 5, 4]"}};
  row.large = [](i64 n) {
    const i64 nodes = std::max<i64>(8, n / (2 * 4 * 32)), E = 16 * nodes;
    std::vector<i64> pairs(static_cast<std::size_t>(2 * E));
    for (i64 e = 0; e < E; ++e) {
      pairs[static_cast<std::size_t>(e)] = (e * 31 + e / nodes) % nodes;
      pairs[static_cast<std::size_t>(E + e)] = e % nodes;
    }
    ops::GraphAttentionOptions o;
    o.edges = std::make_shared<kernels::EdgeIndex>(nodes, 2, pairs.data(), nullptr, E, kernels::EdgeIndex::Options{});
    const Shape shape{2, 4, nodes, 32};
    return make_large(
        {numbers(shape, 1), numbers(shape, 2), numbers(shape, 3)},
        [o](const Inputs& in) { return ops::graph_attention(in[0], in[1], in[2], o); },
        4.0 * 8 * static_cast<double>(o.edges->links()) * 32, shape.numel());
  };
  return row;
}

OpRow monomials_row() {
  OpRow row{"monomials", true, {}, {}, {}};
  const auto of = [](i64 degree) {
    return [degree](const Plains& in) {
      const Plain& x = in[0];
      const i64 d = x.shape[x.shape.rank() - 1];
      std::vector<std::vector<i64>> all{{}};  // ascending variables, with repetition
      for (std::size_t from = 0; from < all.size(); ++from)
        for (i64 e = all[from].empty() ? 0 : all[from].back(); static_cast<i64>(all[from].size()) < degree && e < d; ++e) {
          all.push_back(all[from]);
          all.back().push_back(e);
        }
      Shape shape = x.shape;
      shape[shape.rank() - 1] = static_cast<i64>(all.size());
      return plain(shape, [&](Index i) {
        double y = 1, square = 1;
        const std::vector<i64>& variables = all[static_cast<std::size_t>(i.back())];
        for (std::size_t n = 0; n < variables.size(); ++n) {
          i.back() = variables[n];
          y *= at(x, i);
          square *=
              static_cast<double>(std::count(variables.begin(), variables.begin() + static_cast<std::ptrdiff_t>(n) + 1, variables[n]));
        }
        return y / std::sqrt(square);
      });
    };
  };
  for (const auto& [shape, degree] :
       {std::pair{Shape{2, 3}, i64{2}}, std::pair{Shape{2, 2, 2}, i64{5}}, std::pair{Shape{3, 4}, i64{0}}, std::pair{Shape{4, 1}, i64{3}}})
    row.samples.push_back({fmt::format("{}, degree {}", shape.str(), degree),
                           {numbers(shape, 1)},
                           [n = degree](const Inputs& x) { return ops::monomials(x[0], n); },
                           of(degree),
                           32});
  Tensor zeros = numbers({2, 3}, 1);
  zeros.slice(1, 1, 2).fill(0);
  row.samples.push_back({"zeros", {zeros}, [](const Inputs& x) { return ops::monomials(x[0], 3); }, of(3), 32});
  row.errors = {{[] { ops::monomials(numbers({2, 3}, 1), -1); }, "[monomials] got x [2, 3] and degree -1"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 16, 16}, 1)}, [](const Inputs& in) { return ops::monomials(in[0], 2); }, 2.0 * 153 * static_cast<double>(n / 16),
        n / 16 * 153);
  };
  return row;
}

}  // namespace

void add_attention(std::vector<OpRow>& rows) {
  rows.push_back(attention_row());
  rows.push_back(attention_parts_row());
  rows.push_back(graph_attention_row());
  rows.push_back(linear_attention_row());
  rows.push_back(monomials_row());
}

}  // namespace tapeformer::samples
