/* embed.c: prints files as the C table of embed.h.
 *
 *   embed FILE... > OUT.c
 *
 * A file that is named again is there once. Lua is compiled: to read its text took two thirds of a start.
 */
#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Ends the program if something has failed. */
static void must(int good, const char *what) {
  if (good) return;
  perror(what);
  exit(1);
}

static void *whole_file(const char *path, size_t *size) {
  FILE *in = fopen(path, "rb");
  must(in != NULL, path);
  must(fseek(in, 0, SEEK_END) == 0, path);
  long end = ftell(in);
  must(end >= 0 && fseek(in, 0, SEEK_SET) == 0, path);
  *size = (size_t)end;
  void *bytes = malloc(*size + 1);
  must(bytes != NULL && fread(bytes, 1, *size, in) == *size, path);
  fclose(in);
  return bytes;
}

/* A lua_Writer; `count` is a size_t, the bytes before these. */
static int print_bytes(lua_State *L, const void *bytes, size_t size, void *count) {
  (void)L;
  size_t *before = count;
  for (size_t i = 0; i < size; ++i) {
    printf("%s%d,", (*before)++ % 24 == 0 ? "\n  " : "", ((const unsigned char *)bytes)[i]);
  }
  return 0;
}

/* With the name and the lines, which errors tell. */
static void print_compiled(const char *bytes, size_t size, const char *name, size_t *count) {
  lua_State *L = luaL_newstate();
  must(L != NULL, name);
  if (luaL_loadbufferx(L, bytes, size, lua_pushfstring(L, "@%s", name), "t") != LUA_OK) {
    fprintf(stderr, "%s\n", lua_tostring(L, -1));
    exit(1);
  }
  lua_dump(L, print_bytes, count, 0);
  lua_close(L);
}

/* What the build has made has the name that a source would have. */
static const char *name_of(const char *path) {
  if (strncmp(path, "build/", 6) == 0) path += 6;
  return path[0] == '/' ? strrchr(path, '/') + 1 : path;
}

/* The file as an array, and a zero behind: C has no empty arrays. Returns the bytes. */
static size_t print_array(int index, const char *path) {
  size_t size, count = 0, length = strlen(path);
  char *bytes = whole_file(path, &size);
  printf("static const unsigned char file%d[] = {", index);
  if (length > 4 && strcmp(path + length - 4, ".lua") == 0) {
    print_compiled(bytes, size, name_of(path), &count);
  } else {
    print_bytes(NULL, bytes, size, &count);
  }
  printf("\n  0};\n\n");
  free(bytes);
  return count;
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
  for (int i = 1; i <= count; ++i) printf("  {\"%s\", file%d, %zu},\n", name_of(argv[i]), i, sizes[i]);
  printf("};\nconst size_t embedded_count = %d;\n", count);

  must(fflush(stdout) == 0 && !ferror(stdout), "standard output");
  free(sizes);
  return 0;
}
