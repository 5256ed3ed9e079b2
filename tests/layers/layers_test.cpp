// Layers against plain loops: pooling, positions, convolution, norms, feed-forward; and how modules name what they own.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "autograd/gradcheck.h"
#include "autograd/ops.h"
#include "core/error.h"
#include "layers/conv1d.h"
#include "layers/embedding.h"
#include "layers/feed_forward.h"
#include "layers/norm.h"
#include "layers/pooling.h"

namespace tapeformer {
namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

Tensor random_tensor(Shape shape, std::uint64_t seed, DType t = DType::F64) {
  Tensor x = Tensor::empty(shape, t);
  fill_normal(x, RngKey(seed), 0, 1);
  return x;
}

double difference(const Tensor& a, const Tensor& b) {
  if (a.shape() != b.shape()) return INFINITY;
  const std::vector<double> x = a.to_vector(), y = b.to_vector();
  double worst = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double e = std::abs(x[i] - y[i]);
    if (!(e <= worst)) worst = std::isnan(e) ? INFINITY : e;
  }
  return worst;
}

std::string message_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// 0: padding on both sides; 1: holes; 2: nothing real; 3: all real.
Tensor mask_of(i64 N) {
  Tensor m = Tensor::zeros({4, N}, DType::U8);
  std::uint8_t* p = m.mut_ptr<std::uint8_t>();
  for (i64 n = 0; n < N; ++n) {
    p[n] = n >= 2 && n < N - 1;
    p[N + n] = n % 2 == 1;
    p[3 * N + n] = 1;
  }
  return m;
}
bool on(const Tensor& mask, i64 b, i64 n) { return mask.data<std::uint8_t>()[static_cast<std::size_t>(b * mask.dim(1) + n)] != 0; }

Tensor with_junk(const Tensor& x, const Tensor& mask, double junk) {
  Tensor out = x.clone();
  for (i64 b = 0; b < x.dim(0); ++b)
    for (i64 n = 0; n < x.dim(1); ++n)
      if (!on(mask, b, n)) out.slice(0, b, b + 1).slice(1, n, n + 1).fill(junk);
  return out;
}

struct Pooled {
  Tensor y, dx;
};
Pooled pool(const Pooling& layer, const Tensor& x, const Tensor& mask) {
  Tape tape({.leaves = Tape::Leaves::Capture});
  const Tensor in = tape.watch(x), y = layer.forward(in, mask);
  tape.backward(y, random_tensor(y.shape(), 9));
  return {y.detach(), tape.grad(in)};
}

double expected_pool(const std::string& kind, const Tensor& x, const Tensor& mask, i64 b, i64 c) {
  const i64 N = x.dim(1), D = x.dim(2);
  const std::vector<double> v = x.to_vector();
  double sum = 0, most = -INFINITY, first = kNaN, last = kNaN, count = 0;
  for (i64 n = 0; n < N; ++n) {
    if (!on(mask, b, n)) continue;
    const double value = v[static_cast<std::size_t>((b * N + n) * D + c)];
    sum += value;
    most = std::max(most, value);
    if (count++ == 0) first = value;
    last = value;
  }
  if (count == 0) return 0;
  return kind == "mean" ? sum / count : kind == "max" ? most : kind == "cls" ? first : last;
}

TEST(PoolingLayer, MatchesLoops) {
  const DTypeScope f64(DType::F64);
  const Tensor mask = mask_of(7), x = random_tensor({4, 7, 5}, 1);
  for (const std::string& kind : pooling_names()) {
    if (kind == "attention") continue;
    const Pooling layer(kind, 5, RngKey(1));
    const Tensor y = layer.forward(x, mask);
    ASSERT_EQ(y.shape(), (Shape{4, 5}));
    for (i64 b = 0; b < 4; ++b)
      for (i64 c = 0; c < 5; ++c)
        EXPECT_NEAR(y.to_vector()[static_cast<std::size_t>(b * 5 + c)], expected_pool(kind, x, mask, b, c), 1e-12)
            << kind << " sample " << b;
  }
}

