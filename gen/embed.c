/* embed.c: writes files as the C table of embed.h, and OUT.d, which tells ninja what was read.
 *
 *   embed OUT.c FILE...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static FILE *must_open(const char *path, const char *mode) {
  FILE *file = fopen(path, mode);
  if (file == NULL) {
    perror(path);
    exit(1);
  }
  return file;
}

static void must_close(FILE *file, const char *path) {
  int failed = ferror(file);
  if (fclose(file) != 0 || failed) {
    perror(path);
    exit(1);
  }
}

/* The bytes as an array, and a zero behind: C has no empty arrays. Returns their number. */
static size_t write_array(FILE *out, int index, const char *path) {
  FILE *in = must_open(path, "rb");
  size_t size = 0;
  fprintf(out, "static const unsigned char file%d[] = {", index);
  for (int byte = getc(in); byte != EOF; byte = getc(in)) {
    fprintf(out, "%s%d,", size++ % 24 == 0 ? "\n  " : "", byte);
  }
  fprintf(out, "\n  0};\n\n");
  must_close(in, path);
  return size;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: embed OUT.c FILE...\n");
    return 2;
  }
  char depfile[4096];
  snprintf(depfile, sizeof depfile, "%s.d", argv[1]);
  FILE *out = must_open(argv[1], "w");
  FILE *deps = must_open(depfile, "w");
  size_t *sizes = calloc((size_t)argc, sizeof *sizes);
  if (sizes == NULL) return 1;

  fprintf(out, "/* Written by gen/embed.c; do not edit. */\n#include \"embed.h\"\n\n");
  fprintf(deps, "%s:", argv[1]);
  for (int i = 2; i < argc; ++i) {
    sizes[i] = write_array(out, i, argv[i]);
    fprintf(deps, " %s", argv[i]);
  }
  fprintf(out, "const EmbeddedFile embedded_files[] = {\n");
  for (int i = 2; i < argc; ++i) {
    const char *name = argv[i][0] == '/' ? strrchr(argv[i], '/') + 1 : argv[i];
    fprintf(out, "  {\"%s\", file%d, %zu},\n", name, i, sizes[i]);
  }
  fprintf(out, "};\nconst size_t embedded_count = %d;\n", argc - 2);
  fprintf(deps, "\n");

  must_close(out, argv[1]);
  must_close(deps, depfile);
  free(sizes);
  return 0;
}
