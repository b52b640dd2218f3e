/* An in-place sort of indices by the caller's order. */
#ifndef TIDE_BASE_SORT_H
#define TIDE_BASE_SORT_H

#include <stdbool.h>
#include <stdint.h>

/* Sorts n indices in place, without memory of its own. less(arg, a, b): a precedes b. */
typedef bool (*tide__less)(const void *arg, int32_t a, int32_t b);
void tide__sort(int32_t *index, int64_t n, tide__less less, const void *arg);
/* Sorts 0 to n - 1 into index. Returns one that is equal to another, or -1. */
int32_t tide__sort_twin(int32_t *index, int64_t n, tide__less less, const void *arg);

#endif
