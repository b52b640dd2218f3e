/* The rows of a loss that count, moved together, so that rows of ignored targets cost nothing. */
#pragma once

#include "kernels/cpu/pool.h"
#include "kernels/kernel.h"

/* A gathered operand: `n` rows, of which the first `counted` are rows index[i] of the source, in
 * ascending order. The others are zeros. */
typedef struct counted_rows {
  int64_t *index;
  int64_t counted, n;
} counted_rows;

/* Fills index with the rows whose target is not ignore_index, and returns their number. */
int64_t tide__counted_find(int64_t *index, const k_cross_entropy_attrs *attrs,
                           const k_tensor *targets);

/* Copies the rows of x, [.., dim] with any row stride, to x_to, [n, dim], and their targets to
 * targets_to, [n], with ignore_index in the rows of zeros. */
void tide__counted_gather(const counted_rows *rows, const k_call *call, const k_tensor *x,
                          void *x_to, const k_tensor *targets, int64_t *targets_to);

/* Moves rows 0 to counted - 1 of dx, [all, dim], to where they belong, in place; the others become
 * zeros. row_bytes: of a row. */
void tide__counted_spread(const counted_rows *rows, void *dx, int64_t all, int64_t row_bytes);
