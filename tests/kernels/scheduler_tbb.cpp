#include "scheduler.h"

#include <tbb/parallel_for.h>

void run_tasks(const mhagen_phase *phase, const mhagen_args *args, const int *order) {
  tbb::parallel_for(0, phase->tasks, [=](int i) { phase->task(args, order[i]); });
}
