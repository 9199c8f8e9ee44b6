/* The file of a model that `mhagen model --whole` has written, for the examples. */
#include <fcntl.h>
#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

/* The `bytes` bytes of a file, or null if it has another size. The system loads pages as they are
 * used, and programs share them. Runs refuse the file of another model; model_check, which reads all
 * of it, would also find a damaged one. */
static const void *mapped(const char *path, size_t bytes) {
  const int file = open(path, O_RDONLY);
  if (file < 0) return NULL;
  const int good = lseek(file, 0, SEEK_END) == (off_t)bytes;
  void *all = good ? mmap(NULL, bytes, PROT_READ, MAP_SHARED, file, 0) : MAP_FAILED;
  close(file);
  return all != MAP_FAILED ? all : NULL;
}
