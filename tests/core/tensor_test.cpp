#include "core/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/rng.h"

namespace tapeformer {
namespace {

template <class F>
std::string error_of(F&& f) {
  try {
    f();
  } catch (const ShapeError& e) {
    return e.what();
  }
  return "no error";
}

class Random {  // small choices from one key
 public:
  explicit Random(std::uint64_t seed) : key_(seed) {}
  i64 below(i64 n) { return static_cast<i64>(key_.below(next_++, static_cast<std::uint64_t>(n))); }

 private:
  RngKey key_;
  std::uint64_t next_ = 0;
};

// A tensor beside what it should hold: the source position of each element, kept by index arithmetic alone.
struct Model {
  Tensor t;
  Shape shape;
  std::vector<i64> source;

  static Model of(const Shape& s) {
    Model m{Tensor::empty(s, DType::I64), s, {}};
    for (i64 i = 0; i < s.numel(); ++i) m.source.push_back(i);
    std::copy(m.source.begin(), m.source.end(), m.t.mut_ptr<i64>());
    return m;
  }
  // The elements under a new shape: f(index in the new shape) gives the index in the old one.
  template <class F>
  void remap(const Shape& to, F&& f) {
    std::vector<i64> next;
    std::vector<i64> at(static_cast<std::size_t>(to.rank()), 0);
    for (i64 n = 0; n < to.numel(); ++n) {
      i64 rest = n;
      for (int a = to.rank() - 1; a >= 0; --a) {
        at[static_cast<std::size_t>(a)] = rest % to[a];
        rest /= to[a];
      }
      const std::vector<i64> from = f(at);
      i64 flat = 0;
      for (int a = 0; a < shape.rank(); ++a) flat = flat * shape[a] + from[static_cast<std::size_t>(a)];
      next.push_back(source[static_cast<std::size_t>(flat)]);
    }
    source = std::move(next);
    shape = to;
  }
  std::string step(Random& r) {
    const i64 rank = shape.rank();
    switch (r.below(5)) {
      case 0: {  // permute
        std::vector<int> axes;
        for (int a = 0; a < rank; ++a) axes.insert(axes.begin() + r.below(a + 1), a);
        Shape to;
        for (int a : axes) to.push_back(shape[a]);
        t = t.permute(axes);
        remap(to, [&](const std::vector<i64>& at) {
          std::vector<i64> from(at.size());
          for (std::size_t k = 0; k < at.size(); ++k) from[static_cast<std::size_t>(axes[k])] = at[k];
          return from;
        });
        return "permute";
      }
      case 1: {  // slice
        if (rank == 0) return "";
        const int a = static_cast<int>(r.below(rank));
        const i64 from = r.below(shape[a]), to = from + 1 + r.below(shape[a] - from);
        Shape s = shape;
        s[a] = to - from;
        t = t.slice(a, from, to);
        remap(s, [&](std::vector<i64> at) {
          at[static_cast<std::size_t>(a)] += from;
          return at;
        });
        return "slice";
      }
      case 2: {  // expand an axis of size 1, or a new one in front
        if (shape.numel() > 300 || rank > 6) return "";
        Shape s;
        if (r.below(2)) s.push_back(1 + r.below(3));
        const int lead = s.rank();
        for (i64 d : shape) s.push_back(d == 1 && r.below(2) ? 1 + r.below(3) : d);
        const Shape old = shape;
        t = t.expand(s);
        remap(s, [&](const std::vector<i64>& at) {
          std::vector<i64> from(at.begin() + lead, at.end());
          for (std::size_t k = 0; k < from.size(); ++k)
            if (old[static_cast<int>(k)] == 1) from[k] = 0;
          return from;
        });
        return "expand";
      }
      default: {  // view under a random factorisation
        Shape s;
        i64 left = shape.numel();
        while (left > 1 && s.rank() < 6) {
          std::vector<i64> divisors;
          for (i64 d = 1; d <= left; ++d)
            if (left % d == 0) divisors.push_back(d);
          s.push_back(divisors[static_cast<std::size_t>(r.below(static_cast<i64>(divisors.size())))]);
          left /= s[s.rank() - 1];
        }
        if (left > 1 || s.rank() == 0) s.push_back(left);
        if (s.rank() < 7 && r.below(3) == 0) s.push_back(1);
        t = t.view(s);
        shape = s;  // row-major order of the elements does not change
        return "view " + s.str();
      }
    }
  }
};

TEST(Tensor, ViewsHoldTheRightElements) {
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Random r(seed);
    Shape start;
    for (i64 k = r.below(5); k >= 0; --k) start.push_back(1 + r.below(5));
    Model m = Model::of(start);
    std::string path = start.str();
    for (int i = 0; i < 7; ++i) {
      path += " " + m.step(r);
      ASSERT_EQ(m.t.shape(), m.shape) << path;
      std::vector<i64> got;
      for (double x : m.t.to_vector()) got.push_back(static_cast<i64>(x));
      ASSERT_EQ(got, m.source) << "seed " << seed << ": " << path;
      ASSERT_EQ(m.t.clone().to_vector(), m.t.to_vector());
      ASSERT_TRUE(m.t.to_contiguous().contiguous());
      if (m.t.contiguous()) ASSERT_TRUE(std::equal(m.source.begin(), m.source.end(), m.t.data<i64>().begin())) << path;
    }
  }
}

TEST(Tensor, ViewCopiesOnlyWhereItMust) {
  const Tensor x = Tensor::zeros({4, 6});
  EXPECT_EQ(x.view({24}).storage(), x.storage());
  EXPECT_EQ(x.slice(1, 1, 3).view({2, 2, 2}).storage(), x.storage());  // rows split, row stride kept
  EXPECT_EQ(x.transpose(0, 1).view({2, 3, 4}).storage(), x.storage());
  EXPECT_EQ(x.slice(0, 1, 3).view({12}).storage(), x.storage());
  EXPECT_NE(x.transpose(0, 1).view({24}).storage(), x.storage());
  EXPECT_NE(x.slice(1, 1, 3).view({8}).storage(), x.storage());
}

TEST(Tensor, EmptyTensorsAndScalars) {
  const Tensor e = Tensor::empty({0, 3});
  EXPECT_EQ(e.view({3, 0, 2}).numel(), 0);
  EXPECT_TRUE(e.transpose(0, 1).contiguous());
  EXPECT_TRUE(e.to_vector().empty());
  EXPECT_EQ(e.clone().shape(), (Shape{0, 3}));
  EXPECT_EQ(Tensor::scalar(2.5).item(), 2.5);
  EXPECT_EQ(Tensor::scalar(2.5).view({1, 1}).slice(0, 0, 1).item(), 2.5);
  EXPECT_EQ(Tensor::scalar(7).expand({2, 2}).to_vector(), (std::vector<double>{7, 7, 7, 7}));
  EXPECT_FALSE(Tensor().defined());
  EXPECT_EQ(Tensor().str(), "undefined");
  EXPECT_THROW(Tensor().ptr<float>(), std::logic_error);
}

TEST(Tensor, WritesThroughViewsReachTheStorageAndRaiseItsVersion) {
  Tensor x = Tensor::zeros({3, 4}, DType::I32);
  const std::uint32_t before = x.storage()->version();
  x.slice(1, 1, 3).transpose(0, 1).fill(5);
  EXPECT_EQ(x.to_vector(), (std::vector<double>{0, 5, 5, 0, 0, 5, 5, 0, 0, 5, 5, 0}));
  EXPECT_GT(x.storage()->version(), before);
  Tensor y = Tensor::zeros({4, 3});
  y.transpose(0, 1).copy_from(x);
  EXPECT_EQ(y.to_vector(), (std::vector<double>{0, 0, 0, 5, 5, 5, 5, 5, 5, 0, 0, 0}));
}

TEST(Tensor, ConversionsRoundAndReturn) {
  const Tensor x = Tensor::from<double>({0, -1.75, 3, 200}, {4});
  for (DType t : {DType::F32, DType::F64, DType::BF16}) EXPECT_EQ(x.to(t).to(DType::F64).to_vector(), x.to_vector());
  EXPECT_EQ(x.to(DType::I64).to_vector(), (std::vector<double>{0, -1, 3, 200}));
  EXPECT_EQ(x.to(DType::I32).to(DType::BF16).to_vector(), (std::vector<double>{0, -1, 3, 200}));
  EXPECT_EQ(x.slice(0, 2, 4).to(DType::U8).to_vector(), (std::vector<double>{3, 200}));
  EXPECT_EQ(x.to(DType::F64).storage(), x.storage());  // this when already so
}

TEST(Bf16, RoundsToNearestEvenAndKeepsNan) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_float(to_bf16(1.0f + 0x1p-8f)), 1.0f);              // tie to even
  EXPECT_EQ(to_float(to_bf16(1.0f + 0x1.8p-7f)), 1.0f + 0x1p-6f);  // tie to even, upwards
  EXPECT_EQ(to_float(to_bf16(1.0f + 0x1.01p-8f)), 1.0f + 0x1p-7f);
  EXPECT_EQ(to_float(to_bf16(3.4e38f)), INFINITY);
  EXPECT_EQ(to_float(to_bf16(-INFINITY)), -INFINITY);
  for (std::uint32_t bits : {0x7fc00000u, 0x7f800001u, 0xffffffffu, 0x7fffffffu}) {
    float nan;
    std::memcpy(&nan, &bits, 4);
    EXPECT_TRUE(std::isnan(to_float(to_bf16(nan))));
  }
}

