/* What each collective moves to which rank: the only statement of it.
 *
 * A collective is copies between pairs of ranks (a part) or reductions of which each rank computes
 * one share. Transports differ in how the bytes travel, and in nothing else.
 */
#ifndef TIDE_COMM_MOVE_H
#define TIDE_COMM_MOVE_H

#include "core/comm/comm.h"

/* What a rank exchanges with rank q: nin bytes at in go to q, nout bytes from q arrive at out. A
 * pointer is null where the rank has no such operand; then its size is 0. */
typedef struct tide__part {
  const char *in;
  char *out;
  size_t nin, nout;
} tide__part;

/* How many parts a pair of ranks exchanges: the tensors of a list, or 1; 0 for reductions. */
int64_t tide__move_count(const tide__coll *c);
/* Part i of the call c of `rank`, with rank q, which may be itself. */
tide__part tide__move_part(const tide__coll *c, int rank, int q, int64_t i);
/* Whether the call c of a rank reads or writes memory of rank q (not of its own). */
bool tide__move_touches(const tide__coll *c, int q);

/* Elements [at, at + n). */
typedef struct tide__slice { int64_t at, n; } tide__slice;
/* The slice of each rank's `count` elements that rank r combines. all_reduce and reduce: r's share
 * of the work, whole cache lines of elements of `size` bytes; all ranks or root get the result.
 * reduce_scatter: the elements that r gets. */
tide__slice tide__move_share(const tide__coll *c, int64_t count, size_t size, int r, int nrank);

/* Lists the ranks of rank me's color in order of (key, rank) and returns how many; none if its
 * color is negative. *mine: which of them it is. */
int tide__split_members(const int *color, const int *key, int nrank, int me, int *list, int *mine);

/* Adds messages and bytes that the call costs a rank, by the algorithms that are used at scale. */
void tide__traffic_add(tide_comm_stats *s, const tide__coll *c, int rank, int nrank, int host_size);

#endif
