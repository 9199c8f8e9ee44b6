#!/bin/sh
# Installs, on Debian or Ubuntu, what is missing: `install.sh` what it takes to build mhagen and to
# run the example, `install.sh tests` what the tests take as well, `install.sh mca` what
# `ninja bench-mca` takes besides, `install.sh peers` what `ninja bench-peers` compares with. Needs root
# or sudo for that.
set -eu

packages="ninja-build gcc libc6-dev liblua5.4-dev lua-argparse lua-dkjson libjs-chart.js"
packages="$packages python3 python3-venv"
kind=${1:-}
if [ "$kind" = tests ] || [ "$kind" = mca ]; then
  packages="$packages g++ binutils clang-14 libclang-rt-14-dev python3-pytest python3-pytest-xdist"
  packages="$packages slurm-wlm munge musl-tools patch xz-utils"
  [ "$(uname -m)" = aarch64 ] ||
    packages="$packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
  # Ubuntu has Chromium as a snap only; without it the tests of the report's page are skipped.
  ! grep -qx ID=debian /etc/os-release ||
    packages="$packages chromium chromium-driver python3-selenium"
fi
[ "$kind" = peers ] && packages="$packages libxsmm-dev libopenblas-serial-dev"

root() {
  if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

missing() { # of the packages that are named
  for package; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      echo "$package"
  done
}

# A second Clang, as recent as there is, and its sanitizers, or llvm-mca; from a list of names.
newest_clang() {
  [ "$kind" = mca ] && more="& llvm-\\1" || more="&"
  grep -Eo '^clang-[0-9]+' | grep -vx clang-14 | sort -V | tail -n 1 |
    sed "s/^clang-\\(.*\\)/$more libclang-rt-\\1-dev/"
}

if ! command -v dpkg-query > /dev/null; then
  echo "install: neither Debian nor Ubuntu; what their packages hold is needed: $packages" >&2
  exit 1
fi

clang=none
[ "$kind" = tests ] || [ "$kind" = mca ] && clang=$(ls /usr/bin | newest_clang)
[ "$clang" = none ] || packages="$packages $clang"
needed=$(missing $packages)
if [ -n "$needed" ] || [ -z "$clang" ]; then
  root apt-get update -q
  [ -n "$clang" ] || needed="$needed $(apt-cache search --names-only '^clang-[0-9]+$' | newest_clang)"
  root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $needed
fi
