#!/bin/sh
# Takes a picture of a report: `picture.sh [DIR [PICTURE.png]]`. DIR is that of a sweep; without it the results are
# made up. The picture is build/report.png if it is not named.
set -eu
cd "$(dirname "$0")/.."
python=build/venv/bin/python
[ -x $python ] || python=/usr/bin/python3
ninja build/mhagen > /dev/null
dir=${1:-build/made-up}
[ $# -gt 0 ] || $python -B tests/commands/synthetic.py $dir
build/mhagen report "$dir" -o build/picture/report.html
exec $python -B tests/commands/browser.py build/picture/report.html "${2:-build/report.png}" --height 960
