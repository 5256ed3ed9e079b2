// reformer.cpp: attention inside of buckets that locality-sensitive hashing finds, cut into chunks, over several rounds. Queries and keys
// share one projection qk; k_j = qk_j / sqrt(|qk_j|^2 + eps). Kitaev, Kaiser, Levskaya 2020 (arXiv 2001.04451); the hash, argmax of
// [x R; -x R]: Andoni et al. 2015 (arXiv 1509.02897).
#include <algorithm>
#include <cmath>

#include "attention/attention.h"
#include "core/counters.h"
#include "core/parallel.h"

namespace tapeformer {
namespace {

struct ReformerConfig {
  std::optional<double> scale;
  ConfigNode n_buckets;
  i64 chunk_len = 64, n_rounds = 2, chunks_before = 1, chunks_after = 0;
  bool same_bucket_only = true, dedup_rounds = true;
  std::optional<std::string> chunking;
  double norm_eps = 1e-6;
  std::string rehash = "never";
};
template <class V>
void visit_fields(V& v, ReformerConfig& c) {
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
  v("n_buckets", c.n_buckets,
    "even number of buckets, or a list of two whose product counts; null = 2 max(1, round(max_len / (2 chunk_len)))");
  v("chunk_len", c.chunk_len, at_least(1), "tokens a chunk of the sorted order");
  v("n_rounds", c.n_rounds, Range{1, 64}, "hash rounds");
  v("chunks_before", c.chunks_before, at_least(0), "chunks seen before the own");
  v("chunks_after", c.chunks_after, at_least(0), "chunks seen after the own");
  v("same_bucket_only", c.same_bucket_only, "keys of other buckets in the chunks are left out");
  v("dedup_rounds", c.dedup_rounds, "a key found in several rounds counts once; false: as often as it is found");
  v("chunking", c.chunking, OneOf{"flat", "per_bucket"},
    "chunks of the whole order or of each bucket; null = flat, per_bucket when causal");
  v("norm_eps", c.norm_eps, above(0), "added to the squared length of a key");
  v("rehash", c.rehash, OneOf{"never", "per_step"}, "per_step: new rotations at each training step");
}

// One sorted order of the tokens of each sample and head; all i64 [B, H, N].
struct Round {
  Tensor bucket;       // of a position; padding: the number of buckets
  Tensor order, rank;  // position at a place, place of a position
  Tensor first, last;  // of a place: candidates are the places [first, last)
};
using Rounds = std::vector<Round>;

// Candidates of one round but the token itself, without what a round before had.
class RoundPattern final : public kernels::IntervalPattern {
 public:
  RoundPattern(std::shared_ptr<const Rounds> rounds, std::size_t round, bool dedup)
      : rounds_(std::move(rounds)), round_(round), before_(dedup ? round : 0), N_(own().order.dim(2)), H_(own().order.dim(1)) {}
  Range keys(i64 b, i64 h, i64 p) const override { return range(own(), (b * H_ + h) * N_ + p); }
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    const Cover c = IntervalPattern::cover(b, h, q0, q1, k0, k1);
    return c == Cover::Full && (before_ > 0 || (k0 < q1 && q0 < k1)) ? Cover::Partial : c;
  }
  void row(i64 b, i64 h, i64 p, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    IntervalPattern::row(b, h, p, k0, k1, allowed);
    if (p >= k0 && p < k1) allowed[p - k0] = 0;
    const Range mine = keys(b, h, p);
    const i64 head = (b * H_ + h) * N_;
    const i64* order = own().order.ptr<i64>() + head;
    for (std::size_t r = 0; r < before_; ++r) {
      const Round& earlier = (*rounds_)[r];
      const i64* rank = earlier.rank.ptr<i64>() + head;
      const Range had = range(earlier, head + rank[order[p]]);
      for (i64 j = std::max(k0, mine.first); j < std::min(k1, mine.last); ++j) {
        const i64 place = rank[order[j]];
        allowed[j - k0] &= place < had.first || place >= had.last;
      }
    }
  }
  bool same_for_samples() const override { return false; }
  bool same_for_heads() const override { return false; }

