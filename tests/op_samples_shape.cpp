// Rows for views, joins and moves by index.
#include <fmt/format.h>

#include <algorithm>

#include "autograd/ops.h"
#include "tests/op_samples.h"

namespace tapeformer::samples {
namespace {

using Plains = std::vector<Plain>;

Large moved(const Shape& s, Call call, i64 out) { return make_large({numbers(s, 1)}, std::move(call), 0, out); }

OpRow reshape_row() {
  OpRow row{"reshape", true, {}, {}, {}};
  for (const auto& [from, to] : std::vector<std::pair<Shape, Shape>>{
           {{2, 3, 4}, {6, 4}}, {{2, 3, 4}, {3, 2, 2, 2}}, {{6}, {1, 6, 1}}, {{1}, {}}, {{}, {1, 1}}, {{0, 3}, {3, 0, 2}}})
    row.samples.push_back({from.str() + " to " + to.str(),
                           {numbers(from, 1)},
                           [to = to](const Inputs& in) { return ops::reshape(in[0], to); },
                           [to = to](const Plains& in) {
                             return Plain{to, in[0].v};
                           },
                           0});
  row.samples.push_back({"open size",
                         {numbers({2, 3, 4}, 1)},
                         [](const Inputs& in) {
                           return ops::reshape(in[0], {4, -1});
                         },
                         [](const Plains& in) {
                           return Plain{{4, 6}, in[0].v};
                         },
                         0});
  row.errors = {{[] {
                   ops::reshape(numbers({2, 3}, 1), {4, 2});
                 },
                 "[reshape] got [4, 2] for [2, 3], expected the same number of elements"},
                {[] {
                   ops::reshape(numbers({2, 3}, 1), {-1, -1});
                 },
                 "[reshape] only one size may be -1"},
                {[] {
                   ops::reshape(numbers({2, 3}, 1), {4, -1});
                 },
                 "[reshape] got [4, -1] for [2, 3], whose elements do not divide"},
                {[] {
                   ops::reshape(numbers({0, 3}, 1), {0, -1});
                 },
                 "[reshape] got [0, -1]"},
                {[] {
                   ops::reshape(numbers({6}, 1), {-2, -3});
                 },
                 "a dimension cannot be negative: got -2"}};
  row.large = [](i64 n) {
    return moved(
        {n / 500, 20, 25},
        [](const Inputs& in) {
          return ops::reshape(ops::transpose(in[0], 1, 2), {-1, 500});
        },
        n);
  };
  return row;
}

Plain permuted(const Plain& x, const std::vector<int>& axes) {
  Shape s;
  for (int a : axes) s.push_back(x.shape.dim(a));
  return plain(s, [&](const Index& i) {
    Index from(i.size());
    for (std::size_t k = 0; k < i.size(); ++k) from[static_cast<std::size_t>(x.shape.axis(axes[k]))] = i[k];
    return at(x, from);
  });
}

OpRow permute_row() {
  OpRow row{"permute", true, {}, {}, {}};
  for (const auto& [s, axes] : std::vector<std::pair<Shape, std::vector<int>>>{
           {{2, 3, 4}, {2, 0, 1}}, {{2, 3, 4}, {-1, -3, 1}}, {{5}, {0}}, {{}, {}}, {{2, 0, 3}, {1, 2, 0}}, {{2, 1, 3, 2}, {3, 1, 0, 2}}})
    row.samples.push_back({fmt::format("{} by [{}]", s.str(), fmt::join(axes, ",")),
                           {numbers(s, 1)},
                           [axes = axes](const Inputs& in) { return ops::permute(in[0], axes); },
                           [axes = axes](const Plains& in) { return permuted(in[0], axes); },
                           0});
  row.errors = {{[] {
                   ops::permute(numbers({2, 3}, 1), {0});
                 },
                 "[permute] got 1 axes for shape [2, 3]"},
                {[] {
                   ops::permute(numbers({2, 3}, 1), {1, 1});
                 },
                 "[permute] an axis of [2, 3] is named twice"},
                {[] {
                   ops::permute(numbers({2, 3}, 1), {0, 2});
                 },
                 "axis 2 is out of range"}};
  row.large = [](i64 n) {
    return moved(
        {n / 500, 20, 25},
        [](const Inputs& in) {
          return ops::permute(in[0], {2, 0, 1});
        },
        0);
  };
  return row;
}

OpRow transpose_row() {
  OpRow row{"transpose", true, {}, {}, {}};
  row.samples.push_back({"[2, 3, 4] -1 0",
                         {numbers({2, 3, 4}, 1)},
                         [](const Inputs& in) { return ops::transpose(in[0], -1, 0); },
                         [](const Plains& in) {
                           return permuted(in[0], {2, 1, 0});
                         },
                         0});
  row.samples.push_back({"[3, 1] same axis",
                         {numbers({3, 1}, 1)},
                         [](const Inputs& in) { return ops::transpose(in[0], 1, 1); },
                         [](const Plains& in) { return in[0]; },
                         0});
  row.errors = {{[] { ops::transpose(numbers({2, 3}, 1), 0, 2); }, "axis 2 is out of range for shape [2, 3]"}};
  row.large = [](i64 n) {
    return moved(
        {n / 500, 500}, [](const Inputs& in) { return ops::transpose(in[0], 0, 1); }, 0);
  };
  return row;
}

Plain part(const Plain& x, int axis, i64 from, i64 size, double outside = 0) {  // indices outside x read `outside`
  const int a = x.shape.axis(axis);
  Shape s = x.shape;
  s[a] = size;
  return plain(s, [&](Index i) {
    i64& k = i[static_cast<std::size_t>(a)];
    k += from;
    return k < 0 || k >= x.shape[a] ? outside : at(x, i);
  });
}

OpRow slice_row() {
  OpRow row{"slice", true, {}, {}, {}};
  const auto add = [&](const Shape& s, int axis, i64 from, i64 to) {
    row.samples.push_back({fmt::format("{} axis {} [{}, {})", s.str(), axis, from, to),
                           {numbers(s, 1)},
                           [=](const Inputs& in) { return ops::slice(in[0], axis, from, to); },
                           [=](const Plains& in) { return part(in[0], axis, from, to - from); },
                           0});
  };
  add({5}, 0, 1, 4);
  add({3, 4, 5}, 1, 2, 4);
  add({3, 4, 5}, -1, 0, 1);
  add({3, 4}, 0, 1, 1);
  add({3, 4}, 0, 0, 3);
  row.samples.push_back({"two overlapping parts",
                         {numbers({6, 2}, 1)},
                         [](const Inputs& in) { return ops::mul(ops::slice(in[0], 0, 0, 4), ops::slice(in[0], 0, 2, 6)); },
                         [](const Plains& in) {
                           return plain({4, 2}, [&](const Index& i) { return at(in[0], i) * at(in[0], {i[0] + 2, i[1]}); });
                         }});
  row.errors = {{[] {
                   ops::slice(numbers({3, 4}, 1), 1, 2, 5);
                 },
                 "[slice] got [2, 5) on axis 1 of [3, 4]"},
                {[] {
                   ops::slice(numbers({3, 4}, 1), 1, 2, 1);
                 },
                 "[slice] got [2, 1)"},
                {[] {
                   ops::slice(numbers({3, 4}, 1), 1, -1, 1);
                 },
                 "[slice] got [-1, 1)"}};
  row.large = [](i64 n) {
    return moved(
        {n / 100, 100}, [](const Inputs& in) { return ops::slice(in[0], 1, 10, 90); }, 0);
  };
  return row;
}

OpRow concat_row() {
  OpRow row{"concat", true, {}, {}, {}};
  const auto add = [&](const std::vector<Shape>& shapes, int axis) {
    Sample s;
    for (std::size_t k = 0; k < shapes.size(); ++k) s.inputs.push_back(numbers(shapes[k], k + 1));
    s.label = fmt::format("{} parts along {} of {}", shapes.size(), axis, shapes[0].str());
    s.call = [axis](const Inputs& in) { return ops::concat(in, axis); };
    s.reference = [axis](const Plains& in) {
      const int a = in[0].shape.axis(axis);
      Shape shape = in[0].shape;
      shape[a] = 0;
      for (const Plain& p : in) shape[a] += p.shape[a];
      return plain(shape, [&](Index i) {
        i64& k = i[static_cast<std::size_t>(a)];
        std::size_t p = 0;
        while (k >= in[p].shape[a]) k -= in[p++].shape[a];
        return at(in[p], i);
      });
    };
    s.error = 0;
    row.samples.push_back(std::move(s));
  };
  add({{3}, {2}, {4}}, 0);
  add({{2, 3, 2}, {2, 1, 2}}, 1);
  add({{2, 3}, {2, 0}, {2, 2}}, -1);
  add({{2, 2}}, 0);
  row.samples.push_back({"the same part twice",
                         {numbers({2, 3}, 1)},
                         [](const Inputs& in) {
                           return ops::concat({in[0], in[0]}, 1);
                         },
                         [](const Plains& in) {
                           return plain({2, 6}, [&](const Index& i) { return at(in[0], {i[0], i[1] % 3}); });
                         },
                         0});
  row.errors = {{[] { ops::concat({}, 0); }, "[concat] of nothing"},
                {[] {
                   ops::concat({numbers({2, 3}, 1), numbers({3, 3}, 1)}, 1);
                 },
                 "[concat] got f64 [3, 3] beside f64 [2, 3]"},
                {[] {
                   ops::concat({numbers({2}, 1), Tensor::zeros({2})}, 0);
                 },
                 "[concat] got f32 [2] beside f64 [2]"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 200, 100}, 1), numbers({n / 200, 100}, 2)}, [](const Inputs& in) { return ops::concat(in, 1); }, 0, n);
  };
  return row;
}

