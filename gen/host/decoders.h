/* decoders.h: the types of numbers that files of tensors have. */
#ifndef DECODERS_H
#define DECODERS_H

#include <stddef.h>

typedef struct Type {
  const char *name;
  int elements, bytes; /* of a block, which has neighbours in a row */
  void (*read)(const unsigned char *from, float *to, size_t blocks);
} Type;

/* The type of this name, or null. */
const Type *find_type(const char *name);

/* That of integers and FP8, which mean numbers by a scale that lies elsewhere, or null. */
const Type *find_integers(const char *name);

#endif