TEST(PoolingLayer, AttentionIsASoftmaxOverRealRows) {
  const DTypeScope f64(DType::F64);
  Pooling layer("attention", 3, RngKey(1));
  const Tensor mask = mask_of(6), x = random_tensor({4, 6, 3}, 2);
  std::map<std::string, std::vector<double>> p;
  for (Parameter* q : layer.parameters()) p[q->name] = q->value.to_vector();
  const std::vector<double> v = x.to_vector(), y = layer.forward(x, mask).to_vector();
  for (i64 b = 0; b < 4; ++b) {
    std::vector<double> sum(3, 0.0);
    double total = 0;
    for (i64 n = 0; n < 6; ++n) {
      if (!on(mask, b, n)) continue;
      const double* row = v.data() + (b * 6 + n) * 3;
      double score = 0;
      for (int j = 0; j < 3; ++j) {
        double h = p.at("hidden.bias")[static_cast<std::size_t>(j)];
        for (int i = 0; i < 3; ++i) h += row[i] * p.at("hidden.weight")[static_cast<std::size_t>(i * 3 + j)];
        score += std::tanh(h) * p.at("score.weight")[static_cast<std::size_t>(j)];
      }
      total += std::exp(score);
      for (int j = 0; j < 3; ++j) sum[static_cast<std::size_t>(j)] += std::exp(score) * row[j];
    }
    for (int j = 0; j < 3; ++j)
      EXPECT_NEAR(y[static_cast<std::size_t>(b * 3 + j)], total > 0 ? sum[static_cast<std::size_t>(j)] / total : 0, 1e-12)
          << "sample " << b;
  }
}

TEST(PoolingLayer, PaddingIsInvisibleAndGradientsAreDerivatives) {
  const DTypeScope f64(DType::F64);
  const Tensor mask = mask_of(7), x = random_tensor({4, 7, 4}, 1);
  for (const std::string& kind : pooling_names()) {
    Pooling layer(kind, 4, RngKey(1));
    EXPECT_EQ(gradcheck([&](const std::vector<Tensor>& in) { return layer.forward(in[0], mask); }, {x.clone()}, layer.parameters()), "")
        << kind;
    const Pooled clean = pool(layer, x, mask);
    for (double junk : {1e6, kNaN}) {
      const Pooled dirty = pool(layer, with_junk(x, mask, junk), mask);
      EXPECT_EQ(difference(clean.y, dirty.y), 0) << kind << " with " << junk;
      EXPECT_EQ(difference(clean.dx, dirty.dx), 0) << kind << " with " << junk;
      EXPECT_EQ(difference(dirty.dx, with_junk(dirty.dx, mask, 0)), 0) << kind << ": padding gets a gradient";
    }
  }
}

TEST(PoolingLayer, NamesTheKindsItKnows) {
  EXPECT_EQ(message_of([] { Pooling("mxa", 4, RngKey(1)); }),
            "pooling: got 'mxa', expected one of: mean, max, cls, last, attention" + did_you_mean("mxa", pooling_names()));
}

double dot_rows(const Tensor& x, i64 n, const Tensor& y, i64 m) {
  const i64 d = x.dim(3);
  double s = 0;
  for (i64 c = 0; c < d; ++c) s += x.to_vector()[static_cast<std::size_t>(n * d + c)] * y.to_vector()[static_cast<std::size_t>(m * d + c)];
  return s;
}

