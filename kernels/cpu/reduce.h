/* A reduction on the CPU: the folds, and a job that the two ways of walking over memory share.
 * See reduce.c.
 */
#pragma once

#include "kernels/cpu/loop.h"
#include "kernels/ref/load.h"

/* The accumulator of a result: d for floats, i for integers. */
typedef union reduce_total {
  double  d;
  int64_t i;
} reduce_total;

/* acc = acc (op) x[0] (op) ... x[n - 1], x contiguous in a form. */
typedef void (*reduce_fold_fn)(reduce_total *acc, const void *x, int64_t n);
typedef void (*reduce_join_fn)(reduce_total *acc, const reduce_total *more);

typedef struct reduce_fold {
  reduce_fold_fn f32, f64, i64;
  reduce_join_fn join_real, join_int; /* of two partial results */
  double         start_real;
  int64_t        start_int;
} reduce_fold;

/* reduce_fold.c */
extern const reduce_fold tide__fold_sum, tide__fold_prod, tide__fold_max, tide__fold_min,
  tide__fold_any, tide__fold_all;

typedef struct reduce_job {
  const reduce_fold *f;
  reduce_fold_fn     body;
  k_tensor           y;
  cpu_stream         keep, row; /* kept dims as a stream of row starts; one row, data set per
                                 * result */
  int                form, mean;
  int64_t            nkeep, nreduce, nblock;
  reduce_total      *part;      /* [nkeep][nblock] */
} reduce_job;

static inline reduce_total reduce_start(const reduce_job *job)
{
  reduce_total t;
  if (job->form == TIDE_I64) t.i = job->f->start_int;
  else t.d = job->f->start_real;
  return t;
}

/* Joins n partial results of result i, `step` apart from i * stride on, in order, and writes it. */
void tide__reduce_join(const reduce_job *job, int64_t i, int64_t stride, int64_t step, int64_t n);

/* reduce_columns.c. Returns whether kept elements lie side by side, so that whole rows are folded
 * into a row of accumulators. */
int     tide__reduce_suits_columns(const reduce_job *job);
void    tide__reduce_columns(reduce_job *job, int nthread);
/* Returns the blocks of rows: partial results of a kept element. */
int64_t tide__reduce_row_blocks(int64_t nrow);
