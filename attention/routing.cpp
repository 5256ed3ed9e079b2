// routing.cpp: queries and keys meet in clusters found by k-means while training.
// Roy et al., "Efficient Content-Based Sparse Attention with Routing Transformers", 2020 (arXiv 2003.05997), section 4.1 and algorithm 1.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "attention/attention.h"
#include "autograd/ops.h"
#include "core/kernels/gemm.h"
#include "core/parallel.h"

namespace tapeformer {
namespace {

struct RoutingConfig {
  std::optional<double> scale;
  std::optional<i64> num_clusters, window;
  std::string assignment = "topk", norm = "layernorm";
  double norm_eps = 1e-6;
  bool attend_normalized = true, share_qk = false, exclude_self = false;
  double decay = 0.999, commitment = 0;
  std::string init = "kmeans_first_batch";
};
template <class V>
void visit_fields(V& v, RoutingConfig& c) {
  v("scale", c.scale, above(0), "factor of q.k; null = 1/sqrt(d)");
  v("num_clusters", c.num_clusters, at_least(1), "clusters a head, C; null = sqrt(max_len)");
  v("window", c.window, at_least(1), "topk: tokens that each cluster takes; null = N / C rounded up");
  v("assignment", c.assignment, OneOf{"topk", "argmax"},
    "each cluster takes its best tokens (a token may be in several or none; not causal), or each token goes to its best cluster");
  v("norm", c.norm, OneOf{"layernorm", "l2"}, "of queries and keys before they meet centroids, without learned factors");
  v("norm_eps", c.norm_eps, above(0), "added to the variance or the squared length");
  v("attend_normalized", c.attend_normalized, "attention scores of normalised queries and keys");
  v("share_qk", c.share_qk, "keys are the queries");
  v("exclude_self", c.exclude_self, "a token looks at itself only when it would see nothing else");
  v("decay", c.decay, Range{0, 1 - 1e-12}, "share of a centroid that stays at each step");
  v("commitment", c.commitment, at_least(0), "weight of the squared distance between tokens and their centroids in the training loss");
  v("init", c.init, OneOf{"random", "kmeans_first_batch"}, "centroids at start: drawn, or found in the first training batch");
}

constexpr i64 kLloydSteps = 10, kRowsAtOnce = 1024, kClustersAtOnce = 16;

// Row i of rows [n, d] to mean 0 and variance 1, or to length 1.
void normalise(double* x, i64 d, bool centred, double eps) {
  const double mean = centred ? std::accumulate(x, x + d, 0.0) / static_cast<double>(d) : 0;
  double squares = 0;
  for (i64 c = 0; c < d; ++c) squares += (x[c] - mean) * (x[c] - mean);
  const double r = 1 / std::sqrt((centred ? squares / static_cast<double>(d) : squares) + eps);
  for (i64 c = 0; c < d; ++c) x[c] = (x[c] - mean) * r;
}

bool real(const std::uint8_t* mask, i64 N, i64 b, i64 n) { return mask == nullptr || mask[b * N + n] != 0; }

// scores[r, c] = x_r . mu_c for rows [n, d] of one head.
template <class T>
void multiply(const T* x, i64 n, const T* mu, i64 C, i64 d, T* scores, bool by_cluster) {
  kernels::Gemm<T> g;
  g.m = by_cluster ? C : n;
  g.n = by_cluster ? n : C;
  g.k = d;
  g.a = {by_cluster ? mu : x, d, 1};
  g.b = {by_cluster ? x : mu, 1, d};
  g.c = {scores, g.n, 1};
  kernels::gemm(g);
}

// The best cluster of each token, i64 [B, H, N]; the lowest of equals; -1 for padding. x [B,H,N,d] and mu [H,C,d] contiguous.
Tensor best_clusters(const Tensor& x, const Tensor& mu, const std::uint8_t* mask) {
  const i64 B = x.dim(0), H = x.dim(1), N = x.dim(2), d = x.dim(3), C = mu.dim(1), pieces = (N + kRowsAtOnce - 1) / kRowsAtOnce;
  Tensor best = Tensor::empty({B, H, N}, DType::I64);
  i64* out = best.mut_ptr<i64>();
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    parallel_for(B * H * pieces, 1, [&](i64 begin, i64 end) {
      std::vector<T> scores(static_cast<std::size_t>(std::min(N, kRowsAtOnce) * C));
      for (i64 p = begin; p < end; ++p) {
        const i64 head = p / pieces, from = p % pieces * kRowsAtOnce, rows = std::min(kRowsAtOnce, N - from);
        multiply(x.ptr<T>() + (head * N + from) * d, rows, mu.ptr<T>() + head % H * C * d, C, d, scores.data(), false);
        for (i64 i = 0; i < rows; ++i) {
          const T* s = scores.data() + i * C;
          out[head * N + from + i] = real(mask, N, head / H, from + i) ? std::max_element(s, s + C) - s : -1;
        }
      }
    });
  };
  x.dtype() == DType::F64 ? run(double{}) : run(float{});
  return best;
}

// Where the members of every cluster stand in the sequence, cluster by cluster, ascending inside of one.
struct Members {
  Tensor position;          // i64 [B, H, places], -1 = an empty place, behind the cluster's others
  std::vector<i64> starts;  // [B, H, C + 1]: first place of each cluster
  std::vector<i64> counts;  // [B, H, C]: places in use
};

// The w best tokens of each cluster; the lower position of equals.
Members best_tokens(const Tensor& x, const Tensor& mu, const std::uint8_t* mask, i64 w) {
  const i64 B = x.dim(0), H = x.dim(1), N = x.dim(2), d = x.dim(3), C = mu.dim(1), pieces = (C + kClustersAtOnce - 1) / kClustersAtOnce;
  Members m{Tensor::full({B, H, C * w}, -1, DType::I64), std::vector<i64>(static_cast<std::size_t>(B * H * (C + 1))),
            std::vector<i64>(static_cast<std::size_t>(B * H * C))};
  for (std::size_t i = 0; i < m.starts.size(); ++i) m.starts[i] = static_cast<i64>(i) % (C + 1) * w;
  i64* out = m.position.mut_ptr<i64>();
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    parallel_for(B * H * pieces, 1, [&](i64 begin, i64 end) {
      std::vector<T> scores(static_cast<std::size_t>(std::min(C, kClustersAtOnce) * N));
      std::vector<i64> order, tokens;
      for (i64 p = begin; p < end; ++p) {
        const i64 head = p / pieces, from = p % pieces * kClustersAtOnce, clusters = std::min(kClustersAtOnce, C - from);
        multiply(x.ptr<T>() + head * N * d, N, mu.ptr<T>() + (head % H * C + from) * d, clusters, d, scores.data(), true);
        tokens.clear();
        for (i64 n = 0; n < N; ++n)
          if (real(mask, N, head / H, n)) tokens.push_back(n);
        const i64 taken = std::min(w, static_cast<i64>(tokens.size()));
        for (i64 c = 0; c < clusters; ++c) {
          const T* s = scores.data() + c * N;
          order = tokens;
          if (taken < static_cast<i64>(order.size()))
            std::nth_element(order.begin(), order.begin() + taken, order.end(),
                             [s](i64 a, i64 b) { return s[a] != s[b] ? s[a] > s[b] : a < b; });
          std::sort(order.begin(), order.begin() + taken);
          std::copy_n(order.begin(), taken, out + (head * C + from + c) * w);
          m.counts[static_cast<std::size_t>(head * C + from + c)] = taken;
        }
      }
    });
  };
  x.dtype() == DType::F64 ? run(double{}) : run(float{});
  return m;
}

