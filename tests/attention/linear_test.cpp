// The variants in another order of the products: identities, statistics of random features, numbers of any size, cost.
#include <gtest/gtest.h>

#include <cmath>

#include "attention/random_features.h"
#include "autograd/ops.h"
#include "core/counters.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

double largest(const Tensor& t) {
  double most = 0;
  for (double x : t.to_vector()) most = std::isnan(x) ? INFINITY : std::max(most, std::abs(x));
  return most;
}

TEST(LinearIdentities, EfficientEndsWhereTheWholeIs) {
  const DTypeScope f64(DType::F64);
  const Sizes s{.B = 2, .N = 150};
  const Case all{.type = "efficient_attention", .config = "{}"}, causal{.type = "efficient_attention", .config = "{}", .causal = true};
  const auto a = build(all, spec_of(all, s)), b = build(causal, spec_of(causal, s));
  const AttentionInput in = random_input(*a, s, DType::F64);
  EXPECT_LE(difference(a->attend(in, {}).slice(2, s.N - 1, s.N), b->attend(in, {}).slice(2, s.N - 1, s.N)), 1e-14);
  AttentionInput ones = in;
  ones.v = Tensor::full(in.v.shape(), 1, DType::F64);
  for (const auto* core : {a.get(), b.get()}) EXPECT_LE(difference(core->attend(ones, {}), ones.v), 1e-14) << "weights add up to 1";
}

// Keys k_j = c[ids_j]: the output and the gradients of q and v are those of softmax attention.
TEST(LinearIdentities, CodebookIsSoftmax) {
  const DTypeScope f64(DType::F64);
  for (bool causal : {false, true})
    for (i64 codes : {5, 90}) {  // 90: more codes than positions
      SCOPED_TRACE(testing::Message() << codes << " codes, causal " << causal);
      const Sizes s{.B = 4, .N = 80};
      const Case c{.type = "codebook_attention", .config = fmt::format("{{codes: {}}}", codes), .causal = causal},
          full{.type = "full", .config = "{}", .causal = causal};
      const auto one = build(c, spec_of(c, s)), two = build(full, spec_of(full, s));
      AttentionInput in = random_input(*one, s, DType::F64);
      in.mask = mixed_mask(s.B, s.N);
      in.q = ops::scale(in.q, 10);
      Tensor ids = in.side["token_ids"].clone();
      for (i64 i = 0; codes > s.N && i < ids.numel(); ++i) ids.mut_ptr<i64>()[i] = (i * 7) % codes;  // distinct within a sample
      in.side["ids"] = ids;
      const Tensor book = one->parameters()[0]->value;
      AttentionInput keyed = in;
      keyed.k = ops::permute(ops::reshape(ops::gather(book, 1, ids.view({s.B * s.N})), {s.H, s.B, s.N, s.d}), {1, 0, 2, 3});
      const Result x = run(*one, in), y = run(*two, keyed);
      EXPECT_LE(difference(x.o, y.o), 1e-13);
      for (const char* name : {"q", "v"}) EXPECT_LE(difference(x.grads.at(name), y.grads.at(name)), 1e-12) << name;
      Tensor junk = overwrite(ids.view({s.B, s.N, 1}).to(DType::F64), in.mask, false, -7).to(DType::I64).view({s.B, s.N});
      in.side["ids"] = junk;
      EXPECT_TRUE(same_bits(run(*one, in).o, x.o)) << "an id of padding is looked at";
    }
}

