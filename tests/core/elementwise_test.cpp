#include "core/kernels/elementwise.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/rng.h"

namespace tapeformer::kernels {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity(), kNan = std::numeric_limits<float>::quiet_NaN();

std::vector<float> wide_range() {  // every 9973rd float, the extremes, and fine steps around zero
  std::vector<float> x;
  for (std::uint64_t bits = 0; bits <= 0xffffffffu; bits += 99991) {
    const float f = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
    if (std::isfinite(f)) x.push_back(f);
  }
  for (double v = -110; v <= 110; v += 0.0131) x.push_back(static_cast<float>(v));
  for (float v : {0.0f, 1e-45f, 1e-38f, 1e-20f, 1e-7f, 1e-3f, 87.0f, 88.7f, 88.8f, 104.0f, 1e4f, 1e38f, 3.4028235e38f, kInf})
    x.insert(x.end(), {v, -v});
  return x;
}

struct Function {
  Unary f;
  const char* name;
  double (*value)(double);
  double (*slope)(double);
  double ulps;                   // of the result
  double absolute;               // or this, where terms cancel
  bool positive;                 // defined for x > 0 only
  bool infinite_is_nan = false;  // x times a factor that is 0
};

double sigmoid(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double density(double x) { return 0.39894228040143267794 * std::exp(-x * x / 2); }
double cdf(double x) { return 0.5 * std::erfc(-x * 0.70710678118654752440); }
double inner(double x) { return 0.79788456080286535588 * (x + 0.044715 * x * x * x); }

const std::vector<Function>& functions() {
  using D = double;
  static const std::vector<Function> all{
      {Unary::Relu, "relu", [](D x) { return x > 0 ? x : 0; }, [](D x) { return D(x > 0); }, 0, 0, false},
      {Unary::Gelu, "gelu", [](D x) { return x < -40 ? 0 : x * cdf(x); },
       [](D x) { return x < -40  ? 0
                        : x > 40 ? 1
                                 : cdf(x) + x * density(x); }, 8, 8e-7, false, true},
      {Unary::GeluTanh, "gelu_tanh", [](D x) { return x < -40 ? 0 : x / 2 * (1 + std::tanh(inner(x))); },
       [](D x) {
         if (std::abs(x) > 40) return x < 0 ? 0.0 : 1.0;
         const D t = std::tanh(inner(x));
         return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * 0.79788456080286535588 * (1 + 3 * 0.044715 * x * x);
       },
       8, 1e-6, false, true},
      {Unary::Silu, "silu", [](D x) { return x < -1000 ? 0 : x * sigmoid(x); },
       [](D x) { return std::abs(x) > 1000 ? D(x > 0) : sigmoid(x) * (1 + x * sigmoid(-x)); }, 8, 3e-7, false, true},
      {Unary::Tanh, "tanh", [](D x) { return std::tanh(x); }, [](D x) { return 1 / (std::cosh(x) * std::cosh(x)); }, 5, 3e-7, false},
      {Unary::Sigmoid, "sigmoid", sigmoid, [](D x) { return sigmoid(x) * sigmoid(-x); }, 5, 2e-7, false},
      {Unary::Elu, "elu", [](D x) { return x > 0 ? x : std::expm1(x); }, [](D x) { return x > 0 ? 1 : std::exp(x); }, 5, 2e-37, false},
      {Unary::Elu1, "elu1", [](D x) { return x > 0 ? x + 1 : std::exp(x); }, [](D x) { return x > 0 ? 1 : std::exp(x); }, 3, 2e-38, false},
      {Unary::Softplus, "softplus", [](D x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }, sigmoid, 5, 2e-7, false},
      {Unary::Exp, "exp", [](D x) { return std::exp(x); }, [](D x) { return std::exp(x); }, 3, 2e-38, false},
      {Unary::Log, "log", [](D x) { return std::log(x); }, [](D x) { return 1 / x; }, 2, 0, true},
      {Unary::Sqrt, "sqrt", [](D x) { return std::sqrt(x); }, [](D x) { return 0.5 / std::sqrt(x); }, 1, 0, true},
      {Unary::Neg, "neg", [](D x) { return -x; }, [](D) { return -1.0; }, 0, 0, false},
      {Unary::Abs, "abs", [](D x) { return std::abs(x); }, [](D x) { return D((x > 0) - (x < 0)); }, 0, 0, false},
      {Unary::Sin, "sin", [](D x) { return std::sin(x); }, [](D x) { return std::cos(x); }, 2, 0, false, true},
      {Unary::Cos, "cos", [](D x) { return std::cos(x); }, [](D x) { return -std::sin(x); }, 2, 0, false, true}};
  return all;
}

double ulp_of(double want) {
  const float f = static_cast<float>(std::abs(want));
  return std::isinf(f) ? 2.1e31 : std::max<double>(1.5e-45, std::nextafter(f, kInf) - f);
}

// Reports the worst element only.
void expect_near(const Function& f, const std::vector<float>& x, const std::vector<float>& got, double (*want)(double), const char* what,
                 double slack) {
  double worst = 0;
  std::size_t where = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double w = want(static_cast<double>(x[i]));
    const double g = static_cast<double>(got[i]);
    if (static_cast<float>(w) == got[i]) continue;
    if (std::isnan(w) && std::isnan(g)) continue;
    const double error = std::isnan(g) ? 1e300 : std::isinf(g) && std::abs(w) > 3.4028e38 ? 0 : std::abs(g - w);
    const double over = error / (slack * std::max(f.ulps * ulp_of(w), f.absolute) + 1e-300);
    if (over > worst) worst = over, where = i;
  }
  EXPECT_LE(worst, 1) << f.name << " " << what << " at " << x[where] << ": got " << got[where] << ", want "
                      << want(static_cast<double>(x[where]));
}

TEST(Unary, F32MatchesTheLibraryOverTheWholeRange) {
  for (const Function& f : functions()) {
    std::vector<float> x;
    for (float v : wide_range())
      if ((!f.positive || v > 0) && (std::isfinite(v) || !f.infinite_is_nan)) x.push_back(v);
    std::vector<float> y(x.size()), dx(x.size()), ones(x.size(), 1.0f);
    unary(f.f, x.data(), y.data(), static_cast<i64>(x.size()));
    expect_near(f, x, y, f.value, "value", 1);
    unary_grad(f.f, x.data(), ones.data(), dx.data(), static_cast<i64>(x.size()));
    expect_near(f, x, dx, f.slope, "slope", 2);
  }
}

TEST(Unary, NanStaysNanInEveryLane) {
  for (const Function& f : functions())
    for (i64 n : {1, 7, 16, 33}) {
      std::vector<float> x(static_cast<std::size_t>(n), 0.5f), y(x.size());
      for (std::size_t at = 0; at < x.size(); ++at) {
        x[at] = kNan;
        unary(f.f, x.data(), y.data(), n);
        for (std::size_t i = 0; i < x.size(); ++i) ASSERT_EQ(std::isnan(y[i]), i == at) << f.name;
        x[at] = 0.5f;
      }
      std::vector<double> wide(1, std::nan("")), out(1);
      unary(f.f, wide.data(), out.data(), 1);
      EXPECT_TRUE(std::isnan(out[0])) << f.name;
    }
}

TEST(Unary, F64MatchesTheDefinition) {
  for (const Function& f : functions())
    for (double v = 0.01; v < 30; v *= 1.3)
      for (double x : {v, -v}) {
        if (f.positive && x < 0) continue;
        EXPECT_NEAR(unary_value(f.f, x), f.value(x), 4e-15 * (1 + std::abs(f.value(x)))) << f.name << " " << x;
        EXPECT_NEAR(unary_slope(f.f, x), f.slope(x), 4e-15 * (1 + std::abs(f.slope(x)))) << f.name << " " << x;
      }
}

TEST(Unary, ElementsDoNotDependOnTheirPosition) {
  std::vector<float> x(1000);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(RngKey(1).normal(i));
  for (const Function& f : functions()) {
    if (f.positive) continue;
    std::vector<float> whole(x.size()), part(x.size());
    unary(f.f, x.data(), whole.data(), 1000);
    for (i64 from : {1, 3, 8, 500}) {
      unary(f.f, x.data() + from, part.data(), 1000 - from);
      EXPECT_EQ(std::memcmp(part.data(), whole.data() + from, static_cast<std::size_t>(1000 - from) * 4), 0) << f.name;
    }
  }
}

TEST(Binary, MaximaAndMinimaKeepNan) {
  const float a[] = {1, kNan, 2, kNan}, b[] = {kNan, 1, 3, kNan};
  float y[4];
  for (Binary f : {Binary::Max, Binary::Min}) {
    binary(f, {4}, a, {1}, b, {1}, y);
    EXPECT_TRUE(std::isnan(y[0]) && std::isnan(y[1]) && std::isnan(y[3]));
    EXPECT_EQ(y[2], f == Binary::Max ? 3 : 2);
  }
}

TEST(Binary, AnyStrides) {
  const std::vector<float> a{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, b{100, 200, 300, 400};
  std::vector<float> y(12);
  binary(Binary::Add, {3, 4}, a.data(), {1, 3}, b.data(), {0, 1}, y.data());  // a transposed, b repeated
  for (i64 i = 0; i < 3; ++i)
    for (i64 j = 0; j < 4; ++j)
      EXPECT_EQ(y[static_cast<std::size_t>(i * 4 + j)], a[static_cast<std::size_t>(i + 3 * j)] + b[static_cast<std::size_t>(j)]);
  binary(Binary::Sub, {2, 3, 2}, a.data(), {6, 2, 1}, b.data(), {1, 0, 2}, y.data());
  for (i64 i = 0; i < 2; ++i)
    for (i64 j = 0; j < 3; ++j)
      for (i64 k = 0; k < 2; ++k)
        EXPECT_EQ(y[static_cast<std::size_t>(i * 6 + j * 2 + k)],
                  a[static_cast<std::size_t>(i * 6 + j * 2 + k)] - b[static_cast<std::size_t>(i + 2 * k)]);
}

TEST(Sums, MatchDoubles) {
  for (auto [rows, columns] : {std::pair<i64, i64>{1, 1}, {3, 7}, {257, 5}, {1000, 33}, {5, 0}, {0, 4}}) {
    std::vector<float> x(static_cast<std::size_t>(rows * columns));
    double square = 0;
    std::vector<double> by_column(static_cast<std::size_t>(columns)), by_row(static_cast<std::size_t>(rows));
    for (std::size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(RngKey(2).normal(i));
      square += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      by_column[i % static_cast<std::size_t>(columns)] += static_cast<double>(x[i]);
      by_row[i / static_cast<std::size_t>(columns)] += static_cast<double>(x[i]);
    }
    std::vector<float> c(by_column.size()), r(by_row.size());
    column_sums(x.data(), rows, columns, c.data());
    row_sums(x.data(), rows, columns, r.data());
    for (std::size_t i = 0; i < c.size(); ++i) EXPECT_NEAR(c[i], by_column[i], 2e-5);
    for (std::size_t i = 0; i < r.size(); ++i) EXPECT_NEAR(r[i], by_row[i], 2e-5);
    EXPECT_NEAR(sum_of_squares(x.data(), static_cast<i64>(x.size())), square, 1e-9 * (1 + square));
  }
}

std::vector<float> mask(double p, RngKey key, const std::vector<i64>& ids, i64 columns) {
  const i64 rows = static_cast<i64>(ids.size());
  std::vector<float> ones(static_cast<std::size_t>(rows * columns), 1.0f), y(ones.size());
  dropout(p, key, ids.data(), rows, columns, ones.data(), y.data());
  return y;
}

TEST(Dropout, KeepsTheStatedShareAndTheMean) {
  for (double p : {0.05, 0.3, 0.9}) {
    const i64 n = 400 * 1000;
    std::vector<i64> ids(400);
    for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<i64>(i);
    const std::vector<float> y = mask(p, RngKey(1), ids, 1000);
    double kept = 0;
    for (float v : y) {
      kept += v != 0;
      ASSERT_TRUE(v == 0 || std::abs(v - 1 / (1 - p)) < 1e-5);
    }
    const double sigma = std::sqrt(p * (1 - p) / static_cast<double>(n));
    EXPECT_NEAR(kept / static_cast<double>(n), 1 - p, 5 * sigma);
    double together = 0;  // neighbours are independent
    for (std::size_t i = 1; i < y.size(); ++i) together += y[i] != 0 && y[i - 1] != 0;
    EXPECT_NEAR(together / static_cast<double>(n), (1 - p) * (1 - p), 10 * sigma);
  }
}

TEST(Dropout, MaskBelongsToKeyAndSampleNotToTheBatch) {
  for (i64 columns : {5, 64, 100, 40000}) {
    const std::vector<float> whole = mask(0.4, RngKey(7), {3, 11, 4, 1ll << 40}, columns);
    const std::vector<float> turned = mask(0.4, RngKey(7), {1ll << 40, 11}, columns);
    const auto row = [&](const std::vector<float>& y, i64 r) {
      return std::vector<float>(y.begin() + r * columns, y.begin() + (r + 1) * columns);
    };
    EXPECT_EQ(row(turned, 0), row(whole, 3));
    EXPECT_EQ(row(turned, 1), row(whole, 1));
    if (columns >= 64) {
      EXPECT_NE(row(whole, 0), row(whole, 1));
      EXPECT_NE(row(mask(0.4, RngKey(8), {3}, columns), 0), row(whole, 0));
    }
  }
}

TEST(Dropout, LongRowsDoNotRepeat) {
  const std::vector<float> y = mask(0.5, RngKey(2), {0}, 3 * 16384);
  const auto part = [&](int k) { return std::vector<float>(y.begin() + k * 16384, y.begin() + (k + 1) * 16384); };
  EXPECT_NE(part(0), part(1));
  EXPECT_NE(part(1), part(2));
}

TEST(Dropout, DoubleHasTheSameMask) {
  const std::vector<i64> ids{5, 6};
  std::vector<double> ones(2 * 300, 1.0), y(600);
  dropout(0.3, RngKey(2), ids.data(), 2, 300, ones.data(), y.data());
  const std::vector<float> narrow = mask(0.3, RngKey(2), ids, 300);
  for (std::size_t i = 0; i < y.size(); ++i) ASSERT_EQ(y[i] != 0, narrow[i] != 0);
}

}  // namespace
}  // namespace tapeformer::kernels
