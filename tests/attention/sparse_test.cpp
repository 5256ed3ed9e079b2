// Patterns with global tokens and random blocks, against sets built by plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "attention/blocks.h"
#include "attention/projected.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

bool on(const Tensor& mask, i64 i) { return mask.data<std::uint8_t>()[static_cast<std::size_t>(i)] != 0; }

// Marks of samples 0 ... B - 1 that sit in different tiles and differ in number; sample 1 has none.
Tensor some_marks(i64 B, i64 N) {
  Tensor marks = Tensor::zeros({B, N}, DType::U8);
  for (i64 b = 0; b < B; ++b)
    for (i64 n = 0; n < N && b != 1; ++n) marks.mut_ptr<std::uint8_t>()[b * N + n] = (n * 7 + b) % (23 + 20 * b) == 0;
  return marks;
}

TEST(SparseAttention, GlobalMatchesLoops) {
  const i64 B = 4, N = 150;
  for (const char* setting : {"global_positions: [0, 70, -3, 400, -151]", "global_token_ids: [1, 4]", "global_positions: [9], gmask"})
    for (bool self : {false, true})
      for (bool causal : {false, true}) {
        const std::string text = setting;
        const bool marked = text.find(", gmask") != std::string::npos;
        const Case c{.type = "global",
                     .config = fmt::format("{{{}, include_self: {}}}", text.substr(0, text.find(", gmask")), self),
                     .causal = causal};
        const auto core = build(c, spec_of(c, {.N = N}));
        AttentionInput in = random_input(*core, {.B = B, .N = N}, DType::F32);
        in.mask = mixed_mask(B, N);
        if (marked) in.side["gmask"] = some_marks(B, N);
        const auto is_global = [&](i64 b, i64 i) {
          if (!on(in.mask, b * N + i)) return false;
          if (marked) return i == 9 || on(in.side["gmask"], b * N + i);
          if (text[7] == 'p') return i == 0 || i == 70 || i == N - 3;
          const i64 id = in.side["token_ids"].data<i64>()[static_cast<std::size_t>(b * N + i)];
          return id == 1 || id == 4;
        };
        const Tensor want = softmax_loop(in.q, in.k, in.v, 0.5, [&](i64 b, i64, i64 i, i64 j) {
          return on(in.mask, b * N + i) && on(in.mask, b * N + j) && (!causal || j <= i) &&
                 (is_global(b, i) || is_global(b, j) || (self && i == j));
        });
        EXPECT_LE(difference(core->attend(in, {}), want), 5e-6) << c;
      }
}

TEST(SparseAttention, BigBirdMatchesLoops) {
  struct Setting {
    const char* config;
    i64 block, window;
    std::set<i64> global;
    i64 external;
  };
  const i64 B = 4, N = 150, H = 2;
  for (const Setting& s : {Setting{"{block_size: 16}", 16, 1, {0, 9}, 0},
                           {"{block_size: 7, window_blocks: 0, global_blocks: [3, 30]}", 7, 0, {3}, 0},
                           {"{block_size: 64, window_blocks: 0, global_blocks: []}", 64, 0, {}, 0},
                           {"{block_size: 1, global_blocks: [-1]}", 1, 1, {149}, 0},
                           {"{block_size: 20, global_blocks: [], num_global_ext: 3}", 20, 1, {}, 3}})
    for (bool causal : {false, true}) {
      const Case c{.type = "bigbird", .config = s.config, .causal = causal};
      const auto core = build(c, spec_of(c, {.N = N, .H = H}));
      AttentionInput in = random_input(*core, {.B = B, .N = N, .H = H}, DType::F32);
      in.mask = mask_of(*core, mixed_mask(B, N));
      const i64 nb = (N - s.external + s.block - 1) / s.block;
      Tensor links = Tensor::full({H, nb, 3}, -1, DType::I64);  // repeated, covered, in the future: as they come
      for (i64 x = 0; x < links.numel(); ++x)
        links.mut_ptr<i64>()[x] = static_cast<i64>(RngKey(5).below(static_cast<std::uint64_t>(x), static_cast<std::uint64_t>(nb + 1))) - 1;
      in.side["rand_blocks"] = links;
      const auto linked = [&](i64 h, i64 r, i64 column) {
        const i64* p = links.ptr<i64>() + (h * nb + r) * 3;
        return std::find(p, p + 3, column) != p + 3;
      };
      const Tensor want = softmax_loop(in.q, in.k, in.v, 0.5, [&](i64 b, i64 h, i64 i, i64 j) {
        if (!on(in.mask, b * N + i) || !on(in.mask, b * N + j) || (causal && j > i)) return false;
        if (i < s.external || j < s.external) return true;
        const i64 r = (i - s.external) / s.block, column = (j - s.external) / s.block;
        return std::abs(r - column) <= s.window || s.global.count(r) || s.global.count(column) || linked(h, r, column);
      });
      EXPECT_LE(difference(core->attend(in, {}), want), 5e-6) << c;
    }
}