TEST(LinearIdentities, CodebookRefusesWhatIsNoCode) {
  const Sizes s{.B = 2, .N = 4};
  const Case c{.type = "codebook_attention", .config = "{codes: 3}"};
  const auto core = build(c, spec_of(c, s));
  AttentionInput in = random_input(*core, s, DType::F32);
  const auto says = [&](i64 id) {
    Tensor ids = Tensor::full({s.B, s.N}, 0, DType::I64);
    ids.mut_ptr<i64>()[6] = id;
    in.side["ids"] = ids;
    return message_of([&] { core->attend(in, {}); });
  };
  EXPECT_EQ(says(2), "");
  EXPECT_EQ(says(3), "[codebook_attention] sample 1, position 2: got id 3, expected 0 to 2 (codes: 3)");
  EXPECT_EQ(says(-1), "[codebook_attention] sample 1, position 2: got id -1, expected 0 to 2 (codes: 3)");
  in.side["ids"] = Tensor::full({s.B, 3}, 0, DType::I64);
  EXPECT_EQ(message_of([&] { core->attend(in, {}); }), "[codebook_attention] ids is i64 [2, 3], expected i64 [2, 4]");
  in.side.clear();
  EXPECT_EQ(message_of([&] { core->attend(in, {}); }),
            "[codebook_attention] needs the side input 'ids' or 'token_ids', which this batch does not have");
}

// The error against softmax attention falls as the remainder of the series does.
TEST(LinearIdentities, TaylorComesNearSoftmax) {
  const DTypeScope f64(DType::F64);
  const Sizes s{.B = 2, .N = 40, .H = 2, .d = 3};
  double before = INFINITY;
  for (const auto& [degree, most] : {std::pair{2, 2.0}, std::pair{8, 5e-2}, std::pair{20, 1e-8}})
    for (bool causal : {true, false}) {
      const Case c{.type = "taylor_attention", .config = fmt::format("{{degree: {}}}", degree), .causal = causal};
      const auto core = build(c, spec_of(c, s));
      AttentionInput in = random_input(*core, s, DType::F64);
      in.q = ops::scale(in.q, 0.6);  // logits within 3
      std::map<std::string, Tensor> extra;
      in.extra = &extra;
      const Tensor o = core->attend(in, {});
      const double error = difference(o, extra.at("softmax"));
      EXPECT_LE(error, most) << "degree " << degree;
      if (causal) continue;
      EXPECT_LT(error, before / 10);
      before = error;
    }
}

// Left to right with N x N weights, and right to left.
TEST(LinearIdentities, TheOrderOfTheProductsChangesNothing) {
  const DTypeScope f64(DType::F64);
  const i64 N = 90, d = 4, H = 2, B = 2;
  const auto features = [&](std::uint64_t seed) { return ops::elu1(random_tensor({B, H, N, d}, DType::F64, seed)); };
  const Tensor q = features(1), k = features(2), v = random_tensor({B, H, N, d}, DType::F64, 3);
  const auto flops = [] { return static_cast<double>(counters::now().matmul_flops); };
  const double start = flops();
  const Tensor weights = ops::matmul(q, ops::transpose(k, 2, 3)), left = ops::matmul(weights, v);
  const double middle = flops();
  const Tensor right = ops::linear_attention(q, k, v, {.normalize = false});
  EXPECT_LE(difference(left, right), 1e-12);
  const double heads = static_cast<double>(B * H);
  EXPECT_EQ(middle - start, heads * 2.0 * N * N * (d + d));
  EXPECT_EQ(flops() - middle, heads * 2.0 * 2.0 * N * d * d);
  const Tensor normalised = ops::div(left, ops::sum(weights, {3}, true));
  EXPECT_LE(difference(ops::linear_attention(q, k, v, {.eps = 0}), normalised), 1e-12);
}

// ---- numbers of any size

void expect_double(const Case& c, const Sizes& s, double size, double tolerance) {
  SCOPED_TRACE(testing::Message() << c << ", size " << size);
  const auto single = build(c, spec_of(c, s));
  std::unique_ptr<AttentionCore> wide;
  {
    const DTypeScope f64(DType::F64);
    wide = build(c, spec_of(c, s));
  }
  copy_parameters(*single, *wide);
  AttentionInput a = random_input(*single, s, DType::F32), b = random_input(*wide, s, DType::F64);
  a.mask = b.mask = mixed_mask(s.B, s.N);
  for (AttentionInput* in : {&a, &b}) {
    in->q = ops::scale(in->q, size);
    if (in->k.defined()) in->k = ops::scale(in->k, size);
  }
  const Result x = run(*single, a), y = run(*wide, b);
  EXPECT_LE(difference(x.o, y.o), tolerance);
  for (const auto& [name, g] : y.grads) EXPECT_LE(difference(x.grads.at(name), g), tolerance * std::max(1.0, largest(g))) << name;
}

