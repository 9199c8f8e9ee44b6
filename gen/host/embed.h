/* embed.h: files compiled into a program; gen/host/embed.c writes the table at build time. */
#ifndef EMBED_H
#define EMBED_H

#include <stddef.h>

typedef struct EmbeddedFile {
  const char *name; /* the path in the repository; of a file from elsewhere, its last part */
  const unsigned char *data; /* of Lua: compiled */
  size_t size;
} EmbeddedFile;

extern const EmbeddedFile embedded_files[]; /* the first one is the program that the host runs */
extern const size_t embedded_count;

#endif
