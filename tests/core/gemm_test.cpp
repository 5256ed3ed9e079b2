#include "core/kernels/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/counters.h"
#include "core/error.h"
#include "core/parallel.h"
#include "core/rng.h"

namespace tapeformer::kernels {
namespace {

template <class T>
std::vector<T> random_values(i64 n, std::uint64_t seed) {
  std::vector<T> v(static_cast<std::size_t>(n));
  for (i64 i = 0; i < n; ++i) v[i] = static_cast<T>(2 * RngKey(seed).uniform(static_cast<std::uint64_t>(i)) - 1);
  return v;
}

struct Case {
  i64 m, n, k, batch0 = 1, batch1 = 1;
  bool a_turned = false, b_turned = false, b_shared = false, bias = false, accumulate = false;
  i64 gap = 0;   // extra elements at the end of every row of A, B, C
  i64 step = 1;  // column stride of B when not turned: 2 forces packing
};

template <class T>
struct Problem {
  Case s;
  std::vector<T> a, b, c, bias;
  Gemm<T> g;

  explicit Problem(const Case& s_) : s(s_) {
    const i64 batch = s.batch0 * s.batch1, a_rows = s.a_turned ? s.k : s.m, a_cols = (s.a_turned ? s.m : s.k) + s.gap;
    const i64 b_rows = s.b_turned ? s.n : s.k, b_cols = (s.b_turned ? s.k : s.n) * s.step + s.gap, c_cols = s.n + s.gap;
    a = random_values<T>(batch * a_rows * a_cols, 1);
    b = random_values<T>(batch * b_rows * b_cols, 2);
    c = random_values<T>(batch * s.m * c_cols, 3);
    bias = random_values<T>(s.n, 4);
    const auto view = [&](auto* p, i64 rows, i64 cols, bool turned, i64 step) {
      return MatrixView<std::remove_pointer_t<decltype(p)>>{p, turned ? step : cols, turned ? cols : step, s.batch1 * rows * cols,
                                                            rows * cols};
    };
    g.batch0 = s.batch0, g.batch1 = s.batch1, g.m = s.m, g.n = s.n, g.k = s.k;
    g.a = view(static_cast<const T*>(a.data()), a_rows, a_cols, s.a_turned, 1);
    g.b = view(static_cast<const T*>(b.data()), b_rows, b_cols, s.b_turned, s.step);
    g.c = view(c.data(), s.m, c_cols, false, 1);
    if (s.b_shared) g.b.batch0 = g.b.batch1 = 0;
    g.bias = s.bias ? bias.data() : nullptr;
    g.accumulate = s.accumulate;
  }
};

template <class T>
void expect_right(const Case& s, double tolerance) {
  Problem<T> p(s);
  const std::vector<T> before = p.c;
  gemm(p.g);
  double worst = 0;
  const i64 every = std::max<i64>(1, s.batch0 * s.batch1 * s.m * s.n * s.k / 300000);  // sample large ones
  i64 index = 0;
  for (i64 b0 = 0; b0 < s.batch0; ++b0)
    for (i64 b1 = 0; b1 < s.batch1; ++b1)
      for (i64 i = 0; i < s.m; ++i)
        for (i64 j = 0; j < s.n; ++j) {
          if (index++ % every != 0) continue;
          const i64 at = b0 * p.g.c.batch0 + b1 * p.g.c.batch1 + i * p.g.c.row + j;
          double want = s.accumulate ? before[at] : s.bias ? p.bias[j] : 0;
          for (i64 k = 0; k < s.k; ++k) {
            want += double(p.a[b0 * p.g.a.batch0 + b1 * p.g.a.batch1 + i * p.g.a.row + k * p.g.a.col]) *
                    double(p.b[b0 * p.g.b.batch0 + b1 * p.g.b.batch1 + k * p.g.b.row + j * p.g.b.col]);
          }
          worst = std::max(worst, std::abs(want - double(p.c[at])) / std::sqrt(std::max<double>(1, s.k)));
          ASSERT_TRUE(std::isfinite(p.c[at]));
        }
  EXPECT_LE(worst, tolerance) << s.m << " " << s.n << " " << s.k << " turned " << s.a_turned << s.b_turned << " gap " << s.gap;
  for (i64 row = 0; row < s.batch0 * s.batch1 * s.m; ++row) {
    for (i64 j = s.n; j < s.n + s.gap; ++j) ASSERT_EQ(p.c[row * (s.n + s.gap) + j], before[row * (s.n + s.gap) + j]);
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (bool ta : {false, true})
    for (bool tb : {false, true})
      for (i64 gap : {0, 5}) {
        for (auto [m, n, k] :
             {std::array<i64, 3>{1, 1, 1}, {3, 5, 7}, {17, 1, 33}, {1, 40, 65}, {64, 64, 64}, {65, 129, 70}, {300, 33, 100}}) {
          all.push_back({m, n, k, 1, 1, ta, tb, false, false, false, gap});
          all.push_back({m, n, k, 2, 3, ta, tb, false, true, false, gap});
          all.push_back({m, n, k, 2, 3, ta, tb, true, false, true, gap});
          all.push_back({m, n, k, 1, 9, ta, tb, true, true, false, gap});
        }
      }
  all.push_back({64, 48, 5000, 1, 1, true, false, false, false, true});
  all.push_back({64, 48, 20000, 1, 1, true, false, false, true});
  all.push_back({700, 300, 257, 1, 1, false, true, false, true});
  all.push_back({30, 40, 50, 2, 2, false, false, false, false, false, 0, 2});
  all.push_back({5, 6, 0, 2, 2, false, false, false, true});
  all.push_back({5, 6, 0, 2, 2});
  return all;
}

TEST(Gemm, F32MatchesPlainSums) {
  for (const Case& s : cases()) expect_right<float>(s, 2e-6);
}

TEST(Gemm, F64MatchesPlainSums) {
  for (const Case& s : cases()) expect_right<double>(s, 1e-14);
}

TEST(Gemm, OpenBlasMatchesPlainSums) {
  set_gemm_backend("openblas");
  for (const Case& s : cases()) expect_right<float>(s, 2e-6);
  set_gemm_backend("onednn");
  EXPECT_THROW(set_gemm_backend("onednnn"), ConfigError);
  EXPECT_EQ(gemm_backend(), "onednn");
}

TEST(Gemm, RowsThatRepeatByStrideZeroAreRead) {
  const std::vector<float> a = random_values<float>(40, 1), b = random_values<float>(40 * 24, 2);
  std::vector<float> c(16 * 24);
  Gemm<float> g;
  g.m = 16, g.n = 24, g.k = 40;
  g.a = {a.data(), 0, 1};
  g.b = {b.data(), 24, 1};
  g.c = {c.data(), 24, 1};
  gemm(g);
  for (i64 j = 0; j < 24; ++j) {
    double want = 0;
    for (i64 k = 0; k < 40; ++k) want += double(a[k]) * b[k * 24 + j];
    for (i64 i = 0; i < 16; ++i) ASSERT_NEAR(c[i * 24 + j], want, 1e-5);
  }
}

TEST(Gemm, SameBitsForAnyThreadCount) {
  std::vector<Case> shapes{{256, 1024, 4096, 1, 1, true},
                           {64, 64, 30000, 1, 1, true},
                           {16, 16, 65536, 1, 1, true, true},
                           {1, 256, 4096},
                           {512, 768, 256},
                           {100, 100, 100, 3, 5},
                           {32, 32, 32, 8, 16},
                           {4096, 64, 64},
                           {4096, 1, 64},
                           {1, 1, 100000},
                           {333, 777, 1111, 1, 1, false, true, false, true}};
  const int before = thread_count();
  for (const char* backend : {"onednn", "openblas"}) {
    set_gemm_backend(backend);
    for (const Case& s : shapes) {
      if (backend == std::string("openblas") && s.m * s.n * s.k > 60000000) continue;
      Problem<float> p(s);
      const std::vector<float> start = p.c;
      std::vector<float> first;
      for (int threads : {1, 2, 3, 8, 0}) {  // 0: inside of a parallel region
        set_thread_count(threads == 0 ? 2 : threads);
        p.c = start;
        parallel_for(threads == 0 ? 2 : 1, 1, [&](i64 begin, i64) {
          if (begin == 0) gemm(p.g);
        });
        if (first.empty()) first = p.c;
        EXPECT_EQ(std::memcmp(first.data(), p.c.data(), first.size() * sizeof(float)), 0)
            << backend << " " << s.m << " " << s.n << " " << s.k << " with " << threads << " threads";
      }
    }
  }
  set_gemm_backend("onednn");
  set_thread_count(before);
}

TEST(Gemm, Bf16RoundsInputsOnly) {
  Case s{256, 192, 320, 1, 1, false, true, false, true};
  Problem<float> exact(s), rounded(s);
  for (auto* v : {&exact.a, &exact.b}) {
    for (float& x : *v) x = to_float(to_bf16(x));
  }
  gemm(exact.g);
  std::vector<float> first;
  const int before = thread_count();
  for (int threads : {1, 3}) {
    set_thread_count(threads);
    const PrecisionScope scope(Math::BF16);
    gemm(rounded.g);
    if (first.empty()) first = rounded.c;
    EXPECT_EQ(first, rounded.c);
  }
  set_thread_count(before);
  double from_rounded = 0, from_f32 = 0;
  Problem<float> plain(s);
  gemm(plain.g);
  for (std::size_t i = 0; i < plain.c.size(); ++i) {
    from_rounded = std::max<double>(from_rounded, std::abs(exact.c[i] - rounded.c[i]));
    from_f32 = std::max<double>(from_f32, std::abs(plain.c[i] - rounded.c[i]));
  }
  EXPECT_LE(from_f32, 0.2);
  if (from_f32 > 0) {  // zero where the CPU has no bf16 products
    EXPECT_LE(from_rounded, 1e-4);
  }
}

TEST(Gemm, CountsItsArithmetic) {
  const auto before = counters::now();
  Problem<float> p({64, 32, 16, 2, 3});
  gemm(p.g);
  EXPECT_EQ(counters::now().matmul_flops - before.matmul_flops, 2 * 6 * 64 * 32 * 16);
}

}  // namespace
}  // namespace tapeformer::kernels