TEST(LinearNumerics, ExponentsOfAnySize) {
  const Sizes s{.B = 4, .N = 90};
  for (bool causal : {false, true}) {
    for (double size : {30.0, 1e4}) expect_double({.type = "efficient_attention", .config = "{}", .causal = causal}, s, size, 1e-3);
    expect_double({.type = "performer", .config = "{features: 12}", .causal = causal}, s, 8, 1e-2);
    expect_double({.type = "codebook_attention", .config = "{codes: 6}", .causal = causal}, s, 100, 1e-3);
  }
}

// Every key is larger than all before it, by more than a chunk may rise.
TEST(LinearNumerics, KeysThatAlwaysRise) {
  const DTypeScope f64(DType::F64);
  const Sizes s{.B = 1, .N = 200, .H = 1, .d = 2};
  for (DType t : {DType::F64, DType::F32})
    for (const char* type : {"efficient_attention", "performer"}) {
      const Case c{.type = type, .config = type[0] == 'p' ? "{features: 4}" : "{}", .causal = true};
      const DTypeScope scope(t);
      const auto core = build(c, spec_of(c, s));
      AttentionInput in = random_input(*core, s, t);
      for (i64 i = 0; i < s.N; ++i)
        in.k.slice(2, i, i + 1).fill(type[0] == 'p' ? 0.5 * static_cast<double>(i) : 100.0 * static_cast<double>(i));
      const Result r = run(*core, in);
      EXPECT_LT(largest(r.o), 10) << type;
      for (const auto& [name, g] : r.grads) EXPECT_LT(largest(g), 1e6) << type << " " << name;
      if (type[0] == 'e') EXPECT_LE(difference(r.o, in.v), 1e-6) << "each key outweighs all before it";
    }
}

// ---- random features

struct Estimate {
  double mean, error;  // standard error of the mean
};
// Over draws of W [1, m, d] of f(W).
template <class F>
Estimate over_draws(int draws, const RandomFeatures::Draw& draw, F&& f) {
  double sum = 0, square = 0;
  for (int n = 0; n < draws; ++n) {
    const double x = f(draw(RngKey(77).fold_in(static_cast<std::uint64_t>(n))));
    sum += x;
    square += x * x;
  }
  const double mean = sum / draws;
  return {mean, std::sqrt((square / draws - mean * mean) / draws)};
}

TEST(RandomFeatures, OrthogonalRowsAreOrthogonalAndUniform) {
  const DTypeScope f64(DType::F64);
  const i64 d = 5, m = 13;
  for (bool chi : {true, false}) {
    const Tensor W = orthogonal_rows(2, m, d, chi, RngKey(3));
    const Tensor products = ops::matmul(W, ops::transpose(W, 1, 2));
    const std::vector<double> p = products.to_vector();
    for (i64 g = 0; g < 2; ++g)
      for (i64 i = 0; i < m; ++i)
        for (i64 j = 0; j < m; ++j) {
          const double x = p[static_cast<std::size_t>((g * m + i) * m + j)];
          if (i != j && i / d == j / d) EXPECT_LE(std::abs(x), 1e-12) << i << " " << j;
          if (i == j && !chi) EXPECT_NEAR(x, static_cast<double>(d), 1e-12);
        }
    EXPECT_GT(difference(W.slice(0, 0, 1), W.slice(0, 1, 2)), 0.1) << "heads share their rows";
  }
  const auto draw = [&](RngKey k) { return orthogonal_rows(1, d, d, true, k); };
  const auto near = [](const Estimate& e, double want) { EXPECT_LE(std::abs(e.mean - want), 3 * e.error) << e.mean << " for " << want; };
  near(over_draws(4000, draw, [&](const Tensor& W) { return ops::sum(ops::mul(W, W)).item() / d; }), static_cast<double>(d));
  // Uniform directions: every entry of every row has mean 0 and variance 1.
  for (i64 at : {i64{0}, d * d / 2, d * d - 1}) {
    near(over_draws(4000, draw, [&](const Tensor& W) { return W.data<double>()[static_cast<std::size_t>(at)]; }), 0);
    near(over_draws(4000, draw, [&](const Tensor& W) { return std::pow(W.data<double>()[static_cast<std::size_t>(at)], 2); }), 1);
  }
}