OpRow pad_row() {
  OpRow row{"pad", true, {}, {}, {}};
  const auto add = [&](const Shape& s, int axis, i64 before, i64 after, double value) {
    row.samples.push_back({fmt::format("{} axis {} {} {}", s.str(), axis, before, after),
                           {numbers(s, 1)},
                           [=](const Inputs& in) { return ops::pad(in[0], axis, before, after, value); },
                           [=](const Plains& in) { return part(in[0], axis, -before, s.dim(axis) + before + after, value); },
                           0});
  };
  add({3}, 0, 1, 2, 0);
  add({2, 3, 4}, 1, 2, 0, -1.5);
  add({2, 3}, -1, 0, 1, 7);
  add({0, 2}, 0, 1, 1, 3);
  add({2, 2}, 0, 0, 0, 3);
  row.errors = {{[] { ops::pad(numbers({3}, 1), 0, -1, 0); }, "[pad] got -1 before and 0 after, expected at least 0"},
                {[] { ops::pad(numbers({3}, 1), 1, 1, 0); }, "axis 1 is out of range"}};
  row.large = [](i64 n) {
    return moved(
        {n / 100, 100}, [](const Inputs& in) { return ops::pad(in[0], 1, 3, 4); }, n + 7 * (n / 100));
  };
  return row;
}

