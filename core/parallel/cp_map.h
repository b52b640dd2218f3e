/* Index maps of sharded sequences: the arithmetic behind tide_zigzag_index and its kin.
 *
 * Every layout is a list of runs [start, start + length) of whole positions, one list
 * a rank, in the order in which the rank keeps them; an index tensor is such a list written out.
 */
#ifndef TIDE_PARALLEL_CP_MAP_H
#define TIDE_PARALLEL_CP_MAP_H

#include <stdint.h>

/* Head-tail halves of a document of 2 * size * chunk tokens that starts at `first`: chunk `rank`
 * counted from its head and from its tail. half 0 is the early one. */
static inline int64_t tide__zigzag_start(int64_t first, int64_t chunk, int64_t size, int64_t rank,
                                         int half)
{
  return first + chunk * (half ? 2 * size - 1 - rank : rank);
}

#endif