TEST(RandomFeatures, EstimatesHaveTheKernelAsTheirMean) {
  const DTypeScope f64(DType::F64);
  const i64 d = 4, m = 6;
  const Tensor q = ops::scale(random_tensor({1, d}, DType::F64, 1), 0.7), k = ops::scale(random_tensor({1, d}, DType::F64, 2), 0.7);
  const double scale = 1 / std::sqrt(static_cast<double>(d)), root = std::sqrt(scale);
  const double dot = ops::sum(ops::mul(q, k)).item(), qq = ops::sum(ops::mul(q, q)).item(), kk = ops::sum(ops::mul(k, k)).item();
  for (bool ortho : {true, false}) {
    const auto draw = [&](RngKey key) { return ortho ? orthogonal_rows(1, m, d, true, key) : gaussian_rows({1, m, d}, key); };
    const auto sums = [&](const Tensor& W, double sign) {  // mean over rows of exp(w.(q' + k')), the features' product
      return std::exp(-(qq + kk) * scale / 2) *
             ops::mean(ops::exp(ops::scale(ops::matmul(W, ops::transpose(ops::add(q, k), 0, 1)), sign * root))).item();
    };
    const double want = std::exp(scale * dot);
    const Estimate softmax = over_draws(4000, draw, [&](const Tensor& W) { return sums(W, 1); });
    EXPECT_LE(std::abs(softmax.mean - want), 3 * softmax.error) << softmax.mean << " for " << want;
    const Estimate hyp = over_draws(4000, draw, [&](const Tensor& W) { return (sums(W, 1) + sums(W, -1)) / 2; });
    EXPECT_LE(std::abs(hyp.mean - want), 3 * hyp.error) << hyp.mean << " for " << want;
    EXPECT_LT(hyp.error, softmax.error);
  }
  const double tau = 0.8;
  const Tensor uq = ops::scale(q, 1 / std::sqrt(qq)), uk = ops::scale(k, 1 / std::sqrt(kk)), gap = ops::sub(uq, uk);
  const Estimate gaussian = over_draws(
      4000,
      [&](RngKey key) {
        return gaussian_rows({1, m, d}, key);
      },
      [&](const Tensor& W) { return ops::mean(ops::cos(ops::scale(ops::matmul(W, ops::transpose(gap, 0, 1)), 1 / tau))).item(); });
  const double want = std::exp(-ops::sum(ops::mul(gap, gap)).item() / (2 * tau * tau));
  EXPECT_LE(std::abs(gaussian.mean - want), 3 * gaussian.error) << gaussian.mean << " for " << want;
}

// With many features the layer comes near softmax attention of short vectors.
TEST(RandomFeatures, PerformerComesNearSoftmax) {
  const Sizes s{.B = 1, .N = 30};
  const Case many{.type = "performer", .config = "{features: 8192}"}, full{.type = "full", .config = "{}"};
  const auto a = build(many, spec_of(many, s)), b = build(full, spec_of(full, s));
  AttentionInput in = random_input(*a, s, DType::F32);
  in.q = ops::scale(in.q, 0.5);
  in.k = ops::scale(in.k, 0.5);
  EXPECT_LE(difference(a->attend(in, {}), b->attend(in, {})), 0.05);
}

Tensor at_step(const AttentionCore& core, const AttentionInput& in, i64 step, StepEffects* effects, bool training = true) {
  return core.attend(in, {.training = training, .key = RngKey(9), .step = step, .effects = effects});
}

