// Variants that must coincide, and plain loops.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "autograd/ops.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

// Output and every gradient of q, k, v.
void expect_same(const Case& a, const Case& b, i64 N, DType t, double tolerance) {
  SCOPED_TRACE(testing::Message() << a << " against " << b << ", N = " << N);
  const DTypeScope scope(t);
  const Sizes s{.B = 4, .N = N, .H = 2, .d = 4};
  const auto one = build(a, spec_of(a, s)), two = build(b, spec_of(b, s));
  AttentionInput in = random_input(*one, s, t);
  in.mask = mixed_mask(s.B, s.N);
  const Result x = run(*one, in), y = run(*two, in);
  EXPECT_LE(difference(x.o, y.o), tolerance);
  for (const char* name : {"q", "k", "v"}) EXPECT_LE(difference(x.grads.at(name), y.grads.at(name)), 10 * tolerance) << name;
}

struct Pair {
  const char *type_a, *config_a, *type_b, *config_b;
};

TEST(AttentionIdentities, VariantsCoincide) {
  const Pair pairs[] = {
      {"local", "{window: 69}", "full", "{}"},
      {"local", "{window_left: 200, window_right: 69, scale: 0.2}", "full", "{scale: 0.2}"},
      {"local", "{mode: block, block_size: 70}", "full", "{}"},
      {"local", "{mode: block, block_size: 5, look_back: 13, look_forward: 13}", "full", "{}"},
      {"local", "{mode: block, block_size: 1, look_back: 4, look_forward: 2}", "local", "{window_left: 4, window_right: 2}"},
      {"full", "{impl: naive}", "full", "{}"},
      {"full", "{impl: naive, scale: 1.5}", "full", "{scale: 1.5}"},
      {"hybrid", "{heads: [{type: full, repeat: 2}]}", "full", "{}"},
      {"hybrid", "{heads: [{type: full}, {type: full, impl: naive}]}", "full", "{}"},
      {"hybrid", "{heads: [{type: local, window: 3}, {type: local, window_left: 3, window_right: 3}]}", "local", "{window: 3}"},
      {"hybrid", "{combine: union, heads: [{type: local, window: 2}, {type: local, window: 9}]}", "local", "{window: 9}"},
      {"hybrid",
       "{combine: union, heads: [{type: local, window_left: 9, window_right: 0}, {type: local, window_left: 0, "
       "window_right: 9}]}",
       "local", "{window: 9}"},
      {"hybrid", "{combine: union, scale: 0.3, heads: [{type: local, window: 2}, {type: full}]}", "full", "{scale: 0.3}"},
      {"sinkhorn", "{block_size: 70}", "full", "{}"},
      {"sinkhorn", "{block_size: 100, hard: true}", "full", "{}"},
      {"sinkhorn", "{block_size: 70, sortcut: 1}", "full", "{}"},
      {"hybrid", "{heads: [{type: sinkhorn, block_size: 70}, {type: full}]}", "full", "{}"},
      {"strided", "{stride: 1, reach: 5}", "local", "{window: 5}"},
      {"strided", "{stride: 1, reach: null}", "full", "{}"},
      {"strided", "{pattern: strided, stride: 1}", "full", "{}"},
      {"strided", "{pattern: strided, stride: 6, part: first}", "local", "{window: 6}"},
      {"strided", "{pattern: fixed, stride: 6, part: first}", "local", "{mode: block, block_size: 6, look_back: 0, look_forward: 0}"},
      {"hybrid",
       "{combine: union, heads: [{type: strided, pattern: strided, stride: 6, part: first}, {type: strided, stride: 6, reach: null}]}",
       "strided", "{pattern: strided, stride: 6}"},
      {"bigbird", "{block_size: 70}", "full", "{}"},
      {"longformer", "{window: 1, global_token_ids: [0, 1, 2, 3, 4], share_global_proj: true}", "full", "{}"},
      {"longformer", "{window: 69, dilation: [1, 1], share_global_proj: true}", "full", "{}"},
      {"longformer", "{window: 4, share_global_proj: true}", "local", "{window: 4}"},
      {"longformer", "{window: 2, global_positions: [3, 64], share_global_proj: true}", "hybrid",
       "{combine: union, heads: [{type: local, window: 2}, {type: global, global_positions: [3, 64]}]}"},
      {"longformer", "{window: 2, global_positions: [3, 64], global_token_ids: [2], share_global_proj: true}", "hybrid",
       "{combine: union, heads: [{type: local, window: 2}, {type: global, global_positions: [3, 64], global_token_ids: [2]}]}"},
      {"global", "{global_token_ids: [0, 1, 2, 3, 4]}", "full", "{}"},
      {"global", "{global_token_ids: [1, 4]}", "hybrid", "{combine: union, heads: [{type: global, global_token_ids: [1, 4]}]}"},
      {"global", "{global_token_ids: [1, 4], include_self: true}", "hybrid",
       "{combine: union, heads: [{type: global, global_token_ids: [1, 4]}, {type: local, window: 0}]}"},
      {"bigbird", "{block_size: 7, window_blocks: 9}", "full", "{}"},
      {"bigbird", "{block_size: 9, window_blocks: 0, global_blocks: [], num_random: 8}", "full", "{}"},
      {"bigbird", "{block_size: 1, window_blocks: 3, global_blocks: [], num_random: 0}", "local", "{window: 3}"},
      {"bigbird", "{block_size: 5, window_blocks: 2, global_blocks: [-20, 99], num_random: 0}", "local",
       "{mode: block, block_size: 5, look_back: 2, look_forward: 2}"},
      {"bigbird", "{block_size: 1, window_blocks: 2, global_blocks: [0, 65, -1], num_random: 0}", "hybrid",
       "{combine: union, heads: [{type: local, window: 2}, {type: global, global_positions: [0, 65, -1]}]}"},
  };
  for (const Pair& p : pairs)
    for (bool causal : {false, true}) {
      if (causal && std::string(p.config_a).find("sortcut") != std::string::npos) continue;
      const Case a{.type = p.type_a, .config = p.config_a, .causal = causal}, b{.type = p.type_b, .config = p.config_b, .causal = causal};
      expect_same(a, b, 70, DType::F64, 1e-12);
      expect_same(a, b, 70, DType::F32, 5e-6);
    }
}

