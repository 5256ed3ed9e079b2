#!/usr/bin/env bash
# Trains and tests the configurations of configs/attention on one task, one after the other, and prints a row for each:
# test accuracy, milliseconds a training step, peak memory.
#   bench/compare.sh configs/attention/task/imdb.yaml runs/imdb                  every configuration
#   bench/compare.sh configs/attention/task/imdb.yaml runs/imdb full local       these two
# A row that OUT already has is not computed again. Rows are tab-separated, in OUT/NAME.row; the table is OUT/table.md.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -lt 2 ]; then
  sed -n '2,6s/^# \?//p' "$0" >&2
  exit 2
fi
task=$1 out=$2
shift 2
names=("$@")
if [ ${#names[@]} -eq 0 ]; then
  for file in configs/attention/*.yaml; do names+=("$(basename "$file" .yaml)"); done
fi
mkdir -p "$out"
for name in "${names[@]}"; do
  row=$out/$name.row
  if [ -s "$row" ]; then continue; fi
  echo "== $name" >&2
  if ! build/apps/train "$task" "configs/attention/$name.yaml" --run-dir "$out/$name" --overwrite >"$out/$name.log" 2>&1; then
    printf '%s\tfailed: %s\n' "$name" "$(tail -n 1 "$out/$name.log")" >&2
    continue
  fi
  build/apps/evaluate "$out/$name" --threads 1 --json "$out/$name.json" >/dev/null 2>&1
  accuracy=$(sed -n 's/^ *"accuracy": *\([0-9.]*\).*/\1/p' "$out/$name.json" | head -n 1)
  peak=$(sed -n 's/.*peak memory \(.*\)$/\1/p' "$out/$name/log.txt" | tail -n 1)
  step=$(sed -n 's/.* \([0-9.]*\) ms a step.*/\1/p' "$out/$name/log.txt" | tail -n 1)
  printf '%s\t%s\t%s\t%s\n' "$name" "$accuracy" "$step" "$peak" >"$row.new"
  mv "$row.new" "$row"
  rm -rf "${out:?}/$name"
done
{
  printf '| configuration | test accuracy | ms a step | peak memory |\n|---|--:|--:|--:|\n'
  cat "$out"/*.row | awk -F'\t' '{ printf "| `%s` | %.3f | %s | %s |\n", $1, $2, $3, $4 }'
} | tee "$out/table.md"