// Every token with its own cluster: `best` sorted by counting.
Members by_cluster(const Tensor& best, i64 C) {
  const i64 heads = best.dim(0) * best.dim(1), N = best.dim(2);
  Members m{Tensor::full(best.shape(), -1, DType::I64), std::vector<i64>(static_cast<std::size_t>(heads * (C + 1)), 0),
            std::vector<i64>(static_cast<std::size_t>(heads * C), 0)};
  const i64* cluster = best.ptr<i64>();
  i64* out = m.position.mut_ptr<i64>();
  parallel_for(heads, 1, [&](i64 begin, i64 end) {
    for (i64 g = begin; g < end; ++g) {
      i64 *starts = m.starts.data() + g * (C + 1), *counts = m.counts.data() + g * C;
      for (i64 n = 0; n < N; ++n)
        if (cluster[g * N + n] >= 0) ++starts[cluster[g * N + n] + 1];
      std::partial_sum(starts, starts + C + 1, starts);
      for (i64 n = 0; n < N; ++n)
        if (const i64 c = cluster[g * N + n]; c >= 0) out[g * N + starts[c] + counts[c]++] = n;
    }
  });
  return m;
}

// Places of queries see the places of keys of the same cluster, up to their own position when causal.
class ClusterPattern final : public kernels::IntervalPattern {
 public:
  ClusterPattern(const Members& q, const Members& k, i64 C, bool causal, bool exclude_self)
      : heads_(q.position.dim(1)),
        places_(q.position.dim(2)),
        key_places_(k.position.dim(2)),
        exclude_self_(exclude_self),
        query_(q.position),
        key_(k.position) {
    const i64 all = q.position.dim(0) * heads_;
    ranges_.resize(static_cast<std::size_t>(all * places_));
    parallel_for(all, 1, [&](i64 begin, i64 end) {
      for (i64 g = begin; g < end; ++g) fill(q, k, C, causal, g);
    });
  }
  Range keys(i64 b, i64 h, i64 i) const override { return ranges_[static_cast<std::size_t>((b * heads_ + h) * places_ + i)]; }
  Cover cover(i64 b, i64 h, i64 q0, i64 q1, i64 k0, i64 k1) const override {
    const Cover c = IntervalPattern::cover(b, h, q0, q1, k0, k1);
    return c == Cover::Full && exclude_self_ ? Cover::Partial : c;
  }
  void row(i64 b, i64 h, i64 i, i64 k0, i64 k1, std::uint8_t* allowed) const override {
    IntervalPattern::row(b, h, i, k0, k1, allowed);
    const Range r = keys(b, h, i);
    if (!exclude_self_ || r.last - r.first < 2) return;
    const i64 g = b * heads_ + h, self = query_.ptr<i64>()[g * places_ + i];
    const i64 *first = key_.ptr<i64>() + g * key_places_ + r.first, *last = first + (r.last - r.first);
    const i64* at = std::lower_bound(first, last, self);
    const i64 place = r.first + (at - first);
    if (at != last && *at == self && place >= k0 && place < k1) allowed[place - k0] = 0;
  }
  bool same_for_samples() const override { return false; }
  bool same_for_heads() const override { return false; }

