#!/bin/sh
# Compiles Lua and lua-cjson for another machine, C library or sanitizer: `lua.sh LIBRARY.a COMPILER [FLAG...]`. The
# sources are those of the distribution's packages that build/mhagen is linked with, with the same patches. apt
# checks their signatures; they are kept in build/lua.
set -eu
root=$(cd "$(dirname "$0")/.." && pwd)
library=$1
shift
version=$(dpkg-query -W -f '${source:Version}-' liblua5.4-dev lua-cjson-dev)
source=$root/build/lua/${version%-}
mkdir -p "$root/build/lua"
scratch=$(mktemp -d "$root/build/lua/new-XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# The places that the system's packages are from, as lists of sources.
source_lists() {
  mkdir lists
  cat /etc/apt/sources.list /etc/apt/sources.list.d/*.list 2> /dev/null |
    sed -n 's/^deb /deb-src /p' > lists/system.list
  for file in /etc/apt/sources.list.d/*.sources; do
    [ ! -e "$file" ] || { sed 's/^Types:.*/Types: deb-src/' "$file"; echo; } >> lists/system.sources
  done
}

# Unpacks the patched source of a development package as tree/NAME.
fetch() {
  $apt source --download-only "$(dpkg-query -W -f '${source:Package}=${source:Version}' "$1")"
  name=$(dpkg-query -W -f '${source:Package}' "$1")
  mkdir "tree/$name"
  tar -xf "$name"_*.orig.tar.* -C "tree/$name" --strip-components=1
  tar -xf "$name"_*.debian.tar.* -C "tree/$name"
  [ ! -e "tree/$name/debian/patches/series" ] || while read -r patch; do
    patch -d "tree/$name" -p1 -s < "tree/$name/debian/patches/$patch"
  done < "tree/$name/debian/patches/series"
}

# apt gets directories of its own, so that the system's lists stay as they are.
fetch_all() {
  source_lists
  mkdir -p state/lists/partial cache/archives/partial tree
  apt="apt-get -qq -o Dir::Etc::SourceList=/dev/null -o Dir::Etc::SourceParts=$scratch/lists
    -o Dir::State=$scratch/state -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache=$scratch/cache
    -o APT::Sandbox::User="
  $apt update || true # fails for repositories without sources, which are not needed
  fetch liblua5.4-dev
  fetch lua-cjson-dev
  mv tree/lua5.4/src tree/src
  rm tree/src/lua.c tree/src/luac.c # programs
  # Where modules of this architecture are; nobody loads one.
  echo '#define DEB_HOST_MULTIARCH "none"' > tree/src/lua5.4-deb-multiarch.h
  for file in lua_cjson.c strbuf.c strbuf.h fpconv.c fpconv.h; do mv "tree/lua-cjson/$file" tree/src; done
  cp /usr/include/lua5.4/lua-cjson.h tree/src
  mv -T tree "$source" || [ -d "$source" ] # another process may have been faster
}

cd "$scratch"
[ -d "$source" ] || fetch_all >&2
mkdir objects
(cd objects && "$@" -std=gnu99 -DLUA_COMPAT_5_3 -DLUA_USE_POSIX -DNDEBUG -I"$source/src" -c "$source"/src/*.c)
ar rcs library.a objects/*.o
cd "$root"
mv "$scratch/library.a" "$library"
