// graph.cpp: attention along given edges: dot products (Dwivedi, Bresson 2020, arXiv 2012.09699) or the additive score of graph attention
// networks (Velickovic et al. 2018, arXiv 1710.10903).
#include <fmt/format.h>

#include <algorithm>
#include <mutex>

#include "attention/attention.h"
#include "autograd/ops.h"

namespace tapeformer {
namespace {

struct GraphConfig {
  std::optional<double> scale;
  std::string score = "dot";
  std::optional<bool> self_loops;
  bool undirected = false;
  std::string edge_bias = "none";
  i64 n_types = 0;
  double negative_slope = 0.2;
  std::string head_merge = "concat";
};
template <class V>
void visit_fields(V& v, GraphConfig& c) {
  v("scale", c.scale, above(0), "dot: factor of q.k; null = 1/sqrt(d)");
  v("score", c.score, OneOf{"dot", "gat"}, "q_i.k_j, or LeakyReLU(a_dst.h_i + a_src.h_j) with h = x W");
  v("self_loops", c.self_loops, "every node also looks at itself; null = with gat only");
  v("undirected", c.undirected, "an edge joins its nodes both ways");
  v("edge_bias", c.edge_bias, OneOf{"none", "per_edge_type"}, "dot: a learned number for each head and type of edge, added to the score");
  v("n_types", c.n_types, at_least(0), "types of edges, for edge_bias: per_edge_type");
  v("negative_slope", c.negative_slope, at_least(0), "gat: slope of LeakyReLU below 0");
  v("head_merge", c.head_merge, OneOf{"concat", "mean"}, "gat: heads of D/H side by side, or the mean of heads of D each (last layer)");
}

using kernels::EdgeIndex;

// The last few indices made, so that all layers and steps with the same edges sort them once. Edges are known by their memory and by how
// often it was written; an entry ends with the memory of its edges.
class EdgeIndexCache {
 public:
  std::shared_ptr<const EdgeIndex> get(i64 nodes, i64 samples, const Tensor& edges, const Tensor& sample, EdgeIndex::Options options) {
    const std::lock_guard lock(mutex_);
    std::erase_if(entries_, [](const Entry& e) { return e.edges.gone() || e.sample.gone(); });
    for (const Entry& e : entries_) {
      if (e.nodes == nodes && e.samples == samples && e.options == options && e.edges.holds(edges) && e.sample.holds(sample))
        return e.index;
    }
    const Tensor pairs = edges.to_contiguous(), of = sample.defined() ? sample.to_contiguous() : sample;
    auto index =
        std::make_shared<const EdgeIndex>(nodes, samples, pairs.ptr<i64>(), of.defined() ? of.ptr<i64>() : nullptr, edges.dim(1), options);
    if (entries_.size() == kMost) entries_.erase(entries_.begin());
    entries_.push_back({nodes, samples, options, Memory(edges), Memory(sample), index});
    return index;
  }

 private:
  static constexpr std::size_t kMost = 16;
  class Memory {  // what a tensor, or no tensor, holds now
   public:
    explicit Memory(const Tensor& t) : storage_(t.storage()), defined_(t.defined()) {
      if (!defined_) return;
      version_ = t.storage()->version();
      first_ = t.ptr<i64>();
      shape_ = t.shape();
      for (int axis = 0; axis < t.rank(); ++axis) strides_.push_back(t.stride(axis));
    }
    bool gone() const { return defined_ && storage_.expired(); }
    bool holds(const Tensor& t) const {
      if (!t.defined() || !defined_) return t.defined() == defined_;
      return !storage_.owner_before(t.storage()) && !t.storage().owner_before(storage_) && version_ == t.storage()->version() &&
             first_ == t.ptr<i64>() && shape_ == t.shape() && strides_ == Memory(t).strides_;
    }

   private:
    std::weak_ptr<Storage> storage_;
    bool defined_;
    std::uint32_t version_ = 0;
    const i64* first_ = nullptr;
    Shape shape_, strides_;
  };
  struct Entry {
    i64 nodes, samples;
    EdgeIndex::Options options;
    Memory edges, sample;
    std::shared_ptr<const EdgeIndex> index;
  };
  std::mutex mutex_;
  std::vector<Entry> entries_;
};

class Graph final : public AttentionCore {
 public:
  using Config = GraphConfig;
  static AttentionInfo describe() {
    return {.name = "graph",
            .summary = "each node looks at the nodes that its incoming edges come from",
            .formula = "o_i = sum_j softmax_j(s_ij) v_j over edges j -> i, s_ij = q_i.k_j / sqrt(d) or LeakyReLU(a_dst.h_i + a_src.h_j)",
            .paper = "Velickovic et al. 2018, arXiv 1710.10903; Dwivedi, Bresson 2020, arXiv 2012.09699",
            .cost = "time E d for E edges, memory N d + E",
            .side = {"edges"}};
  }

