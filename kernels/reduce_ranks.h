/* Reductions over ranks and large copies, for communicators whose operands lie in host memory.
 *
 * N sources of equal length are combined element by element in the order of their numbers, 0 to n -
 * 1, and the result is written to every destination. The order is fixed, so the bits do not depend
 * on how the elements were divided among ranks or threads. A destination may be one of the sources
 * (exactly, not shifted).
 */
#pragma once

#include "tide/tide.h"

enum { K_RANKS_SUM, K_RANKS_MEAN, K_RANKS_MIN, K_RANKS_MAX, K_RANKS_PROD };

/* Combines count elements of dtype. bf16 and f16 are combined in f32 and rounded once; integers
 * wrap; bool is a set of flags (MIN and PROD: and; MAX: or). MEAN divides the sum once and takes
 * floating dtypes only. MIN and MAX give NaN if a source has one. ndst >= 1, nsrc >= 1. */
void k_cpu_reduce_ranks(void *const *dst, int ndst, const void *const *src, int nsrc,
                        int64_t count, int dtype, int op);

/* Copies n bytes, large blocks with non-temporal stores. The regions do not overlap. */
void k_cpu_copy_bytes(void *dst, const void *src, size_t n);
