#!/bin/sh
# Runs tests with pytest, with the Python of build/venv if it is there: `pytest.sh tests [OPTION...]`. There is a worker
# more than there are cores, for some tests wait most of their time.
set -eu
cd "$(dirname "$0")/.."
python=build/venv/bin/python
[ -x $python ] || python=/usr/bin/python3
exec $python -B -m pytest -rfEs --durations=20 --durations-min=4 -n "$(($(nproc) + 1))" -p no:cacheprovider "$@"
