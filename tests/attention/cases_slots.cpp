// Settings of the variants with fewer keys or queries than positions: linformer, memory_compressed, reduced_query.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "linformer", .config = "{slots: 4, sharing: none, scale: 0.7}"},
    {.type = "linformer", .config = "{slots: 70, sharing: kv}"},
    {.type = "linformer", .config = "{slots: 2, sharing: layerwise}"},
    {.type = "memory_compressed", .config = "{kernel: 5, stride: 2, compression: depthwise, null_slot: learned}"},
    {.type = "memory_compressed", .config = "{kernel: 3, stride: 2, compression: mean, scale: 0.8, null_slot: none}"},
    {.type = "memory_compressed", .config = "{kernel: 4, stride: 2, share_kv_conv: true, null_slot: none}"},
    {.type = "memory_compressed", .config = "{kernel: 2, stride: 1, bias: false}"},
    {.type = "reduced_query", .config = "{stride: 3, kernel: 4, scale: 0.7}"},
    {.type = "reduced_query", .config = "{reduce: subsample, stride: 3}"},
    {.type = "reduced_query", .config = "{reduce: conv, kernel: 3}"},
    {.type = "reduced_query", .config = "{reduce: linear, queries: 3}"},
    {.type = "reduced_query", .config = "{reduce: latent, queries: 2}"},
});

}  // namespace
}  // namespace tapeformer::suite
