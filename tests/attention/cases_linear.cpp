// Settings of the linear forms.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "linear_transformer", .config = "{feature_map: relu, eps: 1e-2, chunk: 3}"},
    {.type = "linear_transformer", .config = "{feature_map: exp, chunk: 2}"},
    {.type = "linear_transformer", .config = "{feature_map: identity, normalize: false, scale: 0.5, chunk: 4}"},
});

}  // namespace
}  // namespace tapeformer::suite
