#include "core/kernels/graph_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "core/counters.h"
#include "core/error.h"
#include "core/kernels/attention_dropout.h"
#include "core/parallel.h"

namespace tapeformer::kernels {
namespace {

constexpr i64 kPieceLinks = 2048;  // links, and rows, of a piece of work

struct Entry {
  i64 to, from;  // rows: graph * nodes + node
  i64 edge;
};

void check_edge(i64 e, i64 source, i64 target, i64 sample, i64 nodes, i64 samples) {
  const i64 wrong = source < 0 || source >= nodes ? source : target;
  if (wrong < 0 || wrong >= nodes)
    throw DataError(fmt::format("edges: edge {} ({} -> {}) names node {}, expected 0 to {}", e, source, target, wrong, nodes - 1));
  if (sample < 0 || sample >= samples)
    throw DataError(
        fmt::format("edge_batch: edge {} ({} -> {}) is of sample {}, expected 0 to {}", e, source, target, sample, samples - 1));
}

// starts[r] .. starts[r + 1]: where row r's entries lie among `rows`, which ascend.
std::vector<i64> starts_of(const std::vector<Entry>& entries, i64 rows) {
  std::vector<i64> starts(static_cast<std::size_t>(rows + 1), 0);
  for (const Entry& e : entries) ++starts[static_cast<std::size_t>(e.to + 1)];
  for (i64 r = 0; r < rows; ++r) starts[static_cast<std::size_t>(r + 1)] += starts[static_cast<std::size_t>(r)];
  return starts;
}

std::vector<i64> pieces_of(const std::vector<i64>& starts) {
  const i64 rows = static_cast<i64>(starts.size()) - 1;
  std::vector<i64> borders{0};
  for (i64 r = 1; r <= rows; ++r) {
    const i64 from = borders.back();
    if (r == rows || starts[r + 1] - starts[from] + (r + 1 - from) > kPieceLinks) borders.push_back(r);
  }
  return borders;
}

}  // namespace

EdgeIndex::EdgeIndex(i64 nodes, i64 samples, const i64* edges, const i64* sample, i64 count, Options options)
    : nodes_(nodes), graphs_(sample ? samples : 1), given_(count) {
  constexpr i64 kMost = std::numeric_limits<std::int32_t>::max();
  if (nodes > kMost || count > kMost)
    throw DataError(fmt::format("edges: got {} nodes and {} edges, at most {} are supported", nodes, count, kMost));
  std::vector<Entry> entries;
  const auto add = [&](i64 graph, i64 source, i64 target, i64 e) {
    if (!options.causal || source <= target) entries.push_back({graph * nodes + target, graph * nodes + source, e});
  };
  for (i64 e = 0; e < count; ++e) {
    const i64 source = edges[e], target = edges[count + e], of = sample ? sample[e] : 0;
    check_edge(e, source, target, of, nodes, sample ? samples : 1);
    add(of, source, target, e);
    if (options.undirected) add(of, target, source, e);
  }
  if (options.self_loops)
    for (i64 r = 0; r < graphs_ * nodes; ++r) entries.push_back({r, r, count});  // behind a given loop
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.to != b.to ? a.to < b.to : a.from != b.from ? a.from < b.from : a.edge < b.edge;
  });
  const auto same = [&](const Entry& a, const Entry& b) {
    if (a.to != b.to || a.from != b.from) return false;
    if (options.distinct && b.edge < count)
      throw DataError(fmt::format("edges: edge {} repeats edge {} ({} -> {}): edges with values of their own must differ", b.edge, a.edge,
                                  a.from % nodes, a.to % nodes));
    return true;
  };
  entries.erase(std::unique(entries.begin(), entries.end(), same), entries.end());

  by_target_ = starts_of(entries, graphs_ * nodes);
  const auto store = [&](std::vector<std::int32_t>& node, std::vector<std::int32_t>& edge) {
    node.reserve(entries.size());
    edge.reserve(entries.size());
    for (const Entry& e : entries) {
      node.push_back(static_cast<std::int32_t>(e.from % nodes));
      edge.push_back(e.edge < count ? static_cast<std::int32_t>(e.edge) : -1);
    }
  };
  store(source_, edge_);
  for (Entry& e : entries) std::swap(e.to, e.from);
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) { return a.to < b.to; });
  by_source_ = starts_of(entries, graphs_ * nodes);
  store(target_, edge_of_outgoing_);
  target_pieces_ = pieces_of(by_target_);
  source_pieces_ = pieces_of(by_source_);
}

