// Settings of the variants that look at fewer keys than positions: linformer, memory_compressed.
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
});

}  // namespace
}  // namespace tapeformer::suite
