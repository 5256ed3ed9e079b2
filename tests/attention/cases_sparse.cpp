// Settings of global, bigbird, random and longformer.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "global", .config = "{global_positions: [2, 40, -1], global_token_ids: [3], scale: 0.4, include_self: true}"},
    {.type = "global", .config = "{mode: external, num_global: 2, include_self: true}"},
    {.type = "bigbird", .config = "{block_size: 3, window_blocks: 0, global_blocks: [], num_random: 2, num_global_ext: 2}"},
    {.type = "bigbird", .config = "{block_size: 16, global_blocks: [0], num_random: 0, scale: 0.7}"},
    {.type = "random", .config = "{block_size: 1, num_random: 3}"},
});

}  // namespace
}  // namespace tapeformer::suite
