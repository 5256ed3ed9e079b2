// Fewer keys or queries than positions (linformer, memory_compressed, reduced_query): identities, plain loops, cost.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "core/counters.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

Parameter& parameter(AttentionCore& core, const std::string& name) {
  for (Parameter* p : core.parameters())
    if (p->name == name) return *p;
  throw std::runtime_error("no parameter " + name);
}

// 1 where the last two indices agree (and tap 0 of filters [H, d, d, kernel]), else 0.
void set_identity(Tensor& t, int row_axis) {
  std::vector<double> v(static_cast<std::size_t>(t.numel()), 0.0);
  const i64 rows = t.dim(row_axis), columns = t.dim(row_axis + 1), rest = row_axis + 2 < t.rank() ? t.dim(row_axis + 2) : 1;
  for (i64 g = 0; g < t.numel() / (rows * columns * rest); ++g)
    for (i64 i = 0; i < std::min(rows, columns); ++i) v[static_cast<std::size_t>(((g * rows + i) * columns + i) * rest)] = 1;
  t.copy_from(Tensor::from<double>(v, t.shape()));
}

// Output and gradients of q, k, v without padding: a slot of a padded position is still there in linformer.
void expect_full(const Case& c, const std::function<void(AttentionCore&)>& prepare, bool padded) {
  SCOPED_TRACE(testing::Message() << c);
  const DTypeScope f64(DType::F64);
  const Sizes s{.B = 4, .N = 30};
  const auto core = build(c, spec_of(c, s)), full = build({.type = "full", .config = "{}", .causal = c.causal}, spec_of(c, s));
  prepare(*core);
  AttentionInput in = random_input(*core, s, DType::F64);
  if (padded) in.mask = mixed_mask(s.B, s.N);
  const Result x = run(*core, in), y = run(*full, in);
  EXPECT_LE(difference(x.o, y.o), 1e-12);
  for (const char* name : {"q", "k", "v"}) EXPECT_LE(difference(x.grads.at(name), y.grads.at(name)), 1e-11) << name;
}

TEST(Slots, LinformerWithTheIdentityIsFull) {
  for (const char* sharing : {"none", "headwise", "kv", "layerwise"})
    expect_full(
        {.type = "linformer", .config = fmt::format("{{slots: 30, sharing: {}}}", sharing)},
        [](AttentionCore& core) {
          for (Parameter* p : core.parameters()) set_identity(p->value, 1);
        },
        false);
}

TEST(Slots, WindowsOfOneAreFull) {
  for (bool causal : {false, true}) {
    expect_full(
        {.type = "memory_compressed", .config = "{kernel: 1, stride: 1, compression: mean, null_slot: none}", .causal = causal},
        [](AttentionCore&) {}, true);
    expect_full(
        {.type = "memory_compressed", .config = "{kernel: 1, stride: 1, bias: false, null_slot: none}", .causal = causal},
        [](AttentionCore& core) {
          for (Parameter* p : core.parameters()) set_identity(p->value, 1);
        },
        true);
  }
}

// N < max_len is the same as zeros behind the sequence, and columns behind N get no gradient.
TEST(Slots, LinformerOfAShortInputIsThatOfAPaddedOne) {
  const DTypeScope f64(DType::F64);
  const Case c{.type = "linformer", .config = "{slots: 5}"};
  const Sizes most{.B = 2, .N = 20}, s{.B = 2, .N = 13};
  const auto core = build(c, spec_of(c, most));
  const AttentionInput in = random_input(*core, s, DType::F64);
  AttentionInput padded = random_input(*core, most, DType::F64);
  padded.mask = Tensor::full({2, 20}, 1, DType::U8);
  padded.mask.slice(1, 13, 20).fill(0);
  for (const auto& [from, to] : {std::pair{&in.q, &padded.q}, {&in.k, &padded.k}, {&in.v, &padded.v}}) to->slice(2, 0, 13).copy_from(*from);
  const Tensor upstream = random_tensor(padded.v.shape(), DType::F64, 4);
  const Result x = run(*core, in, {}, upstream.slice(2, 0, 13).clone()), y = run(*core, padded, {}, upstream);
  EXPECT_LE(difference(x.o, y.o.slice(2, 0, 13)), 1e-13);
  EXPECT_LE(difference(x.grads.at("param/E"), y.grads.at("param/E")), 1e-13);
  EXPECT_EQ(difference(x.grads.at("param/E").slice(2, 13, 20), Tensor::zeros({1, 5, 7}, DType::F64)), 0);
}