bool on(const Tensor& mask, i64 i) { return mask.data<std::uint8_t>()[static_cast<std::size_t>(i)] != 0; }

TEST(AttentionIdentities, CrossAttentionAndPairMasksMatchLoops) {
  const i64 B = 3, H = 2, d = 4, dv = 5;
  for (const char* config : {"{}", "{impl: naive}"})
    for (const auto& [N, M] : {std::pair<i64, i64>{5, 9}, {70, 33}, {1, 130}, {66, 66}})
      for (int pairs : {0, 2, 3}) {
        const Case c{.type = "full", .config = config};
        const auto core = build(c, spec_of(c, {.H = H, .d = d}));
        AttentionInput in;
        in.q = random_tensor({B, H, N, d}, DType::F32, 1);
        in.k = random_tensor({B, H, M, d}, DType::F32, 2);
        in.v = random_tensor({B, H, M, dv}, DType::F32, 3);
        in.mask = mixed_mask(B, N);
        in.key_mask = mixed_mask(B, M);
        in.key_mask.slice(0, 2, 3).fill(1);
        if (pairs) {
          in.pair_mask = Tensor::empty(pairs == 2 ? Shape{N, M} : Shape{B, N, M}, DType::U8);
          for (i64 i = 0; i < in.pair_mask.numel(); ++i)
            in.pair_mask.mut_ptr<std::uint8_t>()[i] = RngKey(6).uniform(static_cast<std::uint64_t>(i)) < 0.4;
        }
        const Tensor want = softmax_loop(in.q, in.k, in.v, 0.5, [&, N = N, M = M](i64 b, i64, i64 i, i64 j) {
          return on(in.mask, b * N + i) && on(in.key_mask, b * M + j) &&
                 (!pairs || on(in.pair_mask, ((pairs == 3 ? b * N : 0) + i) * M + j));
        });
        EXPECT_LE(difference(core->attend(in, {}), want), 5e-6) << config << " N = " << N << " M = " << M << " pair mask rank " << pairs;
      }
}