  // Whether the query of place (b H + h) places + i sees a key.
  bool sees(i64 place) const { return ranges_[static_cast<std::size_t>(place)].first < ranges_[static_cast<std::size_t>(place)].last; }

 private:
  void fill(const Members& q, const Members& k, i64 C, bool causal, i64 g) {
    const i64 *query = q.position.ptr<i64>() + g * places_, *key = k.position.ptr<i64>() + g * key_places_;
    Range* out = ranges_.data() + g * places_;
    const i64 *q_starts = q.starts.data() + g * (C + 1), *k_starts = k.starts.data() + g * (C + 1);
    i64 end = 0;  // behind the keys of the clusters before
    for (i64 c = 0; c < C; ++c) {
      const i64 first = k_starts[c], count = k.counts[static_cast<std::size_t>(g * C + c)],
                in_use = q.counts[static_cast<std::size_t>(g * C + c)];
      i64 seen = causal ? 0 : count;
      for (i64 x = 0; x < in_use; ++x) {
        while (causal && seen < count && key[first + seen] <= query[q_starts[c] + x]) ++seen;
        out[q_starts[c] + x] = {first, first + seen};
      }
      end = first + count;
      std::fill(out + q_starts[c] + in_use, out + q_starts[c + 1], Range{end, end});
    }
    std::fill(out + q_starts[C], out + places_, Range{end, end});
  }

