// Settings of sinkhorn.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "sinkhorn", .config = "{block_size: 3, pool: sum, iters: 3, sort_hidden: 5}"},
    {.type = "sinkhorn", .config = "{block_size: 2, normalise: softmax, temperature: 0.5}"},
    {.type = "sinkhorn", .config = "{block_size: 3, hard: true}", .exact_gradient = false},
    {.type = "sinkhorn", .config = "{block_size: 3, hard: true, normalise: softmax}", .exact_gradient = false},
    {.type = "sinkhorn", .config = "{block_size: 3, sortcut: 2}", .both_ways = true},
    {.type = "sinkhorn", .config = "{block_size: 2, sortcut: 1, normalise: softmax}", .both_ways = true},
    {.type = "sinkhorn", .config = "{block_size: 3, sortcut: 2, hard: true}", .exact_gradient = false, .both_ways = true},
});

}  // namespace
}  // namespace tapeformer::suite
