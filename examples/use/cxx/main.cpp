// A layer of four heads in C++17. To build and run it:
//
//   mhagen gen h=4 d_model=32 dk=8 seq=16 isa=native name=layer --cxx -o .
//   cc -O2 -c layer.c mhagen.c && c++ -std=c++17 -O2 main.cpp layer.o mhagen.o -pthread -o layer && ./layer
#include <cstdio>
#include <vector>
#include "layer.h"
#include "mhagen.hpp"

// Stands in for your weights and inputs: numbers in -1..1.
static std::vector<float> numbers(unsigned n, unsigned seed) {
  std::vector<float> x(n);
  for (float &value : x) {
    seed = seed * 1664525u + 1013904223u;
    value = static_cast<float>(seed >> 8) / 8388608.0f - 1.0f;
  }
  return x;
}

int main() {
  constexpr unsigned D = LAYER_D_MODEL, SEQ = LAYER_SEQ;
  const auto wq = numbers(D * D, 1), wk = numbers(D * D, 2), wv = numbers(D * D, 3), wo = numbers(D * D, 4);
  const auto x = numbers(SEQ * D, 5);
  std::vector<float> y(SEQ * D);

  mhagen_weights weights{};
  weights.wq = wq.data(), weights.wk = wk.data(), weights.wv = wv.data(), weights.wo = wo.data();
  auto layer = mhagen::attention::make(layer_kernel, weights);
  mhagen_status status = layer ? layer.value().try_run(x, y) : layer.status();
#if defined(__cpp_exceptions) // the same with exceptions, on two threads
  if (status == MHAGEN_OK) {
    const auto threads = mhagen::make_pool(2);
    try {
      mhagen::attention(layer_kernel, weights).run(x, y, threads.get());
    } catch (const mhagen::error &e) {
      status = e.status();
    }
  }
#endif
  for (float value : y) std::printf("%.9g\n", static_cast<double>(value));
  if (status != MHAGEN_OK) std::fprintf(stderr, "%s: %s\n", layer_kernel.name, mhagen_status_text(status));
  return status;
}
