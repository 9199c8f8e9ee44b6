#!/bin/sh
# Runs parts of `ninja check`, two at a time: `beside.sh TARGET...`. A part whose last kernels leave a core idle has
# another one beside it. What a part prints comes at its end.
set -eu
cd "$(dirname "$0")/.."
for target; do ninja -t commands "$target" | tail -n 1; done | xargs -d '\n' -n 1 -P 2 sh -c '
  status=0
  told=$(eval "$0" 2>&1) || status=1
  printf "%s\n" "$told"
  exit $status'