TEST(SparseAttention, LongformerMatchesLoops) {
  struct Setting {
    const char* config;
    i64 window, dilation[2];
    std::set<i64> global;
  };
  const i64 B = 4, N = 150;
  for (const Setting& s :
       {Setting{"window: 5, dilation: [3, 1], global_positions: [0, 77]", 5, {3, 1}, {0, 77}},
        {"window: 40, dilation: 2, global_positions: [1, 2, 4, 63, 64, 120, -1, -1]", 40, {2, 2}, {1, 2, 4, 63, 64, 120, 149}},
        {"window: 3, dilation: [200, 149]", 3, {200, 149}, {}},
        {"window: 200, global_positions: [63]", 200, {1, 1}, {63}},
        {"window: 0, global_positions: [0, 30, 60, 90, 120]", 0, {1, 1}, {0, 30, 60, 90, 120}}})
    for (bool causal : {false, true}) {
      const Case c{.type = "longformer", .config = fmt::format("{{{}, share_global_proj: true}}", s.config), .causal = causal};
      const auto core = build(c, spec_of(c, {.N = N}));
      AttentionInput in = random_input(*core, {.B = B, .N = N}, DType::F32);
      in.mask = mixed_mask(B, N);
      const Tensor want = softmax_loop(in.q, in.k, in.v, 0.5, [&](i64 b, i64 h, i64 i, i64 j) {
        const i64 far = std::abs(i - j), D = s.dilation[h];
        return on(in.mask, b * N + i) && on(in.mask, b * N + j) && (!causal || j <= i) &&
               (s.global.count(i) || s.global.count(j) || (far % D == 0 && far / D <= s.window));
      });
      EXPECT_LE(difference(core->attend(in, {}), want), 5e-6) << c;
    }
}

// The global projections start as copies of the local ones, for rotary positions too.
TEST(SparseAttention, LongformerStartsWithSharedProjections) {
  const Sizes s{.B = 3, .N = 40};
  for (bool bias : {false, true})
    for (bool rotary : {false, true})
      for (const char* type : {"{type: longformer, window: 2, global_positions: [0, 30]",
                               "{type: hybrid, heads: [{type: full}, {type: longformer, window: 2, global_positions: [0, 30]"}) {
        const std::string hybrid = type[7] == 'h' ? "}]" : "", text = type;
        const auto layer = [&](const std::string& keys) {
          return std::make_unique<AttentionLayer>(ConfigNode::parse(text + keys + hybrid + "}", "run.yaml"), spec_of(Case{}, s), bias,
                                                  rotary, RngKey(3));
        };
        const auto own = layer(""), shared = layer(", share_global_proj: true");
        EXPECT_EQ(own->parameters().size(), shared->parameters().size() + (bias ? 6 : 3));
        const Tensor x = random_tensor({s.B, s.N, s.dim()}, DType::F32, 4), mask = mixed_mask(s.B, s.N);
        EXPECT_LE(difference(own->forward(x, mask, {}, {}), shared->forward(x, mask, {}, {})), 1e-6) << type << " rotary " << rotary;
      }
}