 private:
  const Round& own() const { return (*rounds_)[round_]; }
  static Range range(const Round& r, i64 at) { return {r.first.ptr<i64>()[at], r.last.ptr<i64>()[at]}; }
  std::shared_ptr<const Rounds> rounds_;
  std::size_t round_, before_;
  i64 N_, H_;
};

std::vector<i64> bucket_counts(const ReformerConfig& c, const AttentionSpec& spec) {
  const auto n = static_cast<double>(spec.max_len) / static_cast<double>(2 * c.chunk_len);
  if (!c.n_buckets || c.n_buckets.is_null()) return {2 * std::max<i64>(1, std::lround(n))};
  std::vector<i64> counts;
  const auto add = [&](const ConfigNode& node) {
    detail::read_scalar(node, counts.emplace_back());
    detail::check(node, static_cast<double>(counts.back()), Range{2, 1 << 16});
    if (counts.back() % 2 != 0) detail::fail(node, node.text(), "an even number");
  };
  if (c.n_buckets.is_sequence()) {
    for (const ConfigNode& node : c.n_buckets.items()) add(node);
    if (counts.size() != 2) detail::fail(c.n_buckets, fmt::format("a list of {}", counts.size()), "a number or a list of two");
  } else {
    add(c.n_buckets);
  }
  return counts;
}

class Reformer final : public AttentionCore {
 public:
  using Config = ReformerConfig;
  static AttentionInfo describe() {
    return {.name = "reformer",
            .summary = "attention inside of hash buckets of similar vectors, with one projection for queries and keys",
            .formula = "S_i = {j != i : hash_r(qk_j) = hash_r(qk_i) in the same or the previous chunk, some round r}; k_j = qk_j / |qk_j|",
            .paper = "Kitaev et al. 2020, arXiv 2001.04451",
            .cost = "time N R (chunk_len (1 + before + after) + n_buckets) d, memory N d + N R",
            .example = "{chunk_len: 4, n_buckets: 4}",
            .k = false};
  }
  Reformer(Config c, const AttentionSpec& spec, RngKey key)
      : config_(std::move(c)),
        spec_(spec),
        counts_(bucket_counts(config_, spec)),
        per_bucket_(config_.chunking ? *config_.chunking == "per_bucket" : spec.causal),
        rotations_(this, "rotations", draw(key.fold_in("rotations"))) {
    if (per_bucket_ && !config_.same_bucket_only) throw ConfigError("chunking: per_bucket needs same_bucket_only: true");
    if (spec.causal && !per_bucket_)
      warn_unused("attention.reformer: chunking: flat with causal: true: later tokens move the borders of chunks of earlier ones");
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const Tensor mask = in.mask.defined() ? in.mask.to_contiguous() : Tensor::full({in.q.dim(0), in.q.dim(2)}, 1, DType::U8);
    const Tensor qk = real_rows(in.q, mask);
    const auto d = static_cast<double>(qk.dim(3));
    const Tensor k = ops::rms_norm(qk, Tensor::full({qk.dim(3)}, 1 / std::sqrt(d), qk.dtype()), config_.norm_eps / d);
    const bool fresh = ctx.training && config_.rehash == "per_step";
    const Tensor* given = in.find("rotations");  // [H, R, d, S], instead of the layer's own
    const auto rounds = sort(qk, mask,
                             fresh   ? draw(ctx.at("rotations").key.fold_in(static_cast<std::uint64_t>(ctx.step)))
                             : given ? *given
                                     : rotations_.get());
    if (in.extra) tell(*rounds, mask, *in.extra);

    std::vector<ops::AttentionPart> parts;
    for (std::size_t r = 0; r < rounds->size(); ++r) {
      const Tensor& order = (*rounds)[r].order;
      parts.push_back({.queries = order, .keys = order, .pattern = std::make_shared<RoundPattern>(rounds, r, config_.dedup_rounds)});
    }
    ops::AttentionOptions o{.scale = config_.scale, .causal = spec_.causal, .query_mask = mask, .key_mask = mask};
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    Tensor alone;
    const Tensor out = ops::attention_parts(qk, k, in.v, std::move(parts), o, &alone);
    return with_self(out, in.v, alone, ctx);
  }