TEST(AttentionIdentities, LocalMatchesLoops) {
  struct Setting {
    const char* config;
    i64 block, left, right;
  };
  const i64 B = 4, N = 150;
  for (const Setting& s : {Setting{"{window: 5}", 0, 5, 5},
                           {"{window_left: 80, window_right: 1}", 0, 80, 1},
                           {"{window: 3, window_left: 0}", 0, 0, 3},
                           {"{mode: block, block_size: 7, look_back: 2, look_forward: 1}", 7, 2, 1},
                           {"{mode: block, block_size: 64, look_back: 0, look_forward: 0}", 64, 0, 0}})
    for (bool causal : {false, true}) {
      const Case c{.type = "local", .config = s.config, .causal = causal};
      const auto core = build(c, spec_of(c, {.N = N}));
      AttentionInput in = random_input(*core, {.B = B, .N = N}, DType::F32);
      in.mask = mixed_mask(B, N);
      const Tensor want = softmax_loop(in.q, in.k, in.v, 0.5, [&](i64 b, i64, i64 i, i64 j) {
        const i64 from = s.block ? i / s.block : i, to = s.block ? j / s.block : j;
        return on(in.mask, b * N + i) && on(in.mask, b * N + j) && to >= from - s.left && to <= from + s.right && (!causal || j <= i);
      });
      EXPECT_LE(difference(core->attend(in, {}), want), 5e-6) << s.config << (causal ? " causal" : "");
    }
}

TEST(AttentionIdentities, OneTokenGivesItsValue) {
  // v up to eps, learned factors times v, nothing (routing: where query and key are of different clusters)
  const char* others[] = {"linear_transformer",
                          "linformer",
                          "memory_compressed",
                          "random",
                          "aft",
                          "include_self: false",
                          "part: second",
                          "longformer",
                          "{type: global, mode: external",
                          "num_global_ext",
                          "normalization: scaling",
                          "kernel: arccos",
                          "denom_floor: 0.4",
                          "assignment: argmax"};
  for (const Case& c : all_cases()) {
    const std::string text = c.type + c.config;
    if (std::any_of(std::begin(others), std::end(others), [&](const char* type) { return text.find(type) != std::string::npos; })) continue;
    const Sizes s{.B = 2, .N = 1};
    const auto core = build(c, spec_of(c, s));
    if (core->info().place != Place::Core || core->shortens()) continue;
    const AttentionInput in = random_input(*core, s, DType::F32);
    EXPECT_LE(difference(core->attend(in, {}), in.v), 1e-6) << c;
  }
}

double phi(const std::string& map, double x) {
  return map == "relu" ? std::max(x, 0.0) : map == "exp" ? std::exp(x) : map == "identity" ? x : x > 0 ? x + 1 : std::exp(x);
}

// o_i = sum_j (phi(q_i).phi(k_j)) v_j / (sum_j phi(q_i).phi(k_j) + eps), by loops over pairs.
Tensor linear_loop(const AttentionInput& in, const std::string& map, double eps, bool normalize, double scale, bool causal) {
  const i64 B = in.q.dim(0), H = in.q.dim(1), N = in.q.dim(2), d = in.q.dim(3), dv = in.v.dim(3);
  const auto Q = in.q.to_vector(), K = in.k.to_vector(), V = in.v.to_vector();
  std::vector<double> o(static_cast<std::size_t>(B * H * N * dv), 0.0);
  for (i64 g = 0; g < B * H; ++g)
    for (i64 i = 0; i < N; ++i) {
      if (!on(in.mask, g / H * N + i)) continue;
      double den = eps;
      double* row = o.data() + (g * N + i) * dv;
      for (i64 j = 0; j < (causal ? i + 1 : N); ++j) {
        if (!on(in.mask, g / H * N + j)) continue;
        double w = 0;
        for (i64 c = 0; c < d; ++c)
          w += phi(map, Q[static_cast<std::size_t>((g * N + i) * d + c)]) * phi(map, K[static_cast<std::size_t>((g * N + j) * d + c)]);
        den += w;
        for (i64 c = 0; c < dv; ++c) row[c] += w * V[static_cast<std::size_t>((g * N + j) * dv + c)];
      }
      for (i64 c = 0; c < dv; ++c) row[c] = normalize ? (den > 0 ? row[c] / den : 0) : row[c] * scale;
    }
  return Tensor::from<double>(o, {B, H, N, dv});
}

TEST(AttentionIdentities, LinearTransformerMatchesLoops) {
  for (const char* map : {"elu1", "relu", "exp", "identity"})
    for (bool normalize : {true, false})
      for (bool causal : {false, true})
        for (const char* chunk : {"1", "7", "64", "1000"}) {
          if (normalize && std::string(map) == "identity") continue;
          const Case c{.type = "linear_transformer",
                       .config = fmt::format("{{feature_map: {}, normalize: {}, scale: 0.5, eps: 1e-3, chunk: {}}}", map, normalize, chunk),
                       .causal = causal};
          const Sizes s{.B = 4, .N = 90};
          const DTypeScope f64(DType::F64);
          const auto core = build(c, spec_of(c, s));
          AttentionInput in = random_input(*core, s, DType::F64);
          in.mask = mixed_mask(s.B, s.N);
          EXPECT_LE(difference(core->attend(in, {}), linear_loop(in, map, 1e-3, normalize, 0.5, causal)), 1e-11) << c;
        }
}