  i64 heads_, places_, key_places_;
  bool exclude_self_;
  Tensor query_, key_;  // positions
  std::vector<Range> ranges_;
};

class Routing final : public AttentionCore {
 public:
  using Config = RoutingConfig;
  static AttentionInfo describe() {
    return {.name = "routing",
            .summary = "queries and keys are clustered by online k-means and meet inside of a cluster",
            .formula = "o_i = mean over clusters c that hold i of sum_j softmax_j(q^_i.k^_j / sqrt(d)) v_j, j among the keys of c",
            .paper = "Roy et al. 2020, arXiv 2003.05997",
            .cost = "time N C d + N^2 d / C, N^1.5 d at the default C; memory N d",
            .example = "{num_clusters: 3, assignment: argmax}"};
  }

  Routing(Config c, const AttentionSpec& spec, RngKey key)
      : config_(std::move(c)),
        spec_(spec),
        key_(key),
        clusters_(config_.num_clusters.value_or(std::max<i64>(1, std::llround(std::sqrt(static_cast<double>(spec.max_len)))))),
        centroids_(this, "centroids", drawn()),
        initialised_(this, "initialised", Tensor::full({1}, config_.init == "random" ? 1 : 0)) {
    if (topk() && spec.causal)
      warn_unused("attention.routing: assignment: topk chooses members with later tokens in view; causal: true hides later keys only");
    if (spec.max_len > 0 && clusters_ > spec.max_len)
      warn_unused(
          fmt::format("attention.routing: num_clusters: {} is more than the {} positions of the longest input", clusters_, spec.max_len));
    if (!topk() && config_.window) warn_unused("attention.routing: window has no effect with assignment: argmax");
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  bool wants_k() const override { return !config_.share_qk; }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    const Tensor mask = in.mask.defined() ? in.mask.to_contiguous() : Tensor();
    const Tensor q = real_rows(in.q, mask), k = config_.share_qk ? q : real_rows(in.k, mask);
    const Tensor qn = normalised(q), kn = config_.share_qk ? qn : normalised(k);
    State s{qn.detach().to_contiguous(), kn.detach().to_contiguous(), mask.defined() ? mask.ptr<std::uint8_t>() : nullptr};
    if (ctx.training && ctx.effects) start(s, ctx);
    const Tensor* given = in.find("centroids");  // [H, C, d], instead of the layer's own
    const Tensor mu = given ? *given : centroids_.get();
    if (!topk() || in.extra || (ctx.training && ctx.effects)) {
      s.q_best = best_clusters(s.q, mu, s.mask);
      s.k_best = config_.share_qk ? s.q_best : best_clusters(s.k, mu, s.mask);
    }
    const i64 N = in.q.dim(2), w = std::min(N, config_.window.value_or((N + clusters_ - 1) / clusters_));
    const Members queries = topk() ? best_tokens(s.q, mu, s.mask, w) : by_cluster(s.q_best, clusters_);
    const Members keys = config_.share_qk ? queries : topk() ? best_tokens(s.k, mu, s.mask, w) : by_cluster(s.k_best, clusters_);
    if (ctx.training && ctx.effects) follow(s, qn, kn, *ctx.effects);
    if (in.extra) report(s, queries, keys, qn, kn, *in.extra);

    const auto pattern = std::make_shared<ClusterPattern>(queries, keys, clusters_, spec_.causal, config_.exclude_self);
    ops::AttentionOptions o{.scale = config_.scale, .pattern = pattern};
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    const Tensor met =
        ops::attention(ops::gather_along(config_.attend_normalized ? qn : q, queries.position),
                       ops::gather_along(config_.attend_normalized ? kn : k, keys.position), ops::gather_along(in.v, keys.position), o);
    return ops::scatter_along(topk() ? ops::mul(met, shares(queries, *pattern, N, met.dtype())) : met, queries.position, N);
  }

