#!/bin/sh
# $CC for tests in which the compiler is not what is tested: it keeps the objects of what every program is linked with,
# by their content, in the directory $OBJECTS. All else is the compiler's, that is $REAL_CC or cc.
set -eu
cc=${REAL_CC:-cc}
case " $* " in *" -c "* | *" --version "*) exec $cc "$@" ;; esac
flags=
for word; do
  [ "$word" != -o ] || break
  case $word in -O?) word=-O2 ;; esac # what is compiled once may take its time
  flags="$flags $word"
done
for word; do
  shift
  case $word in
    */checker*.c | */reference.c | */bounds.c | */rounded.c | */bench.c | */mhagen_peak.c | */mhagen.c)
      object=$OBJECTS/$({ echo "$cc $flags" && cat "$word" "${word%/*}/mhagen.h"; } | cksum | tr ' ' -).o
      [ -e "$object" ] || { $cc $flags -c -o "$object.$$" "$word" && mv "$object.$$" "$object"; }
      word=$object ;;
  esac
  set -- "$@" "$word"
done
exec $cc "$@"
