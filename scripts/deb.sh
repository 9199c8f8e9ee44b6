#!/bin/sh
# Builds a Debian package of what `ninja install` installs: `deb.sh [DIR]` makes DIR/mhagen_VERSION_ARCH.deb, without
# DIR in build. The program is linked with Lua's static libraries and needs libc alone; a compiler is recommended, for
# check, bench and the like. The maintainer is $DEBFULLNAME <$DEBEMAIL>.
set -eu
cd "$(dirname "$0")/.."
ninja build/mhagen
version=$(build/mhagen --version | cut -d ' ' -f 2)
maintainer="${DEBFULLNAME:-mhagen} <${DEBEMAIL:-mhagen@example.org}>"
arch=$(dpkg --print-architecture)
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
umask 022
chmod 755 "$root"
PREFIX=/usr DESTDIR=$root sh scripts/install-mhagen.sh > /dev/null
doc=$root/usr/share/doc/mhagen

strip "$root/usr/bin/mhagen"
gzip -9n "$root/usr/share/man/man1/mhagen.1"
# Debian's places for licenses, and for zsh's completions.
rm "$doc/LICENSE" "$root/usr/share/mhagen/LICENSE"
mv "$root/usr/share/zsh/site-functions" "$root/usr/share/zsh/vendor-completions"
sed 's/^/ /; s/^ $/ ./' runtime/LICENSE > "$root/zero"
cat > "$doc/copyright" << END
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: mhagen

Files: *
Copyright: the authors of mhagen
License: Apache-2.0
 The text of this license is in /usr/share/common-licenses/Apache-2.0.

Files: usr/share/mhagen/* usr/include/mhagen/*
Copyright: the authors of mhagen
License: 0BSD
$(cat "$root/zero")

Files: usr/bin/mhagen
Copyright: the authors of mhagen
Comment: It holds, compiled in, Lua, lua-cjson, argparse, dkjson and Chart.js.
License: Apache-2.0 and Expat

License: Expat
$(sed -n '/^Permission is hereby/,/OTHER DEALINGS\|DEALINGS IN THE/p' /usr/share/doc/liblua5.4-dev/copyright |
  sed 's/^ *//; s/^/ /; s/^ $/ ./')
END
rm "$root/zero"
# The date is that of the sources, so that the same sources give the same package.
date=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2> /dev/null || stat -c %Y build.ninja)}
{
  echo "mhagen ($version) unstable; urgency=low"
  printf '\n  * %s\n\n' "As the sources have it."
  echo " -- $maintainer  $(LC_ALL=C date -u -R -d "@$date")"
} | gzip -9n > "$doc/changelog.gz"

mkdir "$root/DEBIAN"
libc=$(dpkg-query -W -f '${Version}' libc6 | sed 's/-.*//')
cat > "$root/DEBIAN/control" << END
Package: mhagen
Version: $version
Architecture: $arch
Maintainer: $maintainer
Installed-Size: $(du -sk "$root/usr" | cut -f 1)
Depends: libc6 (>= $libc)
Recommends: gcc | clang | c-compiler
Suggests: cmake, ninja-build, pkgconf
Section: devel
Priority: optional
Description: generator of C for the layers and models of transformers
 mhagen writes C with intrinsics for the attention, the layers and the models
 of one shape on a CPU: plain C, AVX2, AVX-512, AMX or NEON. The C is meant to
 be read and to be copied into a product; it needs a C99 compiler and libc.
END
(cd "$root" && find usr -type f -exec md5sum {} + | LC_ALL=C sort -k 2 > DEBIAN/md5sums)
find "$root" -newermt "@$date" -exec touch -h -d "@$date" {} +
package=${1:-build}/mhagen_${version}_$arch.deb
SOURCE_DATE_EPOCH=$date dpkg-deb --root-owner-group -Zxz --build "$root" "$package" > /dev/null
echo "$package"
