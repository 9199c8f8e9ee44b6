#!/bin/sh
# Runs the tests with pytest, with the Python of build/venv if it is there: `pytest.sh [OPTION...]`.
set -eu
cd "$(dirname "$0")/.."
python=build/venv/bin/python
[ -x $python ] || python=/usr/bin/python3
exec $python -B -m pytest -rfEs --durations=20 --durations-min=4 -n "$(nproc)" -p no:cacheprovider tests "$@"
