#include "optim/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "core/rng.h"

namespace tapeformer {
namespace {

Parameter parameter(const std::string& name, Shape shape, bool decay = true) {
  Parameter p;
  p.name = name;
  p.value = Tensor::empty(shape);
  fill_normal(p.value, RngKey(1).fold_in(name), 0, 1);
  p.decay = decay;
  return p;
}

void set_grad(Parameter& p, int step) {
  p.grad = Tensor::empty(p.value.shape());
  fill_normal(p.grad, RngKey(2).fold_in(p.name).fold_in(static_cast<std::uint64_t>(step)), 0.1, 0.5);
}

ConfigNode config(const std::string& yaml) { return ConfigNode::parse(yaml, "test.yaml"); }

// Runs five steps of an optimizer and of a plain loop in double; `rule(w, g, t)` gives the new weight of one element and keeps its own
// state.
template <class Rule>
void expect_follows(const std::string& yaml, bool decay, Rule make_rule) {
  Parameter p = parameter("w", {7, 5}, decay);
  Parameter* all[] = {&p};
  const auto optimizer = build_optimizer(config(yaml), all);
  std::vector<double> w = p.value.to_vector();
  auto rule = make_rule(w.size());
  for (int t = 1; t <= 5; ++t) {
    set_grad(p, t);
    const std::vector<double> g = p.grad.to_vector();
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = rule(i, w[i], g[i], t);
    optimizer->step(0.1 / t, t);
    const std::vector<double> got = p.value.to_vector();
    for (std::size_t i = 0; i < w.size(); ++i) ASSERT_NEAR(got[i], w[i], 2e-5) << yaml << " step " << t << " element " << i;
  }
}

using V = std::vector<double>;

TEST(Optimizer, SgdFollowsItsFormula) {
  expect_follows("{type: sgd, momentum: 0}", true,
                 [](std::size_t) { return [](std::size_t, double w, double g, int t) { return w - 0.1 / t * g; }; });
  expect_follows("{type: sgd, momentum: 0.9, weight_decay: 0.3}", true, [](std::size_t n) {
    return [m = V(n)](std::size_t i, double w, double g, int t) mutable { return w - 0.1 / t * (m[i] = 0.9 * m[i] + g + 0.3 * w); };
  });
  expect_follows("{type: sgd, momentum: 0.9, nesterov: true, weight_decay: 0.3}", false, [](std::size_t n) {
    return [m = V(n)](std::size_t i, double w, double g, int t) mutable {
      m[i] = 0.9 * m[i] + g;
      return w - 0.1 / t * (g + 0.9 * m[i]);
    };
  });
}

TEST(Optimizer, AdamAndAdamWFollowTheirFormulas) {
  for (const bool decoupled : {false, true})
    for (const bool decay : {false, true})
      expect_follows(
          decoupled ? "{type: adamw, betas: [0.8, 0.95], weight_decay: 0.2}" : "{type: adam, betas: [0.8, 0.95], weight_decay: 0.2}", decay,
          [=](std::size_t n) {
            return [=, m = V(n), v = V(n)](std::size_t i, double w, double g, int t) mutable {
              const double lr = 0.1 / t, wd = decay ? 0.2 : 0.0;
              if (!decoupled) g += wd * w;
              m[i] = 0.8 * m[i] + 0.2 * g;
              v[i] = 0.95 * v[i] + 0.05 * g * g;
              const double step = lr * (m[i] / (1 - std::pow(0.8, t))) / (std::sqrt(v[i] / (1 - std::pow(0.95, t))) + 1e-8);
              return w - step - (decoupled ? lr * wd * w : 0);
            };
          });
}

TEST(Optimizer, FirstAdamWStepByHand) {  // m / (1 - b1) = g and v / (1 - b2) = g^2: a step of lr against the sign
  Parameter p = parameter("w", {2});
  p.value = Tensor::from<float>({1.0f, -2.0f}, {2});
  p.grad = Tensor::from<float>({0.5f, -4.0f}, {2});
  Parameter* all[] = {&p};
  build_optimizer(config("{type: adamw, weight_decay: 0.1}"), all)->step(0.01, 1);
  EXPECT_NEAR(p.value.to_vector()[0], 1 - 0.001 - 0.01, 1e-6);
  EXPECT_NEAR(p.value.to_vector()[1], -2 + 0.002 + 0.01, 1e-6);
}

TEST(Optimizer, LionFollowsItsFormula) {
  expect_follows("{type: lion, weight_decay: 0.2}", true, [](std::size_t n) {
    return [m = V(n)](std::size_t i, double w, double g, int t) mutable {
      const double c = 0.9 * m[i] + 0.1 * g;
      m[i] = 0.99 * m[i] + 0.01 * g;
      return w - 0.1 / t * ((c > 0) - (c < 0) + 0.2 * w);
    };
  });
}

double rms(const V& x) {
  double s = 0;
  for (double v : x) s += v * v;
  return std::sqrt(s / static_cast<double>(x.size()));
}

TEST(Optimizer, AdafactorFollowsItsFormula) {
  const i64 n = 7, k = 5;
  for (const bool matrix : {true, false}) {
    Parameter p = parameter("w", matrix ? Shape{n, k} : Shape{n * k});
    Parameter* all[] = {&p};
    const auto o = build_optimizer(config("{type: adafactor, weight_decay: 0.1}"), all);
    V w = p.value.to_vector(), row(n), column(k), full(n * k), u(n * k);
    for (int t = 1; t <= 4; ++t) {
      set_grad(p, t);
      const V g = p.grad.to_vector();
      const double b = 1 - std::pow(t, -0.8), lr = 0.05;
      V r(n), c(k);
      for (i64 i = 0; i < n; ++i)
        for (i64 j = 0; j < k; ++j) {
          const double q = g[i * k + j] * g[i * k + j] + 1e-30;
          r[i] += q / k;
          c[j] += q / n;
          full[i * k + j] = b * full[i * k + j] + (1 - b) * q;
        }
      double mean = 0;
      for (i64 i = 0; i < n; ++i) mean += (row[i] = b * row[i] + (1 - b) * r[i]) / n;
      for (i64 j = 0; j < k; ++j) column[j] = b * column[j] + (1 - b) * c[j];
      for (i64 i = 0; i < n * k; ++i) u[i] = g[i] / std::sqrt(matrix ? row[i / k] * column[i % k] / mean : full[i]);
      const double scale = lr * std::max(1e-3, rms(w)) / std::max(1.0, rms(u));
      for (i64 i = 0; i < n * k; ++i) w[i] -= scale * u[i] + lr * 0.1 * w[i];
      o->step(lr, t);
      for (i64 i = 0; i < n * k; ++i) ASSERT_NEAR(p.value.to_vector()[i], w[i], 2e-5) << "step " << t;
    }
    i64 slots = 0;
    o->visit_state([&](const std::string&, const std::string&, Tensor& s) { slots += s.numel(); });
    EXPECT_EQ(slots, matrix ? n + k : n * k);
    EXPECT_DOUBLE_EQ(o->rate(0.3, 100), 0.3);
    EXPECT_DOUBLE_EQ(build_optimizer(config("{type: adafactor, relative_step: true}"), all)->rate(0.3, 1000000), 0.001);
  }
}

TEST(Optimizer, FrozenAndGradientlessParametersStay) {
  for (const std::string& type : optimizer_registry().names()) {
    Parameter a = parameter("a", {3}), b = parameter("b", {3}), c = parameter("c", {3});
    b.trainable = false;
    Parameter* all[] = {&a, &b, &c};
    const auto o = build_optimizer(config("{type: " + type + ", weight_decay: 0.1}"), all);
    set_grad(a, 1);
    set_grad(b, 1);
    const V before_a = a.value.to_vector(), before_b = b.value.to_vector(), before_c = c.value.to_vector();
    o->step(0.1, 1);
    EXPECT_NE(a.value.to_vector(), before_a) << type;
    EXPECT_EQ(b.value.to_vector(), before_b) << type;
    EXPECT_EQ(c.value.to_vector(), before_c) << type;
  }
}

TEST(Optimizer, SameBitsForAnyThreadCount) {
  for (const std::string& type : optimizer_registry().names()) {
    V first;
    for (const int threads : {1, 2, 3, 8}) {
      set_thread_count(threads);
      Parameter a = parameter("a", {301, 257}), b = parameter("b", {70001});
      Parameter* all[] = {&a, &b};
      const auto o = build_optimizer(config("{type: " + type + "}"), all);
      for (int t = 1; t <= 2; ++t) {
        set_grad(a, t);
        set_grad(b, t);
        clip_grad_norm(all, 1.0);
        o->step(0.01, t);
      }
      V got = a.value.to_vector();
      const V more = b.value.to_vector();
      got.insert(got.end(), more.begin(), more.end());
      if (first.empty()) first = got;
      EXPECT_TRUE(got == first) << type << " with " << threads << " threads";
    }
  }
  set_thread_count(usable_cores());
}

TEST(ClipGradNorm, ScalesToTheLimitOnly) {
  Parameter a = parameter("a", {2}), b = parameter("b", {1});
  Parameter* all[] = {&a, &b};
  a.grad = Tensor::from<float>({3, 0}, {2});
  b.grad = Tensor::from<float>({4}, {1});
  EXPECT_DOUBLE_EQ(clip_grad_norm(all, 10), 5);
  EXPECT_EQ(a.grad.to_vector(), (V{3, 0}));
  EXPECT_DOUBLE_EQ(clip_grad_norm(all, 1), 5);
  EXPECT_NEAR(grad_norm(all), 1, 1e-6);
  EXPECT_NEAR(b.grad.to_vector()[0], 0.8, 1e-6);
  b.grad = Tensor::from<float>({std::nanf("")}, {1});
  EXPECT_TRUE(std::isnan(clip_grad_norm(all, 1)));
  zero_grad(all);
  EXPECT_FALSE(a.grad.defined());
}

TEST(Ema, AveragesAndSwaps) {
  Parameter p = parameter("p", {1});
  p.value.fill(0);
  Parameter* all[] = {&p};
  Ema ema(all, 0.5);
  p.value.fill(11);
  ema.update(1);  // memory (1 + 1) / (10 + 1)
  {
    const EmaScope averaged(&ema);
    EXPECT_NEAR(p.value.item(), 11 * 9.0 / 11, 1e-5);
  }
  EXPECT_EQ(p.value.item(), 11);
  ema.update(1000);  // memory 0.5
  ema.visit([](const std::string& name, Tensor& t) {
    EXPECT_EQ(name, "p");
    EXPECT_NEAR(t.item(), 10, 1e-5);
  });
}

TEST(OptimizerConfig, ErrorsAndDefaults) {
  const auto message = [](const std::string& yaml) -> std::string {
    try {
      resolve_optimizer_config(ConfigNode::parse("optim: " + yaml, "run.yaml")["optim"]);
    } catch (const ConfigError& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(message("{type: adam, lr: 0.1}"), "");
  EXPECT_EQ(message("{type: adamv}"),
            "run.yaml:1: optim.type: got 'adamv', expected one of: adafactor, adam, adamw, lion, sgd (did you mean 'adam'?)");
  EXPECT_EQ(message("{type: sgd, momentm: 0.1}"),
            "run.yaml:1: optim.momentm: unknown key, expected one of: type, groups, lr, momentum, nesterov, weight_decay (did you mean "
            "'momentum'?)");
  EXPECT_EQ(message("{lr: -1}"), "run.yaml:1: optim.lr: got -1, expected above 0");
  EXPECT_EQ(resolve_optimizer_config(ConfigNode()).json(),
            R"({"type": "adamw", "lr": 0.001, "betas": [0.9, 0.999], "eps": 1e-08, "weight_decay": 0.01, "groups": []})");
  EXPECT_EQ(message("{groups: [{match: a, lr_scale: 0}]}"), "run.yaml:1: optim.groups[0].lr_scale: got 0, expected above 0");
  EXPECT_EQ(message("{groups: [{lr_scale: 2}]}"), "run.yaml:1: optim.groups[0]: the key 'match' is missing");
  EXPECT_EQ(message("{groups: [{match: a}]}"), "run.yaml:1: optim.groups[0]: the key 'lr_scale' is missing");
  EXPECT_EQ(message("{groups: [, {match: a, lr_scale: 2}]}"),
            "run.yaml:1: optim.groups[0]: got null, expected a section with match and lr_scale");
  EXPECT_EQ(message("{groups: [{match: '', lr_scale: 2}]}"),
            "run.yaml:1: optim.groups[0].match: got nothing, expected a parameter's name or pattern");
  EXPECT_EQ(message("{groups: [{match: a, lr_scale: 1e300}]}"),
            "run.yaml:1: optim.groups[0].lr_scale: got 1e300, expected above 0 to 1000000");
  EXPECT_EQ(message("{groups: {match: a}}"),
            "run.yaml:1: optim.groups: got a section, expected a list of sections with match and lr_scale");
}

TEST(OptimizerConfig, GroupsScaleTheRateOfTheParametersTheyMatch) {
  for (const std::string& type : optimizer_registry().names()) {
    const ConfigNode optim = ConfigNode::parse(fmt::format("optim: {{type: {}, lr: 0.01, groups: [{{match: '*.Wt?', lr_scale: 0.125}}, "
                                                           "{{match: '*Wt1', lr_scale: 8}}, {{match: 'last', lr_scale: 2}}]}}",
                                                           type),
                                               "run.yaml")["optim"];
    std::vector<Parameter> p(4);
    const char* names[] = {"a.Wt1", "b.Wx", "cWt1", "last"};
    for (std::size_t i = 0; i < p.size(); ++i) {
      p[i].name = names[i];
      p[i].decay = false;
      p[i].value = Tensor::zeros({2});
      p[i].grad = Tensor::full({2}, 0.5);
    }
    Parameter* all[] = {&p[0], &p[1], &p[2], &p[3]};
    auto o = build_optimizer(optim, all);
    o->step(0.01, 1);
    const double one = p[1].value.to_vector()[0];
    EXPECT_NE(one, 0) << type;
    EXPECT_NEAR(p[0].value.to_vector()[0], one / 8, 1e-8) << type;
    EXPECT_NEAR(p[2].value.to_vector()[0], one * 8, 1e-6) << type;
    EXPECT_NEAR(p[3].value.to_vector()[0], one * 2, 1e-6) << type;
  }
  Parameter p;
  p.name = "encoder.weight";
  p.value = Tensor::zeros({2});
  Parameter* all[] = {&p};
  try {
    build_optimizer(
        ConfigNode::parse("optim: {groups: [{match: 'encoder.*', lr_scale: 2}, {match: '*.weight', lr_scale: 2}]}", "run.yaml")["optim"],
        all);
    FAIL();
  } catch (const ConfigError& e) {
    EXPECT_STREQ(e.what(),
                 "optim.groups[1].match: '*.weight' matches no trainable parameter that an earlier group has left; there are "
                 "encoder.weight");
  }
}

}  // namespace
}  // namespace tapeformer
