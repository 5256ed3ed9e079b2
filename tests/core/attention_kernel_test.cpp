#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <optional>
#include <vector>

#include "core/counters.h"
#include "core/kernels/attention.h"
#include "core/parallel.h"
#include "core/storage.h"

namespace tapeformer::kernels {
namespace {

struct Window final : Pattern {  // |i - j| <= radius
  i64 radius;
  explicit Window(i64 r) : radius(r) {}
  Cover cover(i64, i64, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    if (k0 > q1 - 1 + radius || k1 - 1 < q0 - radius) return Cover::None;
    return k1 - 1 <= q0 + radius && k0 >= q1 - 1 - radius ? Cover::Full : Cover::Partial;
  }
  void row(i64, i64, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    for (i64 j = k0; j < k1; ++j) allowed[j - k0] &= std::abs(i - j) <= radius;
  }
};

struct Blocks final : Pattern {  // block (x, y) allowed when (x + y + h) % 3 != 0; row block 2 sees nothing
  i64 size;
  explicit Blocks(i64 s) : size(s) {}
  bool sees(i64 h, i64 i, i64 j) const { return i / size != 2 && (i / size + j / size + h) % 3 != 0; }
  Cover cover(i64, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    i64 seen = 0;
    for (i64 i = q0; i < q1; ++i)
      for (i64 j = k0; j < k1; ++j) seen += sees(h, i, j);
    return seen == 0 ? Cover::None : seen == (q1 - q0) * (k1 - k0) ? Cover::Full : Cover::Partial;
  }
  void row(i64, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    for (i64 j = k0; j < k1; ++j) allowed[j - k0] &= sees(h, i, j);
  }
  bool same_for_heads() const override { return false; }
};

struct Sparse final : Pattern {  // about one pair in `every`, different for each sample and head
  std::uint64_t every;
  explicit Sparse(std::uint64_t e) : every(e) {}
  Cover cover(i64, i64, i64, i64, i64, i64) const override { return Cover::Partial; }
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    for (i64 j = k0; j < k1; ++j) {
      const auto index = static_cast<std::uint64_t>(((b * 8 + h) * 4096 + i) * 4096 + j);
      allowed[j - k0] &= RngKey(5).bits32(index) % every == 0;
    }
  }
  bool same_for_samples() const override { return false; }
  bool same_for_heads() const override { return false; }
};

struct Case {
  i64 B, H, N, M, d, dv;
  bool causal = false, padding = false, views = false, key_bias = false;
  int pair_bias = 0;  // 1 = for each sample, 2 = shared by the samples, 3 = by samples and heads
  double dropout = 0;
  const Pattern* pattern = nullptr;
};

template <class T>
std::vector<T> random_values(i64 n, std::uint64_t seed) {
  std::vector<T> v(static_cast<std::size_t>(n));
  for (i64 i = 0; i < n; ++i) v[i] = static_cast<T>(static_cast<float>(2 * RngKey(seed).uniform(std::uint64_t(i)) - 1));
  return v;
}

template <class T>
struct Problem {
  std::vector<T> qkv, d_out, key_bias, pair_bias, o, max, lse, grads, dkey_bias, dpair_bias;
  std::vector<std::uint8_t> query_mask, key_mask;
  std::vector<i64> rows;
  Attention<T> a;
  RowsView<T> out;
  AttentionGrads<T> g;

  explicit Problem(const Case& c) {
    a.B = c.B, a.H = c.H, a.N = c.N, a.M = c.M, a.d = c.d, a.dv = c.dv;
    a.scale = 1 / std::sqrt(double(c.d));
    a.causal = c.causal;
    a.pattern = c.pattern;
    const i64 nq = c.B * c.H * c.N * c.d, nk = c.B * c.H * c.M * c.d, nv = c.B * c.H * c.M * c.dv, no = c.B * c.H * c.N * c.dv;
    qkv = random_values<T>(nq + nk + nv, 1);
    d_out = random_values<T>(no, 2);
    const T nan = std::numeric_limits<T>::quiet_NaN();
    o.assign(no, nan);
    grads.assign(nq + nk + nv, nan);
    max.assign(c.B * c.H * c.N, nan);
    lse = max;
    place(c, a.q, a.k, a.v, static_cast<const T*>(qkv.data()), nq, nk);
    place(c, g.dq, g.dk, g.dv, grads.data(), nq, nk);
    out = c.views ? RowsView<T>{o.data(), c.N * c.H * c.dv, c.dv, c.H * c.dv} : RowsView<T>{o.data(), c.H * c.N * c.dv, c.N * c.dv, c.dv};
    add_biases(c);
    add_padding(c);
    a.dropout = c.dropout;
    a.dropout_key = RngKey(77);
    for (i64 b = 0; b < c.B; ++b) rows.push_back(100 - 3 * b);
    a.rows = rows.data();
  }