 private:
  Tensor draw(RngKey key) const {
    i64 columns = 0;
    for (i64 n : counts_) columns += n / 2;
    Tensor R = Tensor::empty({spec_.heads, config_.n_rounds, spec_.head_dim, columns}, default_dtype());
    fill_normal(R, key, 0, 1);
    return R;
  }
  i64 buckets() const { return counts_.size() == 1 ? counts_[0] : counts_[0] * counts_[1]; }

  struct Out {  // one head of a round
    i64 *bucket, *order, *rank, *first, *last;
  };

  std::shared_ptr<const Rounds> sort(const Tensor& qk, const Tensor& mask, const Tensor& rotations) const {
    const i64 B = qk.dim(0), H = qk.dim(1), N = qk.dim(2), d = qk.dim(3), R = config_.n_rounds, S = rotations.dim(3);
    const Tensor x = qk.detach().to_contiguous(), turn = rotations.to(DType::F64).to_contiguous();
    auto rounds = std::make_shared<Rounds>();
    std::vector<Out> out;
    for (i64 r = 0; r < R; ++r) {
      Round& round = rounds->emplace_back();
      for (Tensor* t : {&round.bucket, &round.order, &round.rank, &round.first, &round.last}) *t = Tensor::empty({B, H, N}, DType::I64);
      out.push_back({round.bucket.mut_ptr<i64>(), round.order.mut_ptr<i64>(), round.rank.mut_ptr<i64>(), round.first.mut_ptr<i64>(),
                     round.last.mut_ptr<i64>()});
    }
    counters::add_matmul(2 * B * H * R * N * d * S);
    parallel_for(B * H * R, 1, [&](i64 begin, i64 end) {
      for (i64 at = begin; at < end; ++at) {
        const i64 head = at / R, r = at % R, base = head * N;
        const Out& all = out[static_cast<std::size_t>(r)];
        const Out one{all.bucket + base, all.order + base, all.rank + base, all.first + base, all.last + base};
        const std::uint8_t* real = mask.ptr<std::uint8_t>() + head / H * N;
        const double* own = turn.ptr<double>() + (head % H * R + r) * d * S;
        if (x.dtype() == DType::F32)
          hash(x.ptr<float>() + base * d, real, own, N, d, S, one.bucket);
        else
          hash(x.ptr<double>() + base * d, real, own, N, d, S, one.bucket);
        place(one, N);
      }
    });
    return rounds;
  }

  // bucket[i]: the largest of [p, -p], p = x_i R, in each factor; the lowest index among equals. Sums are double for any type of x, so that
  // the type decides nothing.
  template <class T>
  void hash(const T* x, const std::uint8_t* real, const double* R, i64 N, i64 d, i64 S, i64* bucket) const {
    std::vector<double> p(static_cast<std::size_t>(S));
    for (i64 i = 0; i < N; ++i, x += d) {
      bucket[i] = buckets();
      if (!real[i]) continue;
      std::fill(p.begin(), p.end(), 0.0);
      for (i64 c = 0; c < d; ++c)
        for (i64 s = 0; s < S; ++s) p[static_cast<std::size_t>(s)] += static_cast<double>(x[c]) * R[c * S + s];
      bucket[i] = 0;
      i64 unit = 1;
      const double* columns = p.data();
      for (i64 n : counts_) {
        bucket[i] += unit * largest(columns, n / 2);
        columns += n / 2;
        unit *= n;
      }
    }
  }
  static i64 largest(const double* p, i64 n) {  // of [p, -p]
    i64 best = 0;
    for (i64 s = 1; s < 2 * n; ++s)
      if ((s < n ? p[s] : -p[s - n]) > (best < n ? p[best] : -p[best - n])) best = s;
    return best;
  }

