#!/bin/sh
# Warns if the Lua that build/mhagen is linked with has known holes: `lua-check.sh [LUA.H]`. The version is that of
# the package, which says more than the header. A hole that the package's changelog names has been patched in
# it, whatever its version.
set -eu
cd "$(dirname "$0")/.."
version=$(dpkg-query -W -f '${Version}' liblua5.4-dev 2> /dev/null) ||
  version=$(sed -n 's/^#define LUA_VERSION_\(MAJOR\|MINOR\|RELEASE\)[^"]*"\([0-9]*\)".*/\2/p' "$1" | paste -sd .)
changes=${CHANGES:-/usr/share/doc/liblua5.4-dev/changelog.Debian.gz}

holes=$(grep '^CVE' scripts/lua-holes | while read -r name fixed; do
  [ "$(printf '%s\n%s\n' "$fixed" "$version" | sort -V | head -n 1)" = "$fixed" ] ||
    gzip -dcq "$changes" 2> /dev/null | grep -qF "$name" || echo "$name"
done)
[ -z "$holes" ] ||
  echo "warning: Lua $version has known holes, so give mhagen only files that you trust:" $holes