OpRow expand_row() {
  OpRow row{"expand", true, {}, {}, {}};
  for (const auto& [s, to] : std::vector<std::pair<Shape, Shape>>{
           {{3, 1}, {3, 4}}, {{4}, {2, 3, 4}}, {{}, {2, 2}}, {{1, 3, 1}, {2, 3, 2}}, {{2}, {2}}, {{1}, {0}}, {{1}, {1, 1}}})
    row.samples.push_back({s.str() + " to " + to.str(),
                           {numbers(s, 1)},
                           [to = to](const Inputs& in) { return ops::expand(in[0], to); },
                           [to = to](const Plains& in) { return plain(to, [&](const Index& i) { return at(in[0], i); }); },
                           0});
  row.errors = {{[] { ops::expand(numbers({3}, 1), {4}); }, "[expand] shapes do not broadcast: got [3] and [4]"},
                {[] {
                   ops::expand(numbers({3, 4}, 1), {1, 4});
                 },
                 "[expand] got [1, 4] for [3, 4], expected a shape it broadcasts to"}};
  row.large = [](i64 n) {
    return moved(
        {n / 100, 1, 1},
        [n](const Inputs& in) {
          return ops::expand(in[0], {n / 100, 4, 25});
        },
        0);
  };
  return row;
}

