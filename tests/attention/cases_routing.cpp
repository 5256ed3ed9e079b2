// Settings of routing.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "routing", .config = "{num_clusters: 4, assignment: argmax, exclude_self: true, norm: l2, scale: 0.7}"},
    {.type = "routing", .config = "{num_clusters: 2, assignment: argmax, share_qk: true, exclude_self: true}"},
    {.type = "routing", .config = "{num_clusters: 3, assignment: argmax, attend_normalized: false, init: random}"},
    {.type = "routing", .config = "{num_clusters: 3}", .both_ways = true},  // topk looks at all tokens, whatever causal says
    {.type = "routing", .config = "{num_clusters: 4, window: 5, attend_normalized: false, norm: l2}", .both_ways = true},
    {.type = "routing", .config = "{num_clusters: 9, window: 2, exclude_self: true}", .both_ways = true},
    {.type = "routing", .config = "{num_clusters: 3, share_qk: true}", .both_ways = true},
    {.type = "hybrid", .config = "{heads: [{type: routing, num_clusters: 3, assignment: argmax}, {type: local, window: 2}]}"},
});

}  // namespace
}  // namespace tapeformer::suite