  // Either each [B, H, N, d] for itself, or heads side by side: [B, N, H d].
  template <class P>
  void place(const Case& c, RowsView<P>& q, RowsView<P>& k, RowsView<P>& v, P* p, i64 nq, i64 nk) {
    const auto view = [&](P* at, i64 n, i64 d) {
      return c.views ? RowsView<P>{at, n * c.H * d, d, c.H * d} : RowsView<P>{at, c.H * n * d, n * d, d};
    };
    q = view(p, c.N, c.d);
    k = view(p + nq, c.M, c.d);
    v = view(p + nq + nk, c.M, c.dv);
  }
  void add_biases(const Case& c) {
    if (c.key_bias) {
      key_bias = random_values<T>(c.H * c.M, 3);
      a.key_bias = key_bias.data();
      a.key_bias_h = c.M;
      dkey_bias.assign(c.B * c.H * c.M, T(-7));
      g.dkey_bias = dkey_bias.data();
    }
    if (c.pair_bias == 0) return;
    const i64 one = c.N * c.M, h = c.pair_bias == 3 ? 0 : one, b = c.pair_bias == 1 ? c.H * one : 0;
    pair_bias = random_values<T>(c.B * c.H * one, 4);
    dpair_bias.assign(pair_bias.size(), T(0));
    a.pair_bias = {pair_bias.data(), b, h, c.M};
    g.dpair_bias = {dpair_bias.data(), b, h, c.M};
  }
  void add_padding(const Case& c) {
    if (!c.padding) return;
    query_mask.assign(c.B * c.N, 1);
    key_mask.assign(c.B * c.M, 1);
    for (i64 b = 0; b < c.B; ++b) {
      for (i64 i = 0; i < c.N; ++i) query_mask[b * c.N + i] = b + 1 < c.B ? RngKey(8).bits32(b * c.N + i) % 4 != 0 : i * 3 < c.N;
      for (i64 j = 0; j < c.M; ++j) key_mask[b * c.M + j] = b + 1 < c.B ? RngKey(9).bits32(b * c.M + j) % 4 != 0 : j * 3 < c.M;
    }
    if (c.B > 2) std::fill(key_mask.begin(), key_mask.begin() + c.M, 0);  // a sample without any key
    a.query_mask = query_mask.data();
    a.key_mask = key_mask.data();
  }

  RowsView<const T> o_view() const { return {out.p, out.b, out.h, out.n}; }
  RowsView<const T> d_out_view() const { return {d_out.data(), out.b, out.h, out.n}; }
  void run() {
    attention_forward(a, out, max.data(), lse.data());
    attention_backward(a, o_view(), max.data(), lse.data(), d_out_view(), g);
  }
  void run_reference() {
    attention_forward_reference(a, out, max.data(), lse.data());
    attention_backward_reference(a, o_view(), max.data(), lse.data(), d_out_view(), g);
  }
};

double difference(const std::vector<float>& x, const std::vector<double>& y) {
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = std::abs(double(x[i]) - y[i]);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
  }
  return worst;
}

void expect_right(const Case& c, double forward = 5e-6, double backward = 2e-5) {
  Problem<float> f(c);
  Problem<double> d(c);
  f.run();
  d.run_reference();
  const auto label = ::testing::Message() << "B" << c.B << " H" << c.H << " N" << c.N << " M" << c.M << " d" << c.d << " dv" << c.dv
                                          << " causal" << c.causal << " padding" << c.padding << " dropout" << c.dropout;
  EXPECT_LE(difference(f.o, d.o), forward) << label;
  EXPECT_LE(difference(f.grads, d.grads), backward) << label;
  EXPECT_LE(difference(f.dkey_bias, d.dkey_bias), backward) << label;
  EXPECT_LE(difference(f.dpair_bias, d.dpair_bias), backward) << label;
  for (std::size_t i = 0; i < f.max.size(); ++i) {
    ASSERT_TRUE(std::isfinite(f.max[i]) && std::isfinite(f.lse[i]));
    ASSERT_NEAR(double(f.max[i]) + f.lse[i], d.max[i] + d.lse[i], 1e-5);
  }
}