TEST(RotaryPositions, KeepLengthsAndSeeDistancesOnly) {
  const i64 N = 9, d = 6;
  const Tensor q = random_tensor({1, 1, 1, d}, 1).expand({1, 1, N, d}).clone(),
               k = random_tensor({1, 1, 1, d}, 2).expand({1, 1, N, d}).clone();
  const Tensor a = rotary(q), b = rotary(k);
  EXPECT_EQ(difference(a.slice(2, 0, 1), q.slice(2, 0, 1)), 0) << "position 0 is not turned";
  for (i64 n = 0; n < N; ++n) EXPECT_NEAR(dot_rows(a, n, a, n), dot_rows(q, n, q, n), 1e-12);
  for (i64 n = 0; n + 3 < N; ++n) EXPECT_NEAR(dot_rows(a, n, b, n + 3), dot_rows(a, 0, b, 3), 1e-12);
  EXPECT_GT(std::abs(dot_rows(a, 0, b, 3) - dot_rows(a, 3, b, 0)), 1e-3) << "the direction counts";
  EXPECT_NEAR(a.to_vector()[static_cast<std::size_t>(2 * d)], q.to_vector()[0] * std::cos(2.0) - q.to_vector()[3] * std::sin(2.0), 1e-12);
  EXPECT_EQ(gradcheck([](const std::vector<Tensor>& in) { return rotary(in[0]); }, {random_tensor({2, 2, 3, 4}, 3)}), "");
  EXPECT_EQ(message_of([] { rotary(random_tensor({1, 1, 2, 3}, 1)); }), "[rotary] needs an even head size, got 3");
}

TEST(FixedPositions, AreSinesAndCosines) {
  const DTypeScope f64(DType::F64);
  Positions layer(Positions::Kind::Sinusoidal, 20, 5, RngKey(1));
  EXPECT_TRUE(layer.parameters().empty());
  const std::vector<double> y = layer.forward(Tensor::zeros({2, 12, 5}, DType::F64)).to_vector();
  for (i64 b = 0; b < 2; ++b)
    for (i64 n = 0; n < 12; ++n)
      for (i64 i = 0; i < 5; ++i) {
        const double angle = static_cast<double>(n) / std::pow(10000.0, static_cast<double>(i - i % 2) / 5);
        EXPECT_NEAR(y[static_cast<std::size_t>((b * 12 + n) * 5 + i)], i % 2 ? std::cos(angle) : std::sin(angle), 1e-12);
      }
  EXPECT_EQ(message_of([&] {
              layer.forward(Tensor::zeros({1, 21, 5}, DType::F64));
            }),
            "[positions] the input has 21 positions, the model accepts at most 20");
}

TEST(LearnedPositions, AreRowsOfTheTable) {
  const DTypeScope f64(DType::F64);
  Positions layer(Positions::Kind::Learned, 8, 3, RngKey(1));
  ASSERT_EQ(layer.parameters().size(), 1u);
  const Tensor x = random_tensor({2, 5, 3}, 1), y = layer.forward(x);
  EXPECT_LE(difference(ops::sub(y, x).slice(0, 1, 2).view({5, 3}), layer.parameters()[0]->value.slice(0, 0, 5)), 1e-15);
  EXPECT_EQ(gradcheck([&](const std::vector<Tensor>& in) { return layer.forward(in[0]); }, {x.clone()}, layer.parameters()), "");
}

struct ConvCase {
  Conv1dOptions o;
  i64 N;
};

// Taps outside the sequence and on padded rows read 0.
double conv_value(const ConvCase& c, const std::vector<double>& x, const Tensor& mask, const std::vector<double>& w, i64 b, i64 n, i64 o,
                  i64 Ci, i64 Co) {
  const i64 reach = c.o.dilation * (c.o.kernel - 1), before = c.o.causal ? reach : reach / 2, share = Ci / c.o.groups;
  double sum = 0;
  for (i64 t = 0; t < c.o.kernel; ++t) {
    const i64 at = n * c.o.stride - before + t * c.o.dilation;
    if (at < 0 || at >= c.N || !on(mask, b, at)) continue;
    for (i64 i = 0; i < share; ++i)
      sum += x[static_cast<std::size_t>((b * c.N + at) * Ci + o / (Co / c.o.groups) * share + i)] *
             w[static_cast<std::size_t>((o * share + i) * c.o.kernel + t)];
  }
  return sum;
}

