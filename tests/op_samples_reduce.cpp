// Rows for reductions, softmax, norms, look-ups, dropout and losses.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "autograd/ops.h"
#include "core/rng.h"
#include "tests/op_samples.h"

namespace tapeformer::samples {
namespace {

using Plains = std::vector<Plain>;

bool contains(const Shape& s, const std::vector<int>& axes, int axis) {
  return axes.empty() || std::any_of(axes.begin(), axes.end(), [&](int a) { return s.axis(a) == axis; });
}

Plain reduced(const Plain& x, const std::vector<int>& axes, bool keep, bool mean) {
  Shape kept, shape;
  double count = 1;
  for (int i = 0; i < x.shape.rank(); ++i) {
    const bool gone = contains(x.shape, axes, i);
    kept.push_back(gone ? 1 : x.shape[i]);
    if (!gone || keep) shape.push_back(kept[i]);
    if (gone) count *= static_cast<double>(x.shape[i]);
  }
  Plain y = plain(kept, [](const Index&) { return 0.0; });
  for_each_index(x.shape, [&](const Index& i) { y.v[static_cast<std::size_t>(flat_at(kept, i))] += at(x, i); });
  if (mean)
    for (double& v : y.v) v /= count;
  y.shape = shape;
  return y;
}

OpRow sum_row(const std::string& name, bool mean) {
  OpRow row{name, true, {}, {}, {}};
  const auto run = [mean](const Tensor& x, std::vector<int> axes, bool keep) {
    return mean ? ops::mean(x, axes, keep) : ops::sum(x, axes, keep);
  };
  const auto add = [&](const Shape& s, const std::vector<int>& axes, bool keep) {
    row.samples.push_back({fmt::format("{} over [{}] keep {}", s.str(), fmt::join(axes, ","), keep),
                           {numbers(s, 1)},
                           [=](const Inputs& in) { return run(in[0], axes, keep); },
                           [=](const Plains& in) { return reduced(in[0], axes, keep, mean); },
                           64});
  };
  add({7}, {}, false);
  add({3, 4, 5}, {}, true);
  add({3, 4, 5}, {0}, false);
  add({3, 4, 5}, {1}, true);
  add({3, 4, 5}, {-1}, false);
  add({3, 4, 5}, {0, 2}, false);
  add({3, 4, 5}, {0, 1}, true);
  add({2, 3, 2, 3}, {1, -1}, true);
  add({}, {}, false);
  add({1}, {0}, true);
  add({3, 0}, {0}, false);
  if (!mean) add({3, 0}, {1}, false);
  if (!mean) add({0}, {}, false);
  row.errors = {{[run] {
                   run(numbers({2, 3}, 1), {2}, false);
                 },
                 "axis 2 is out of range for shape [2, 3]"},
                {[run] {
                   run(flags({2, 3}, 1), {}, false);
                 },
                 "[sum] got element type u8"}};
  if (mean) row.errors.push_back({[] { ops::mean(numbers({3, 0}, 1), {1}); }, "[mean] of no elements: shape [3, 0]"});
  row.large = [run](i64 n) {
    return make_large(
        {numbers({n / 500, 5, 100}, 1)},
        [run](const Inputs& in) {
          return run(in[0], {0, 1}, false);
        },
        static_cast<double>(n), 100);
  };
  return row;
}

OpRow max_row() {
  OpRow row{"max", true, {}, {}, {}};
  const auto add = [&](const Shape& s, int axis, bool keep) {
    row.samples.push_back({fmt::format("{} over {} keep {}", s.str(), axis, keep),
                           {distinct(s, 1)},
                           [=](const Inputs& in) { return ops::max(in[0], axis, keep); },
                           [=](const Plains& in) {
                             const Plain& x = in[0];
                             const int a = x.shape.axis(axis);
                             Shape kept = x.shape;
                             kept[a] = 1;
                             Plain y = plain(kept, [&](Index i) {
                               double best = -std::numeric_limits<double>::infinity();
                               for (i64 k = 0; k < x.shape[a]; ++k) {
                                 i[static_cast<std::size_t>(a)] = k;
                                 best = std::max(best, at(x, i));
                               }
                               return best;
                             });
                             if (!keep) y.shape = x.shape.without(a);
                             return y;
                           },
                           0});
  };
  add({7}, 0, false);
  add({3, 4, 5}, 0, false);
  add({3, 4, 5}, 1, true);
  add({3, 4, 5}, -1, false);
  add({2, 1}, 1, false);
  add({0, 3}, 1, false);
  row.errors = {{[] {
                   ops::max(numbers({3, 0}, 1), 1);
                 },
                 "[max] of no elements: axis 1 of [3, 0]"},
                {[] { ops::max(numbers({3}, 1), 1); }, "axis 1 is out of range"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 250, 250}, 1)}, [](const Inputs& in) { return ops::max(in[0], 1); }, static_cast<double>(n), n / 250);
  };
  return row;
}

