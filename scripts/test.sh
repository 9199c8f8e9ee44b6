#!/bin/sh
# Installs what the tests need, and runs them. What it leaves out, for want of packages, it says at its end.
set -eu
cd "$(dirname "$0")/.."
echo "test: takes 25 minutes on two cores, 1.8 GB of Debian's packages and 1.2 GB in build, PyTorch for the most part"
sh scripts/install.sh tests
python=yes
sh scripts/venv.sh --debian build/venv examples/minilm/requirements.txt examples/smollm2/requirements.txt \
  examples/vit/requirements.txt tests/requirements.txt tests/torch.txt || python=
status=0
ninja -k 0 check || status=$?
[ -n "$python" ] || echo "test: left out: what needs the packages of PyPI that were not installed, see above" >&2
missing=$(sh scripts/install.sh --list toolchains | sed -n 's/^missing //p')
if [ -n "$missing" ]; then
  echo "test: left out: Windows, Cortex-M, Rust, completions and Debian's package, which need" $missing >&2
  echo "test: sh scripts/install.sh toolchains (1.6 GB), and this again, tests them too" >&2
fi
exit $status
