#!/bin/sh
# From a bare Debian or Ubuntu to the attention of a real model on generated kernels.
set -eu
cd "$(dirname "$0")/.."
sh scripts/install.sh
ninja build/mhagen
exec sh examples/minilm/run.sh "$@"