TEST(Tensor, ErrorsSayWhatWasGot) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_EQ(error_of([&] { (void)x.view({4}); }), "[reshape] got [4] for [2, 3], expected the same number of elements");
  EXPECT_EQ(error_of([&] { (void)x.slice(1, 2, 4); }), "[slice] got [2, 4) on axis 1 of [2, 3]");
  EXPECT_EQ(error_of([&] { (void)x.transpose(0, 2); }), "axis 2 is out of range for shape [2, 3]");
  EXPECT_EQ(error_of([&] { (void)x.item(); }), "item() needs one element, got shape [2, 3]");
  EXPECT_EQ(error_of([&] { (void)x.ptr<double>(); }), "tensor holds f32, read as f64");
  EXPECT_EQ(error_of([&] { Tensor::from<float>({1, 2}, {3}); }), "got 2 values for shape [3], expected 3");
  EXPECT_EQ(error_of([&] { Tensor(x).copy_from(Tensor::zeros({3})); }), "[copy] got [3], expected [2, 3]");
  EXPECT_EQ(error_of([&] { Shape s{1, 1, 1, 1, 1, 1, 1, 1, 1}; }), "a shape has at most 8 dimensions");
  EXPECT_EQ(error_of([&] { Shape s{-1}; }), "a dimension cannot be negative: got -1");
}

}  // namespace
}  // namespace tapeformer
