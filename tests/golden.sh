#!/bin/sh
# Generates the configs of tests/golden/configs and compares with the reviewed texts beside them.
# With --accept the new texts become the reviewed ones.
set -eu
cd "$(dirname "$0")/.."
golden=tests/golden new=build/golden

rm -rf $new
mkdir -p $new
while read -r config; do
  build/mhagen gen $config --quiet -o $new
done < $golden/configs
rm $new/mhagen.[ch]

if [ "${1:-}" = --accept ]; then
  rm -f $golden/*.[ch]
  cp $new/* $golden
elif ! diff -ruN -x configs $golden $new > build/golden.diff; then
  head -n 60 build/golden.diff
  echo "golden: $(grep -c '^diff' build/golden.diff) of the generated texts changed, see build/golden.diff"
  echo "golden: if that is meant, accept it with: ninja accept"
  exit 1
fi
