#!/bin/sh
# Installs build/mhagen and what belongs to it, or takes the same files away: `install-mhagen.sh [--uninstall]`.
# PREFIX is where they will be used (/usr/local); DESTDIR stands before every path, for packages.
set -eu
cd "$(dirname "$0")/.."
prefix=${PREFIX:-/usr/local}
case $prefix in /*) ;; *) echo "install: PREFIX = $prefix: must begin with a /" >&2; exit 2 ;; esac
root=${DESTDIR:-}$prefix
version=$(build/mhagen --version | cut -d ' ' -f 2)
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT

filled() { # a file with what is known only now
  sed "s|@prefix@|$prefix|; s|@version@|$version|" "$1"
}

make_files() {
  filled cmake/mhagen.pc.in > $made/mhagen.pc
  filled cmake/mhagen-config-version.cmake.in > $made/mhagen-config-version.cmake
  build/mhagen schema --man > $made/mhagen.1
  build/mhagen schema --bash > $made/mhagen
  build/mhagen schema --zsh > $made/_mhagen
  build/mhagen schema --fish > $made/mhagen.fish
}

# Mode, source, and the directory below the prefix.
files="755 build/mhagen bin
644 runtime/mhagen.h include/mhagen
644 runtime/mhagen.hpp include/mhagen
644 build/runtime/mhagen.c share/mhagen
644 runtime/LICENSE share/mhagen
644 $made/mhagen.pc share/pkgconfig
644 cmake/mhagen-config.cmake share/cmake/mhagen
644 $made/mhagen-config-version.cmake share/cmake/mhagen
644 $made/mhagen.1 share/man/man1
644 $made/mhagen share/bash-completion/completions
644 $made/_mhagen share/zsh/site-functions
644 $made/mhagen.fish share/fish/vendor_completions.d
644 LICENSE share/doc/mhagen"

[ "${1:-}" = --uninstall ] || make_files
echo "$files" | while read -r mode source dir; do
  target=$root/$dir/${source##*/}
  if [ "${1:-}" = --uninstall ]; then
    rm -f "$target"
    case $dir in *mhagen*) rmdir "$root/$dir" 2> /dev/null || true ;; esac
  else
    install -D -m "$mode" "$source" "$target"
    echo "$target"
  fi
done
