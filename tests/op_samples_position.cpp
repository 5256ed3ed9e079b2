// Rows for position_attention.
#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "tests/op_samples.h"

namespace tapeformer::samples {
namespace {

struct PositionCase {
  std::string label;
  Shape w, v;  // w of rank 0: none
  bool keys = true, masked = false, causal = false;
  std::optional<i64> reach{};
};

Tensor attend(const Inputs& in, const PositionCase& c) {  // v, then w, k, mask where the case has them
  std::size_t next = 1;
  const Tensor w = c.w.rank() ? in[next++] : Tensor(), k = c.keys ? in[next++] : Tensor();
  ops::PositionAttentionOptions o{.causal = c.causal, .reach = c.reach};
  if (c.masked) o.mask = in[next];
  return ops::position_attention(w, k, in[0], o);
}

Plain attention_of(const std::vector<Plain>& in, const PositionCase& c) {
  std::size_t next = 1;
  const Plain *w = c.w.rank() ? &in[next++] : nullptr, *k = c.keys ? &in[next++] : nullptr, *mask = c.masked ? &in[next] : nullptr;
  const auto weight = [&](const Index& i, i64 j) {  // i: sample, head, row, feature
    if (!w || (c.reach && std::abs(j - i[2]) > *c.reach)) return 0.0;
    return at(*w, {i[1], i[2], c.reach ? j - i[2] + *c.reach : j});
  };
  return plain(c.v, [&](const Index& i) {
    double top = -HUGE_VAL, sum = 0, total = 0;
    const auto each = [&](auto&& visit) {
      for (i64 j = 0; j < (c.causal ? i[2] + 1 : c.v[2]); ++j)
        if (!mask || at(*mask, {i[0], j}) != 0) visit(j, weight(i, j) + (k ? at(*k, {i[0], i[1], j, i[3]}) : 0));
    };
    if (mask && at(*mask, {i[0], i[2]}) == 0) return 0.0;
    each([&](i64, double score) { top = std::max(top, score); });
    each([&](i64 j, double score) {
      total += std::exp(score - top);
      sum += std::exp(score - top) * at(in[0], {i[0], i[1], j, i[3]});
    });
    return total > 0 ? sum / total : 0.0;
  });
}

}  // namespace

void add_position_attention(std::vector<OpRow>& rows) {
  OpRow row{"position_attention", true, {}, {}, {}};
  const std::vector<PositionCase> cases{{"shared table", {1, 5, 5}, {2, 2, 5, 3}},
                                        {"a table for each head, causal, masked", {2, 5, 5}, {3, 2, 5, 2}, true, true, true},
                                        {"without keys, masked", {2, 6, 6}, {2, 2, 6, 3}, false, true},
                                        {"without keys, causal", {1, 4, 4}, {2, 2, 4, 3}, false, false, true},
                                        {"one of each", {1, 1, 1}, {1, 1, 1, 1}},
                                        {"no table", {}, {2, 2, 5, 3}, true, true},
                                        {"no table, causal", {}, {2, 1, 5, 2}, true, true, true},
                                        {"band", {1, 6, 3}, {2, 2, 6, 2}, true, true, false, 1},
                                        {"band of each head, causal", {2, 6, 5}, {2, 2, 6, 2}, true, false, true, 2},
                                        {"by distance", {2, 1, 5}, {2, 2, 6, 2}, true, true, false, 2},
                                        {"by distance beyond the ends, causal", {2, 1, 17}, {1, 2, 4, 2}, true, false, true, 8}};
  for (const PositionCase& c : cases) {
    Inputs in{numbers(c.v, 1)};
    if (c.w.rank()) in.push_back(numbers(c.w, 2));
    if (c.keys) in.push_back(numbers(c.v, 3));
    if (c.masked) in.push_back(flags({c.v[0], c.v[2]}, 4));
    row.samples.push_back({c.label, std::move(in), [c](const Inputs& x) { return attend(x, c); },
                           [c](const std::vector<Plain>& x) { return attention_of(x, c); }, 128});
  }
  const Shape s{2, 2, 3, 4};
  const auto run = [s](const Shape& w, std::optional<i64> reach) {
    ops::position_attention(numbers(w, 1), numbers(s, 2), numbers(s, 3), {.reach = reach});
  };
  row.errors = {{[s] {
                   ops::position_attention({}, numbers({2, 2, 4, 4}, 1), numbers(s, 1));
                 },
                 "[position_attention] got k [2, 2, 4, 4] and v [2, 2, 3, 4], expected both [B, H, N, d]"},
                {[=] {
                   run({3, 3, 3}, {});
                 },
                 "[position_attention] w is [3, 3, 3], expected [2 or 1, 3, 3]"},
                {[=] {
                   run({2, 3, 4}, 2);
                 },
                 "[position_attention] w is [2, 3, 4], expected [2 or 1, 3 or 1, 5]"},
                {[=] {
                   run({2, 3, 1}, -1);
                 },
                 "[position_attention] got a reach of -1"},
                {[s] { ops::position_attention({}, {}, numbers(s, 1), {.mask = flags({3}, 1)}); },
                 "[position_attention] mask is u8 [3], expected u8 [2, 3] with 1 = real"},
                {[s] { ops::position_attention({}, Tensor::zeros(s), numbers(s, 1)); }, "element types differ: got f32 and f64"}};
  row.large = [](i64 n) {
    const i64 length = std::max<i64>(8, n / (8 * 4 * 32));
    const Shape shape{8, 4, length, 32};
    return make_large(
        {numbers({1, length, length}, 1), numbers(shape, 2), numbers(shape, 3)},
        [](const Inputs& in) { return ops::position_attention(in[0], in[1], in[2]); }, 4.0 * 32 * static_cast<double>(length * length) * 32,
        shape.numel());
  };
  rows.push_back(std::move(row));
}

}  // namespace tapeformer::samples
