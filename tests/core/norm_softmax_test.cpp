#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/kernels/norm.h"
#include "core/kernels/softmax.h"
#include "core/rng.h"

namespace tapeformer::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

std::vector<float> normal(i64 n, std::uint64_t seed, double mean = 0, double spread = 1) {
  std::vector<float> x(static_cast<std::size_t>(n));
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(mean + spread * RngKey(seed).normal(i));
  return x;
}

struct Size {
  i64 rows, columns;
};
const std::vector<Size> kSizes{{1, 1}, {3, 2}, {5, 16}, {4, 17}, {65, 33}, {200, 7}, {2, 1000}, {3, 4096}};

TEST(Norm, MatchesDoubleLoops) {
  for (const auto& [rows, n] : kSizes)
    for (bool centred : {true, false})
      for (double offset : {0.0, 100.0}) {
        const std::vector<float> x = normal(rows * n, 1, offset), g = normal(n, 2), b = normal(n, 3), dy = normal(rows * n, 4);
        std::vector<float> y(x.size()), mean(static_cast<std::size_t>(rows)), rstd(mean.size()), again(x.size());
        norm(x.data(), g.data(), b.data(), 1e-5, rows, n, y.data(), centred ? mean.data() : nullptr, rstd.data());
        norm_replay(x.data(), g.data(), b.data(), rows, n, centred ? mean.data() : nullptr, rstd.data(), again.data());
        EXPECT_EQ(std::memcmp(y.data(), again.data(), y.size() * 4), 0);
        std::vector<float> dx(x.size()), dg(g.size()), db(g.size());
        norm_grad(x.data(), g.data(), centred ? mean.data() : nullptr, rstd.data(), dy.data(), rows, n, dx.data(), dg.data(),
                  centred ? db.data() : nullptr);
        std::vector<double> want_dg(g.size()), want_db(g.size());
        for (i64 r = 0; r < rows; ++r) {
          const float *row = x.data() + r * n, *up = dy.data() + r * n;
          double m = 0, v = 0, a = 0, ax = 0;
          if (centred)
            for (i64 i = 0; i < n; ++i) m += row[i] / static_cast<double>(n);
          for (i64 i = 0; i < n; ++i) v += (row[i] - m) * (row[i] - m) / static_cast<double>(n);
          const double s = 1 / std::sqrt(v + 1e-5);
          for (i64 i = 0; i < n; ++i) {
            const double xh = (row[i] - m) * s, k = static_cast<double>(up[i]) * g[static_cast<std::size_t>(i)];
            if (centred) a += k / static_cast<double>(n);
            ax += k * xh / static_cast<double>(n);
            want_dg[static_cast<std::size_t>(i)] += up[i] * xh;
            want_db[static_cast<std::size_t>(i)] += up[i];
          }
          // A mean of 100 costs digits: its rounding error, 100 eps sqrt(n) / n, is scaled by s.
          const double tolerance = 2e-5 + (centred ? 3e-5 * offset / 100 * s * std::sqrt(static_cast<double>(n)) : 0);
          for (i64 i = 0; i < n; ++i) {
            const double xh = (row[i] - m) * s, want = xh * g[static_cast<std::size_t>(i)] + (centred ? b[static_cast<std::size_t>(i)] : 0);
            if (n == 1 && centred && offset > 0) continue;  // 1 / sqrt(eps) times a rounding error
            ASSERT_NEAR(y[static_cast<std::size_t>(r * n + i)], want, tolerance * (1 + std::abs(want)))
                << rows << " " << n << " " << offset;
            const double want_dx = s * (static_cast<double>(up[i]) * g[static_cast<std::size_t>(i)] - a - xh * ax);
            ASSERT_NEAR(dx[static_cast<std::size_t>(r * n + i)], want_dx, 10 * tolerance * (1 + s)) << rows << " " << n << " " << offset;
          }
        }
        if (offset > 0) continue;
        for (std::size_t i = 0; i < dg.size(); ++i) {
          EXPECT_NEAR(dg[i], want_dg[i], 1e-4 * (1 + std::abs(want_dg[i])));
          if (centred) EXPECT_NEAR(db[i], want_db[i], 1e-4 * (1 + std::abs(want_db[i])));
        }
      }
}

TEST(Norm, ConstantRowsAndNan) {
  const std::vector<float> g{1, 1, 1, 1}, b{0, 0, 0, 0};
  std::vector<float> x{3, 3, 3, 3, 1, std::nanf(""), 2, 3}, y(8), mean(2), rstd(2);
  norm(x.data(), g.data(), b.data(), 1e-5, 2, 4, y.data(), mean.data(), rstd.data());
  for (int i = 0; i < 4; ++i) EXPECT_EQ(y[static_cast<std::size_t>(i)], 0);
  for (int i = 4; i < 8; ++i) EXPECT_TRUE(std::isnan(y[static_cast<std::size_t>(i)]));
}

