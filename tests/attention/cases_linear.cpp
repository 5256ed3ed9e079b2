// Settings of the linear forms.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "linear_transformer", .config = "{feature_map: relu, eps: 1e-2, chunk: 3}"},
    {.type = "linear_transformer", .config = "{feature_map: exp, chunk: 2}"},
    {.type = "linear_transformer", .config = "{feature_map: identity, normalize: false, scale: 0.5, chunk: 4}"},
    {.type = "efficient_attention", .config = "{normalization: scaling}", .both_ways = true},
    {.type = "rfa", .config = "{features: 5, kernel: arccos, tau: 0.8, features_per_head: false}"},
    {.type = "rfa", .config = "{features: 3, tau: 0.5, learned_sigma: false, denom_floor: 0.4}"},  // the floor is often reached
    {.type = "rfa", .config = "{features: 6, gate: true}", .causal = true},
    {.type = "performer", .config = "{kernel: softmax_hyp, features: 3, features_per_head: true, ortho_scaling: sqrt_d}"},
    {.type = "performer", .config = "{kernel: relu, features: 5, ortho: false}"},
    {.type = "performer", .config = "{kernel: relu, projection: false}"},
    {.type = "performer", .config = "{features: 4, feature_eps: 1e-3}", .both_ways = true},
    {.type = "taylor_attention", .config = "{degree: 4, scale: 0.3}"},
    {.type = "hybrid", .config = "{heads: [{type: performer, features: 5}, {type: codebook_attention, codes: 6}]}"},
    {.type = "codebook_attention", .config = "{codes: 9, scale: 0.4}"},
});

}  // namespace
}  // namespace tapeformer::suite