TEST(AttentionIdentities, LinearTransformerWithoutEpsAndWithoutPrefixGivesZero) {
  const Case c{.type = "linear_transformer", .config = "{feature_map: relu, eps: 0}", .causal = true};
  const Sizes s{.B = 1, .N = 3};
  const auto core = build(c, spec_of(c, s));
  AttentionInput in = random_input(*core, s, DType::F32);
  in.k.fill(-1);
  const Result r = run(*core, in);
  EXPECT_EQ(difference(r.o, Tensor::zeros(r.o.shape())), 0);
  for (const auto& [name, g] : r.grads) EXPECT_EQ(difference(g, Tensor::zeros(g.shape())), 0) << name;
}

// The state goes from piece to piece; any cut gives the rows of one call.
TEST(AttentionIdentities, LinearTransformerRunsPieceByPiece) {
  const Case c{.type = "linear_transformer", .config = "{chunk: 16}", .causal = true};
  const Sizes s{.B = 3, .N = 50};
  const DTypeScope f64(DType::F64);
  const auto core = build(c, spec_of(c, s));
  AttentionInput in = random_input(*core, s, DType::F64);
  in.mask = mixed_mask(s.B, s.N);
  std::map<std::string, Tensor> end;
  in.extra = &end;
  const Tensor whole = core->attend(in, {});
  for (i64 piece : {1, 3, 16, 49}) {
    std::map<std::string, Tensor> state;
    std::vector<Tensor> rows;
    for (i64 from = 0; from < s.N; from += piece) {
      const i64 to = std::min(from + piece, s.N);
      AttentionInput part;
      part.q = in.q.slice(2, from, to);
      part.k = in.k.slice(2, from, to);
      part.v = in.v.slice(2, from, to);
      part.mask = in.mask.slice(1, from, to);
      if (from > 0) part.side = {{"S0", state["S"]}, {"z0", state["z"]}};
      std::map<std::string, Tensor> next;
      part.extra = &next;
      rows.push_back(core->attend(part, {}));
      state = next;
    }
    EXPECT_LE(difference(ops::concat(rows, 2), whole), 1e-12) << "pieces of " << piece;
    EXPECT_LE(difference(state["S"], end["S"]), 1e-12);
    EXPECT_LE(difference(state["z"], end["z"]), 1e-12);
  }
}

// sinkhorn's hard form is block attention under the mask kron(P + I, 1): P's chosen block and the own one.
TEST(AttentionIdentities, HardSinkhornIsBlockAttention) {
  for (const char* normalise : {"sinkhorn", "softmax"}) {
    const i64 block = 4;
    const Case c{.type = "sinkhorn", .config = fmt::format("{{block_size: {}, hard: true, normalise: {}}}", block, normalise)};
    const Sizes s{.B = 4, .N = 22};
    const DTypeScope f64(DType::F64);
    const auto core = build(c, spec_of(c, s));
    AttentionInput in = random_input(*core, s, DType::F64);
    in.mask = mixed_mask(s.B, s.N);
    std::map<std::string, Tensor> extra;
    in.extra = &extra;
    const Tensor o = core->attend(in, {});
    const std::vector<double> P = extra.at("P").to_vector();
    const i64 nb = extra.at("P").dim(3);
    for (i64 h = 0; h < s.H; ++h) {
      // A key of the own block that is also sorted there counts twice: the set has N local keys, then N sorted ones.
      const Tensor k2 = ops::concat({in.k.slice(1, h, h + 1), in.k.slice(1, h, h + 1)}, 2),
                   v2 = ops::concat({in.v.slice(1, h, h + 1), in.v.slice(1, h, h + 1)}, 2);
      const Tensor want = softmax_loop(in.q.slice(1, h, h + 1), k2, v2, 0.5, [&](i64 b, i64, i64 i, i64 j) {
        const i64 key = j % s.N;
        if (!on(in.mask, b * s.N + i) || !on(in.mask, b * s.N + key)) return false;
        if (j < s.N) return key / block == i / block;
        const auto row = P.begin() + ((b * s.H + h) * nb + i / block) * nb;
        return std::max_element(row, row + nb) - row == key / block && row[key / block] > 0;
      });
      EXPECT_LE(difference(o.slice(1, h, h + 1), want), 1e-12) << normalise << " head " << h;
    }
  }
}

}  // namespace
}  // namespace tapeformer::suite
