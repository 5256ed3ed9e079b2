// Settings of synthesizer.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "synthesizer", .config = "{kind: dense}"},
    {.type = "synthesizer", .config = "{kind: dense, hidden: 3}"},
    {.type = "synthesizer", .config = "{kind: fixed_random}"},
});

}  // namespace
}  // namespace tapeformer::suite