 private:
  struct State {  // normalised, detached, contiguous [B, H, N, d]; best clusters i64 [B, H, N]
    Tensor q, k;
    const std::uint8_t* mask;
    Tensor q_best, k_best;
  };
  struct Sums {           // of the tokens of each cluster
    Tensor sums, counts;  // f64 [H, C, d], [H, C]
  };
  bool topk() const { return config_.assignment == "topk"; }
  bool centred() const { return config_.norm == "layernorm"; }
  Shape shape() const { return {spec_.heads, clusters_, spec_.head_dim}; }

  Tensor normalised(const Tensor& x) const {
    const i64 d = x.dim(3);
    if (centred()) return ops::layer_norm(x, Tensor::full({d}, 1, x.dtype()), Tensor::zeros({d}, x.dtype()), config_.norm_eps);
    return ops::mul(x, ops::pow(ops::scale(ops::sum(ops::mul(x, x), {3}, true), 1, config_.norm_eps), -0.5));
  }

  Tensor drawn() const {
    Tensor mu = Tensor::empty(shape(), DType::F64);
    fill_normal(mu, key_.fold_in("centroids"), 0, 1);
    for (i64 r = 0; r < spec_.heads * clusters_; ++r)
      normalise(mu.mut_ptr<double>() + r * spec_.head_dim, spec_.head_dim, centred(), config_.norm_eps);
    return mu.to(default_dtype());
  }

  // Queries and keys in one pool.
  Sums sums_of(const State& s) const {
    const i64 B = s.q.dim(0), H = s.q.dim(1), N = s.q.dim(2), d = s.q.dim(3), C = clusters_;
    Sums out{Tensor::zeros(shape(), DType::F64), Tensor::zeros({H, C}, DType::F64)};
    double *sums = out.sums.mut_ptr<double>(), *counts = out.counts.mut_ptr<double>();
    const auto add = [&](const auto* x, const i64* best, i64 h) {
      for (i64 b = 0; b < B; ++b)
        for (i64 n = 0; n < N; ++n) {
          const i64 row = (b * H + h) * N + n, c = best[row];
          if (c < 0) continue;
          ++counts[h * C + c];
          for (i64 e = 0; e < d; ++e) sums[(h * C + c) * d + e] += static_cast<double>(x[row * d + e]);
        }
    };
    const auto both = [&](auto zero) {
      using T = decltype(zero);
      parallel_for(H, 1, [&](i64 begin, i64 end) {
        for (i64 h = begin; h < end; ++h) {
          add(s.q.ptr<T>(), s.q_best.ptr<i64>(), h);
          if (!config_.share_qk) add(s.k.ptr<T>(), s.k_best.ptr<i64>(), h);
        }
      });
    };
    s.q.dtype() == DType::F64 ? both(double{}) : both(float{});
    return out;
  }

  // norm(decay mu + (1 - decay) mean of the members); a cluster without members stays.
  static void update(Tensor& mu, const Tensor& sums, const Tensor& counts, double decay, bool centred, double eps) {
    const i64 d = mu.dim(2);
    std::vector<double> now = mu.to_vector(), total = sums.to_vector(), n = counts.to_vector();
    for (std::size_t r = 0; r < n.size(); ++r) {
      if (n[r] == 0) continue;
      double* row = now.data() + static_cast<i64>(r) * d;
      for (i64 e = 0; e < d; ++e)
        row[e] = decay * row[e] + (1 - decay) * total[r * static_cast<std::size_t>(d) + static_cast<std::size_t>(e)] / n[r];
      normalise(row, d, centred, eps);
    }
    mu.copy_from(Tensor::from<double>(now, mu.shape()));
  }

