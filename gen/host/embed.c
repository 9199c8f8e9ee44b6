/* embed.c: prints files as the C table of embed.h.
 *
 *   embed FILE... > OUT.c
 *
 * A file that is named again is there once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program if a stream has failed. */
static void must(int good, const char *what) {
  if (good) return;
  perror(what);
  exit(1);
}

/* The bytes as an array, and a zero behind: C has no empty arrays. Returns their number. */
static size_t print_array(int index, const char *path) {
  FILE *in = fopen(path, "rb");
  must(in != NULL, path);
  size_t size = 0;
  printf("static const unsigned char file%d[] = {", index);
  for (int byte = getc(in); byte != EOF; byte = getc(in)) {
    printf("%s%d,", size++ % 24 == 0 ? "\n  " : "", byte);
  }
  printf("\n  0};\n\n");
  must(!ferror(in), path);
  fclose(in);
  return size;
}

static int contains(char **names, int count, const char *name) {
  while (count > 0 && strcmp(names[count - 1], name) != 0) --count;
  return count > 0;
}

int main(int argc, char **argv) {
  size_t *sizes = calloc((size_t)argc, sizeof *sizes);
  if (sizes == NULL) return 1;

  printf("/* Written by gen/host/embed.c; do not edit. */\n#include \"embed.h\"\n\n");
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    if (!contains(argv + 1, count, argv[i])) argv[++count] = argv[i];
  }
  for (int i = 1; i <= count; ++i) sizes[i] = print_array(i, argv[i]);
  printf("const EmbeddedFile embedded_files[] = {\n");
  for (int i = 1; i <= count; ++i) {
    const char *name = argv[i][0] == '/' ? strrchr(argv[i], '/') + 1 : argv[i];
    printf("  {\"%s\", file%d, %zu},\n", name, i, sizes[i]);
  }
  printf("};\nconst size_t embedded_count = %d;\n", count);

  must(fflush(stdout) == 0 && !ferror(stdout), "standard output");
  free(sizes);
  return 0;
}