// Two cores that share a matrix: one parameter, registered once, whose gradient is the sum.
TEST(Slots, LayersShareOneMatrix) {
  const DTypeScope f64(DType::F64);
  const Case c{.type = "linformer", .config = "{slots: 3, sharing: layerwise}"};
  const Sizes s{.B = 2, .N = 9};
  SharedWeights shared;
  AttentionSpec spec = spec_of(c, s);
  spec.shared = &shared;
  const auto one = build_attention(config_of(c), spec, RngKey(1)), two = build_attention(config_of(c), spec, RngKey(2));
  EXPECT_TRUE(one->parameters().empty());
  ASSERT_EQ(shared.parameters().size(), 1u);
  const AttentionInput a = random_input(*one, s, DType::F64, 3), b = random_input(*two, s, DType::F64, 4);
  const Tensor up = random_tensor(a.v.shape(), DType::F64, 5);
  const auto gradient = [&](bool first, bool second) {
    Tape tape({.leaves = Tape::Leaves::Capture});
    Tensor sum = first ? one->attend(a, {}) : two->attend(b, {});
    if (first && second) sum = ops::add(sum, two->attend(b, {}));
    tape.backward(sum, up);
    return tape.grad(*shared.parameters()[0]);
  };
  EXPECT_LE(difference(gradient(true, true), ops::add(gradient(true, false), gradient(false, true))), 1e-12);
}

// o_i by loops: windows, their visibility, the null slot.
TEST(Slots, MemoryCompressedMatchesLoops) {
  const i64 B = 4, H = 2, N = 23, d = 3;
  for (const auto& [kernel, stride] : {std::pair<i64, i64>{3, 3}, {5, 2}, {4, 1}, {30, 7}})
    for (bool causal : {false, true})
      for (bool null_slot : {false, true}) {
        const Case c{.type = "memory_compressed",
                     .config = fmt::format("{{kernel: {}, stride: {}, null_slot: {}}}", kernel, stride, null_slot ? "learned" : "none"),
                     .causal = causal};
        const DTypeScope f64(DType::F64);
        const Sizes s{.B = B, .N = N, .H = H, .d = d};
        const auto core = build(c, spec_of(c, s));
        AttentionInput in = random_input(*core, s, DType::F64);
        in.mask = mixed_mask(B, N);
        const auto at = [](const Tensor& t) {
          return [v = t.to_vector(), shape = t.shape()](std::vector<i64> index) {
            i64 flat = 0;
            for (int a = 0; a < shape.rank(); ++a) flat = flat * shape[a] + index[static_cast<std::size_t>(a)];
            return v[static_cast<std::size_t>(flat)];
          };
        };
        const auto q = at(in.q), k = at(in.k), v = at(in.v), m = at(in.mask.to(DType::F64));
        const auto Wk = at(parameter(*core, "Wk").value), bk = at(parameter(*core, "bk").value), Wv = at(parameter(*core, "Wv").value),
                   bv = at(parameter(*core, "bv").value);
        const auto squeeze = [&](auto& x, auto& W, auto& bias, i64 b, i64 h, i64 t, i64 f) {
          double sum = bias({h, f});
          for (i64 c = 0; c < kernel && t * stride + c < N; ++c)
            for (i64 e = 0; e < d; ++e) sum += m({b, t * stride + c}) * W({h, f, e, c}) * x({b, h, t * stride + c, e});
          return sum;
        };
        const std::vector<double> got = core->attend(in, {}).to_vector();
        double worst = 0;
        for (i64 b = 0; b < B; ++b)
          for (i64 h = 0; h < H; ++h)
            for (i64 i = 0; i < N; ++i) {
              double den = 0, num[d] = {};
              const auto add = [&](auto&& key, auto&& value) {
                double score = 0;
                for (i64 f = 0; f < d; ++f) score += q({b, h, i, f}) * key(f) / std::sqrt(static_cast<double>(d));
                den += std::exp(score);
                for (i64 f = 0; f < d; ++f) num[f] += std::exp(score) * value(f);
              };
              const bool asks = m({b, i}) != 0;
              for (i64 t = 0; asks && t * stride < N; ++t) {
                bool real = false;
                for (i64 c = 0; c < kernel && t * stride + c < N; ++c) real |= m({b, t * stride + c}) != 0;
                if (!real || (causal && t * stride + kernel - 1 > i)) continue;
                add([&](i64 f) { return squeeze(k, Wk, bk, b, h, t, f); }, [&](i64 f) { return squeeze(v, Wv, bv, b, h, t, f); });
              }
              if (asks && null_slot)
                add(
                    [&](i64 f) {
                      return at(parameter(*core, "null_k").value)({h, f});
                    },
                    [&](i64 f) {
                      return at(parameter(*core, "null_v").value)({h, f});
                    });
              for (i64 f = 0; f < d; ++f)
                worst =
                    std::max(worst, std::abs(got[static_cast<std::size_t>(((b * H + h) * N + i) * d + f)] - (den > 0 ? num[f] / den : 0)));
            }
        EXPECT_LE(worst, 1e-12) << c;
      }
}