OpRow gather_row() {
  OpRow row{"gather", true, {}, {}, {}};
  for (const auto& [s, axis, m] :
       std::vector<std::tuple<Shape, int, i64>>{{{5}, 0, 8}, {{2, 3, 4}, 1, 5}, {{2, 3}, -1, 1}, {{3, 2}, 0, 0}, {{1, 2}, 0, 4}})
    row.samples.push_back({fmt::format("{} axis {} {}", s.str(), axis, m),
                           {numbers(s, 1), integers({m}, 2, -1, s.dim(axis))},
                           [axis = axis](const Inputs& in) { return ops::gather(in[0], axis, in[1]); },
                           [axis = axis](const Plains& in) {
                             const int a = in[0].shape.axis(axis);
                             Shape shape = in[0].shape;
                             shape[a] = in[1].shape[0];
                             return plain(shape, [&](Index i) {
                               i64& k = i[static_cast<std::size_t>(a)];
                               k = static_cast<i64>(in[1].v[static_cast<std::size_t>(k)]);
                               return k < 0 ? 0.0 : at(in[0], i);
                             });
                           },
                           0});
  row.errors = {{[] {
                   ops::gather(numbers({3}, 1), 0, Tensor::from<i64>({0, 3}, {2}));
                 },
                 "[gather] index 3, expected -1 to 2"},
                {[] { ops::gather(numbers({3}, 1), 0, Tensor::from<i64>({-2}, {1})); }, "[gather] index -2, expected -1 to 2"},
                {[] { ops::gather(numbers({3}, 1), 0, numbers({2}, 1)); }, "[gather] the index is f64, expected i64"},
                {[] {
                   ops::gather(numbers({3}, 1), 0, integers({2, 2}, 1, 0, 3));
                 },
                 "[gather] got index [2, 2], expected one axis"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 5000, 50, 100}, 1), integers({50}, 2, -1, 50)}, [](const Inputs& in) { return ops::gather(in[0], 1, in[1]); }, 0, n);
  };
  return row;
}

OpRow gather_along_row() {
  OpRow row{"gather_along", true, {}, {}, {}};
  for (const auto& [s, index] : std::vector<std::pair<Shape, Shape>>{
           {{4, 3}, {6}}, {{2, 3, 5, 2}, {2, 3, 4}}, {{2, 1, 3}, {2, 2}}, {{2, 3, 2}, {2, 0}}, {{0, 3, 2}, {0, 2}}})
    row.samples.push_back({s.str() + " " + index.str(),
                           {numbers(s, 1), integers(index, 2, -1, s.dim(-2))},
                           [](const Inputs& in) { return ops::gather_along(in[0], in[1]); },
                           [](const Plains& in) {
                             Shape shape = in[1].shape;
                             shape.push_back(in[0].shape.dim(-1));
                             return plain(shape, [&](Index i) {
                               i64& k = i[i.size() - 2];
                               k = static_cast<i64>(at(in[1], Index(i.begin(), i.end() - 1)));
                               return k < 0 ? 0.0 : at(in[0], i);
                             });
                           },
                           0});
  row.errors = {{[] {
                   ops::gather_along(numbers({2, 3, 4}, 1), integers({3, 2}, 1, 0, 2));
                 },
                 "[gather_along] got x [2, 3, 4] and index [3, 2]"},
                {[] {
                   ops::gather_along(numbers({3, 4}, 1), Tensor::from<i64>({3}, {1}));
                 },
                 "[gather_along] index 3, expected -1 to 2"},
                {[] {
                   ops::gather_along(numbers({3, 4}, 1), numbers({1}, 1));
                 },
                 "[gather_along] the index is f64, expected i64"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 1000, 20, 50}, 1), integers({n / 1000, 20}, 2, -1, 20)},
        [](const Inputs& in) { return ops::gather_along(in[0], in[1]); }, 0, n);
  };
  return row;
}

