#!/bin/sh
# Installs what the tests need, and runs them: `test.sh` those that take minutes, `test.sh all` all of them. What it
# leaves out it says at its end.
set -eu
cd "$(dirname "$0")/.."
lists=examples/minilm/requirements.txt
case ${1:-quick} in
  quick)
    echo "test: takes 10 minutes on two cores; loads 130 MB of Debian's packages and 160 MB of PyPI's"
    target=quick packages=quick ;;
  all)
    echo "test: takes 20 minutes on two cores, 1.8 GB of Debian's packages, 1.2 GB in build, mostly for PyTorch"
    target=check packages=tests
    lists="$lists examples/smollm2/requirements.txt examples/vit/requirements.txt"
    lists="$lists tests/requirements.txt tests/torch.txt" ;;
  *)
    echo "usage: scripts/test.sh [all]" >&2
    exit 2 ;;
esac
sh scripts/install.sh $packages
python=yes
sh scripts/venv.sh --debian build/venv $lists || python=
mkdir -p build
{ ninja -k 0 $target && status=0 || status=$?; echo $status > build/test.status; } 2>&1 | tee build/test.log
status=$(cat build/test.status)
finish() { # the last line has what failed
  [ "$status" = 0 ] || {
    failed=$(sed -n 's/^FAILED: \(\[code=[0-9]*\] \)*\(.*[^ ]\) *$/\2/p
      /^\(FAILED\|ERROR\) tests/ { s/^[A-Z]* //; s/ - .*//; p }' build/test.log |
      sort -u | paste -s -d , | sed 's/,/, /g')
    echo "test: failed: $failed; all lines are in build/test.log" >&2
  }
  exit "$status"
}
[ -n "$python" ] || echo "test: left out: what needs the packages of PyPI that were not installed, see above" >&2
if [ $target = quick ]; then
  parts=$(ninja -t targets rule run | sed -n '/_tests$\|_random$\|_address$\|_beside$/d; s/^check_//p')
  echo "test: left out:" $parts"; most of tests, random and address; other compilers, and PyTorch" >&2
  echo "test: sh scripts/test.sh all (20 minutes, 1.8 GB of Debian's packages) has them too" >&2
  finish
fi
missing=$(sh scripts/install.sh --list toolchains | sed -n 's/^missing //p')
if [ -n "$missing" ]; then
  echo "test: left out: Windows, Cortex-M, Rust, completions and Debian's package, which need" $missing >&2
  echo "test: sh scripts/install.sh toolchains (1.6 GB), and this again, tests them too" >&2
fi
finish
