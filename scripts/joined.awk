# The runtime as one file: in the place of each `#include "parts/.."` the text of that part.
#
#   awk -f scripts/joined.awk runtime/mhagen.c > build/runtime/mhagen.c
match($0, /^#include "parts\/[a-z_]+\.c"$/) {
  part = "runtime/" substr($0, 11, RLENGTH - 11)
  while ((got = (getline line < part)) > 0) print line
  if (got < 0) { print part ": cannot be read" > "/dev/stderr"; exit 1 }
  next
}
{ print }
