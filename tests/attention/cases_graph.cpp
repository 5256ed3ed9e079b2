// Settings of graph.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "graph", .config = "{self_loops: true, scale: 0.6}"},
    {.type = "graph", .config = "{undirected: true}"},
    {.type = "graph", .config = "{edge_bias: per_edge_type, n_types: 2, self_loops: true}"},
    {.type = "graph", .config = "{score: gat}"},
    {.type = "graph", .config = "{score: gat, self_loops: false, undirected: true, negative_slope: 0}"},
    {.type = "graph", .config = "{score: gat, head_merge: mean}"},
    {.type = "hybrid", .config = "{heads: [{type: graph}, {type: graph, score: gat}]}"},
});

}  // namespace
}  // namespace tapeformer::suite
