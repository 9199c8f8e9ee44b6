#!/bin/sh
# Compiles Lua from the source of the distribution's own package, for another machine, libc or sanitizer:
# `lua.sh LIBRARY.a COMPILER [FLAG...]`. It is the Lua of build/mhagen, with the same patches. apt checks
# the source's signature; it is kept in build/lua.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
library=$1
shift
version=$(dpkg-query -W -f '${source:Version}' liblua5.4-dev)
source=$root/build/lua/$version
mkdir -p "$root/build/lua"
scratch=$(mktemp -d "$root/build/lua/new-XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# Where the system's packages are from, as lists of sources.
source_lists() {
  mkdir lists
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2> /dev/null |
    sed -n 's/^deb /deb-src /p' > lists/system.list
  for file in /etc/apt/sources.list.d/*.sources; do
    [ ! -e "$file" ] || { sed 's/^Types:.*/Types: deb-src/' "$file"; echo; } >> lists/system.sources
  done
}

# apt gets directories of its own: the system's lists stay as they are.
fetch() {
  source_lists
  mkdir -p state/lists/partial cache/archives/partial tree
  apt="apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=$scratch/lists
    -o Dir::State=$scratch/state -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache=$scratch/cache
    -o APT::Sandbox::User="
  $apt update || true # a repository without sources is none that Lua is from
  $apt source --download-only "lua5.4=$version"
  tar -xzf lua5.4_*.orig.tar.gz -C tree --strip-components=1
  tar -xJf lua5.4_*.debian.tar.xz -C tree
  while read -r name; do
    patch -d tree -p1 -s < "tree/debian/patches/$name"
  done < tree/debian/patches/series
  rm tree/src/lua.c tree/src/luac.c # programs
  # Where modules of this architecture are; nobody loads one.
  echo '#define DEB_HOST_MULTIARCH "none"' > tree/src/lua5.4-deb-multiarch.h
  mv -T tree "$source" || [ -d "$source" ] # another process may have been sooner
}

cd "$scratch"
[ -d "$source" ] || fetch >&2
mkdir objects
(cd objects && "$@" -std=gnu99 -DLUA_COMPAT_5_3 -DLUA_USE_POSIX -c "$source"/src/*.c)
ar rcs library.a objects/*.o
cd "$root"
mv "$scratch/library.a" "$library"