TEST(Slots, OneQueryAPositionIsFull) {
  expect_full(
      {.type = "reduced_query", .config = "{stride: 1}"}, [](AttentionCore&) {}, true);
  expect_full(
      {.type = "reduced_query", .config = "{reduce: subsample, stride: 1}"}, [](AttentionCore&) {}, true);
  expect_full(
      {.type = "reduced_query", .config = "{reduce: conv, stride: 1}"},
      [](AttentionCore& core) {
        parameter(core, "bias").value.fill(0);
        set_identity(parameter(core, "W").value, 1);
      },
      true);
  expect_full(
      {.type = "reduced_query", .config = "{reduce: linear, queries: 30}"},
      [](AttentionCore& core) { set_identity(parameter(core, "E").value, 1); }, false);
}

TEST(Slots, SubsampledQueriesGiveRowsOfFull) {
  const DTypeScope f64(DType::F64);
  const Sizes s{.B = 4, .N = 23};
  const Case c{.type = "reduced_query", .config = "{reduce: subsample, stride: 4}"}, full{.type = "full", .config = "{}"};
  const auto core = build(c, spec_of(c, s)), all = build(full, spec_of(full, s));
  AttentionInput in = random_input(*core, s, DType::F64);
  in.mask = mixed_mask(s.B, s.N);
  std::map<std::string, Tensor> extra;
  in.extra = &extra;
  const Tensor o = core->attend(in, {}), rows = all->attend(in, {});
  ASSERT_EQ(o.dim(2), 6);
  for (i64 t = 0; t < 6; ++t) EXPECT_LE(difference(o.slice(2, t, t + 1), rows.slice(2, 4 * t, 4 * t + 1)), 1e-13);
  EXPECT_EQ(difference(extra.at("out_mask").to(DType::F64),
                       ops::gather(in.mask.to(DType::F64), 1, Tensor::from<i64>({0, 4, 8, 12, 16, 20}, {6}))),
            0);
}

