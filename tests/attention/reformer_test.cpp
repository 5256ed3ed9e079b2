// Reformer against plain loops over the candidates of every round, its limits, its costs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "core/counters.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

bool on(const Tensor& mask, i64 i) { return mask.data<std::uint8_t>()[static_cast<std::size_t>(i)] != 0; }

struct Setting {
  std::string config;
  i64 chunk, before, after;
  bool same, dedup, per_bucket;
};

// How often position j is a candidate of i, summed over the rounds; buckets [R, N] of one head.
i64 times_found(const Setting& s, const i64* buckets, i64 R, i64 N, i64 i, i64 j) {
  i64 found = 0;
  for (i64 r = 0; r < R; ++r) {
    const i64* bucket = buckets + r * N;
    const auto chunk = [&](i64 t) {
      i64 rank = 0;
      for (i64 u = 0; u < N; ++u) rank += (bucket[u] < bucket[t] && !s.per_bucket) || (bucket[u] == bucket[t] && u < t);
      return rank / s.chunk;
    };
    const i64 step = chunk(j) - chunk(i);
    found += (!s.same || bucket[i] == bucket[j]) && step >= -s.before && step <= s.after;
  }
  return found;
}

Tensor by_loops(const Setting& s, const AttentionInput& in, const Tensor& buckets, double scale, bool causal) {
  const i64 B = in.q.dim(0), H = in.q.dim(1), N = in.q.dim(2), d = in.q.dim(3), R = buckets.dim(2);
  const std::vector<double> q = in.q.to_vector(), v = in.v.to_vector();
  std::vector<double> o(v.size(), 0.0);
  for (i64 head = 0; head < B * H; ++head)
    for (i64 i = 0; i < N; ++i) {
      if (!on(in.mask, head / H * N + i)) continue;
      double total = 0;
      std::vector<double> sum(static_cast<std::size_t>(d), 0.0);
      for (i64 j = 0; j < N; ++j) {
        if (j == i || !on(in.mask, head / H * N + j) || (causal && j > i)) continue;
        i64 times = times_found(s, buckets.ptr<i64>() + head * R * N, R, N, i, j);
        if (s.dedup) times = std::min<i64>(times, 1);
        double dot = 0, length = 1e-6;
        for (i64 c = 0; c < d; ++c) {
          const double k = q[static_cast<std::size_t>((head * N + j) * d + c)];
          dot += q[static_cast<std::size_t>((head * N + i) * d + c)] * k;
          length += k * k;
        }
        const double w = static_cast<double>(times) * std::exp(scale * dot / std::sqrt(length));
        total += w;
        for (i64 c = 0; c < d; ++c) sum[static_cast<std::size_t>(c)] += w * v[static_cast<std::size_t>((head * N + j) * d + c)];
      }
      for (i64 c = 0; c < d; ++c) {
        const auto at = static_cast<std::size_t>((head * N + i) * d + c);
        o[at] = total > 0 ? sum[static_cast<std::size_t>(c)] / total : v[at];
      }
    }
  return Tensor::from(o, in.v.shape());
}

TEST(Reformer, MatchesLoops) {
  const i64 N = 90;
  for (const Setting& s :
       {Setting{"{chunk_len: 7, n_buckets: 4}", 7, 1, 0, true, true, false},
        {"{chunk_len: 5, n_buckets: [2, 4], n_rounds: 3, chunks_after: 2, chunks_before: 0}", 5, 0, 2, true, true, false},
        {"{chunk_len: 4, n_buckets: 2, dedup_rounds: false, n_rounds: 4}", 4, 1, 0, true, false, false},
        {"{chunk_len: 8, n_buckets: 6, same_bucket_only: false}", 8, 1, 0, false, true, false},
        {"{chunk_len: 8, n_buckets: 6, same_bucket_only: false, dedup_rounds: false}", 8, 1, 0, false, false, false},
        {"{chunk_len: 3, n_buckets: 4, chunking: per_bucket, dedup_rounds: false}", 3, 1, 0, true, false, true},
        {"{chunk_len: 6, n_buckets: 8, chunking: per_bucket, n_rounds: 5, chunks_after: 1}", 6, 1, 1, true, true, true}})
    for (bool causal : {false, true}) {
      std::string config = s.config;
      if (causal && !s.per_bucket) config.insert(config.size() - 1, ", chunking: flat");
      const Case c{.type = "reformer", .config = config, .causal = causal};
      const auto core = build(c, spec_of(c, {.N = N}));
      AttentionInput in = random_input(*core, {.B = 4, .N = N}, DType::F32);
      in.mask = mixed_mask(4, N);
      std::map<std::string, Tensor> extra;
      in.extra = &extra;
      const Tensor o = core->attend(in, {});
      EXPECT_LE(difference(o, by_loops(s, in, extra.at("buckets"), 0.5, causal)), 5e-6) << c;
    }
}

