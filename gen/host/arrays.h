/* arrays.h: arrays of doubles in memory of the generator. */
#ifndef ARRAYS_H
#define ARRAYS_H

#include "tensors.h"

/* The numbers of the array at an index of the stack, and how many. */
const double *numbers_at(lua_State *L, int index, size_t *count);

/* c[rows][columns] += a[rows][inner] b[inner][columns]. Zeros of a take no part, so sparse rows are cheap. */
void multiply(const double *a, const double *b, double *c, size_t rows, size_t inner, size_t columns);

/* Each adds its functions to the table on top. */
void add_formula(lua_State *L);
void add_arrays(lua_State *L);

#endif
