#!/usr/bin/env bash
# Times a training step of the bench encoder with each attention at several lengths, one after the other.
#   bench/variants.sh [LENGTHS] [further options of bench]      bench/variants.sh 1024,2048,4096,8192 --batch 1 --threads 1
set -euo pipefail
cd "$(dirname "$0")/.."
lengths=${1:-1024,2048,4096,8192}
shift || true
run() { build/apps/bench --variants "$1" --lengths "$lengths" ${2:+--attention ", $2"} "${@:3}" | grep -E '^ *[a-z0-9_]+ +[0-9]+ ' || true; }
run full '' "$@"
run local 'window: 128' "$@"
run strided 'pattern: strided, stride: 64' "$@"
run global 'global_positions: [0], include_self: true' "$@"
run longformer 'window: 128, global_positions: [0]' "$@"
run bigbird 'block_size: 64' "$@"
run reformer 'chunk_len: 64' "$@"
run routing '' "$@"
run sinkhorn 'block_size: 64' "$@"
run linformer 'slots: 128' "$@"
run memory_compressed '' "$@"
run linear_transformer '' "$@"
run efficient_attention '' "$@"
run rfa 'features: 64' "$@"
run performer 'features: 256' "$@"
run codebook_attention 'codes: 260' "$@"
run synthesizer 'kind: random' "$@"
run synthesizer 'kind: dense' "$@"
run aft 'kind: simple' "$@"
run aft 'kind: conv' "$@"
run fnet '' "$@"
run mlp_mixer '' "$@"
run conv1d 'kernel: 5' "$@"
run gru '' "$@"
