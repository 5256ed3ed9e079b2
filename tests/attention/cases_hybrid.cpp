// Settings of hybrid.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "hybrid", .config = "{heads: [{type: full}, {type: local, window: 2}]}"},
    {.type = "hybrid", .config = "{heads: [{type: sinkhorn, block_size: 3}, {type: synthesizer, kind: dense}]}"},
    {.type = "hybrid", .config = "{heads: [{type: synthesizer}, {type: full, scale: 0.4}]}"},
    {.type = "hybrid", .config = "{heads: [{type: linear_transformer, repeat: 2}]}"},
    {.type = "hybrid", .config = "{heads: [{type: sinkhorn, block_size: 4, repeat: 2}]}"},
    {.type = "hybrid",
     .config = "{heads: [{type: bigbird, block_size: 3, num_global_ext: 2, global_blocks: []}, {type: longformer, window: 1, "
               "global_positions: [0, 3]}]}"},
    {.type = "hybrid",
     .config = "{heads: [{type: global, mode: external, include_self: true}, {type: graph, score: gat, undirected: true}]}"},
    {.type = "hybrid", .config = "{heads: [{type: bigbird, block_size: 2, repeat: 2}]}"},
    {.type = "hybrid",
     .config = "{combine: union, heads: [{type: global, global_positions: [0, -1]}, {type: random, block_size: 1}, {type: random, "
               "block_size: 2}, {type: local, window: 1}]}"},
    {.type = "hybrid", .config = "{combine: union, heads: [{type: local, window: 1}, {type: local, mode: block, block_size: 3}]}"},
    {.type = "hybrid", .config = "{combine: union, scale: 0.6, heads: [{type: local, window_left: 3, window_right: 0}]}"},
    {.type = "hybrid", .config = "{combine: union, heads: [{type: full}, {type: local, window: 1}]}"},
});

}  // namespace
}  // namespace tapeformer::suite
