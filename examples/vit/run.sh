#!/bin/sh
# A vision transformer on generated kernels, in one command: examples/vit/run.sh [--help]
#
# Needs ninja and what build.ninja names, and Python with venv, whose packages go into the folder $VENV.
set -eu
cd "$(dirname "$0")/../.."
example=vit
. examples/start.sh
[ -n "$python" ] && exec "$python" -B -X utf8 examples/vit/vit.py "$@"