TEST(Conv1dLayer, MatchesLoopsAndKeepsPaddingZero) {
  const DTypeScope f64(DType::F64);
  const ConvCase cases[] = {{{.kernel = 3}, 7},
                            {{.kernel = 4}, 7},
                            {{.kernel = 3, .stride = 2}, 7},
                            {{.kernel = 5, .stride = 3}, 8},
                            {{.kernel = 3, .dilation = 2}, 9},
                            {{.kernel = 3, .dilation = 2, .causal = true}, 9},
                            {{.kernel = 2, .groups = 2}, 6},
                            {{.kernel = 1}, 1 + 4}};
  for (const ConvCase& c : cases) {
    SCOPED_TRACE(testing::Message() << "kernel " << c.o.kernel << " stride " << c.o.stride << " N " << c.N);
    Conv1d layer(4, 6, c.o, RngKey(1));
    layer.parameters()[1]->value.copy_from(random_tensor({6}, 4));
    const Tensor mask = mask_of(c.N), x = random_tensor({4, c.N, 4}, 2), short_mask = layer.strided_mask(mask);
    const Tensor y = layer.forward(with_junk(x, mask, kNaN), mask);
    const i64 n_out = (c.N + c.o.stride - 1) / c.o.stride;
    ASSERT_EQ(y.shape(), (Shape{4, n_out, 6}));
    ASSERT_EQ(short_mask.shape(), (Shape{4, n_out}));
    const std::vector<double> got = y.to_vector(), w = layer.parameters()[0]->value.to_vector(),
                              bias = layer.parameters()[1]->value.to_vector();
    for (i64 b = 0; b < 4; ++b)
      for (i64 n = 0; n < n_out; ++n) {
        EXPECT_EQ(on(short_mask, b, n), on(mask, b, n * c.o.stride));
        for (i64 o = 0; o < 6; ++o) {
          const double want =
              on(short_mask, b, n) ? bias[static_cast<std::size_t>(o)] + conv_value(c, x.to_vector(), mask, w, b, n, o, 4, 6) : 0;
          EXPECT_NEAR(got[static_cast<std::size_t>((b * n_out + n) * 6 + o)], want, 1e-12);
        }
      }
    EXPECT_EQ(gradcheck([&](const std::vector<Tensor>& in) { return layer.forward(in[0], mask); }, {x.clone()}, layer.parameters()), "");
  }
}

TEST(NormLayer, NormalisesRows) {
  const DTypeScope f64(DType::F64);
  const Tensor x = random_tensor({3, 2, 8}, 5);
  for (const char* kind : {"layer_norm", "rms_norm"}) {
    Norm layer(kind, 8, 0, RngKey(1));
    const std::vector<double> y = layer.forward(x).to_vector();
    for (int r = 0; r < 6; ++r) {
      double sum = 0, square = 0;
      for (int i = 0; i < 8; ++i) {
        sum += y[static_cast<std::size_t>(r * 8 + i)];
        square += y[static_cast<std::size_t>(r * 8 + i)] * y[static_cast<std::size_t>(r * 8 + i)];
      }
      EXPECT_NEAR(square, 8, 1e-10) << kind;
      if (std::string(kind) == "layer_norm") {
        EXPECT_NEAR(sum, 0, 1e-12);
      }
    }
    for (const Parameter* p : layer.parameters()) EXPECT_FALSE(p->decay) << p->name;
  }
  EXPECT_EQ(message_of([] { Norm("batch", 4, 1e-5, RngKey(1)); }), "norm: got 'batch', expected one of: layer_norm, rms_norm");
}

TEST(FeedForwardLayer, GradientsAreDerivatives) {
  const DTypeScope f64(DType::F64);
  std::vector<std::string> names = activation_names();
  names.push_back("swiglu");
  for (const std::string& name : names) {
    FeedForward layer(4, 5, name, 0.3, RngKey(1));
    for (bool training : {false, true})
      EXPECT_EQ(gradcheck([&](const std::vector<Tensor>& in) { return layer.forward(in[0], {.training = training, .key = RngKey(2)}); },
                          {random_tensor({2, 3, 4}, 1)}, layer.parameters()),
                "")
          << name;
    EXPECT_EQ(layer.parameters().size(), name == "swiglu" ? 6u : 4u);
  }
  EXPECT_NE(message_of([] { FeedForward(4, 4, "gleu", 0, RngKey(1)); }).find("(did you mean 'gelu'?)"), std::string::npos);
}

