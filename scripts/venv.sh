#!/bin/sh
# Makes a virtual environment with packages from PyPI: `venv.sh [--debian] DIR LIST...`. A LIST is a file of
# requirements. A LIST with hashes is complete, so pip adds nothing to it. With --debian the packages of Debian's
# Python, such as pytest, are there too. A second call installs only the LISTs that are not installed yet.
# It names each package as it comes. All that pip prints is in DIR.log. If a LIST fails, the end of that log is
# shown, the other LISTs are still installed, and the status is 1.
set -eu
python=python3 options=
if [ "$1" = --debian ]; then
  python=/usr/bin/python3 options=--system-site-packages
  shift
fi
venv=$1 log=$1.log
shift

stamp() { # the copy of a list by which it is known to be installed
  echo "$venv/installed/$(echo "$1" | tr / _)"
}

install() {
  strict=
  ! grep -q -e --hash= "$1" || strict="--require-hashes --no-deps"
  "$venv/bin/pip" install --disable-pip-version-check --no-input --retries 1 --progress-bar off --no-compile \
    $strict -r "$1" && cp "$1" "$(stamp "$1")"
}

failed() {
  echo "venv: $1; the last lines of $log:" >&2
  tail -n 8 "$log" | sed 's/^/venv:   /' >&2
}

[ -d "$venv/installed" ] && fresh=no || fresh=yes
for list; do # packages of an older version of a list must not stay
  [ ! -e "$(stamp "$list")" ] || cmp -s "$list" "$(stamp "$list")" || fresh=yes
done
if [ $fresh = yes ]; then
  mkdir -p "$(dirname "$venv")"
  "$python" -m venv --clear $options "$venv" > "$log" 2>&1 || { failed "no $venv"; exit 1; }
  mkdir "$venv/installed"
fi

status=0
: > "$log"
for list; do
  [ ! -e "$(stamp "$list")" ] || continue
  echo "venv: $list into $venv, pip's log is $log" >&2
  install "$list" 2>&1 | tee -a "$log" |
    sed -nu 's/^ *\(Downloading\|Using cached\|Processing\|Installing\) /venv: \1 /p' >&2
  [ -e "$(stamp "$list")" ] || { failed "$list was not installed"; status=1; }
done
exit $status
