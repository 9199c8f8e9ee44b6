#!/bin/sh
# Two versions of Ninja in turn in one build directory, as where one comes from the system and one from PyPI.
#
# Ninja 1.13 writes logs of version 7, with another hash of command lines than 1.11 has. 1.11 refuses no log that is
# newer than it knows: it takes the hashes for its own, finds every command line changed, and appends its hashes below
# the heading of version 7. So each change of the version builds everything anew, in both directions, and neither says
# why; with one version there is no work to do.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
trap 'exit 1' HUP INT TERM
python3 -m venv "$folder/1.11.1.4"
"$folder/1.11.1.4/bin/pip" install -qq --disable-pip-version-check ninja==1.11.1.4
python3 -m venv "$folder/1.13.0"
"$folder/1.13.0/bin/pip" install -qq --disable-pip-version-check ninja==1.13.0
cd "$folder"
printf 'rule touch\n  command = touch $out\nbuild a: touch\nbuild b: touch a\n' > build.ninja
for version in 1.13.0 1.13.0 1.11.1.4 1.11.1.4 1.13.0 1.11.1.4; do
  steps=$("$folder/$version/bin/ninja" | grep -c "touch" || true)
  echo "ninja $version: $steps steps; $(sed 1q .ninja_log)"
done | tee seen
cat > expected << 'END'
ninja 1.13.0: 2 steps; # ninja log v7
ninja 1.13.0: 0 steps; # ninja log v7
ninja 1.11.1.4: 2 steps; # ninja log v7
ninja 1.11.1.4: 0 steps; # ninja log v7
ninja 1.13.0: 2 steps; # ninja log v7
ninja 1.11.1.4: 2 steps; # ninja log v7
END
cmp seen expected || { echo "this has changed" >&2; exit 1; }
