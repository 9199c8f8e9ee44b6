#!/bin/sh
# Makes, of each list of what is wanted from PyPI (NAME.in), the whole of what is installed, with versions
# and the hashes of all files that PyPI has of them (NAME.txt). Versions that are there already stay, unless
# an option says otherwise: `hashes.sh [--upgrade]`. Takes uv, from PyPI.
set -eu
cd "$(dirname "$0")/.."
for list in examples/minilm/requirements tests/requirements bench/peers/requirements bench/peers/openmp; do
  complete=
  [ $list != examples/minilm/requirements ] || complete=--no-deps
  uv pip compile $list.in -o $list.txt --universal --python-version 3.10 --generate-hashes $complete \
    --no-annotate --custom-compile-command "scripts/hashes.sh, of $list.in" -q "$@"
done
