#!/bin/sh
# Installs what the tests need, and runs all of them.
set -eu
cd "$(dirname "$0")/.."
sh scripts/install.sh tests
sh scripts/venv.sh
exec ninja -k 0 check
