#!/bin/sh
# Runs the README's commands on a fresh Debian, as a new user would: `bare.sh [OPTION...] [COMMAND...]`.
#
#   --suite NAME  the release: bookworm (Debian 12, the default) or trixie (13)
#   --keep DIR    makes the fresh system in DIR and keeps it; a second call goes on in it
#   --page FILE   the commands are those of a page's transcripts, such as docs/first-numbers.md
#
# It needs root, and a Debian with debootstrap and git. Mirrors, proxies and pip's settings are those of this machine.
# The fresh system has debootstrap's minbase and a clone of HEAD, no more. Each COMMAND is a line of shell; without
# one they are those of README's "Try it". All of them run. The last lines say how each ended, and the status is 1
# if one failed. What it mounts and starts ends with it, however it ends.
set -eu
cd "$(dirname "$0")/.."
suite=bookworm keep= page=

refuse() {
  echo "bare: $1" >&2
  exit 2
}

# Where a suite's packages come from, as lines of sources.list: the mirrors of this machine.
sources() {
  release=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    sed -n "s/^\([^ ]*\) $release\(-updates\|-security\)\{0,1\} main\$/deb \1 $suite\2 main/p"
}

# Options of env that leave, of this machine's environment, what pip and apt need to reach their registries.
without_others() {
  env | sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' |
    grep -viE '^(pip_.*|.*_proxy|ssl_cert_file|requests_ca_bundle|home)$' | sed 's/^/-u /'
}

# The files and folders of this machine that pip's settings are in or name. An index has its files beside it.
pip_paths() {
  for settings in /etc/pip.conf /etc/xdg/pip "$HOME/.config/pip" "$HOME/.pip"; do
    [ ! -e "$settings" ] || { echo "=$settings"; grep -rh '^[^#]*=' "$settings" || true; }
  done | { cat; env | grep -i '^pip_'; } | grep -oE '([ =]|file://)/[^ ]+' |
    sed 's/^\(=\| \|file:\/\/\)*//; s/\/simple\/*$//' | sort -u |
    while read -r path; do [ ! -e "$path" ] || echo "$path"; done
}

make_root() { # the fresh system in $root
  mirror=$(sources | sed -n "s/^deb \([^ ]*\) $suite main\$/\1/p" | head -n 1)
  [ -n "$mirror" ] || refuse "apt's sources have no mirror of Debian; run apt-get update, or take another machine"
  eval "$(apt-config shell http_proxy Acquire::http::Proxy)"
  env ${http_proxy:+"http_proxy=$http_proxy"} debootstrap --variant=minbase "$suite" "$root" "$mirror"
  cp /etc/resolv.conf "$root/etc"
  sources > "$root/etc/apt/sources.list"
  apt-config dump Acquire > "$root/etc/apt/apt.conf.d/90machine"
  # Whom this machine trusts; the package ca-certificates writes its file anew.
  [ ! -e /etc/ssl/certs/ca-certificates.crt ] || install -D -m 644 /etc/ssl/certs/ca-certificates.crt \
    "$root/usr/local/share/ca-certificates/machine.crt"
  chmod 755 "$root" # a system's own root is open to all users, as tests of files that others must not read expect
  echo "$suite" > "$made"
}

enter() { # mounts what a running system has, and what pip's settings name
  mkdir -p "$root$HOME"
  mount -t proc proc "$root/proc"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t devpts -o newinstance,ptmxmode=666,mode=620,gid=5 devpts "$root/dev/pts"
  mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
  for path in $(pip_paths); do
    if [ -d "$path" ]; then
      mkdir -p "$root$path"
      mount --bind -o ro "$path" "$root$path"
    elif [ ! -e "$root$path" ]; then
      cp --parents -t "$root" "$path" # a package may replace it
    fi
  done
}

checkout() { # HEAD as $root/root/mhagen; what was built there stays
  git diff --quiet HEAD || echo "bare: what is not committed is not tried" >&2
  git init -q "$root/root/mhagen"
  git -C "$root/root/mhagen" fetch -q --depth 1 "file://$PWD" HEAD
  git -C "$root/root/mhagen" reset -q --hard FETCH_HEAD
}

try() { # each command; says how they ended
  made=$root/etc/bare
  [ -e "$made" ] || [ -z "$(ls -A "$root")" ] || refuse "$root has files, and not of bare.sh; --keep takes a new folder"
  [ -e "$made" ] || make_root
  [ "$(cat "$made")" = "$suite" ] || refuse "$root is $(cat "$made"), not $suite; --keep takes a folder for each"
  enter
  checkout
  failed=0 said=
  for command; do
    echo "bare: $command" >&2
    begin=$(date +%s) status=0
    env $(without_others) PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
      chroot "$root" sh -c 'cd /root/mhagen; eval "$1"' sh "$command" < /dev/null || status=$?
    [ $status = 0 ] || failed=1
    said="$said
bare: status $status after $(($(date +%s) - begin)) s: $command"
  done
  echo "bare: $suite$said" >&2
  exit $failed
}

if [ "${1:-}" = --inside ]; then # the namespaces that were made below
  root=$2 suite=$3
  shift 3
  try "$@"
fi

while [ $# != 0 ]; do
  case $1 in
    --help) exec sed -n '2,/^set/s/^# \{0,1\}//p' "$0" ;;
    --suite | --keep | --page) [ -n "${2:-}" ] || refuse "$1 has no value; bare.sh --help says which" ;;
    -*) refuse "$1 is no option; bare.sh --help names them" ;;
    *) break ;;
  esac
  case $1 in --suite) suite=$2 ;; --keep) keep=$2 ;; --page) page=$2 ;; esac
  shift 2
done
[ "$(id -u)" = 0 ] || refuse "not root, who alone may mount; run it with sudo"
for program in debootstrap git unshare; do
  command -v $program > /dev/null || refuse "$program is not there; apt-get install debootstrap git util-linux"
done
commands() { # of a page's transcripts, or of README's "Try it"
  [ -z "$page" ] || sed -n '/^```console$/,/^```$/s/^\$ //p' "$page"
  [ -n "$page" ] || sed -n '/^## Try it/,/^## /{/^sh /p;}' README.md
}
if [ $# = 0 ]; then
  set -f
  IFS='
'
  set -- $(commands)
  unset IFS
  set +f
  [ $# != 0 ] || refuse "${page:-README.md} has no commands; give one to bare.sh"
fi

child=
root=${keep:-$(mktemp -d -p "${TMPDIR:-/var/tmp}" bare-XXXXXX)}
mkdir -p "$root"
root=$(cd "$root" && pwd)
end() {
  kill -KILL "$child" 2> /dev/null || true # with it its namespaces
  wait "$child" 2> /dev/null || true
  [ -n "$keep" ] || rm -rf --one-file-system "$root"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' HUP TERM
{ # read as a whole, for this file may be another before the commands have ended
  unshare --mount --pid --fork --kill-child --propagation private sh scripts/bare.sh --inside "$root" "$suite" "$@" &
  child=$!
  wait "$child"
  exit
}