  Graph(Config c, const AttentionSpec& spec, RngKey key) : config_(std::move(c)), spec_(spec) {
    const bool typed = config_.edge_bias == "per_edge_type";
    if (gat() && typed) throw ConfigError("edge_bias: per_edge_type needs score: dot");
    if (typed && config_.n_types < 1) throw ConfigError("n_types: got 0, expected at least 1 with edge_bias: per_edge_type");
    if (typed && config_.undirected)
      throw ConfigError("undirected: true cannot be combined with edge_bias: a bias belongs to one direction");
    if (mean() && spec_.hybrid) throw ConfigError("head_merge: mean cannot serve a head of a hybrid");
    warn_about_unused_keys();
    if (typed) table_ = std::make_unique<Weight>(this, "edge_bias_table", Shape{spec_.heads, config_.n_types}, Init::zeros(), key, false);
    if (!gat()) return;
    const i64 d = mean() ? spec_.dim : spec_.head_dim;
    a_src_ = std::make_unique<Weight>(this, "a_src", Shape{spec_.heads, d}, Init::xavier(d, 1), key);
    a_dst_ = std::make_unique<Weight>(this, "a_dst", Shape{spec_.heads, d}, Init::xavier(d, 1), key);
  }
  const AttentionInfo& info() const override {
    static const AttentionInfo i = describe();
    return i;
  }
  bool wants_q() const override { return !gat(); }
  bool wants_k() const override { return !gat(); }
  i64 value_dim() const override { return mean() ? spec_.dim : 0; }
  bool output_projection() const override { return !gat(); }
  bool averages_heads() const override { return mean(); }

  Tensor attend(const AttentionInput& in, const Ctx& ctx) const override {
    if (in.external > 0) return without_external(in, ctx);
    ops::GraphAttentionOptions o;
    o.mask = in.mask;
    if (ctx.training) o.dropout = spec_.dropout;
    o.key = ctx.at("weights").key;
    o.rows = ctx.rows;
    o.edge_bias = edge_bias(in);
    o.edges = index(in, o.edge_bias.defined());
    if (!gat()) {
      o.scale = config_.scale;
      return ops::graph_attention(in.q, in.k, in.v, o);
    }
    o.additive = true;
    o.negative_slope = config_.negative_slope;
    const Tensor h = real_rows(in.v, in.mask);
    const auto score = [&](const Weight& a) { return ops::matmul(h, ops::reshape(a.get(), {1, h.dim(1), h.dim(3), 1})); };
    return ops::graph_attention(score(*a_dst_), score(*a_src_), h, o);
  }

 private:
  bool gat() const { return config_.score == "gat"; }
  bool mean() const { return gat() && config_.head_merge == "mean"; }

  // External tokens are no nodes: no edge names them, and their rows are 0.
  Tensor without_external(const AttentionInput& in, const Ctx& ctx) const {
    AttentionInput nodes = in;
    nodes.external = 0;
    for (Tensor* t : {&nodes.q, &nodes.k, &nodes.v})
      if (t->defined()) *t = ops::slice(*t, 2, in.external, t->dim(2));
    if (in.mask.defined()) nodes.mask = in.mask.slice(1, in.external, in.mask.dim(1));
    return ops::pad(attend(nodes, ctx), 2, in.external, 0);
  }

  void warn_about_unused_keys() const {
    const Config fresh;
    if (gat() && config_.scale) warn_unused("attention.graph: scale has no effect with score: gat");
    if (!gat() && config_.negative_slope != fresh.negative_slope)
      warn_unused("attention.graph: negative_slope has no effect with score: dot");
    if (!gat() && config_.head_merge != fresh.head_merge) warn_unused("attention.graph: head_merge has no effect with score: dot");
    if (config_.n_types > 0 && config_.edge_bias == "none") warn_unused("attention.graph: n_types has no effect with edge_bias: none");
  }

  static void check_indices(const char* name, const Tensor& t, const Shape& want) {
    if (t.dtype() != DType::I64 || t.shape() != want)
      throw DataError(fmt::format("{}: got {} {}, expected i64 {}", name, name_of(t.dtype()), t.shape().str(), want.str()));
  }

  static const Tensor& edges_of(const AttentionInput& in) {
    const Tensor* edges = in.find("edges");
    if (!edges) throw DataError("attention 'graph' needs 'edges', which this batch does not have");
    check_indices("edges", *edges, {2, edges->rank() == 2 ? edges->dim(1) : 0});
    return *edges;
  }

  std::shared_ptr<const EdgeIndex> index(const AttentionInput& in, bool distinct) const {
    static EdgeIndexCache cache;
    const Tensor& edges = edges_of(in);
    const Tensor* sample = in.find("edge_batch");
    if (sample) check_indices("edge_batch", *sample, {edges.dim(1)});
    return cache.get(
        in.v.dim(2), in.v.dim(0), edges, sample ? *sample : Tensor(),
        {.self_loops = config_.self_loops.value_or(gat()), .undirected = config_.undirected, .causal = spec_.causal, .distinct = distinct});
  }

  // [H, E]: given edge by edge, or looked up by type; undefined = none.
  Tensor edge_bias(const AttentionInput& in) const {
    if (const Tensor* given = in.find("edge_bias")) return *given;
    if (!table_) return {};
    const Tensor* type = in.find("edge_type");
    if (!type) throw DataError("attention 'graph' with edge_bias: per_edge_type needs 'edge_type', which this batch does not have");
    check_indices("edge_type", *type, {edges_of(in).dim(1)});
    const Tensor types = type->to_contiguous();
    for (i64 e = 0; e < types.numel(); ++e) {
      if (const i64 t = types.ptr<i64>()[e]; t < 0 || t >= config_.n_types)
        throw DataError(fmt::format("edge_type: edge {} is of type {}, expected 0 to {}", e, t, config_.n_types - 1));
    }
    return ops::gather(table_->get(), 1, types);
  }

  Config config_;
  AttentionSpec spec_;
  std::unique_ptr<Weight> table_, a_src_, a_dst_;
};

[[maybe_unused]] const bool kRegistered = register_attention<Graph>();

}  // namespace
}  // namespace tapeformer
