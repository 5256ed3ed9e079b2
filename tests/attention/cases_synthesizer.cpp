// Settings of synthesizer.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "synthesizer", .config = "{kind: dense}"},
    {.type = "synthesizer", .config = "{kind: dense, hidden: 3}"},
    {.type = "synthesizer", .config = "{kind: fixed_random}"},
    {.type = "synthesizer", .config = "{kind: factorized_dense, hidden: 3}"},
    {.type = "synthesizer", .config = "{kind: factorized_dense, factor_a: 200, factor_b: 3}"},
    {.type = "synthesizer", .config = "{kind: factorized_random, rank: 3}"},
    {.type = "synthesizer", .config = "{kind: mixture, components: [random, fixed_random]}"},
    {.type = "synthesizer", .config = "{kind: mixture, components: [vanilla, factorized_random]}"},
    {.type = "synthesizer",
     .config = "{kind: mixture, hidden: 3, rank: 2, components: [random, dense, vanilla, factorized_dense, factorized_random]}"},
});

}  // namespace
}  // namespace tapeformer::suite