OpRow scatter_add_row() {
  OpRow row{"scatter_add", true, {}, {}, {}};
  for (const auto& [s, axis, size] :
       std::vector<std::tuple<Shape, int, i64>>{{{7}, 0, 3}, {{2, 5, 3}, 1, 4}, {{2, 3}, -1, 6}, {{0, 2}, 0, 2}, {{2, 1}, 1, 1}})
    row.samples.push_back({fmt::format("{} axis {} into {}", s.str(), axis, size),
                           {numbers(s, 1), integers({s.dim(axis)}, 2, -1, size)},
                           [axis = axis, size = size](const Inputs& in) { return ops::scatter_add(in[0], axis, in[1], size); },
                           [axis = axis, size = size](const Plains& in) {
                             const int a = in[0].shape.axis(axis);
                             Shape shape = in[0].shape;
                             shape[a] = size;
                             Plain y = plain(shape, [](const Index&) { return 0.0; });
                             for_each_index(in[0].shape, [&](Index i) {
                               const double x = at(in[0], i);
                               i64& k = i[static_cast<std::size_t>(a)];
                               k = static_cast<i64>(in[1].v[static_cast<std::size_t>(k)]);
                               if (k >= 0) y.v[static_cast<std::size_t>(flat_at(shape, i))] += x;
                             });
                             return y;
                           }});
  row.errors = {
      {[] {
         ops::scatter_add(numbers({3}, 1), 0, Tensor::from<i64>({0, 1, 2}, {3}), 2);
       },
       "[scatter_add] index 2, expected -1 to 1"},
      {[] { ops::scatter_add(numbers({3}, 1), 0, Tensor::from<i64>({0}, {1}), 2); }, "[scatter_add] got index [1], expected [3]"},
      {[] { ops::scatter_add(numbers({0}, 1), 0, integers({0}, 1, 0, 1), -2); }, "[scatter_add] got size -2, expected at least 0"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 5000, 50, 100}, 1), integers({50}, 2, -1, 20)},
        [](const Inputs& in) { return ops::scatter_add(in[0], 1, in[1], 20); }, static_cast<double>(n), n / 50 * 20);
  };
  return row;
}

OpRow scatter_along_row() {
  OpRow row{"scatter_along", true, {}, {}, {}};
  for (const auto& [s, size] :
       std::vector<std::pair<Shape, i64>>{{{6, 3}, 4}, {{2, 3, 5, 2}, 3}, {{2, 2, 3}, 7}, {{2, 0, 2}, 3}, {{1, 3, 1}, 1}})
    row.samples.push_back({fmt::format("{} into {}", s.str(), size),
                           {numbers(s, 1), integers(s.without(-1), 2, -1, size)},
                           [size = size](const Inputs& in) { return ops::scatter_along(in[0], in[1], size); },
                           [size = size](const Plains& in) {
                             Shape shape = in[0].shape;
                             shape[shape.axis(-2)] = size;
                             Plain y = plain(shape, [](const Index&) { return 0.0; });
                             for_each_index(in[0].shape, [&](Index i) {
                               const double x = at(in[0], i);
                               i64& k = i[i.size() - 2];
                               k = static_cast<i64>(at(in[1], Index(i.begin(), i.end() - 1)));
                               if (k >= 0) y.v[static_cast<std::size_t>(flat_at(shape, i))] += x;
                             });
                             return y;
                           }});
  row.errors = {{[] {
                   ops::scatter_along(numbers({2, 3, 4}, 1), integers({2, 2}, 1, 0, 2), 3);
                 },
                 "[scatter_along] got x [2, 3, 4] and index [2, 2]"},
                {[] {
                   ops::scatter_along(numbers({3, 4}, 1), Tensor::from<i64>({0, 1, 2}, {3}), 2);
                 },
                 "[scatter_along] index 2, expected -1 to 1"},
                {[] {
                   ops::scatter_along(numbers({3, 4}, 1), integers({3}, 1, 0, 2), -1);
                 },
                 "[scatter_along] got size -1, expected at least 0"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 1000, 20, 50}, 1), integers({n / 1000, 20}, 2, -1, 10)},
        [](const Inputs& in) { return ops::scatter_along(in[0], in[1], 10); }, static_cast<double>(n), n / 2);
  };
  return row;
}