OpRow cumsum_row() {
  OpRow row{"cumsum", true, {}, {}, {}};
  for (const auto& [s, axis] :
       std::vector<std::pair<Shape, int>>{{{7}, 0}, {{3, 4, 5}, 0}, {{3, 4, 5}, 1}, {{3, 4, 5}, -1}, {{0, 3}, 0}, {{2, 1}, 1}})
    row.samples.push_back({fmt::format("{} along {}", s.str(), axis),
                           {numbers(s, 1)},
                           [axis = axis](const Inputs& in) { return ops::cumsum(in[0], axis); },
                           [axis = axis](const Plains& in) {
                             const auto a = static_cast<std::size_t>(in[0].shape.axis(axis));
                             return plain(in[0].shape, [&](Index i) {
                               double s = 0;
                               for (; i[a] >= 0; --i[a]) s += at(in[0], i);
                               return s;
                             });
                           }});
  row.errors = {{[] { ops::cumsum(numbers({3}, 1), 2); }, "axis 2 is out of range"},
                {[] { ops::cumsum(flags({3}, 1), 0); }, "[cumsum] got element type u8"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 2000, 20, 100}, 1)}, [](const Inputs& in) { return ops::cumsum(in[0], 1); }, static_cast<double>(n), n);
  };
  return row;
}

// Softmax (or its logarithm) of the last axis by the definition; keep has the shape of x or less.
Plain softmax_of(const Plain& x, const Plain* keep, bool logarithm) {
  const i64 n = x.shape.dim(-1);
  return plain(x.shape, [&](Index i) {
    const Index here = i;
    const auto kept = [&](const Index& j) { return keep == nullptr || at(*keep, j) != 0; };
    double high = -1e300, sum = 0;
    for (i.back() = 0; i.back() < n; ++i.back())
      if (kept(i)) high = std::max(high, at(x, i));
    for (i.back() = 0; i.back() < n; ++i.back())
      if (kept(i)) sum += std::exp(at(x, i) - high);
    if (logarithm) return at(x, here) - high - std::log(sum);
    return kept(here) ? std::exp(at(x, here) - high) / sum : 0.0;
  });
}

OpRow softmax_row() {
  OpRow row{"softmax", true, {}, {}, {}};
  for (const Shape& s : {Shape{1}, {7}, {3, 5}, {2, 3, 37}, {0, 3}, {3, 0}})
    row.samples.push_back({s.str(),
                           {numbers(s, 1, -4, 4)},
                           [](const Inputs& in) { return ops::softmax(in[0]); },
                           [](const Plains& in) { return softmax_of(in[0], nullptr, false); }});
  for (const auto& [s, k] :
       std::vector<std::pair<Shape, Shape>>{{{3, 5}, {3, 5}}, {{2, 3, 19}, {19}}, {{2, 3, 4}, {2, 1, 4}}, {{6, 2}, {6, 2}}})
    row.samples.push_back({s.str() + " keep " + k.str(),
                           {numbers(s, 1, -4, 4), flags(k, 2, 0.5)},
                           [](const Inputs& in) { return ops::softmax(in[0], in[1]); },
                           [](const Plains& in) { return softmax_of(in[0], &in[1], false); }});
  row.errors = {{[] { ops::softmax(numbers({}, 1)); }, "[softmax] got a scalar, expected [..., n]"},
                {[] { ops::softmax(numbers({3}, 1), numbers({3}, 1)); }, "[softmax] keep is f64, expected u8"},
                {[] { ops::softmax(numbers({3}, 1), flags({4}, 1)); }, "shapes do not broadcast: got [4] and [3]"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 100, 100}, 1)}, [](const Inputs& in) { return ops::softmax(in[0]); }, 5.0 * static_cast<double>(n), n);
  };
  return row;
}

