// Attention along edges: what it coincides with, batches of graphs, refusals and cost.
#include <gtest/gtest.h>

#include "core/counters.h"
#include "core/parallel.h"
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

using Edges = std::vector<std::pair<i64, i64>>;  // source, target

Tensor tensor_of(const Edges& edges) {
  Tensor t = Tensor::empty({2, static_cast<i64>(edges.size())}, DType::I64);
  i64* p = t.mut_ptr<i64>();
  for (std::size_t e = 0; e < edges.size(); ++e) {
    p[e] = edges[e].first;
    p[edges.size() + e] = edges[e].second;
  }
  return t;
}

Tensor integers(const std::vector<i64>& v) { return Tensor::from<i64>(v, {static_cast<i64>(v.size())}); }

void expect_same(const Case& graph, const Edges& edges, const Case& other, i64 N, double dropout = 0) {
  for (DType t : {DType::F64, DType::F32}) {
    SCOPED_TRACE(testing::Message() << graph << " against " << other << ", " << name_of(t));
    const DTypeScope scope(t);
    const Sizes s{.B = 4, .N = N, .H = 2, .d = 4};
    const auto one = build(graph, spec_of(graph, s, dropout)), two = build(other, spec_of(other, s, dropout));
    AttentionInput in = random_input(*one, s, t);
    in.mask = mixed_mask(s.B, s.N);
    in.side["edges"] = tensor_of(edges);
    const Ctx ctx{.training = true, .key = RngKey(3)};
    const Tensor upstream = random_upstream(*one, in, 5);
    const Result x = run(*one, in, ctx, upstream), y = run(*two, in, ctx, upstream);
    const double tolerance = t == DType::F64 ? 1e-12 : 5e-6;
    EXPECT_LE(difference(x.o, y.o), tolerance);
    for (const char* name : {"q", "k", "v"}) EXPECT_LE(difference(x.grads.at(name), y.grads.at(name)), 10 * tolerance) << name;
  }
}

TEST(Graph, CompleteGraphIsFull) {
  constexpr i64 N = 70;
  Edges edges;
  for (i64 i = 0; i < N; ++i)
    for (i64 j = 0; j < N; ++j) edges.emplace_back((j * 37 + i) % N, i);
  for (bool causal : {false, true})
    for (double dropout : {0.0, 0.3})
      expect_same({.type = "graph", .config = "{}", .causal = causal}, edges, {.type = "full", .config = "{}", .causal = causal}, N,
                  dropout);
}

TEST(Graph, PathWithLoopsIsLocal) {
  constexpr i64 N = 67;
  Edges path;
  for (i64 i = 1; i < N; ++i) path.emplace_back(i - 1, i);
  for (bool causal : {false, true})
    expect_same({.type = "graph", .config = "{undirected: true, self_loops: true}", .causal = causal}, path,
                {.type = "local", .config = "{window: 1}", .causal = causal}, N);
}

TEST(Graph, StepsWithLoopsAreDilated) {
  constexpr i64 N = 67, step = 5;
  Edges edges;
  for (i64 i = step; i < N; ++i) edges.emplace_back(i - step, i);
  for (bool causal : {false, true})
    expect_same({.type = "graph", .config = "{undirected: true, self_loops: true}", .causal = causal}, edges,
                {.type = "strided", .config = "{pattern: dilated, stride: 5, reach: 1}", .causal = causal}, N);
}

// Graphs of different size: padded rows of a batch, or one graph in one sample.
TEST(Graph, BlockDiagonalEqualsPadded) {
  const i64 sizes[] = {5, 9, 3}, N = 9;
  for (const char* config : {"{}", "{score: gat}", "{edge_bias: per_edge_type, n_types: 2, self_loops: true}"}) {
    SCOPED_TRACE(config);
    const DTypeScope f64(DType::F64);
    const Case c{.type = "graph", .config = config};
    const Sizes batch{.B = 3, .N = N}, one{.B = 1, .N = 17};
    const auto core = build(c, spec_of(c, one));
    AttentionInput a = random_input(*core, batch, DType::F64), b = random_input(*core, one, DType::F64);
    a.mask = Tensor::zeros({3, N}, DType::U8);
    Edges apart, together;
    std::vector<i64> sample, type;
    for (i64 s = 2, first[] = {0, 5, 14}; s >= 0; --s) {  // samples out of order
      a.mask.slice(0, s, s + 1).slice(1, 0, sizes[s]).fill(1);
      for (i64 e = 0; e < 2 * sizes[s]; ++e) {
        const i64 source = e % sizes[s], target = (source + 1 + e / sizes[s]) % sizes[s];
        apart.emplace_back(source, target);
        together.emplace_back(first[s] + source, first[s] + target);
        sample.push_back(s);
        type.push_back(e % 2);
      }
      for (const auto& [name, t] : inputs_of(a)) {
        Tensor whole = inputs_of(b).at(name);
        const int rows = t.rank() - 2;
        whole.slice(rows, first[s], first[s] + sizes[s]).copy_from(t.slice(0, s, s + 1).slice(rows, 0, sizes[s]));
      }
    }
    a.side["edges"] = tensor_of(apart);
    a.side["edge_batch"] = integers(sample);
    b.side["edges"] = tensor_of(together);
    a.side["edge_type"] = b.side["edge_type"] = integers(type);
    const Tensor x = core->attend(a, {}), y = core->attend(b, {});
    for (i64 s = 0, first = 0; s < 3; first += sizes[s++])
      EXPECT_LE(difference(x.slice(0, s, s + 1).slice(2, 0, sizes[s]), y.slice(2, first, first + sizes[s])), 1e-14);
  }
}