  // Counting sort by (bucket, position), then the candidates of each place.
  void place(const Out& o, i64 N) const {
    std::vector<i64> start(static_cast<std::size_t>(buckets() + 2), 0);
    for (i64 i = 0; i < N; ++i) ++start[static_cast<std::size_t>(o.bucket[i] + 1)];
    for (std::size_t b = 1; b < start.size(); ++b) start[b] += start[b - 1];
    std::vector<i64> next(start.begin(), start.end() - 1);
    for (i64 i = 0; i < N; ++i) {
      o.rank[i] = next[static_cast<std::size_t>(o.bucket[i])]++;
      o.order[o.rank[i]] = i;
    }
    const i64 real = start[static_cast<std::size_t>(buckets())], L = config_.chunk_len;
    for (i64 p = 0; p < N; ++p) {
      if (p >= real) {
        o.first[p] = o.last[p] = real;
        continue;
      }
      const auto b = static_cast<std::size_t>(o.bucket[o.order[p]]);
      const i64 zero = per_bucket_ ? start[b] : 0, chunk = (p - zero) / L;
      const bool same = config_.same_bucket_only;
      o.first[p] = std::max(zero + std::max<i64>(0, chunk - config_.chunks_before) * L, same ? start[b] : 0);
      o.last[p] = std::min(zero + (chunk + config_.chunks_after + 1) * L, same ? start[b + 1] : real);
      if (spec_.causal && same) o.last[p] = std::min(o.last[p], p + 1);  // later places of a bucket are later positions
    }
  }

  // A token that found no other sees itself: o_i = v_i, with the dropout of that one weight.
  Tensor with_self(const Tensor& o, const Tensor& v, const Tensor& alone, const Ctx& ctx) const {
    const auto rows = alone.data<std::uint8_t>();
    if (std::none_of(rows.begin(), rows.end(), [](std::uint8_t x) { return x != 0; })) return o;
    Tensor own = ops::mask_rows(v, alone);
    if (ctx.training && spec_.dropout > 0) {
      const Tensor one = Tensor::full({v.dim(0), v.dim(1), v.dim(2), 1}, 1, v.dtype());
      own = ops::mul(own, ops::dropout(one, spec_.dropout, ctx.at("self").key, ctx.rows));
    }
    return ops::add(o, own);
  }

  // buckets and order [B, H, R, N]; overflow: share of the real tokens whose bucket is longer than the chunks that see each other.
  void tell(const Rounds& rounds, const Tensor& mask, std::map<std::string, Tensor>& extra) const {
    const Tensor& any = rounds[0].bucket;
    const i64 B = any.dim(0), H = any.dim(1), N = any.dim(2), R = config_.n_rounds;
    Tensor bucket = Tensor::empty({B, H, R, N}, DType::I64), order = bucket.clone();
    double over = 0, real = 0;
    for (i64 r = 0; r < R; ++r) {
      const Round& round = rounds[static_cast<std::size_t>(r)];
      bucket.slice(2, r, r + 1).copy_from(round.bucket.view({B, H, 1, N}));
      order.slice(2, r, r + 1).copy_from(round.order.view({B, H, 1, N}));
      for (i64 head = 0; head < B * H; ++head) {
        std::vector<i64> size(static_cast<std::size_t>(buckets() + 1), 0);
        const i64* of = round.bucket.ptr<i64>() + head * N;
        for (i64 i = 0; i < N; ++i) ++size[static_cast<std::size_t>(of[i])];
        for (i64 i = 0; i < N; ++i) {
          if (!mask.ptr<std::uint8_t>()[head / H * N + i]) continue;
          ++real;
          over += size[static_cast<std::size_t>(of[i])] > (1 + config_.chunks_before + config_.chunks_after) * config_.chunk_len;
        }
      }
    }
    extra["buckets"] = bucket;
    extra["order"] = order;
    extra["overflow"] = Tensor::full({}, real > 0 ? over / real : 0, DType::F64);
  }

  Config config_;
  AttentionSpec spec_;
  std::vector<i64> counts_;
  bool per_bucket_;
  Buffer rotations_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Reformer>();

}  // namespace
}  // namespace tapeformer
