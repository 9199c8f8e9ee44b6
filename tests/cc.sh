#!/bin/sh
# $CC for tests in which the compiler is not what is tested: it keeps the objects of what every program is linked with,
# by their content, and at -O0 the intrinsics precompiled, in the directory $OBJECTS. All else is the compiler's, that
# is $REAL_CC or cc.
set -eu
cc=${REAL_CC:-cc}
case " $* " in *" -c "* | *" --version "*) exec $cc "$@" ;; esac
flags= given= intrinsics=
for word; do
  [ "$word" != -o ] || break
  case $word in -O?) word=-O2 ;; esac # what is compiled once may take its time
  flags="$flags $word"
done
for word; do
  shift
  case $word in
    */checker*.c | */reference.c | */composition.c | */bounds.c | */rounded.c | */bench.c | \
      */mhagen_peak.c | */mhagen.c)
      object=$OBJECTS/$({ echo "$cc $flags" && cat "$word" "${word%/*}/mhagen.h"; } | cksum | tr ' ' -).o
      [ -e "$object" ] || { $cc $flags -c -o "$object.$$" "$word" && mv "$object.$$" "$object"; }
      word=$object ;;
    -[!oIlL]*) given="$given $word" ;; # where it stands, for -pthread defines a macro
    *.c) ! grep -q '^#include <immintrin.h>' "$word" || intrinsics=yes ;;
  esac
  set -- "$@" "$word"
done
case $intrinsics$given in
  *-include*) ;;
  yes*\ -O0*) # half of the time is theirs
    header=$OBJECTS/intrinsics-$(echo "$cc $given" | cksum | tr ' ' -).h
    [ -e "$header.gch" ] || {
      echo '#include <immintrin.h>' >"$header"
      $cc $given -x c-header -o "$header.gch.$$" "$header" && mv "$header.gch.$$" "$header.gch"
    }
    set -- -include "$header" "$@" ;;
esac
exec $cc "$@"
