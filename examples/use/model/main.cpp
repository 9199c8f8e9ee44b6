// All attention layers of a model in C++17: a folder of transformers or a GGUF file. To build and run it:
//
//   mhagen model MODEL isa=x86 seq=16 --cxx -o out
//   cc -O2 -c out/*.c && c++ -std=c++17 -O2 -Iout main.cpp *.o -pthread -o model && ./model out
#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>
#include "mhagen.hpp"
#include "model.h"

// Stands in for what the rest of the model gives a layer: numbers in -1..1.
static std::vector<float> numbers(int rows, int width, unsigned seed) {
  std::vector<float> x(static_cast<std::size_t>(rows) * static_cast<std::size_t>(width));
  for (float &value : x) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return x;
}

// Whether a file of the kernel could be read.
static bool read(const mhagen_kernel &kernel, const std::string &folder, const char *name, mhagen::memory &to) {
  auto bytes = mhagen::read_packed(kernel, folder + "/" + name);
  if (!bytes) return std::fprintf(stderr, "%s: %s\n", name, mhagen_status_text(bytes.status())), false;
  to = std::move(bytes).value();
  return true;
}

int main(int argc, char **argv) {
  const std::string folder = argc > 1 ? argv[1] : ".";
  std::vector<mhagen::memory> files(MODEL_KERNELS), tables(MODEL_KERNELS); // the packed weights of each kernel
  std::size_t most = 0;
  for (int i = 0; i < MODEL_KERNELS; i++) {
    const model_kernel_row &row = *model_row(i); // of a bundle that of this CPU
    const auto at = static_cast<std::size_t>(i);
    if (!read(*row.kernel, folder, row.file, files[at])) return 1;
#ifdef MODEL_TABLES // cosines and sines that layers share
    if (row.tables_file && !read(*row.kernel, folder, row.tables_file, tables[at])) return 1;
#endif
    most = std::max(most, row.kernel->workspace_bytes);
  }
  const mhagen::memory workspace = mhagen::allocate(most); // one for all, as layers run one after another
  const auto threads = mhagen::make_pool(2);

  for (const model_layer &layer : model_layers) {
    const mhagen_kernel &kernel = *model_row(layer.kernel)->kernel;
    const int rows = kernel.batch * kernel.seq;
    const std::vector<float> x = numbers(rows, kernel.d_model, 5);
    std::vector<float> y = numbers(rows, kernel.y_width, 0);
    const std::vector<int> lengths(static_cast<std::size_t>(kernel.batch), kernel.seq_kv); // no padding
    mhagen_args args{}; // what a model needs besides, docs/models.md says: masks, caches, k and v
    args.q = x.data(), args.y = y.data(), args.kv_len = lengths.data();
    const auto at = static_cast<std::size_t>(layer.kernel);
    args.packed = mhagen_packed_layer(files[at].get(), static_cast<std::size_t>(layer.index));
#ifdef MODEL_TABLES
    if (tables[at]) args.tables = mhagen_packed_layer(tables[at].get(), static_cast<std::size_t>(layer.tables));
#endif
    args.workspace = workspace.get();
    const mhagen_status status = mhagen_run_parallel(&kernel, &args, threads.get());
    if (status != MHAGEN_OK) return std::fprintf(stderr, "%s: %s\n", layer.name, mhagen_status_text(status)), 1;
    std::printf("# %s, %s\n", layer.name, kernel.isa);
    for (float value : y) std::printf("%.9g\n", static_cast<double>(value));
  }
  return 0;
}