TEST(RandomFeatures, AreDrawnByTheStepAlone) {
  for (const char* type : {"performer", "rfa"}) {
    SCOPED_TRACE(type);
    const Sizes s{.B = 2, .N = 9};
    const Case c{.type = type, .config = "{features: 5, redraw_every: 3}"};
    const auto a = build(c, spec_of(c, s), 1), b = build(c, spec_of(c, s), 1), other = build(c, spec_of(c, s), 2);
    const AttentionInput in = random_input(*a, s, DType::F32);
    std::vector<Tensor> seen;
    for (i64 step = 0; step < 8; ++step) {
      StepEffects effects;
      const Tensor calm = a->attend(in, {}), y = at_step(*a, in, step, &effects);
      EXPECT_TRUE(same_bits(y, at_step(*a, in, step, &effects))) << "a second call of the step draws anew";
      EXPECT_TRUE(same_bits(y, at_step(*a, in, step, nullptr))) << "a block that is computed again sees other features";
      EXPECT_TRUE(same_bits(calm, a->attend(in, {}))) << "evaluation changed before the step's end";
      effects.commit();
      EXPECT_TRUE(same_bits(y, a->attend(in, {}))) << "evaluation does not use the last step's features";
      EXPECT_TRUE(same_bits(y, at_step(*a, in, step + 1000, nullptr, false))) << "drawn anew in evaluation";
      seen.push_back(y);
      if (step > 0) EXPECT_EQ(difference(seen[static_cast<std::size_t>(step - 1)], y) > 0, step % 3 == 0) << step;
      if (step != 4) continue;
      copy_parameters(*a, *other);  // a checkpoint, loaded into a layer that was built with another key
    }
    for (i64 step = 5; step < 8; ++step) {
      StepEffects effects;
      EXPECT_TRUE(same_bits(at_step(*other, in, step, &effects), seen[static_cast<std::size_t>(step)])) << "continued at " << step;
      effects.commit();
    }
    StepEffects effects;
    EXPECT_TRUE(same_bits(at_step(*b, in, 7, &effects), seen[7])) << "the steps before change the draw";
  }
}

// ---- cost

double flops_of(const std::function<void()>& f) {
  const double before = static_cast<double>(counters::now().matmul_flops);
  f();
  return static_cast<double>(counters::now().matmul_flops) - before;
}

TEST(LinearCost, FlopsAreThoseOfTheFormula) {
  const double B = 2, H = 4, N = 1024, d = 16, m = 64, C = 64;
  const Sizes s{.B = 2, .N = 1024, .H = 4, .d = 16};
  const auto expect = [&](const char* type, const char* config, bool causal, double forward, double both) {
    SCOPED_TRACE(testing::Message() << type << (causal ? " causal" : ""));
    const Case c{.type = type, .config = config, .causal = causal};
    const auto core = build(c, spec_of(c, s));
    const AttentionInput in = random_input(*core, s, DType::F32);
    const Tensor upstream = random_tensor(in.v.shape(), DType::F32, 4);
    const double once = flops_of([&] { core->attend(in, {}); }), all = flops_of([&] { run(*core, in, {}, upstream); });
    EXPECT_NEAR(once / (B * H * N * forward), 1, 0.05);
    EXPECT_NEAR(all / (B * H * N * both), 1, 0.05);
  };
  // A row's products: two with states of f x d; in chunks also two of C x f or C x d.
  const auto scan = [&](double f, bool causal) { return 2 * (2 * f * d + (causal ? C * (f + d) : 0)); };
  // Backward: R, with causality S again, three gradients from them; in chunks the pairs' weights, their gradients twice, three gradients.
  const auto back = [&](double f, bool causal) { return 2 * ((causal ? 5 : 4) * f * d + (causal ? C * (3 * f + 3 * d) : 0)); };
  for (bool causal : {false, true}) {
    expect("linear_transformer", "{}", causal, scan(d, causal), scan(d, causal) + back(d, causal));
    expect("efficient_attention", "{}", causal, scan(d, causal), scan(d, causal) + back(d, causal));
    expect("performer", "{features: 64}", causal, scan(m, causal) + 4 * m * d, scan(m, causal) + back(m, causal) + 8 * m * d);
    expect("rfa", "{features: 32, learned_sigma: false}", causal, scan(m, causal) + 2 * m * d,
           scan(m, causal) + back(m, causal) + 4 * m * d);
  }
}

}  // namespace
}  // namespace tapeformer::suite
