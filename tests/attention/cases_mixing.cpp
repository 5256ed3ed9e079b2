// Settings of what mixes positions without attention, and of whole blocks.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "fnet", .config = "{norm: none}"},
    {.type = "fnet", .config = "{pad_mode: zero}"},
    {.type = "rnn", .config = "{hidden: 3, bidirectional: true}", .both_ways = true},
    {.type = "lstm", .config = "{hidden: 3, layers: 2, dropout: 0.3, forget_bias: 0.5}"},
    {.type = "lstm", .config = "{hidden: 2, bidirectional: true, layers: 2}", .both_ways = true},
    {.type = "gru", .config = "{hidden: 1, bidirectional: true}", .both_ways = true},
    {.type = "mlp_mixer", .config = "{token_hidden: 3, channel_hidden: 5, activation: relu, dropout: 0.3}"},
    {.type = "mlp_mixer", .config = "{activation: gelu_tanh}"},
    {.type = "gmlp", .config = "{ffn: 6, tiny_attention: 3}"},
    {.type = "gmlp", .config = "{ffn: 2, activation: silu}"},
    {.type = "conv1d", .config = "{kernel: 4, dilation: 3, dropout: 0.3}"},
    {.type = "conv1d", .config = "{kernel: 1, activation: silu}"},
    {.type = "conformer", .config = "{heads: 1, ffn: 3, conv_kernel: 5, conv_norm: none, attention: {type: local, window: 1}}"},
    {.type = "conformer", .config = "{ffn: 4, conv_kernel: 1, dropout: 0, attention: {type: synthesizer, kind: dense}}"},
    {.type = "conformer", .config = "{ffn: 4, conv_kernel: 3, dropout: 0, attention: {type: gru, hidden: 3}}"},
});

}  // namespace
}  // namespace tapeformer::suite