// One bucket and one chunk: full attention on unit keys, without self.
TEST(Reformer, OneBucketIsFull) {
  const i64 B = 3, N = 70;
  for (const char* config : {"{chunk_len: 70, n_buckets: 4}", "{chunk_len: 100, n_buckets: 6, same_bucket_only: false, chunking: flat}"})
    for (bool causal : {false, true}) {
      const Case c{.type = "reformer", .config = config, .causal = causal};
      const auto core = build(c, spec_of(c, {.N = N}));
      if (std::string(config).find("same") == std::string::npos) core->buffers()[0].tensor->fill(0);
      AttentionInput in = random_input(*core, {.B = B, .N = N}, DType::F32);
      in.mask = mixed_mask(B, N);
      Tensor unit = in.q.clone();
      for (float *k = unit.mut_ptr<float>(), *end = k + unit.numel(); k < end; k += 4) {
        const double length = std::sqrt(double(k[0]) * k[0] + double(k[1]) * k[1] + double(k[2]) * k[2] + double(k[3]) * k[3] + 1e-6);
        for (int x = 0; x < 4; ++x) k[x] = static_cast<float>(k[x] / length);
      }
      const auto first = [&](i64 b) {  // real position
        i64 i = 0;
        while (i < N && !on(in.mask, b * N + i)) ++i;
        return i;
      };
      const Tensor want = softmax_loop(in.q, unit, in.v, 0.5, [&](i64 b, i64, i64 i, i64 j) {
        return on(in.mask, b * N + i) && on(in.mask, b * N + j) && (causal ? j < i || (i == j && i == first(b)) : i != j);
      });
      EXPECT_LE(difference(core->attend(in, {}), want), 5e-6) << c;
    }
}

TEST(Reformer, RotationsChangeByStepInTrainingAlone) {
  const Sizes s{.B = 1, .N = 60};
  for (bool fresh : {false, true}) {
    const Case c{.type = "reformer", .config = fmt::format("{{chunk_len: 4, rehash: {}}}", fresh ? "per_step" : "never")};
    const auto core = build(c, spec_of(c, s));
    const AttentionInput in = random_input(*core, s, DType::F32);
    const auto at = [&](bool training, i64 step) { return core->attend(in, {.training = training, .key = RngKey(4), .step = step}); };
    EXPECT_EQ(same_bits(at(true, 1), at(true, 2)), !fresh);
    EXPECT_TRUE(same_bits(at(true, 2), at(true, 2)));
    EXPECT_TRUE(same_bits(at(false, 1), at(false, 2)));
  }
}

// A row that sees itself alone passes its gradient to v and to nothing else.
TEST(Reformer, AloneARowIsItsValue) {
  const Sizes s{.B = 1, .N = 1};
  const Case c{.type = "reformer", .config = "{}"};
  const auto core = build(c, spec_of(c, s));
  const AttentionInput in = random_input(*core, s, DType::F32);
  const Tensor upstream = random_tensor(in.v.shape(), DType::F32, 4);
  const Result r = run(*core, in, {}, upstream);
  EXPECT_TRUE(same_bits(r.o, in.v));
  EXPECT_TRUE(same_bits(r.grads.at("v"), upstream));
  EXPECT_EQ(difference(r.grads.at("q"), Tensor::zeros(in.q.shape())), 0);
}

TEST(Reformer, RefusesWhatItCannotDo) {
  const auto message = [](const std::string& config) {
    const Case c{.type = "reformer", .config = config};
    return message_of([&] { build(c, spec_of(c, {})); });
  };
  EXPECT_NE(message("{n_buckets: 3}").find("expected an even number"), std::string::npos) << message("{n_buckets: 3}");
  EXPECT_NE(message("{n_buckets: [2, 4, 8]}").find("a number or a list of two"), std::string::npos);
  EXPECT_NE(message("{n_buckets: 0}").find("n_buckets"), std::string::npos);
  EXPECT_NE(message("{chunking: per_bucket, same_bucket_only: false}").find("needs same_bucket_only: true"), std::string::npos);
}

// At the default number of buckets a mean bucket fills a chunk.
TEST(Reformer, PairsGrowLinearly) {
  for (i64 N : {1024, 4096, 16384}) {
    const Case c{.type = "reformer", .config = "{chunk_len: 32, n_rounds: 2}"};
    const auto core = build(c, spec_of(c, {.N = N, .H = 1}));
    const auto before = counters::now().attention_pairs;
    core->attend(random_input(*core, {.B = 1, .N = N, .H = 1}, DType::F32), {});
    EXPECT_LE(counters::now().attention_pairs - before, N * 2 * (2 * 32 + 48)) << N;
  }
}

}  // namespace
}  // namespace tapeformer::suite
