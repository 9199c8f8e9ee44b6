#!/bin/sh
# Makes NAME.txt of each list NAME.in of packages that are wanted from PyPI: all packages that are installed for
# them, with their versions and the hashes of their files. Versions in NAME.txt stay, but with `hashes.sh
# --upgrade`. Needs uv, from PyPI.
set -eu
cd "$(dirname "$0")/.."
for list in examples/minilm/requirements examples/smollm2/requirements examples/vit/requirements \
  tests/requirements bench/peers/requirements bench/peers/bare bench/peers/openmp bench/peers/ggml; do
  complete=
  case $list in examples/* | */bare | */ggml) complete=--no-deps ;; esac
  uv pip compile $list.in -o $list.txt --universal --python-version 3.10 --generate-hashes $complete \
    --no-annotate --custom-compile-command "scripts/hashes.sh, of $list.in" -q "$@"
done
