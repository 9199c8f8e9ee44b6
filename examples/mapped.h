/* The file of a model that `mhagen model --whole` has written, for the examples. */
#include <stddef.h>

/* The `bytes` bytes of a file, or null if it has another size. The system loads pages as they are
 * used, and programs share them. Runs refuse the file of another model; model_check, which reads all
 * of it, would also find a damaged one. */
static const void *mapped(const char *path, size_t bytes);

#ifdef _WIN32
#include <windows.h>

static const void *mapped(const char *path, size_t bytes) {
  const HANDLE file = CreateFileA(path, GENERIC_READ, FILE_SHARE_READ, NULL, OPEN_EXISTING, 0, NULL);
  LARGE_INTEGER size;
  if (file == INVALID_HANDLE_VALUE) return NULL;
  const int good = GetFileSizeEx(file, &size) && (unsigned long long)size.QuadPart == bytes;
  const HANDLE all = good ? CreateFileMappingA(file, NULL, PAGE_READONLY, 0, 0, NULL) : NULL;
  const void *at = all ? MapViewOfFile(all, FILE_MAP_READ, 0, 0, 0) : NULL;
  if (all) CloseHandle(all);
  CloseHandle(file);
  return at;
}
#else
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

static const void *mapped(const char *path, size_t bytes) {
  const int file = open(path, O_RDONLY);
  if (file < 0) return NULL;
  const int good = lseek(file, 0, SEEK_END) == (off_t)bytes;
  void *all = good ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  return all != MAP_FAILED ? all : NULL;
}
#endif
