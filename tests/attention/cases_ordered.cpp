// Settings of strided and reformer.
#include "tests/attention/cases.h"

namespace tapeformer::suite {
namespace {

[[maybe_unused]] const bool kAdded = add_cases({
    {.type = "reformer", .config = "{chunk_len: 3, n_buckets: [2, 4], n_rounds: 3, chunks_after: 1, scale: 0.7}"},
    {.type = "reformer", .config = "{chunk_len: 2, n_buckets: 2, chunking: per_bucket, rehash: per_step}"},
    {.type = "reformer", .config = "{chunk_len: 5, n_buckets: 6, dedup_rounds: false, same_bucket_only: false}", .both_ways = true},
    {.type = "reformer", .config = "{chunk_len: 70, n_buckets: 2, chunking: flat}", .both_ways = true},
    {.type = "hybrid", .config = "{heads: [{type: reformer, chunk_len: 4, n_buckets: 4}, {type: local, window: 2}]}"},
    {.type = "strided", .config = "{stride: 2, reach: null, include_self: false, scale: 0.6}"},
    {.type = "strided", .config = "{stride: 70, reach: 1}"},
    {.type = "strided", .config = "{pattern: strided, stride: 4}"},
    {.type = "strided", .config = "{pattern: strided, stride: 11, part: second}"},
    {.type = "strided", .config = "{pattern: fixed, stride: 5, summary: 2}"},
    {.type = "strided", .config = "{pattern: fixed, stride: 9, part: second}"},
    {.type = "hybrid",
     .config = "{heads: [{type: strided, pattern: fixed, stride: 4, part: first}, {type: strided, stride: 4, reach: null}]}"},
    {.type = "hybrid",
     .config = "{combine: union, heads: [{type: strided, stride: 5, reach: 2}, {type: local, window: 2}, "
               "{type: strided, pattern: fixed, stride: 6, part: second}, {type: global, global_positions: [1, -2]}]}"},
});

}  // namespace
}  // namespace tapeformer::suite