  // Before the first training forward: tokens of this batch as centroids, then Lloyd's steps.
  void start(const State& s, const Ctx& ctx) const {
    if (initialised_.get().item() != 0) return;
    initialised_.value().fill(1);
    const i64 B = s.q.dim(0), H = s.q.dim(1), N = s.q.dim(2), d = s.q.dim(3);
    Tensor mu = centroids_.get().to(DType::F64).clone();
    const Tensor q = s.q.to(DType::F64), k = s.k.to(DType::F64);
    std::vector<i64> tokens;  // b N + n of the real ones
    for (i64 t = 0; t < B * N; ++t)
      if (real(s.mask, N, t / N, t % N)) tokens.push_back(t);
    const i64 real_tokens = static_cast<i64>(tokens.size()), pool = real_tokens * (config_.share_qk ? 1 : 2);
    if (pool == 0) return;
    for (i64 h = 0; h < H; ++h) {
      const KeyedPermutation order(static_cast<std::uint64_t>(pool), key_.fold_in("first_batch").fold_in(static_cast<std::uint64_t>(h)));
      std::set<std::vector<double>> chosen;
      for (i64 x = 0, c = 0; x < pool && c < clusters_; ++x) {
        const i64 pick = static_cast<i64>(order(static_cast<std::uint64_t>(x))), t = tokens[static_cast<std::size_t>(pick % real_tokens)];
        const double* row = (pick < real_tokens ? q : k).ptr<double>() + ((t / N * H + h) * N + t % N) * d;
        if (chosen.emplace(row, row + d).second) std::copy_n(row, d, mu.mut_ptr<double>() + (h * clusters_ + c++) * d);
      }
    }
    State now = s;
    Tensor same_type = mu.to(s.q.dtype());
    for (i64 step = 0; step < kLloydSteps; ++step) {
      now.q_best = best_clusters(s.q, same_type, s.mask);
      now.k_best = config_.share_qk ? now.q_best : best_clusters(s.k, same_type, s.mask);
      const Sums sums = sums_of(now);
      update(mu, sums.sums, sums.counts, 0, centred(), config_.norm_eps);
      same_type = mu.to(s.q.dtype());
    }
    centroids_.value().copy_from(mu);
  }

  // The mean of (x^ - its centroid)^2: sum over both, and the number of values.
  std::pair<Tensor, double> distance(const State& s, const Tensor& qn, const Tensor& kn) const {
    const i64 B = s.q.dim(0), H = s.q.dim(1), N = s.q.dim(2), d = s.q.dim(3);
    const Tensor mu = centroids_.get().view({1, H, clusters_, d}).expand({B, H, clusters_, d});
    const auto one = [&](const Tensor& x, const Tensor& best) {
      const Tensor away = ops::sub(x, ops::gather_along(mu, best));
      return ops::sum(ops::mul(away, away));  // rows of padding are 0 in both
    };
    Tensor sum = one(qn, s.q_best);
    if (!config_.share_qk) sum = ops::add(sum, one(kn, s.k_best));
    double tokens = 0;
    for (i64 t = 0; t < B * N; ++t) tokens += real(s.mask, N, t / N, t % N);
    return {sum, tokens * static_cast<double>(H * d) * (config_.share_qk ? 1 : 2)};
  }

  void follow(const State& s, const Tensor& qn, const Tensor& kn, StepEffects& effects) const {
    const Sums sums = sums_of(s);
    const double decay = config_.decay, eps = config_.norm_eps;
    effects.propose(
        &centroids_.value(), sums.sums.to(DType::F32), sums.counts.to(DType::F32),
        [decay, eps, layer = centred()](Tensor& mu, const Tensor& total, const Tensor& n) { update(mu, total, n, decay, layer, eps); });
    if (config_.commitment == 0) return;
    const auto [sum, count] = distance(s, qn, kn);
    if (count > 0) effects.add_loss("commitment", ops::scale(sum, config_.commitment), count);
  }