OpRow log_softmax_row() {
  OpRow row{"log_softmax", true, {}, {}, {}};
  for (const Shape& s : {Shape{1}, {7}, {3, 5}, {2, 3, 37}, {0, 3}, {3, 0}})
    row.samples.push_back({s.str(),
                           {numbers(s, 1, -4, 4)},
                           [](const Inputs& in) { return ops::log_softmax(in[0]); },
                           [](const Plains& in) { return softmax_of(in[0], nullptr, true); }});
  for (const auto& [s, k] : std::vector<std::pair<Shape, Shape>>{{{3, 5}, {3, 5}}, {{2, 3, 19}, {19}}, {{2, 3, 4}, {2, 1, 4}}})
    row.samples.push_back({s.str() + " keep " + k.str(),
                           {numbers(s, 1, -4, 4), flags(k, 2, 0.5)},
                           [](const Inputs& in) { return ops::log_softmax(in[0], in[1]); },
                           [](const Plains& in) {
                             Plain y = softmax_of(in[0], &in[1], true);
                             std::size_t flat = 0;
                             for_each_index(in[0].shape, [&](const Index& i) { y.v[flat] = at(in[1], i) != 0 ? y.v[flat] : 0, ++flat; });
                             return y;
                           }});
  row.errors = {{[] { ops::log_softmax(numbers({}, 1)); }, "[log_softmax] got a scalar"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 100, 100}, 1)}, [](const Inputs& in) { return ops::log_softmax(in[0]); }, 5.0 * static_cast<double>(n), n);
  };
  return row;
}

Plain norm_of(const Plains& in, double eps, bool centred) {
  const Plain& x = in[0];
  const i64 n = x.shape.dim(-1);
  return plain(x.shape, [&](Index i) {
    const Index here = i;
    double mean = 0, square = 0;
    for (i.back() = 0; i.back() < n; ++i.back()) mean += at(x, i) / static_cast<double>(n);
    if (!centred) mean = 0;
    for (i.back() = 0; i.back() < n; ++i.back()) square += std::pow(at(x, i) - mean, 2) / static_cast<double>(n);
    return (at(x, here) - mean) / std::sqrt(square + eps) * at(in[1], here) + (centred ? at(in[2], here) : 0.0);
  });
}

OpRow norm_row(bool centred) {
  OpRow row{centred ? "layer_norm" : "rms_norm", true, {}, {}, {}};
  const std::string name = row.name;
  const auto run = [centred](const Inputs& in, double eps) {
    return centred ? ops::layer_norm(in[0], in[1], in[2], eps) : ops::rms_norm(in[0], in[1], eps);
  };
  const auto inputs = [centred](const Shape& s) {
    Inputs in{numbers(s, 1), numbers({s.dim(-1)}, 2)};
    if (centred) in.push_back(numbers({s.dim(-1)}, 3));
    return in;
  };
  for (const Shape& s : {Shape{7}, {3, 5}, {2, 3, 19}, {4, 1}, {0, 3}, {3, 0}})
    for (double eps : {1e-5, 0.1})
      row.samples.push_back({fmt::format("{} eps {}", s.str(), eps), inputs(s), [=](const Inputs& in) { return run(in, eps); },
                             [=](const Plains& in) { return norm_of(in, eps, centred); }, 64});
  row.samples.push_back({"70 rows, several chunks", inputs({70, 3}), [=](const Inputs& in) { return run(in, 0.1); },
                         [=](const Plains& in) { return norm_of(in, 0.1, centred); }, 64});
  row.errors = {{[=] {
                   run({numbers({2, 3}, 1), numbers({2}, 1), numbers({2}, 1)}, 1e-5);
                 },
                 "[" + name + "] got x [2, 3] and gain [2], expected x [..., D]"},
                {[=] {
                   run({numbers({2, 3}, 1), Tensor::zeros({3}), Tensor::zeros({3})}, 1e-5);
                 },
                 "[" + name + "] element types differ: got f64 and f32"}};
  row.large = [=](i64 n) {
    return make_large(
        inputs({n / 200, 200}), [=](const Inputs& in) { return run(in, 1e-5); }, 8.0 * static_cast<double>(n), n);
  };
  return row;
}