std::vector<i64> row_of(const BlockLinks& l, i64 h, i64 r) {
  return {l.columns.begin() + l.starts[static_cast<std::size_t>(h * l.count + r)],
          l.columns.begin() + l.starts[static_cast<std::size_t>(h * l.count + r + 1)]};
}

TEST(SparseAttention, RandomBlocksAreDistinctFreeAndReproducible) {
  const i64 H = 3, nb = 20;
  for (bool causal : {false, true}) {
    const BlockLinker::Options options{.window = 1, .global_blocks = {0, -1}, .num_random = 4, .causal = causal};
    const BlockLinker one(options), two(options);
    const auto links = one.drawn(H, nb, RngKey(3));
    std::vector<i64> chosen(static_cast<std::size_t>(nb), 0);
    for (i64 h = 0; h < H; ++h)
      for (i64 r = 0; r < nb; ++r) {
        const std::vector<i64> row = row_of(*links, h, r);
        EXPECT_EQ(row, row_of(*two.drawn(H, nb, RngKey(3)), h, r));
        if (r == 0 || r == nb - 1) {
          EXPECT_TRUE(row.empty());  // a global block sees all
          continue;
        }
        const i64 global = (r > 1) + (r < nb - 2);  // of the two global blocks those outside of the window
        i64 free = 0;
        for (i64 c = 1; c < (causal ? r : nb - 1); ++c) free += std::abs(r - c) > 1;
        EXPECT_EQ(static_cast<i64>(row.size()), global + std::min<i64>(4, free)) << r;
        for (i64 c : row)
          if (c != 0 && c != nb - 1) {
            EXPECT_GT(std::abs(r - c), 1);
            if (causal) EXPECT_LT(c, r);
            ++chosen[static_cast<std::size_t>(c)];
          }
      }
    if (!causal)  // from the whole sequence
      for (i64 c = 1; c < nb - 1; ++c) EXPECT_GT(chosen[static_cast<std::size_t>(c)], 0) << c;
    EXPECT_NE(links->columns, one.drawn(H, nb, RngKey(4))->columns);
    EXPECT_NE(row_of(*links, 0, 9), row_of(*links, 1, 9));
    EXPECT_EQ(links.get(), one.drawn(H, nb, RngKey(3)).get());
  }
}

TEST(SparseAttention, EverySetOfBlocksIsEquallyLikely) {
  const BlockLinker linker({.skip_own = true, .num_random = 2});
  std::map<std::vector<i64>, int> seen;
  const int draws = 2000;
  for (int s = 0; s < draws; ++s) ++seen[row_of(*linker.drawn(1, 5, RngKey(static_cast<std::uint64_t>(s))), 0, 2)];
  EXPECT_EQ(seen.size(), 6u);  // pairs of {0, 1, 3, 4}
  for (const auto& [row, count] : seen) EXPECT_NEAR(count, draws / 6.0, 80);
}

TEST(SparseAttention, SeedsGiveTheSameBlocksInEveryRun) {
  const Sizes s{.B = 1, .N = 64};
  const auto output = [&](const std::string& config, std::uint64_t run, std::uint64_t layer) {
    const Case c{.type = "bigbird", .config = config};
    AttentionSpec spec = spec_of(c, s);
    spec.place = RngKey(layer);
    const auto core = build(c, spec, run);
    return core->attend(random_input(*core, s, DType::F32), {});
  };
  const std::string fixed = "{block_size: 2, seed: 7}", from_run = "{block_size: 2}";
  EXPECT_TRUE(same_bits(output(fixed, 1, 0), output(fixed, 2, 0)));
  EXPECT_FALSE(same_bits(output(fixed, 1, 0), output(fixed, 1, 1)));
  EXPECT_FALSE(same_bits(output(fixed, 1, 0), output("{block_size: 2, seed: 8}", 1, 0)));
  EXPECT_FALSE(same_bits(output(from_run, 1, 0), output(from_run, 2, 0)));
}

}  // namespace
}  // namespace tapeformer::suite
