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
    {.type = "hybrid", .config = "{combine: union, heads: [{type: local, window: 1}, {type: local, mode: block, block_size: 3}]}"},
    {.type = "hybrid", .config = "{combine: union, scale: 0.6, heads: [{type: local, window_left: 3, window_right: 0}]}"},
    {.type = "hybrid", .config = "{combine: union, heads: [{type: full}, {type: local, window: 1}]}"},
});

}  // namespace
}  // namespace tapeformer::suite
