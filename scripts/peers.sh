#!/bin/sh
# Installs what `ninja bench-peers` compares with: libraries of Debian's, and PyPI's (3 GB) in
# build/peers-venv. What cannot be had is left out, and named in the table.
set -eu
cd "$(dirname "$0")/.."
venv=build/peers-venv
list=bench/peers/requirements.txt

sh scripts/install.sh peers || echo "peers: not all of Debian's packages are there" >&2
cmp -s $list $venv/installed && exit
/usr/bin/python3 -m venv --clear $venv
# A line of the list is a command for pip: what is missing does not keep the others out.
grep -v '^#' $list | while read -r line; do
  [ -z "$line" ] || $venv/bin/pip install --disable-pip-version-check --no-input --retries 1 -q $line ||
    echo "peers: PyPI did not give $line" >&2
done
cp $list $venv/installed