const std::vector<std::array<i64, 6>> kShapes{{1, 1, 1, 1, 1, 1},      {2, 3, 5, 7, 3, 2},       {1, 2, 64, 64, 16, 16},
                                              {3, 2, 65, 130, 64, 64}, {2, 1, 130, 200, 32, 80}, {1, 1, 1, 300, 64, 64},
                                              {1, 1, 257, 257, 7, 65}, {4, 5, 33, 40, 8, 24},    {1, 16, 100, 129, 64, 48}};

TEST(AttentionKernel, MatchesReference) {
  for (auto [B, H, N, M, d, dv] : kShapes)
    for (bool causal : {false, true})
      for (bool padding : {false, true}) expect_right({B, H, N, M, d, dv, causal, padding, padding != causal});
}

TEST(AttentionKernel, MoreQueriesThanKeys) { expect_right({2, 2, 200, 3, 16, 16, false, true}); }

TEST(AttentionKernel, BiasesAndTheirGradients) {
  for (int pair : {0, 1, 2, 3})
    for (bool key : {false, true})
      for (i64 heads : {2, 6}) expect_right({3, heads, 70, 100, 16, 16, pair == 1, true, false, key, pair});
}

TEST(AttentionKernel, Dropout) {
  for (auto [B, H, N, M, d, dv] : kShapes) expect_right({B, H, N, M, d, dv, false, B > 1, false, false, 0, 0.3}, 1e-5, 3e-5);
  expect_right({2, 2, 100, 100, 16, 16, true, true, true, true, 1, 0.5}, 1e-5, 4e-5);
}

TEST(AttentionKernel, DropoutKeepsTheRightShare) {
  Case c{1, 1, 512, 512, 4, 1};
  c.dropout = 0.25;
  Problem<float> p(c);
  for (i64 j = 0; j < c.M; ++j) p.qkv[2 * c.N * c.d + j] = 1;  // o_i = kept share of the weights / (1 - p)
  p.run();
  double mean = 0;
  for (float x : p.o) mean += x / double(c.N);
  EXPECT_NEAR(mean, 1.0, 5e-3);
}

TEST(AttentionKernel, Patterns) {
  const Window narrow(3), wide(100);
  const Blocks blocks(32), odd(50);
  const Sparse sparse(10), thin(300);
  for (const Pattern* pattern : std::vector<const Pattern*>{&narrow, &wide, &blocks, &odd, &sparse, &thin})
    for (bool causal : {false, true})
      for (i64 heads : {2, 9}) expect_right({2, heads, 200, 230, 16, 16, causal, heads == 9, true, false, 0, 0, pattern});
}

TEST(AttentionKernel, LargeLogits) {
  for (bool causal : {false, true}) {
    Case c{2, 2, 100, 100, 64, 16, causal, true};
    Problem<float> f(c);
    Problem<double> d(c);
    for (i64 x = 0; x < 2 * c.B * c.H * c.N * c.d; ++x) {  // q k / 8 is a multiple of 1/8 up to 10240 in size
      const i64 value = static_cast<i64>(RngKey(3).bits32(std::uint64_t(x)) % 3) - 1;
      f.qkv[x] = static_cast<float>(value * 64), d.qkv[x] = static_cast<double>(value * 64);
    }
    for (i64 x = 0; x < c.d; ++x)
      f.qkv[x] = f.qkv[c.B * c.H * c.N * c.d + x] = 35.777088f, d.qkv[x] = d.qkv[c.B * c.H * c.N * c.d + x] = 35.777088f;
    f.run();
    d.run_reference();
    EXPECT_LE(difference(f.o, d.o), 5e-6);
    double size = 0;
    for (double x : d.grads) size = std::max(size, std::abs(x));
    EXPECT_LE(difference(f.grads, d.grads), 2e-5 * std::max(1.0, size));
  }
}

