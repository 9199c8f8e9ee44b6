#include "scheduler.h"

void run_tasks(const mhagen_phase *phase, const mhagen_args *args, const int *order) {
#pragma omp parallel for schedule(dynamic) num_threads(4)
  for (int i = 0; i < phase->tasks; i++) phase->task(args, order[i]);
}