namespace {

constexpr int kLanes = 16;  // sums kept apart, so that the compiler may use vectors

template <class T>
T dot(const T* x, const T* y, i64 n) {
  T part[kLanes] = {};
  i64 c = 0;
  for (; c + kLanes <= n; c += kLanes)
    for (int lane = 0; lane < kLanes; ++lane) part[lane] += x[c + lane] * y[c + lane];
  for (int lane = 0; c + lane < n; ++lane) part[lane] += x[c + lane] * y[c + lane];
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) part[lane] += part[lane + half];
  return part[0];
}

template <class T>
void add_scaled(T* sum, T factor, const T* x, i64 n) {
  for (i64 c = 0; c < n; ++c) sum[c] += factor * x[c];
}

template <class T>
T* row_of(const RowsView<T>& x, i64 b, i64 h, i64 i) {
  return x.p + b * x.b + h * x.h + i * x.n;
}

template <class T>
struct Scorer {
  const GraphAttention<T>& a;
  i64 h;
  T score(const T* q, const T* k, i64 edge) const {
    if (a.additive) {
      const T s = q[0] + k[0];
      return s > T(0) ? s : static_cast<T>(a.negative_slope) * s;
    }
    T s = static_cast<T>(a.scale) * dot(q, k, a.d);
    if (a.bias && edge >= 0) s += a.bias[h * a.bias_edges + edge];
    return s;
  }
  // What a unit of ds_ij adds to dq_i per unit of k_j (dot), or to dq_i itself (additive).
  T slope(const T* q, const T* k) const {
    return a.additive ? (q[0] + k[0] > T(0) ? T(1) : static_cast<T>(a.negative_slope)) : static_cast<T>(a.scale);
  }
};

struct Counted {
  i64 flops_a_pair;
  bool pairs;
};

// Work in a fixed cut: (h, b, piece of rows); with `together` one unit does a piece for every sample, in order.
// f(b, h, row, node) gives the number of pairs it computed.
template <class F>
void for_pieces(i64 B, i64 H, const EdgeIndex& edges, const std::vector<i64>& borders, bool together, Counted counted, F&& f) {
  const i64 pieces = static_cast<i64>(borders.size()) - 1, N = edges.nodes();
  const bool shared = edges.graphs() == 1;
  const i64 apart = shared && !together ? B : 1, samples = shared && together ? B : 1;
  parallel_for(H * apart * pieces, 1, [&](i64 begin, i64 end) {
    for (i64 x = begin; x < end; ++x) {
      const i64 piece = x % pieces, b0 = x / pieces % apart, h = x / pieces / apart;
      i64 pairs = 0;
      for (i64 b = b0; b < b0 + samples; ++b) {
        for (i64 r = borders[piece]; r < borders[piece + 1]; ++r) pairs += f(shared ? b : r / N, h, r, r % N);
      }
      counters::add_attention(pairs * counted.flops_a_pair, counted.pairs ? pairs : 0);
    }
  });
}

template <class T>
bool real(const GraphAttention<T>& a, i64 b, i64 i) {
  return a.mask == nullptr || a.mask[b * a.N + i] != 0;
}

template <class T>
RowDropout dropout_of(const GraphAttention<T>& a, i64 b, i64 h, i64 i) {
  return {a.dropout, a.dropout_key, a.rows ? a.rows[b] : b, h, i};
}

}  // namespace

template <class T>
void graph_attention(const GraphAttention<T>& a, RowsView<T> o, T* row_max, T* row_lse) {
  const EdgeIndex& edges = *a.edges;
  struct Neighbour {
    i64 node;
    T score;
  };
  for_pieces(a.B, a.H, edges, edges.target_pieces(), false, {2 * (a.d + a.dv), true}, [&](i64 b, i64 h, i64 row, i64 i) -> i64 {
    thread_local std::vector<Neighbour> seen;
    seen.clear();
    const i64 at = (b * a.H + h) * a.N + i;
    T* out = row_of(o, b, h, i);
    std::fill(out, out + a.dv, T(0));
    row_max[at] = row_lse[at] = T(0);
    if (!real(a, b, i)) return 0;
    const T* q = row_of(a.q, b, h, i);
    const Scorer<T> scorer{a, h};
    T top = -std::numeric_limits<T>::infinity();
    edges.incoming(row, [&](const EdgeIndex::Link& link) {
      if (!real(a, b, link.node)) return;
      seen.push_back({link.node, scorer.score(q, row_of(a.k, b, h, link.node), link.edge)});
      top = std::max(top, seen.back().score);
    });
    if (seen.empty()) return 0;
    double total = 0;
    for (Neighbour& n : seen) total += n.score = std::exp(n.score - top);
    const RowDropout dropout = dropout_of(a, b, h, i);
    for (const Neighbour& n : seen)
      if (const double c = dropout.factor(n.node); c != 0)
        add_scaled(out, static_cast<T>(c * n.score / total), row_of(a.v, b, h, n.node), a.dv);
    row_max[at] = top;
    row_lse[at] = static_cast<T>(std::log(total));
    return static_cast<i64>(seen.size());
  });
}