OpRow embedding_row() {
  OpRow row{"embedding", true, {}, {}, {}};
  const Call call = [](const Inputs& in) { return ops::embedding(in[0], in[1]); };
  for (const auto& [t, s] :
       std::vector<std::pair<Shape, Shape>>{{{5, 3}, {2, 4}}, {{1, 4}, {7}}, {{4, 1}, {}}, {{3, 2}, {0}}, {{40, 3}, {3, 1, 30}}})
    row.samples.push_back({t.str() + " " + s.str(),
                           {numbers(t, 1), integers(s, 2, 0, t[0])},
                           call,
                           [](const Plains& in) {
                             Shape shape = in[1].shape;
                             shape.push_back(in[0].shape[1]);
                             return plain(shape, [&](const Index& i) {
                               return at(in[0], {static_cast<i64>(at(in[1], Index(i.begin(), i.end() - 1))), i.back()});
                             });
                           },
                           0});
  row.errors = {{[] {
                   ops::embedding(numbers({5, 3}, 1), Tensor::from<i64>({0, 5}, {2}));
                 },
                 "[embedding] id 5 at position 1, expected 0 to 4"},
                {[] {
                   ops::embedding(numbers({5, 3}, 1), Tensor::from<i64>({-1}, {1}));
                 },
                 "[embedding] id -1 at position 0"},
                {[] {
                   ops::embedding(numbers({5, 3}, 1), numbers({2}, 1));
                 },
                 "[embedding] got table [5, 3] and ids f64"}};
  row.large = [call](i64 n) { return make_large({numbers({500, 50}, 1), integers({n / 50}, 2, 0, 500)}, call, 0, n); };
  return row;
}

// The mask from its definition: word (i / 16) % 4 of the Philox block (16 (i / 64) + i % 16, id).
bool kept(double p, RngKey key, i64 id, i64 i) {
  const auto u = static_cast<std::uint64_t>(id);
  const auto words = philox4x32({static_cast<std::uint32_t>(16 * (i / 64) + i % 16), 0, static_cast<std::uint32_t>(u),
                                 static_cast<std::uint32_t>(u >> 32) ^ 0x80000000u},
                                {static_cast<std::uint32_t>(key.value()), static_cast<std::uint32_t>(key.value() >> 32)});
  return words[static_cast<std::size_t>(i / 16 % 4)] >= p * 4294967296.0;
}

OpRow dropout_row() {
  OpRow row{"dropout", true, {}, {}, {}};
  const RngKey key(99);
  static const std::vector<i64> ids{7, 0, 123456789012};
  for (const Shape& s : {Shape{3, 70}, {3, 2, 5}, {3}, {0, 3}, {3, 0}, {}})
    for (bool named : {false, true})
      for (double p : {0.0, 0.3, 0.9}) {
        if (named && (s.rank() == 0 || s[0] != 3)) continue;
        row.samples.push_back(
            {fmt::format("{} p {} rows {}", s.str(), p, named),
             {numbers(s, 1)},
             [=](const Inputs& in) { return ops::dropout(in[0], p, key, named ? std::span<const i64>(ids) : std::span<const i64>()); },
             [=](const Plains& in) {
               const i64 width = in[0].shape.rank() == 0 ? 1 : in[0].shape.numel() / std::max<i64>(1, in[0].shape[0]);
               i64 flat = 0;
               return plain(in[0].shape, [&](const Index& i) {
                 const i64 r = flat / width, c = flat++ % width;
                 return kept(p, key, named ? ids[static_cast<std::size_t>(r)] : r, c) ? at(in[0], i) / (1 - p) : 0.0;
               });
             }});
      }
  row.errors = {{[key] { ops::dropout(numbers({3}, 1), 1.0, key); }, "[dropout] got p = 1, expected 0 <= p < 1"},
                {[key] { ops::dropout(numbers({3}, 1), std::nan(""), key); }, "[dropout] got p = nan"},
                {[key] {
                   ops::dropout(numbers({4, 2}, 1), 0.5, key, ids);
                 },
                 "[dropout] got 3 sample indices for x [4, 2]"},
                {[key] {
                   ops::dropout(flags({4, 2}, 1), 0.5, key);
                 },
                 "[dropout] got element type u8"}};
  row.large = [key](i64 n) {
    return make_large(
        {numbers({n / 250, 250}, 1)}, [key](const Inputs& in) { return ops::dropout(in[0], 0.1, key); }, static_cast<double>(n), n);
  };
  return row;
}

