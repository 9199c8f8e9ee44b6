#!/bin/sh
# pytest on the tests, in build/venv where there is one: `pytest.sh [OPTION...]`.
set -eu
cd "$(dirname "$0")/.."
python=build/venv/bin/python
[ -x $python ] || python=/usr/bin/python3
exec $python -B -m pytest -rfEs -n "$(nproc)" -p no:cacheprovider tests "$@"
