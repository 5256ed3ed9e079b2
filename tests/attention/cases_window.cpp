// Settings of full and local.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "full", .config = "{scale: 0.3}"},
    {.type = "full", .config = "{impl: naive}", .quadratic = true},
    {.type = "local", .config = "{window: 0}"},
    {.type = "local", .config = "{window: 1}"},  // the first key of a tile's first row ends the tile before
    {.type = "local", .config = "{window_left: 64, window_right: 63}"},
    {.type = "local", .config = "{window_left: 4, window_right: 1}"},
    {.type = "local", .config = "{window_left: 0, window_right: 2, scale: 0.7}"},
    {.type = "local", .config = "{mode: block, block_size: 3}"},
    {.type = "local", .config = "{mode: block, block_size: 4, look_back: 2, look_forward: 0}"},
    {.type = "local", .config = "{mode: block, block_size: 2, look_back: 0, look_forward: 1}"},
});

}  // namespace
}  // namespace tapeformer::suite