OpRow cross_entropy_row() {
  OpRow row{"cross_entropy", true, {}, {}, {}};
  for (const Shape& s : {Shape{5}, {4, 3}, {2, 3, 19}, {6, 1}, {0, 3}})
    for (double smoothing : {0.0, 0.1})
      for (bool weighted : {false, true}) {
        const Tensor weights = numbers({s.dim(-1)}, 7, 0.5, 2);
        ops::CrossEntropyOptions o{1, smoothing, weighted ? weights : Tensor()};
        if (s.dim(-1) == 1) o.ignore = -100;
        row.samples.push_back({fmt::format("{} smoothing {} weighted {}", s.str(), smoothing, weighted),
                               {numbers(s, 1, -3, 3), integers(s.without(-1), 2, 0, s.dim(-1))},
                               [=](const Inputs& in) { return ops::cross_entropy(in[0], in[1], o); },
                               [=](const Plains& in) {
                                 const Plain log_p = softmax_of(in[0], nullptr, true);
                                 const std::vector<double> w = weights.to_vector();
                                 double sum = 0;
                                 for_each_index(in[0].shape, [&](const Index& i) {
                                   const i64 target = static_cast<i64>(at(in[1], Index(i.begin(), i.end() - 1)));
                                   if (target == o.ignore) return;
                                   const double q = (i.back() == target ? 1 - smoothing : 0) + smoothing / static_cast<double>(s.dim(-1));
                                   sum -= q * at(log_p, i) * (weighted ? w[static_cast<std::size_t>(i.back())] : 1);
                                 });
                                 return Plain{{}, {sum}};
                               },
                               64});
      }
  row.errors = {{[] {
                   ops::cross_entropy(numbers({2, 3}, 1), Tensor::from<i64>({0, 3}, {2}));
                 },
                 "[cross_entropy] target 3, expected 0 to 2 or -100"},
                {[] {
                   ops::cross_entropy(numbers({2, 3}, 1), Tensor::from<i64>({0}, {1}));
                 },
                 "[cross_entropy] got logits [2, 3] and targets i64 [1]"},
                {[] {
                   ops::cross_entropy(numbers({2, 3}, 1), Tensor::from<i64>({0, 0}, {2}), {.smoothing = 1});
                 },
                 "[cross_entropy] smoothing is 1"},
                {[] {
                   ops::cross_entropy(numbers({2, 3}, 1), Tensor::from<i64>({0, 0}, {2}), {.class_weights = numbers({2}, 1)});
                 },
                 "[cross_entropy] class weights are [2], expected [3]"}};
  row.large = [](i64 n) {
    return make_large(
        {numbers({n / 100, 100}, 1), integers({n / 100}, 2, 0, 100)}, [](const Inputs& in) { return ops::cross_entropy(in[0], in[1]); },
        6.0 * static_cast<double>(n), 1);
  };
  return row;
}

OpRow pair_loss_row(const std::string& name, Tensor (*op)(const Tensor&, const Tensor&), double (*term)(double, double), double low) {
  OpRow row{name, true, {}, {}, {}};
  const Call call = [op](const Inputs& in) { return op(in[0], in[1]); };
  for (const Shape& s : {Shape{7}, {3, 4}, {}, {0}, {2, 1, 3}})
    row.samples.push_back({s.str(),
                           {numbers(s, 1), numbers(s, 2, low, 1)},
                           call,
                           [term](const Plains& in) {
                             double sum = 0;
                             for_each_index(in[0].shape, [&](const Index& i) { sum += term(at(in[0], i), at(in[1], i)); });
                             return Plain{{}, {sum}};
                           },
                           64});
  row.errors = {{[op] {
                   op(numbers({2, 3}, 1), numbers({3}, 1));
                 },
                 "[" + name + "] got f64 [2, 3] and targets f64 [3], expected the same shape and type"},
                {[op] { op(numbers({3}, 1), Tensor::zeros({3})); }, "[" + name + "] got f64 [3] and targets f32 [3]"}};
  row.large = [call](i64 n) { return make_large({numbers({n}, 1), numbers({n}, 2, 0, 1)}, call, 4.0 * static_cast<double>(n), 1); };
  return row;
}

}  // namespace

void add_reductions(std::vector<OpRow>& rows) {
  rows.push_back(sum_row("sum", false));
  rows.push_back(sum_row("mean", true));
  rows.push_back(max_row());
  rows.push_back(cumsum_row());
  rows.push_back(softmax_row());
  rows.push_back(log_softmax_row());
  rows.push_back(norm_row(true));
  rows.push_back(norm_row(false));
  rows.push_back(embedding_row());
  rows.push_back(dropout_row());
  rows.push_back(cross_entropy_row());
  rows.push_back(pair_loss_row(
      "binary_cross_entropy", ops::binary_cross_entropy,
      [](double x, double t) { return -t * std::log(1 / (1 + std::exp(-x))) - (1 - t) * std::log(1 / (1 + std::exp(x))); }, 0));
  rows.push_back(pair_loss_row(
      "mean_squared_error", ops::mean_squared_error, [](double x, double t) { return (x - t) * (x - t); }, -1));
}

}  // namespace tapeformer::samples