TEST(Graph, OrderAndRepetitionOfEdgesChangeNothing) {
  const Sizes s{.B = 2, .N = 30};
  for (const char* config : {"{}", "{self_loops: true}", "{score: gat, undirected: true}"}) {
    const Case c{.type = "graph", .config = config};
    const auto core = build(c, spec_of(c, s));
    AttentionInput in = random_input(*core, s, DType::F32);
    Edges edges{{3, 3}, {1, 2}, {7, 2}, {29, 0}, {4, 9}}, again{{4, 9}, {1, 2}, {29, 0}, {1, 2}, {3, 3}, {7, 2}, {3, 3}};
    in.side["edges"] = tensor_of(edges);
    const Result x = run(*core, in);
    in.side["edges"] = tensor_of(again);
    const Result y = run(*core, in);
    EXPECT_TRUE(same_bits(x.o, y.o)) << config;
    for (const auto& [name, g] : x.grads) EXPECT_TRUE(same_bits(g, y.grads.at(name))) << config << name;
  }
}

TEST(Graph, NodesWithoutEdgesGiveZero) {
  const Sizes s{.B = 2, .N = 5};
  const Case c{.type = "graph", .config = "{}"};
  const auto core = build(c, spec_of(c, s));
  AttentionInput in = random_input(*core, s, DType::F32);
  in.side["edges"] = Tensor::empty({2, 0}, DType::I64);
  const Result none = run(*core, in);
  EXPECT_EQ(difference(none.o, Tensor::zeros(none.o.shape())), 0);
  for (const auto& [name, g] : none.grads) EXPECT_EQ(difference(g, Tensor::zeros(g.shape())), 0) << name;
  in.side["edges"] = tensor_of({{0, 3}});
  const Result one = run(*core, in);
  EXPECT_TRUE(same_bits(one.o.slice(2, 3, 4).clone(), in.v.slice(2, 0, 1).clone()));
}

// The index is made again when the edges are written, and not taken for one of other edges at the same place in memory.
TEST(Graph, ChangedEdgesAreSeen) {
  const Sizes s{.B = 1, .N = 6};
  const Case c{.type = "graph", .config = "{}"};
  const auto core = build(c, spec_of(c, s));
  AttentionInput in = random_input(*core, s, DType::F32);
  Tensor edges = tensor_of({{0, 1}});
  in.side["edges"] = edges;
  const auto looks_at = [&](i64 source) {
    return same_bits(core->attend(in, {}).slice(2, 1, 2).clone(), in.v.slice(2, source, source + 1).clone());
  };
  EXPECT_TRUE(looks_at(0));
  edges.mut_ptr<i64>()[0] = 4;
  EXPECT_TRUE(looks_at(4));
  edges = Tensor();
  in.side.erase("edges");
  in.side["edges"] = tensor_of({{5, 1}});
  EXPECT_TRUE(looks_at(5));
  in.side["edges"] = tensor_of({{5, 1}, {2, 3}}).slice(1, 1, 2);
  EXPECT_FALSE(looks_at(5));
}

