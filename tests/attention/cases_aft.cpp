// Settings of aft.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "aft", .config = "{bias_heads: per_head}", .quadratic = true},
    {.type = "aft", .config = "{bias_rank: 2}", .quadratic = true},
    {.type = "aft", .config = "{kind: local, window: 3}"},
    {.type = "aft", .config = "{kind: local, window: 40, bias_heads: per_head}"},
    {.type = "aft", .config = "{kind: conv, window: 2}"},
    {.type = "aft", .config = "{kind: conv, window: 80}"},
    {.type = "aft", .config = "{kind: simple}"},
});

}  // namespace
}  // namespace tapeformer::suite
