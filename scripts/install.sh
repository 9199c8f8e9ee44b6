#!/bin/sh
# Installs Debian's or Ubuntu's packages that are missing:
#
#   install.sh             to build mhagen and to run the example
#   install.sh quick       for the quick tests
#   install.sh tests       for the tests and `ninja bench-mca` as well
#   install.sh toolchains  compilers for Windows, Cortex-M and Rust (1.6 GB); tests use them if they are there
#   install.sh peers       libraries that `ninja bench-peers` compares with
#   install.sh --list KIND names the packages of one of these: `installed NAME` or `missing NAME`
#
# It needs root or sudo. Without either it prints the packages to ask for.
set -eu

packages="ninja-build gcc libc6-dev liblua5.4-dev lua-argparse lua-dkjson lua-cjson-dev libjs-chart.js"
packages="$packages python3 python3-venv"
list=
[ "${1:-}" != --list ] || { list=yes; shift; }
kind=${1:-}

gcc32() { # libgcc for -m32, of the version that gcc has or will have
  version=$(gcc -dumpversion 2>/dev/null || apt-cache depends gcc | sed -n 's/.*Depends: gcc-\([0-9]*\)$/\1/p')
  echo "lib32gcc-${version:-12}-dev"
}

if [ "$kind" = quick ] || [ "$kind" = tests ]; then
  packages="$packages binutils git python3-pytest python3-pytest-xdist"
  [ "$(uname -m)" = aarch64 ] || packages="$packages gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
fi
if [ "$kind" = tests ]; then
  packages="$packages g++ libtbb-dev lua5.4 slurm-wlm munge"
  packages="$packages musl-tools patch xz-utils cmake make meson pkgconf man-db"
  [ "$(uname -m)" = aarch64 ] || packages="$packages gcc-s390x-linux-gnu libc6-dev-s390x-cross"
  # For gcc -m32; gcc-multilib, which has it all, excludes the cross compilers.
  [ "$(uname -m)" != x86_64 ] || packages="$packages libc6-dev-i386 $(gcc32)"
  packages="$packages tcc gcc-arm-linux-gnueabihf libc6-dev-armhf-cross"
  # Ubuntu has Chromium as a snap only; without it the tests of the report's page are skipped.
  ! grep -qx ID=debian "${OS_RELEASE:-/etc/os-release}" ||
    packages="$packages chromium chromium-driver python3-selenium"
fi
[ "$kind" = toolchains ] &&
  packages="$packages gcc-mingw-w64-x86-64-win32 gcc-arm-none-eabi libnewlib-arm-none-eabi qemu-system-arm cargo
    lintian zsh fish"
[ "$kind" = peers ] && packages="$packages libxsmm-dev libopenblas-serial-dev libnuma1 g++ cmake"

installed() {
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]
}

missing() { # of the packages that are named
  for package; do
    installed "$package" || echo "$package"
  done
}

# The oldest Clang that is supported and the newest, with their sanitizers, and the llvm-mca of the newest. If two
# are installed, these are taken. In older releases Clang depends on its sanitizers.
clangs() {
  [ "$kind" = tests ] || return 0
  versions=$(dpkg-query -W -f '${Package} ${db:Status-Status}\n' 'clang-*' 2> /dev/null |
    oldest_and_newest " installed")
  [ "$(echo $versions | wc -w)" = 2 ] ||
    versions=$(apt-cache search --names-only '^clang-[0-9]+$' | oldest_and_newest " .*")
  for version in $versions; do
    echo "clang-$version"
    runtime=libclang-rt-$version-dev
    installed "$runtime" || apt-cache show "$runtime" > /dev/null 2>&1 || continue
    echo "$runtime"
  done
  [ -z "$versions" ] || echo "llvm-$version"
}

oldest_and_newest() {
  sed -n "s/^clang-\([0-9]*\)$1\$/\1/p" | awk '$1 >= 14' | sort -n | sed -n '1p;$p' | uniq
}

ask() { # the user for packages that cannot be installed here
  echo "install: $1; these packages are missing:" >&2
  echo "install:   apt-get install --no-install-recommends" $needed >&2
  exit 1
}

if ! command -v dpkg-query > /dev/null; then
  echo "install: neither Debian nor Ubuntu; what their packages hold is needed: $packages" >&2
  exit 1
fi

if [ -n "$list" ]; then
  for package in $packages $(clangs); do
    installed "$package" && echo "installed $package" || echo "missing $package"
  done
  exit
fi

needed=$(missing $packages $(clangs))
[ -n "$needed" ] || exit 0
sudo=
if [ "$(id -u)" != 0 ]; then
  command -v sudo > /dev/null || ask "neither root nor sudo"
  sudo=sudo
fi
log=$(dirname "$0")/../build/install.log
mkdir -p "$(dirname "$log")"
$sudo apt-get update -q > "$log" 2>&1 || { tail -n 5 "$log" >&2; ask "apt-get update failed"; }
needed=$(missing $packages $(clangs)) # again: on a fresh system it is known only now which Clangs there are

# Debian starts and enables the daemons of a package. The tests start Slurm's daemons themselves.
daemons=
[ "$kind" != tests ] || daemons=$(missing munge slurmctld slurmd)
if [ -n "$daemons" ] && command -v systemctl > /dev/null; then
  $sudo systemctl mask $daemons
  trap '$sudo systemctl unmask $daemons' EXIT
fi
echo "install: $(echo $needed | wc -w) packages and what they need; apt-get's lines are in build/install.log"
$sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $needed >> "$log" 2>&1 ||
  { tail -n 5 "$log" >&2; ask "apt-get failed"; }
for daemon in $daemons; do
  $sudo update-rc.d "$daemon" disable >> "$log" 2>&1
done
[ -z "$daemons" ] || echo "install: not started, and not enabled:" $daemons