  // [B, H, places, 1]: 1 / clusters in which the query of a place sees a key.
  static Tensor shares(const Members& queries, const ClusterPattern& pattern, i64 N, DType t) {
    const i64 B = queries.position.dim(0), H = queries.position.dim(1), places = queries.position.dim(2);
    Tensor out = Tensor::zeros({B, H, places, 1}, DType::F64);
    double* share = out.mut_ptr<double>();
    parallel_for(B * H, 1, [&](i64 begin, i64 end) {
      std::vector<i64> clusters(static_cast<std::size_t>(N));
      for (i64 g = begin; g < end; ++g) {
        const i64* position = queries.position.ptr<i64>() + g * places;
        std::fill(clusters.begin(), clusters.end(), i64{0});
        for (i64 p = 0; p < places; ++p)
          if (pattern.sees(g * places + p)) ++clusters[static_cast<std::size_t>(position[p])];
        for (i64 p = 0; p < places; ++p)
          if (pattern.sees(g * places + p))
            share[g * places + p] = 1 / static_cast<double>(clusters[static_cast<std::size_t>(position[p])]);
      }
    });
    return out.to(t);
  }

  // What happened, for whoever asks: members u8 [B,H,C,N], the centroids after an update with this batch alone, the commitment loss before
  // its weight [1], the share of real tokens that no cluster took as a query [1], and the size of the largest cluster [1].
  void report(const State& s, const Members& queries, const Members& keys, const Tensor& qn, const Tensor& kn,
              std::map<std::string, Tensor>& extra) const {
    const i64 B = s.q.dim(0), H = s.q.dim(1), N = s.q.dim(2);
    const auto members = [&](const Members& m) {
      Tensor out = Tensor::zeros({B, H, clusters_, N}, DType::U8);
      for (i64 g = 0; g < B * H; ++g)
        for (i64 c = 0; c < clusters_; ++c)
          for (i64 x = 0; x < m.counts[static_cast<std::size_t>(g * clusters_ + c)]; ++x) {
            const i64 place = m.starts[static_cast<std::size_t>(g * (clusters_ + 1) + c)] + x;
            out.mut_ptr<std::uint8_t>()[(g * clusters_ + c) * N + m.position.ptr<i64>()[g * m.position.dim(2) + place]] = 1;
          }
      return out;
    };
    extra["q_member"] = members(queries);
    extra["k_member"] = members(keys);
    Tensor next = centroids_.get().clone();
    const Sums sums = sums_of(s);
    update(next, sums.sums, sums.counts, config_.decay, centred(), config_.norm_eps);
    extra["centroids_new"] = next;
    const auto [sum, count] = distance(s, qn.detach(), kn.detach());
    extra["commitment"] = ops::scale(sum, count > 0 ? 1 / count : 0).view({1});
    double real_tokens = 0, taken = 0;
    for (i64 t = 0; t < B * N; ++t) real_tokens += real(s.mask, N, t / N, t % N) * static_cast<double>(H);
    const Tensor in_some = ops::max(extra["q_member"].to(DType::F32), 2);
    for (double x : in_some.to_vector()) taken += x;
    extra["unrouted"] = Tensor::full({1}, real_tokens > 0 ? 1 - taken / real_tokens : 0, qn.dtype());
    const auto largest = std::max_element(keys.counts.begin(), keys.counts.end());
    extra["largest_cluster"] = Tensor::full({1}, static_cast<double>(largest == keys.counts.end() ? 0 : *largest), qn.dtype());
  }

  Config config_;
  AttentionSpec spec_;
  RngKey key_;
  i64 clusters_;
  mutable Buffer centroids_;    // [H, C, d]
  mutable Buffer initialised_;  // [1]: 0 until the first training batch has given centroids
};

[[maybe_unused]] const bool kRegistered = register_attention<Routing>();

}  // namespace
}  // namespace tapeformer