TEST(Graph, SaysWhatIsWrong) {
  const Sizes s{.B = 2, .N = 6};
  const auto said = [&](const char* config, const std::map<std::string, Tensor>& side) {
    const Case c{.type = "graph", .config = config};
    const auto core = build(c, spec_of(c, s));
    AttentionInput in = random_input(*core, s, DType::F32);
    in.side = side;
    return message_of([&] { core->attend(in, {}); });
  };
  const Tensor edges = tensor_of({{0, 1}, {5, 2}}), far = tensor_of({{0, 1}, {3, 6}});
  EXPECT_EQ(said("{}", {}), "attention 'graph' needs 'edges', which this batch does not have");
  EXPECT_EQ(said("{}", {{"edges", far}}), "edges: edge 1 (3 -> 6) names node 6, expected 0 to 5");
  EXPECT_EQ(said("{}", {{"edges", tensor_of({{-1, 2}})}}), "edges: edge 0 (-1 -> 2) names node -1, expected 0 to 5");
  EXPECT_EQ(said("{}", {{"edges", integers({1, 2})}}), "edges: got i64 [2], expected i64 [2, 0]");
  EXPECT_EQ(said("{}", {{"edges", edges}, {"edge_batch", integers({0})}}), "edge_batch: got i64 [1], expected i64 [2]");
  EXPECT_EQ(said("{}", {{"edges", edges}, {"edge_batch", integers({0, 2})}}),
            "edge_batch: edge 1 (5 -> 2) is of sample 2, expected 0 to 1");
  const char* typed = "{edge_bias: per_edge_type, n_types: 3}";
  EXPECT_EQ(said(typed, {{"edges", edges}}),
            "attention 'graph' with edge_bias: per_edge_type needs 'edge_type', which this batch does not have");
  EXPECT_EQ(said(typed, {{"edges", edges}, {"edge_type", integers({0, 1, 2})}}), "edge_type: got i64 [3], expected i64 [2]");
  EXPECT_EQ(said(typed, {{"edges", edges}, {"edge_type", integers({0, 3})}}), "edge_type: edge 1 is of type 3, expected 0 to 2");
  EXPECT_EQ(said(typed, {{"edges", tensor_of({{0, 1}, {5, 2}, {0, 1}})}, {"edge_type", integers({0, 1, 2})}}),
            "edges: edge 2 repeats edge 0 (0 -> 1): edges with values of their own must differ");
  const auto refused = [&](const char* config) {
    const Case c{.type = "graph", .config = config};
    return message_of([&] { build(c, spec_of(c, s)); });
  };
  EXPECT_NE(refused("{edge_bias: per_edge_type}").find("n_types: got 0, expected at least 1"), std::string::npos);
  EXPECT_NE(refused("{edge_bias: per_edge_type, n_types: 2, undirected: true}").find("undirected: true cannot be combined"),
            std::string::npos);
  EXPECT_NE(refused("{edge_bias: per_edge_type, n_types: 2, score: gat}").find("per_edge_type needs score: dot"), std::string::npos);
}

TEST(Graph, CostGrowsWithTheEdges) {
  for (const char* config : {"{}", "{score: gat, self_loops: false}"})
    for (i64 N : {4096, 16384}) {
      SCOPED_TRACE(testing::Message() << config << ", N = " << N);
      const Sizes s{.B = 1, .N = N};
      const Case c{.type = "graph", .config = config};
      const auto core = build(c, spec_of(c, s));
      AttentionInput in = random_input(*core, s, DType::F32);
      std::int64_t flops[2];
      for (i64 k : {1, 2}) {
        Edges edges;
        for (i64 e = 0; e < k * 2 * N; ++e) edges.emplace_back((e * 7 + 3 * (e / N)) % N, e % N);
        in.side["edges"] = tensor_of(edges);
        const counters::Counts before = counters::now();
        std::size_t largest = 0;
        memory::set_allocation_hook([&](std::size_t bytes) { largest = std::max(largest, bytes); });
        run(*core, in);
        memory::set_allocation_hook(nullptr);
        EXPECT_LE(largest, static_cast<std::size_t>(N * s.dim()) * sizeof(float)) << "something has more than one value a node and column";
        EXPECT_EQ(counters::now().attention_pairs - before.attention_pairs, 2 * s.H * k * 2 * N);  // run() attends twice
        flops[k - 1] = counters::now().attention_flops - before.attention_flops;
      }
      EXPECT_EQ(flops[1], 2 * flops[0]);
    }
}

// A hub in a large graph: any number of threads, the same bits.
TEST(Graph, HubsDoNotDependOnThreads) {
  constexpr i64 N = 5000;
  Edges edges;
  for (i64 j = 0; j < N; ++j) {
    edges.emplace_back(j, 17);
    edges.emplace_back(17, j);
    edges.emplace_back(j, (j * 13 + 5) % N);
  }
  const Sizes s{.B = 2, .N = N, .H = 2, .d = 8};
  const int threads = thread_count();
  for (const char* config : {"{self_loops: true}", "{score: gat}"}) {
    const Case c{.type = "graph", .config = config};
    const auto core = build(c, spec_of(c, s, 0.2));
    AttentionInput in = random_input(*core, s, DType::F32);
    in.side["edges"] = tensor_of(edges);
    const Ctx ctx{.training = true, .key = RngKey(8)};
    set_thread_count(1);
    const Result one = run(*core, in, ctx);
    for (int n : {2, 5}) {
      set_thread_count(n);
      const Result many = run(*core, in, ctx);
      EXPECT_TRUE(same_bits(one.o, many.o));
      for (const auto& [name, g] : one.grads) EXPECT_TRUE(same_bits(g, many.grads.at(name))) << config << name;
    }
    set_thread_count(threads);
  }
}

}  // namespace
}  // namespace tapeformer::suite