// The residual is reduced by the queries' rule, and its mask is that of the rows.
TEST(Slots, TheResidualGetsShorterLikeTheQueries) {
  const Sizes s{.B = 4, .N = 11};
  const DTypeScope f64(DType::F64);
  for (const auto& [config, rows] : {std::pair<const char*, i64>{"{stride: 3, kernel: 5}", 4},
                                     {"{reduce: subsample, stride: 3}", 4},
                                     {"{reduce: conv, stride: 3}", 4},
                                     {"{reduce: linear, queries: 5}", 5},
                                     {"{reduce: latent, queries: 2}", 2}}) {
    SCOPED_TRACE(config);
    const Case c{.type = "reduced_query", .config = config};
    const auto core = build(c, spec_of(c, s));
    AttentionInput in = random_input(*core, s, DType::F64);
    in.mask = mixed_mask(s.B, s.N);
    std::map<std::string, Tensor> extra;
    in.extra = &extra;
    const Tensor o = core->attend(in, {});
    const Rows shortcut = core->shorten(in.x, in.mask);
    EXPECT_EQ(o.dim(2), rows);
    EXPECT_EQ(shortcut.x.shape(), (Shape{4, rows, s.dim()}));
    EXPECT_TRUE(same_bits(shortcut.mask, extra.at("out_mask")));
    EXPECT_EQ(difference(shortcut.mask.slice(0, 2, 3).to(DType::F64), Tensor::zeros({1, rows}, DType::F64)), 0) << "a sample of padding";
    EXPECT_TRUE(same_bits(core->shorten(overwrite(in.x, in.mask, false, 1e6), in.mask).x, shortcut.x)) << "padding is in the residual";
  }
  const Case mean{.type = "reduced_query", .config = "{stride: 2}"};
  const auto core = build(mean, spec_of(mean, {.N = 4}));
  const Tensor x = Tensor::from<double>({1, 10, 3, 5}, {1, 4, 1});
  const Rows half = core->shorten(x, Tensor::from<std::uint8_t>({1, 0, 1, 1}, {1, 4}));
  EXPECT_EQ(half.x.to_vector(), (std::vector<double>{1, 4}));
}

double flops(const Case& c, i64 N) {
  const Sizes s{.B = 1, .N = N, .H = 2, .d = 8};
  const auto core = build(c, spec_of(c, s));
  const AttentionInput in = random_input(*core, s, DType::F32);
  const Tensor upstream = random_tensor(in.v.shape(), DType::F32, 4);
  const auto total = [] { return static_cast<double>(counters::now().matmul_flops + counters::now().attention_flops); };
  const double before = total();
  run(*core, in, {}, upstream);
  return total() - before;
}

TEST(Slots, Cost) {
  const Case linformer{.type = "linformer", .config = "{slots: 32}"};
  EXPECT_NEAR(flops(linformer, 2048) / flops(linformer, 1024), 2, 0.1);
  const Case full{.type = "full", .config = "{}"}, third{.type = "memory_compressed", .config = "{compression: mean}"};
  EXPECT_NEAR(flops(full, 1536) / flops(third, 1536), 3, 0.3);
}

TEST(Slots, Refusals) {
  const auto refusal = [](const char* config, bool causal) {
    return message_of([&] {
      build_attention(ConfigNode::parse(config, "test.yaml"), {.dim = 8, .heads = 2, .head_dim = 4, .max_len = 16, .causal = causal},
                      RngKey(1));
    });
  };
  EXPECT_NE(refusal("{type: linformer}", true).find("'linformer' has no causal form"), std::string::npos);
  EXPECT_NE(refusal("{type: linformer, max_len: 8}", false).find("max_len: got 8, expected at least 16"), std::string::npos);
  EXPECT_NE(refusal("{type: memory_compressed, kernel: 2, stride: 3}", false).find("stride: got 3, expected at most kernel, 2"),
            std::string::npos);
  EXPECT_NE(refusal("{type: reduced_query}", true).find("'reduced_query' has no causal form"), std::string::npos);
  EXPECT_NE(refusal("{type: reduced_query, stride: 3, kernel: 2}", false).find("kernel: got 2, expected at least stride, 3"),
            std::string::npos);
  EXPECT_NE(refusal("{type: reduced_query, reduce: latent}", false).find("queries: missing"), std::string::npos);
  EXPECT_NE(refusal("{type: hybrid, heads: [{type: reduced_query}, {type: full}]}", false).find("fewer rows than other heads"),
            std::string::npos);
}

}  // namespace
}  // namespace tapeformer::suite