template <class T>
void graph_attention_grad(const GraphAttention<T>& a, RowsView<const T> o, const T* row_max, const T* row_lse, RowsView<const T> d_o,
                          const GraphAttentionGrads<T>& g) {
  const EdgeIndex& edges = *a.edges;
  std::vector<T> through(static_cast<std::size_t>(a.B * a.H * a.N), T(0));  // D_i = do_i . o_i
  if (g.dbias) std::fill(g.dbias, g.dbias + a.H * a.bias_edges, T(0));
  for_pieces(a.B, a.H, edges, edges.target_pieces(), g.dbias != nullptr, {2 * (2 * a.d + a.dv), false},
             [&](i64 b, i64 h, i64 row, i64 i) -> i64 {
               T* dq = row_of(g.dq, b, h, i);
               std::fill(dq, dq + a.d, T(0));
               if (!real(a, b, i)) return 0;
               const i64 at = (b * a.H + h) * a.N + i;
               const T *q = row_of(a.q, b, h, i), *up = row_of(d_o, b, h, i);
               const T D = through[at] = dot(up, row_of(o, b, h, i), a.dv);
               const Scorer<T> scorer{a, h};
               const RowDropout dropout = dropout_of(a, b, h, i);
               i64 pairs = 0;
               edges.incoming(row, [&](const EdgeIndex::Link& link) {
                 if (!real(a, b, link.node)) return;
                 const T* k = row_of(a.k, b, h, link.node);
                 const T p = std::exp(scorer.score(q, k, link.edge) - row_max[at] - row_lse[at]);
                 const T ds = p * (static_cast<T>(dropout.factor(link.node)) * dot(up, row_of(a.v, b, h, link.node), a.dv) - D);
                 if (a.additive)
                   dq[0] += scorer.slope(q, k) * ds;
                 else
                   add_scaled(dq, scorer.slope(q, k) * ds, k, a.d);
                 if (g.dbias && link.edge >= 0) g.dbias[h * a.bias_edges + link.edge] += ds;
                 ++pairs;
               });
               return pairs;
             });
  for_pieces(a.B, a.H, edges, edges.source_pieces(), false, {4 * (a.d + a.dv), false}, [&](i64 b, i64 h, i64 row, i64 j) -> i64 {
    T *dk = row_of(g.dk, b, h, j), *dv = row_of(g.dv, b, h, j);
    std::fill(dk, dk + a.d, T(0));
    std::fill(dv, dv + a.dv, T(0));
    if (!real(a, b, j)) return 0;
    const T *k = row_of(a.k, b, h, j), *v = row_of(a.v, b, h, j);
    const Scorer<T> scorer{a, h};
    i64 pairs = 0;
    edges.outgoing(row, [&](const EdgeIndex::Link& link) {
      const i64 i = link.node, at = (b * a.H + h) * a.N + i;
      if (!real(a, b, i)) return;
      const T *q = row_of(a.q, b, h, i), *up = row_of(d_o, b, h, i);
      const T p = std::exp(scorer.score(q, k, link.edge) - row_max[at] - row_lse[at]);
      const T c = static_cast<T>(dropout_of(a, b, h, i).factor(j));
      const T ds = p * (c * dot(up, v, a.dv) - through[at]);
      if (a.additive)
        dk[0] += scorer.slope(q, k) * ds;
      else
        add_scaled(dk, scorer.slope(q, k) * ds, q, a.d);
      add_scaled(dv, c * p, up, a.dv);
      ++pairs;
    });
    return pairs;
  });
}

#define TAPEFORMER_GRAPH_ATTENTION(T)                                                                                    \
  template void graph_attention(const GraphAttention<T>&, RowsView<T>, T*, T*);                                          \
  template void graph_attention_grad(const GraphAttention<T>&, RowsView<const T>, const T*, const T*, RowsView<const T>, \
                                     const GraphAttentionGrads<T>&);
TAPEFORMER_GRAPH_ATTENTION(float)
TAPEFORMER_GRAPH_ATTENTION(double)

}  // namespace tapeformer::kernels
