#!/bin/sh
# Installs the libraries that `ninja bench-peers` compares with: Debian's packages, and PyPI's (4 GB) in
# build/peers-venv. ggml is built there, in one CPU minute. A library that cannot be installed is left out, and named
# in the table.
set -eu
cd "$(dirname "$0")/.."
venv=build/peers-venv lists=build/peers-lists

sh scripts/install.sh peers || echo "peers: not all of Debian's packages are there" >&2
# One list for each package, so that a missing one does not keep the others out.
rm -rf $lists
mkdir -p $lists
awk -v lists=$lists '/^[a-z]/ { file = lists "/" $1 ".txt" } file { print > file }' \
  bench/peers/requirements.txt bench/peers/bare.txt
sh scripts/venv.sh $venv $lists/* tests/torch.txt || echo "peers: PyPI did not give everything" >&2
sh scripts/venv.sh $venv/onednn-openmp bench/peers/openmp.txt || true
sh scripts/ggml.sh $venv || echo "peers: ggml was not built" >&2
