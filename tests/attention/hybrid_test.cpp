// Heads of a hybrid beside the variants that they are.
#include <gtest/gtest.h>

#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

Parameter& parameter(AttentionCore& core, const std::string& name) {
  for (Parameter* p : core.parameters())
    if (p->name == name) return *p;
  throw std::runtime_error("no parameter " + name);
}

AttentionInput head_of(const AttentionInput& in, i64 h) {
  AttentionInput one = in;
  for (Tensor* t : {&one.q, &one.k, &one.v}) *t = t->slice(1, h, h + 1);
  return one;
}

// A head's own tokens are the external rows of the variant, without their outputs.
TEST(Hybrid, OwnTokensActAsExternalRows) {
  const DTypeScope f64(DType::F64);
  const i64 g = 2;
  for (const char* head : {"type: global, mode: external, num_global: 2, include_self: true",
                           "type: bigbird, block_size: 5, num_global_ext: 2, global_blocks: [], seed: 4"})
    for (bool causal : {false, true}) {
      SCOPED_TRACE(head);
      const Sizes s{.B = 3, .N = 30};
      const Case c{.type = "hybrid", .config = fmt::format("{{heads: [{{{}}}, {{type: full}}]}}", head), .causal = causal};
      const auto hybrid = build(c, spec_of(c, s));
      AttentionInput in = random_input(*hybrid, s, DType::F64);
      in.mask = mixed_mask(s.B, s.N);
      const Tensor o = hybrid->attend(in, {}).slice(1, 0, 1);
      EXPECT_EQ(hybrid->external_tokens(), 0);

      AttentionSpec spec = spec_of(c, {.N = s.N + g, .H = 1});
      spec.place = spec.place.fold_in(std::uint64_t{0});
      const auto alone = build_attention(ConfigNode::parse(fmt::format("{{{}}}", head), "test.yaml"), spec, RngKey(1));
      AttentionInput rows = head_of(in, 0);
      const auto in_front = [&](const Tensor& front, const Tensor& t) {
        Tensor out = Tensor::empty({s.B, 1, g + s.N, s.d}, DType::F64);
        for (i64 b = 0; b < s.B; ++b) out.slice(0, b, b + 1).slice(2, 0, g).copy_from(front.view({1, 1, g, s.d}));
        out.slice(2, g, g + s.N).copy_from(t);
        return out;
      };
      rows.q = in_front(random_tensor({1, g, s.d}, DType::F64, 9), rows.q);
      rows.k = in_front(parameter(*hybrid, "heads.0.ek").value, rows.k);
      rows.v = in_front(parameter(*hybrid, "heads.0.ev").value, rows.v);
      rows.mask = Tensor::full({s.B, g + s.N}, 1, DType::U8);
      rows.mask.slice(1, g, g + s.N).copy_from(in.mask);
      rows.external = g;
      EXPECT_LE(difference(o, alone->attend(rows, {}).slice(2, g, g + s.N)), 1e-12);
    }
}

TEST(Hybrid, FixedDrawsAreCutByHead) {
  const Sizes s{.B = 2, .N = 12, .H = 3};
  const Case c{.type = "hybrid",
               .config = "{heads: [{type: random, block_size: 2, repeat: 2}, {type: bigbird, block_size: 2, global_blocks: []}]}"};
  const auto hybrid = build(c, spec_of(c, s));
  AttentionInput in = random_input(*hybrid, s, DType::F32);
  Tensor blocks = Tensor::empty({3, 6, 1}, DType::I64);
  for (i64 x = 0; x < 18; ++x) blocks.mut_ptr<i64>()[x] = (x * 5 + x / 6) % 6;
  in.side["rand_blocks"] = blocks;
  const Tensor o = hybrid->attend(in, {});
  for (i64 h = 0; h < 3; ++h) {
    const Case part{.type = h < 2 ? "random" : "bigbird", .config = h < 2 ? "{block_size: 2}" : "{block_size: 2, global_blocks: []}"};
    const auto alone = build(part, spec_of(part, {.N = s.N, .H = 1}));
    AttentionInput one = head_of(in, h);
    one.side["rand_blocks"] = blocks.slice(0, h, h + 1);
    EXPECT_LE(difference(o.slice(1, h, h + 1), alone->attend(one, {})), 1e-6) << h;
  }
}

TEST(Hybrid, EveryHeadDrawsBlocksOfItsOwn) {
  const Sizes s{.B = 1, .N = 40, .H = 4};
  for (const char* seed : {"", ", seed: 3"}) {
    const std::string random = fmt::format("{{type: random, block_size: 1{}", seed);
    const Case c{.type = "hybrid", .config = fmt::format("{{heads: [{0}}}, {{type: full}}, {0}, repeat: 2}}]}}", random)};
    const auto hybrid = build(c, spec_of(c, s));
    AttentionInput in = random_input(*hybrid, s, DType::F32);
    for (i64 h = 1; h < s.H; ++h)
      for (Tensor* t : {&in.q, &in.k, &in.v}) t->slice(1, h, h + 1).copy_from(t->slice(1, 0, 1));
    const Tensor o = hybrid->attend(in, {});
    const auto head = [&](i64 h) { return o.slice(1, h, h + 1); };
    EXPECT_GT(difference(head(0), head(2)), 1e-3) << seed;
    EXPECT_GT(difference(head(0), head(3)), 1e-3) << seed;
    EXPECT_GT(difference(head(2), head(3)), 1e-3) << seed;
  }
  const Case both{.type = "hybrid",
                  .config = "{combine: union, heads: [{type: random, block_size: 1, seed: 3}, {type: random, block_size: 1, seed: 3}]}"},
      one{.type = "hybrid", .config = "{combine: union, heads: [{type: random, block_size: 1, seed: 3}]}"};
  const auto a = build(both, spec_of(both, s)), b = build(one, spec_of(one, s));
  const AttentionInput in = random_input(*a, s, DType::F32);
  EXPECT_GT(difference(a->attend(in, {}), b->attend(in, {})), 1e-3) << "the second entry draws what the first did";
}

TEST(Hybrid, ReadsEdgesForItsGraphHeads) {
  const Sizes s{.B = 1, .N = 20};
  const Case c{.type = "hybrid", .config = "{heads: [{type: graph, score: gat}, {type: graph}]}"},
      gat{.type = "graph", .config = "{score: gat}"};
  const auto hybrid = build(c, spec_of(c, s)), alone = build(gat, spec_of(gat, {.N = s.N, .H = 1}));
  for (const char* name : {"a_src", "a_dst"})
    parameter(*alone, name).value.copy_from(parameter(*hybrid, std::string("heads.0.") + name).value);
  AttentionInput in = random_input(*hybrid, s, DType::F32);
  EXPECT_LE(difference(hybrid->attend(in, {}).slice(1, 0, 1), alone->attend(head_of(in, 0), {})), 1e-6);
  in.side.erase("edges");
  EXPECT_NE(message_of([&] { hybrid->attend(in, {}); }).find("attention 'graph' needs 'edges'"), std::string::npos);
}

}  // namespace
}  // namespace tapeformer::suite
