/* Heap sort of indices: no recursion, no memory, n log n for every input. */
#include "core/base/base.h"

static void sift(int32_t *index, int64_t at, int64_t n, tide__less less, const void *arg)
{
  int32_t moving = index[at];
  for (int64_t child; (child = 2 * at + 1) < n; at = child) {
    if (child + 1 < n && less(arg, index[child], index[child + 1])) child++;
    if (!less(arg, moving, index[child])) break;
    index[at] = index[child];
  }
  index[at] = moving;
}

void tide__sort(int32_t *index, int64_t n, tide__less less, const void *arg)
{
  for (int64_t i = n / 2 - 1; i >= 0; i--) sift(index, i, n, less, arg);
  for (int64_t i = n - 1; i > 0; i--) {
    int32_t top = index[0];
    index[0] = index[i];
    index[i] = top;
    sift(index, 0, i, less, arg);
  }
}

int32_t tide__sort_twin(int32_t *index, int64_t n, tide__less less, const void *arg)
{
  for (int32_t i = 0; i < n; i++) index[i] = i;
  tide__sort(index, n, less, arg);
  for (int64_t i = 1; i < n; i++)
    if (!less(arg, index[i - 1], index[i])) return index[i];
  return -1;
}
