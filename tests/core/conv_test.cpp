#include "core/kernels/conv.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "core/parallel.h"
#include "core/rng.h"

namespace tapeformer::kernels {
namespace {

std::vector<float> random_values(i64 n, std::uint64_t seed) {
  std::vector<float> v(static_cast<std::size_t>(n));
  for (i64 i = 0; i < n; ++i) v[i] = static_cast<float>(2 * RngKey(seed).uniform(static_cast<std::uint64_t>(i)) - 1);
  return v;
}

struct Result {
  std::vector<float> y, dx, dw, db;
};

struct Problem {
  Conv2d c;
  std::vector<float> x, w, bias, dy;

  explicit Problem(const Conv2d& c_) : c(c_) {
    x = random_values(c.B * c.Hi * c.Wi * c.Ci, 1);
    w = random_values(c.Co * (c.Ci / c.groups) * c.Kh * c.Kw, 2);
    bias = random_values(c.Co, 3);
    dy = random_values(c.B * c.Ho() * c.Wo() * c.Co, 4);
  }
  Result run(bool with_bias) const {
    Result r{std::vector<float>(dy.size(), NAN), std::vector<float>(x.size(), NAN), std::vector<float>(w.size(), NAN),
             std::vector<float>(bias.size(), NAN)};
    conv2d(c, x.data(), w.data(), with_bias ? bias.data() : nullptr, r.y.data());
    conv2d_grad(c, x.data(), w.data(), dy.data(), r.dx.data(), r.dw.data(), r.db.data());
    return r;
  }
  Result run_reference(bool with_bias) const {
    Result r{dy, x, w, bias};
    conv2d_reference(c, x.data(), w.data(), with_bias ? bias.data() : nullptr, r.y.data());
    conv2d_grad_reference(c, x.data(), w.data(), dy.data(), r.dx.data(), r.dw.data(), r.db.data());
    return r;
  }
};

double difference(const std::vector<float>& x, const std::vector<float>& want) {
  double worst = 0, size = 1;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double d = std::abs(double(x[i]) - want[i]);
    worst = std::isnan(d) ? INFINITY : std::max(worst, d);
    size = std::max(size, std::abs(double(want[i])));
  }
  return worst / size;
}

std::vector<Conv2d> cases() {
  std::vector<Conv2d> all;
  const auto add = [&](i64 B, i64 Hi, i64 Wi, i64 Ci, i64 Co, i64 Kh, i64 Kw) -> Conv2d& {
    return all.emplace_back(Conv2d{B, Hi, Wi, Ci, Co, Kh, Kw});
  };
  add(2, 7, 9, 3, 5, 3, 3);
  add(1, 1, 50, 16, 32, 1, 3).pad_left = 2;  // causal 1-D
  auto& speech = add(3, 1, 61, 80, 64, 1, 3);
  speech.stride_w = 2, speech.pad_left = speech.pad_right = 1;
  auto& patches = add(5, 16, 16, 3, 24, 4, 4);
  patches.stride_h = patches.stride_w = 4;
  auto& dilated = add(2, 12, 11, 8, 8, 3, 2);
  dilated.dilation_h = 2, dilated.dilation_w = 3, dilated.pad_top = 1, dilated.pad_bottom = 2, dilated.pad_right = 3;
  auto& depthwise = add(2, 1, 40, 32, 32, 1, 7);
  depthwise.groups = 32, depthwise.pad_left = depthwise.pad_right = 3;
  auto& odd_depthwise = add(2, 6, 5, 13, 13, 3, 3);
  odd_depthwise.groups = 13, odd_depthwise.pad_top = odd_depthwise.pad_left = 1;
  auto& grouped = add(2, 5, 6, 12, 18, 3, 3);
  grouped.groups = 3, grouped.pad_left = 1;
  add(40, 6, 6, 4, 8, 3, 3);
  add(1, 1, 1, 1, 1, 1, 1);
  return all;
}

TEST(Conv, MatchesReference) {
  for (const Conv2d& c : cases())
    for (bool bias : {false, true}) {
      const Problem p(c);
      const Result got = p.run(bias), want = p.run_reference(bias);
      const auto label = ::testing::Message() << "Ci " << c.Ci << " Co " << c.Co << " groups " << c.groups;
      EXPECT_LE(difference(got.y, want.y), 2e-6) << label;
      EXPECT_LE(difference(got.dx, want.dx), 2e-6) << label;
      EXPECT_LE(difference(got.dw, want.dw), 2e-6) << label;
      EXPECT_LE(difference(got.db, want.db), 2e-6) << label;
    }
}

TEST(Conv, ReferenceGradientIsTheDerivative) {
  Conv2d c{2, 5, 6, 4, 6, 3, 2};
  c.groups = 2, c.stride_w = 2, c.dilation_h = 2, c.pad_top = 1;
  const auto as_double = [](const std::vector<float>& v) { return std::vector<double>(v.begin(), v.end()); };
  const Problem p(c);
  auto x = as_double(p.x), w = as_double(p.w), bias = as_double(p.bias);
  const auto dy = as_double(p.dy);
  std::vector<double> dx(x.size()), dw(w.size()), db(bias.size()), y(dy.size());
  conv2d_grad(c, x.data(), w.data(), dy.data(), dx.data(), dw.data(), db.data());
  const auto loss = [&] {
    conv2d(c, x.data(), w.data(), bias.data(), y.data());
    double sum = 0;
    for (std::size_t i = 0; i < y.size(); ++i) sum += y[i] * dy[i];
    return sum;
  };
  const auto check = [&](std::vector<double>& at, const std::vector<double>& gradient) {
    for (std::size_t i = 0; i < at.size(); i += 7) {
      const double before = at[i];
      at[i] = before + 1e-3;
      const double up = loss();
      at[i] = before - 1e-3;
      const double down = loss();
      at[i] = before;
      ASSERT_NEAR((up - down) / 2e-3, gradient[i], 1e-8);
    }
  };
  check(x, dx);
  check(w, dw);
  check(bias, db);
}

TEST(Conv, SameBitsForAnyThreadCount) {
  auto all = cases();
  all.push_back({34, 1, 200, 80, 64, 1, 3});
  all.push_back({1, 32, 32, 64, 64, 3, 3});
  const int before = thread_count();
  for (const Conv2d& c : all) {
    const Problem p(c);
    std::vector<std::vector<float>> first;
    for (int threads : {1, 2, 3, 8, 0}) {  // 0: inside of a parallel region
      set_thread_count(threads == 0 ? 2 : threads);
      Result r;
      parallel_for(threads == 0 ? 2 : 1, 1, [&](i64 begin, i64) {
        if (begin == 0) r = p.run(true);
      });
      const std::vector<std::vector<float>> now{r.y, r.dx, r.dw, r.db};
      if (first.empty()) first = now;
      for (int i = 0; i < 4; ++i)
        EXPECT_EQ(std::memcmp(first[i].data(), now[i].data(), now[i].size() * sizeof(float)), 0) << threads << " " << i;
    }
  }
  set_thread_count(before);
}

TEST(Conv, AnyOutputMayBeLeftOut) {
  const Problem p({2, 7, 9, 3, 5, 3, 3});
  const Result all = p.run(false);
  std::vector<float> dw(p.w.size());
  conv2d_grad<float>(p.c, p.x.data(), p.w.data(), p.dy.data(), nullptr, dw.data(), nullptr);
  EXPECT_EQ(dw, all.dw);
}

}  // namespace
}  // namespace tapeformer::kernels