OpRow split_heads_row() {
  OpRow row{"split_heads", true, {}, {}, {}};
  for (const auto& [s, heads] : std::vector<std::pair<Shape, i64>>{{{2, 3, 8}, 4}, {{1, 2, 3}, 1}, {{2, 1, 3}, 3}, {{0, 2, 4}, 2}})
    row.samples.push_back(
        {fmt::format("{} {}", s.str(), heads),
         {numbers(s, 1)},
         [h = heads](const Inputs& in) { return ops::split_heads(in[0], h); },
         [h = heads](const Plains& in) {
           const i64 d = in[0].shape[2] / h;
           return plain({in[0].shape[0], h, in[0].shape[1], d}, [&](const Index& i) { return at(in[0], {i[0], i[2], i[1] * d + i[3]}); });
         },
         0});
  row.errors = {{[] {
                   ops::split_heads(numbers({2, 3, 8}, 1), 3);
                 },
                 "[split_heads] got x [2, 3, 8] and 3 heads, expected [B, N, H d]"},
                {[] {
                   ops::split_heads(numbers({3, 8}, 1), 2);
                 },
                 "[split_heads] got x [3, 8] and 2 heads"}};
  row.large = [](i64 n) {
    return moved(
        {10, n / 1000, 100}, [](const Inputs& in) { return ops::split_heads(in[0], 4); }, 0);
  };
  return row;
}

OpRow merge_heads_row() {
  OpRow row{"merge_heads", true, {}, {}, {}};
  for (const Shape& s : {Shape{2, 4, 3, 2}, {1, 1, 2, 3}, {2, 3, 1, 1}, {0, 2, 3, 1}})
    row.samples.push_back({s.str(),
                           {numbers(s, 1)},
                           [](const Inputs& in) { return ops::merge_heads(in[0]); },
                           [](const Plains& in) {
                             const i64 d = in[0].shape[3];
                             return plain({in[0].shape[0], in[0].shape[2], in[0].shape[1] * d}, [&](const Index& i) {
                               return at(in[0], {i[0], i[2] / d, i[1], i[2] % d});
                             });
                           },
                           0});
  row.errors = {{[] { ops::merge_heads(numbers({2, 3, 8}, 1)); }, "[merge_heads] got [2, 3, 8], expected [B, H, N, d]"}};
  row.large = [](i64 n) {
    return moved(
        {10, 4, n / 1000, 25}, [](const Inputs& in) { return ops::merge_heads(in[0]); }, n);
  };
  return row;
}

}  // namespace

void add_shapes(std::vector<OpRow>& rows) {
  for (auto make : {reshape_row, permute_row, transpose_row, slice_row, concat_row, pad_row, expand_row, gather_row, gather_along_row,
                    scatter_add_row, scatter_along_row, split_heads_row, merge_heads_row})
    rows.push_back(make());
}

}  // namespace tapeformer::samples
