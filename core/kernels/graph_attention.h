// graph_attention.h: softmax attention over the edges of a graph: node i looks at the sources of its incoming edges.
//   s_ij = scale q_i.k_j + bias_h,e        (Dwivedi, Bresson 2020, arXiv 2012.09699)
//   s_ij = LeakyReLU(q_i + k_j), d = 1     (additive; Velickovic et al. 2018, arXiv 1710.10903, eq. 1-3: q = a_dst.h, k = a_src.h)
//   o_i = sum_j c_ij softmax_j(s_ij) v_j;  a node without an edge: o_i = 0 and no gradient
// Time E (d + dv) a head. Only two numbers a row are kept for backward, none an edge; no row of k or v is copied.
#pragma once
#include <cstdint>
#include <vector>

#include "core/kernels/attention.h"

namespace tapeformer::kernels {

// The edges of a graph, or of one graph a sample, sorted by target and by source, each pair once. Immutable.
class EdgeIndex {
 public:
  struct Options {
    bool self_loops = false;  // every node also looks at itself
    bool undirected = false;  // both directions of every edge
    bool causal = false;      // edges with source > target are left out
    bool distinct = false;    // a repeated edge is an error: each edge has a value of its own
    friend bool operator==(const Options&, const Options&) = default;
  };
  // edges: [2, count], sources then targets; sample: [count], 0 <= sample < samples, or null: one graph that all samples share.
  // DataError with the edge that names a node or sample out of range. Time count log count.
  EdgeIndex(i64 nodes, i64 samples, const i64* edges, const i64* sample, i64 count, Options);

  i64 nodes() const { return nodes_; }
  i64 graphs() const { return graphs_; }  // 1 when shared, else one a sample
  i64 given() const { return given_; }    // edges that it was made from, those included that do not count
  i64 links() const { return static_cast<i64>(source_.size()); }

  struct Link {
    i64 node;  // the other end, 0 <= node < nodes()
    i64 edge;  // number of the given edge, -1 for a link that was added
  };
  // Rows are graph * nodes() + node. f(Link) in ascending order of the other end.
  template <class F>
  void incoming(i64 row, F&& f) const {
    for (i64 l = by_target_[row]; l < by_target_[row + 1]; ++l) f(Link{source_[l], edge_[l]});
  }
  template <class F>
  void outgoing(i64 row, F&& f) const {
    for (i64 l = by_source_[row]; l < by_source_[row + 1]; ++l) f(Link{target_[l], edge_of_outgoing_[l]});
  }
  // Pieces of rows [borders[p], borders[p+1]) with about as many links each, whatever the threads.
  const std::vector<i64>& target_pieces() const { return target_pieces_; }
  const std::vector<i64>& source_pieces() const { return source_pieces_; }

 private:
  i64 nodes_, graphs_, given_;
  std::vector<i64> by_target_, by_source_;             // [graphs * nodes + 1]
  std::vector<std::int32_t> source_, target_;          // [links]
  std::vector<std::int32_t> edge_, edge_of_outgoing_;  // [links]
  std::vector<i64> target_pieces_, source_pieces_;
};

template <class T>
struct GraphAttention {
  i64 B = 0, H = 0, N = 0, d = 0, dv = 0;
  RowsView<const T> q, k, v;  // [B,H,N,d] [B,H,N,d] [B,H,N,dv]
  const EdgeIndex* edges = nullptr;
  double scale = 1;
  bool additive = false;
  double negative_slope = 0.2;         // additive: factor below 0, and the derivative at 0
  const std::uint8_t* mask = nullptr;  // [B, N] contiguous, 1 = real; edges that touch padding do not count. null = all real
  const T* bias = nullptr;             // [H, edges] contiguous, one value for each given edge
  i64 bias_edges = 0;
  double dropout = 0;  // probability; bits as in attention.h
  RngKey dropout_key{0};
  const i64* rows = nullptr;  // [B] global sample index; null = 0..B-1
};

// o [B,H,N,dv] strided, overwritten; row_max, row_lse [B,H,N] contiguous.
template <class T>
void graph_attention(const GraphAttention<T>&, RowsView<T> o, T* row_max, T* row_lse);

template <class T>
struct GraphAttentionGrads {  // overwritten
  RowsView<T> dq, dk, dv;
  T* dbias = nullptr;  // [H, edges] contiguous, 0 for edges that did not count; null = not wanted
};
template <class T>
void graph_attention_grad(const GraphAttention<T>&, RowsView<const T> o, const T* row_max, const T* row_lse, RowsView<const T> d_o,
                          const GraphAttentionGrads<T>&);

}  // namespace tapeformer::kernels
