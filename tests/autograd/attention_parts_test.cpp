// Attention in parts against attention in one piece.
#include <gtest/gtest.h>

#include <cmath>

#include "autograd/ops.h"
#include "autograd/tape.h"
#include "core/counters.h"
#include "core/rng.h"

namespace tapeformer {
namespace {

constexpr i64 B = 3, H = 2, N = 150;

Tensor random_tensor(Shape shape, std::uint64_t seed, DType t) {
  Tensor x = Tensor::empty(shape, DType::F32);
  fill_normal(x, RngKey(seed), 0, 1);
  return x.to(t);
}

Tensor some_ones(Shape shape, std::uint64_t seed) {
  Tensor m = Tensor::empty(shape, DType::U8);
  for (i64 i = 0; i < m.numel(); ++i) m.mut_ptr<std::uint8_t>()[i] = RngKey(seed).uniform(static_cast<std::uint64_t>(i)) < 0.8;
  return m;
}

// Shuffled rows i with i % 3 == part, for each sample and head, with holes.
Tensor third(i64 part) {
  Tensor order = Tensor::full({B, H, N / 3 + 5}, -1, DType::I64);
  for (i64 head = 0; head < B * H; ++head) {
    const KeyedPermutation shuffled(static_cast<std::uint64_t>(N / 3 + 5), RngKey(7).fold_in(static_cast<std::uint64_t>(3 * head + part)));
    for (i64 i = 0; i < N / 3; ++i)
      order.mut_ptr<i64>()[head * (N / 3 + 5) + static_cast<i64>(shuffled(static_cast<std::uint64_t>(i)))] = 3 * i + part;
  }
  return order;
}

double difference(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double worst = x.size() == y.size() ? 0 : INFINITY;
  for (std::size_t i = 0; i < x.size() && i < y.size(); ++i) worst = std::max(worst, std::abs(x[i] - y[i]));
  return worst;
}

using Call = std::function<Tensor(const std::vector<Tensor>&)>;

std::vector<Tensor> values_and_gradients(const Call& f, const std::vector<Tensor>& inputs) {
  Tape tape;
  std::vector<Tensor> in;
  for (const Tensor& t : inputs) in.push_back(tape.watch(t));
  std::vector<Tensor> out{f(in)};
  tape.backward(out[0], random_tensor(out[0].shape(), 5, out[0].dtype()));
  for (const Tensor& t : in) out.push_back(tape.grad(t));
  return out;
}

void expect_same(const Call& a, const Call& b, const std::vector<Tensor>& inputs, double tolerance) {
  const auto x = values_and_gradients(a, inputs), y = values_and_gradients(b, inputs);
  for (std::size_t i = 0; i < x.size(); ++i) EXPECT_LE(difference(x[i], y[i]), tolerance * (i == 0 ? 1 : 8)) << "tensor " << i;
}

// Keys in three shuffled thirds, one of them with queries shuffled as well: the same softmax as in one piece, dropped weights included.
TEST(AttentionParts, AreTheWhole) {
  for (DType t : {DType::F64, DType::F32})
    for (bool causal : {false, true})
      for (double dropout : {0.0, 0.4}) {
        SCOPED_TRACE(testing::Message() << name_of(t) << " causal " << causal << " dropout " << dropout);
        const std::vector<i64> rows{9, 2, 5};
        ops::AttentionOptions o{.causal = causal, .query_mask = some_ones({B, N}, 1), .key_mask = some_ones({B, N}, 2)};
        o.dropout = dropout;
        o.key = RngKey(8);
        o.rows = rows;
        const auto run = [&](const std::vector<Tensor>& in, bool whole) {
          ops::AttentionOptions with = o;
          with.key_bias = in[3];
          with.pair_bias = in[4];
          if (whole) return ops::attention(in[0], in[1], in[2], with);
          std::vector<ops::AttentionPart> parts{{.keys = third(0)}, {.queries = third(0), .keys = third(1)}, {.keys = third(2)}};
          for (i64 rest : {1, 2}) parts.push_back({.queries = third(rest), .keys = third(1)});
          return ops::attention_parts(in[0], in[1], in[2], parts, with);
        };
        const std::vector<Tensor> in{random_tensor({B, H, N, 8}, 1, t), random_tensor({B, H, N, 8}, 2, t),
                                     random_tensor({B, 1, N, 5}, 3, t), random_tensor({B, H, N}, 4, t), random_tensor({B, 1, N, N}, 6, t)};
        expect_same([&](const auto& x) { return run(x, false); }, [&](const auto& x) { return run(x, true); }, in,
                    t == DType::F64 ? 1e-13 : 5e-6);
      }
}

TEST(AttentionParts, RowsWithoutAKeyAreZeroAndKnown) {
  const Tensor few = Tensor::from<i64>({4, 0, -1}, {3});
  const Tensor mask = some_ones({B, N}, 3), x = random_tensor({B, H, N, 4}, 1, DType::F32);
  Tensor empty;
  const auto f = [&](const auto& in) {
    return ops::attention_parts(in[0], in[1], in[2], {{.queries = few, .keys = Tensor::from<i64>({1, 2}, {2})}}, {.query_mask = mask},
                                &empty);
  };
  const auto r = values_and_gradients(f, {x, x, x});
  for (i64 b = 0; b < B; ++b)
    for (i64 h = 0; h < H; ++h)
      for (i64 i = 0; i < N; ++i) {
        const bool real = mask.slice(0, b, b + 1).slice(1, i, i + 1).to_vector()[0] != 0, asks = real && (i == 0 || i == 4);
        const auto row = [&](const Tensor& t) { return t.slice(0, b, b + 1).slice(1, h, h + 1).slice(2, i, i + 1).to_vector(); };
        EXPECT_EQ(row(empty)[0], real && !asks);
        EXPECT_EQ(row(r[0]) == std::vector<double>(4, 0.0), !asks);
        EXPECT_EQ(row(r[1]) == std::vector<double>(4, 0.0), !asks);
      }
}

struct Window final : kernels::IntervalPattern {
  Range keys(i64, i64, i64 i) const override { return {i - 20, i + 20}; }
};

TEST(AttentionParts, CostWhatTheirPatternsAllow) {
  for (i64 n : {4096, 16384}) {
    Tensor order = Tensor::empty({n}, DType::I64);
    for (i64 i = 0; i < n; ++i) order.mut_ptr<i64>()[i] = i * 5 % n;
    const Tensor x = random_tensor({1, 1, n, 4}, 1, DType::F32);
    std::size_t largest = 0;
    const auto before = counters::now().attention_pairs;
    memory::set_allocation_hook([&](std::size_t bytes) { largest = std::max(largest, bytes); });
    values_and_gradients(
        [&](const auto& in) {
          const auto window = std::make_shared<Window>();
          return ops::attention_parts(in[0], in[1], in[2], {{.queries = order, .keys = order, .pattern = window}, {.pattern = window}});
        },
        {x, x, x});
    memory::set_allocation_hook(nullptr);
    EXPECT_LT(largest, static_cast<std::size_t>(n * 1600));  // packed rows
    EXPECT_LE(counters::now().attention_pairs - before, 2 * n * 80);
  }
}

}  // namespace
}  // namespace tapeformer
