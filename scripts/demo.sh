#!/bin/sh
# From a bare Debian or Ubuntu to the attention of a real model on generated kernels.
set -eu
cd "$(dirname "$0")/.."
# Help, and the refusal of an option, come before anything is installed.
if command -v python3 > /dev/null; then
  help=$(python3 -B examples/minilm/options.py "$@")
  [ -z "$help" ] || { echo "$help"; exit; }
elif [ $# -gt 0 ]; then
  echo "demo: python3 reads the options, and is missing: sh scripts/install.sh installs it" >&2
  exit 2
fi
echo "demo: takes some minutes, 160 MB of downloads from PyPI, and 400 MB in build"
sh scripts/install.sh
ninja build/mhagen
exec sh examples/minilm/run.sh "$@"
