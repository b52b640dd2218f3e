/* Index maps of sharded sequences: the arithmetic of tide_zigzag_index and its inverse.
 *
 * Every layout is a list of runs [start, start + length) of whole positions, one list per rank, in
 * the order in which the rank holds them; an index tensor is such a list written out.
 */
#ifndef TIDE_PARALLEL_CP_MAP_H
#define TIDE_PARALLEL_CP_MAP_H

#include <stdint.h>

/* Returns the start of one chunk of a document of 2 * size * chunk tokens that starts at `first`:
 * number `rank` from its head (half 0) or from its tail (half 1). */
static inline int64_t tide__zigzag_start(int64_t first, int64_t chunk, int64_t size, int64_t rank,
                                         int half)
{
  return first + chunk * (half ? 2 * size - 1 - rank : rank);
}

#endif