TEST(Softmax, MatchesDoubleLoops) {
  for (const auto& [rows, n] : kSizes)
    for (bool masked : {false, true}) {
      const std::vector<float> x = normal(rows * n, 1, 0, 5), dy = normal(rows * n, 2);
      std::vector<std::uint8_t> keep(static_cast<std::size_t>(rows * n));
      for (std::size_t i = 0; i < keep.size(); ++i) keep[i] = RngKey(3).uniform(i) < 0.5;
      for (i64 j = 0; j < n; ++j) keep[static_cast<std::size_t>(j)] = 0;  // the first row keeps nothing
      std::vector<float> y(x.size()), l(x.size()), dx(x.size()), dl(x.size());
      const std::uint8_t* mask = masked ? keep.data() : nullptr;
      softmax(x.data(), mask, rows, n, y.data());
      log_softmax(x.data(), mask, rows, n, l.data());
      softmax_grad(y.data(), dy.data(), rows, n, dx.data());
      log_softmax_grad(l.data(), mask, dy.data(), rows, n, dl.data());
      for (i64 r = 0; r < rows; ++r) {
        const float *row = x.data() + r * n, *up = dy.data() + r * n;
        const auto kept = [&, n = n](i64 j) { return !masked || keep[static_cast<std::size_t>(r * n + j)]; };
        double high = -1e30, sum = 0, dot = 0, up_sum = 0;
        for (i64 j = 0; j < n; ++j)
          if (kept(j)) high = std::max<double>(high, row[j]);
        for (i64 j = 0; j < n; ++j) {
          if (!kept(j)) continue;
          sum += std::exp(row[j] - high);
          up_sum += up[j];
        }
        for (i64 j = 0; j < n; ++j)
          if (kept(j)) dot += std::exp(row[j] - high) / sum * up[j];
        for (i64 j = 0; j < n; ++j) {
          const std::size_t at = static_cast<std::size_t>(r * n + j);
          const double want = kept(j) ? std::exp(row[j] - high) / sum : 0, log_p = row[j] - high - std::log(sum);
          if (!kept(j)) {
            ASSERT_TRUE(y[at] == 0 && dx[at] == 0 && l[at] == 0 && dl[at] == 0);
            continue;
          }
          ASSERT_NEAR(y[at], want, 1e-5 * want + 1e-37);
          ASSERT_NEAR(dx[at], want * (up[j] - dot), 5e-6 * want * (1 + std::abs(up[j]) + std::abs(dot)) + 1e-37);
          ASSERT_NEAR(l[at], log_p, 1e-6 * (1 + std::abs(log_p) + std::abs(high)));
          ASSERT_NEAR(dl[at], up[j] - std::exp(log_p) * up_sum, 1e-5 * (1 + std::abs(up_sum)));
        }
      }
    }
}

TEST(Softmax, LargeScoresInfinitiesAndNan) {
  const i64 n = 21;
  {
    std::vector<float> x(static_cast<std::size_t>(4 * n), 0.0f);
    const auto at = [&](i64 r, i64 j) { return static_cast<std::size_t>(r * n + j); };
    for (i64 j = 0; j < n; ++j) x[at(0, j)] = 3e38f, x[at(1, j)] = j % 2 ? -kInf : 1.0f, x[at(2, j)] = -3e38f;
    x[at(2, 5)] = 3e38f;
    std::vector<float> y(x.size()), l(x.size());
    for (i64 bad = 0; bad < n; ++bad) {
      for (i64 j = 0; j < n; ++j) x[at(3, j)] = j == bad ? std::nanf("") : 0.5f;
      softmax<float>(x.data(), nullptr, 4, n, y.data());
      log_softmax<float>(x.data(), nullptr, 4, n, l.data());
      for (i64 j = 0; j < n; ++j) {
        EXPECT_FLOAT_EQ(y[at(0, j)], 1.0f / 21);
        EXPECT_FLOAT_EQ(y[at(1, j)], j % 2 ? 0 : 1.0f / 11);
        EXPECT_EQ(y[at(2, j)], j == 5 ? 1 : 0);
        EXPECT_TRUE(std::isnan(y[at(3, j)])) << "NaN at " << bad << " is lost at " << j;
        EXPECT_TRUE(std::isnan(l[at(3, j)])) << "NaN at " << bad << " is lost at " << j;
      }
    }
  }
}

}  // namespace
}  // namespace tapeformer::kernels
