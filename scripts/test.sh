#!/bin/sh
# Installs what the tests need, and runs all of them.
set -eu
cd "$(dirname "$0")/.."
echo "test: takes 25 minutes on two cores, 1.8 GB of Debian's packages and 1.2 GB in build, PyTorch for the most part"
sh scripts/install.sh tests
sh scripts/venv.sh --debian build/venv examples/minilm/requirements.txt examples/smollm2/requirements.txt \
  examples/vit/requirements.txt tests/requirements.txt tests/torch.txt ||
  echo "test: tests that need PyTorch or the model are skipped" >&2
exec ninja -k 0 check
