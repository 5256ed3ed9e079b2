// Settings of global, bigbird, random and longformer.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "global", .config = "{global_positions: [2, 40, -1], global_token_ids: [3], scale: 0.4, include_self: true}"},
    {.type = "global", .config = "{mode: external, num_global: 2, include_self: true}"},
    {.type = "bigbird", .config = "{block_size: 3, window_blocks: 0, global_blocks: [], num_random: 2, num_global_ext: 2}"},
    {.type = "bigbird", .config = "{block_size: 16, global_blocks: [0], num_random: 0, scale: 0.7}"},
    {.type = "longformer", .config = "{window: 1, dilation: [1, 3], global_token_ids: [2], global_positions: [-1]}"},
    {.type = "longformer", .config = "{window: 1, global_positions: [0, 1, 3, -1, 30, 64, 65]}"},  // more than a few
    {.type = "longformer", .config = "{window: 3, global_positions: [4], share_global_proj: true, scale: 0.6}"},
    {.type = "longformer", .config = "{window: 2, dilation: [1, 5], share_global_proj: true}"},
    {.type = "global", .config = "{global_positions: [0, 1, 3, -1, 30, 64, 65], include_self: true}"},
    {.type = "random", .config = "{block_size: 1, num_random: 3}"},
});

}  // namespace
}  // namespace tapeformer::suite