TEST(AttentionKernel, EmptyRowsAreExactlyZero) {
  Case c{3, 2, 150, 150, 16, 16, false, true};
  const Blocks blocks(32);  // rows 64 to 95 see nothing
  c.pattern = &blocks;
  Problem<float> p(c);
  for (i64 b = 0; b < c.B; ++b) {
    for (i64 i = 0; i < c.N; ++i) {  // what stands in padding reaches nothing
      if (p.query_mask[b * c.N + i]) continue;
      for (i64 h = 0; h < c.H; ++h) {
        for (i64 x = 0; x < c.dv; ++x) p.d_out[((b * c.H + h) * c.N + i) * c.dv + x] = NAN;
        for (i64 x = 0; x < c.d; ++x) p.qkv[((b * c.H + h) * c.N + i) * c.d + x] = NAN;
      }
    }
  }
  p.run();
  for (float x : p.grads) ASSERT_TRUE(std::isfinite(x));
  for (i64 b = 0; b < c.B; ++b)
    for (i64 h = 0; h < c.H; ++h)
      for (i64 i = 0; i < c.N; ++i) {
        const bool empty = b == 0 || !p.query_mask[b * c.N + i] || (i >= 64 && i < 96);
        for (i64 x = 0; x < c.dv && empty; ++x) ASSERT_EQ(p.o[((b * c.H + h) * c.N + i) * c.dv + x], 0.0f);
        for (i64 x = 0; x < c.d && empty; ++x) ASSERT_EQ(p.grads[((b * c.H + h) * c.N + i) * c.d + x], 0.0f);
      }
}

TEST(AttentionKernel, SameBitsForAnyThreadCount) {
  const Window window(40);
  const int before = thread_count();
  for (Case c : std::vector<Case>{{1, 1, 300, 300, 32, 32},
                                  {2, 3, 200, 200, 64, 64, true, true, true, true, 2, 0.1},
                                  {4, 5, 130, 130, 16, 16, false, true},
                                  {1, 2, 700, 700, 64, 64, true, false, true, false, 0, 0, &window}}) {
    std::vector<std::vector<float>> first;
    for (int threads : {1, 2, 3, 8, 0}) {  // 0: inside of a parallel region
      set_thread_count(threads == 0 ? 2 : threads);
      Problem<float> p(c);
      if (threads > 0)
        p.run();
      else
        parallel_for(2, 1, [&](i64 begin, i64) {
          if (begin == 1) p.run();
        });
      const std::vector<std::vector<float>> all{p.o, p.grads, p.max, p.lse, p.dkey_bias, p.dpair_bias};
      if (first.empty()) first = all;
      for (std::size_t x = 0; x < all.size(); ++x) {
        EXPECT_EQ(all[x].empty() ? 0 : std::memcmp(first[x].data(), all[x].data(), all[x].size() * sizeof(float)), 0)
            << threads << " " << x;
      }
    }
  }
  set_thread_count(before);
}

TEST(AttentionKernel, AllocatesNothingOfSizeNxM) {
  const Window window(64);
  Problem<float> p({1, 2, 4096, 4096, 16, 16, false, false, true, false, 0, 0, &window});
  std::size_t total = 0;
  memory::set_allocation_hook([&](std::size_t bytes) { total += bytes; });
  const auto before = counters::now();
  p.run();
  memory::set_allocation_hook({});
  EXPECT_LE(total, std::size_t{2} * 4096 * 16 * sizeof(float) * 24);  // 2 heads, some copies of [N, d]; N x N bytes are 16 M
  const auto pairs = counters::now().attention_pairs - before.attention_pairs;
  EXPECT_GE(pairs, 2 * 4096 * 129 - 2 * 65 * 64);
  EXPECT_LE(pairs, 2 * 4096 * 129 * 5 / 4);
}

TEST(AttentionKernel, CountsItsArithmetic) {
  Problem<float> p({2, 2, 128, 192, 16, 32});
  const auto before = counters::now();
  p.run();
  const auto after = counters::now();
  EXPECT_EQ(after.attention_pairs - before.attention_pairs, 4 * 128 * 192);
  EXPECT_EQ(after.attention_flops - before.attention_flops, 2 * 4 * 128 * 192 * (16 + 32 + 3 * 16 + 2 * 32));
}

}  // namespace
}  // namespace tapeformer::kernels