// Paths follow the order of declaration; buffers are apart.
struct Leafy : Module {
  Weight first{this, "first", {2}, Init::ones(), RngKey(1)};
  Child<Linear> inner{this, "inner", std::make_unique<Linear>(2, 3, RngKey(1).fold_in("inner"))};
  Buffer fixed{this, "fixed", Tensor::zeros({4})};
  Weight last{this, "last", {1}, Init::zeros(), RngKey(1), false};
};
struct Tree : Module {
  Child<Leafy> left{this, "left", std::make_unique<Leafy>()};
  Child<Leafy> right{this, "blocks.1", std::make_unique<Leafy>()};
};

TEST(Modules, NameWhatTheyOwn) {
  Tree tree;
  std::vector<std::string> parameters, buffers;
  for (const Parameter* p : tree.parameters()) parameters.push_back(p->name);
  for (const auto& b : tree.buffers()) buffers.push_back(b.path);
  EXPECT_EQ(parameters, (std::vector<std::string>{"left.first", "left.inner.weight", "left.inner.bias", "left.last", "blocks.1.first",
                                                  "blocks.1.inner.weight", "blocks.1.inner.bias", "blocks.1.last"}));
  EXPECT_EQ(buffers, (std::vector<std::string>{"left.fixed", "blocks.1.fixed"}));
  EXPECT_EQ(tree.parameters()[0], &tree.left->first.parameter());
  EXPECT_EQ(tree.buffers()[1].tensor, &tree.right->fixed.value());
  EXPECT_TRUE(tree.parameters()[1]->decay);
  EXPECT_FALSE(tree.parameters()[2]->decay) << "biases do not decay";
  EXPECT_FALSE(tree.parameters()[3]->decay);
}

TEST(Modules, StartValuesAreFunctionsOfKeyAndName) {
  Linear a(30, 20, RngKey(1)), b(30, 20, RngKey(1)), c(30, 20, RngKey(2));
  EXPECT_EQ(difference(a.parameters()[0]->value, b.parameters()[0]->value), 0);
  EXPECT_GT(difference(a.parameters()[0]->value, c.parameters()[0]->value), 0.01);
  const double bound = std::sqrt(6.0 / 50);
  double largest = 0;
  for (double v : a.parameters()[0]->value.to_vector()) largest = std::max(largest, std::abs(v));
  EXPECT_LE(largest, bound);
  EXPECT_GT(largest, 0.9 * bound);
  for (double v : a.parameters()[1]->value.to_vector()) EXPECT_EQ(v, 0);
}

TEST(Modules, EffectsAddUpAndAreCommittedOnce) {
  StepEffects effects;
  Tensor buffer = Tensor::zeros({2});
  const auto set = [](Tensor& b, const Tensor& sums, const Tensor& counts) { b.copy_from(ops::div(sums, counts)); };
  effects.propose(&buffer, Tensor::full({2}, 3), Tensor::full({2}, 1), set);
  effects.propose(&buffer, Tensor::full({2}, 5), Tensor::full({2}, 3), set);
  EXPECT_EQ(difference(buffer, Tensor::zeros({2})), 0) << "nothing changes before the step";
  effects.commit();
  EXPECT_EQ(difference(buffer, Tensor::full({2}, 2)), 0);
  buffer.fill(9);
  effects.commit();
  EXPECT_EQ(difference(buffer, Tensor::full({2}, 9)), 0);
  for (double value : {5.0, 6.0}) effects.assign(&buffer, Tensor::full({2}, value));
  EXPECT_EQ(difference(buffer, Tensor::full({2}, 9)), 0);
  effects.commit();
  EXPECT_EQ(difference(buffer, Tensor::full({2}, 6)), 0) << "the last assignment counts";
}

}  // namespace
}  // namespace tapeformer
