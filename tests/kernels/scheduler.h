/* Runs the tasks of a phase in parallel: those of `order`, which has each once. */
#include "mhagen.h"

#ifdef __cplusplus
extern "C"
#endif
void run_tasks(const mhagen_phase *phase, const mhagen_args *args, const int *order);
