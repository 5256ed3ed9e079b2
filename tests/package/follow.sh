#!/usr/bin/env bash
# Does what a page says: writes its named blocks (```cpp average.cpp) to files and runs its ```sh blocks, in order.
#   follow.sh PAGE.md FOLDER PREFIX    FOLDER: made anew; PREFIX: where the library is installed
set -euo pipefail
page=$(realpath "$1") prefix=$(realpath "$3")
rm -rf "$2"
mkdir -p "$2"
cd "$2"
awk '
  /^```/ && !inside { inside = 1; file = ($2 != "") ? $2 : ($1 == "```sh") ? "commands.sh" : "/dev/null"; next }
  /^```$/ { inside = 0; next }
  inside { print > file }
' "$page"
export PATH="$prefix/bin/tapeformer:$PATH" CMAKE_PREFIX_PATH="$prefix"
bash -euxo pipefail commands.sh
