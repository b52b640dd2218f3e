/* The matrix product of every CPU kernel: C (+)= A B + bias, by the fastest method for the shape.
 *
 * A is m x k, B is k x n, each with any pair of strides. Where one is 1 nothing more is copied, so
 * transposes are free; matmul.c gives others for one column and for rows folded from a batch.
 * C is row-major with row stride c_rs. Accumulation is f32 (f64 for f64).
 */
#pragma once

#include <stdint.h>

typedef struct cpu_gemm {
  int64_t m, n, k;
  const void *a;
  int64_t a_rs, a_cs;        /* row and column stride of A, elements */
  const void *b;
  int64_t b_rs, b_cs;
  void *c;
  int64_t c_rs;
  const void *bias;          /* n values of C's dtype added to every row, or null */
  int ab_dtype;              /* of A and B: f32, f64, bf16, f16 */
  int c_dtype;               /* of C and bias: ab_dtype, or f32 with bf16/f16 operands */
  int accumulate;            /* 0: C = AB, 1: C = C + AB */
} cpu_gemm;

/* How a product is computed: a function of all of cpu_gemm but its pointers. Callers read `bytes`
 * alone. */
typedef struct cpu_gemm_plan {
  int64_t bytes;          /* of scratch for a run, 0 is possible */
  const struct tile_kernel *kern;
  int     method, isa;
  int     transposed;     /* C' is computed, in scratch, and C is written from it */
  int64_t k_pad, kc;      /* kc: depth of a block, a multiple of kr */
  int64_t nround;         /* columns packed at a time */
  int64_t row_parts;      /* tasks: rows and columns of C are cut into so many parts of whole */
  int64_t col_parts;      /* tiles, as even as they get */
  int64_t mc, ns;         /* rows and columns of the largest task */
  int64_t nb;             /* columns of B multiplied before the next rows of A */
  int     nthread, staged;
  int     direct;         /* whole panels of A are read in place */
  int     lazy;           /* A runs along k: a panel is packed just before it is used, and its
                           * source prefetched while the one before is multiplied */
  int     single;         /* lazy, and no panel of A is used twice: all share one buffer */
  int     own;            /* each thread packs all of B for itself */
  int     mr, nr;         /* rows and columns of a tile of a thin product */
  int64_t b_bytes, a_bytes, stage_bytes;

  const cpu_gemm *g;      /* of a run: the product, the current round, scratch */
  int64_t col0, ncol;
  char   *work;
} cpu_gemm_plan;

/* Plans a product with up to nthread threads. */
void tide__cpu_gemm_plan(cpu_gemm_plan *p, const cpu_gemm *g, int nthread);
/* Computes the planned product. g: as planned, with its pointers; work: p->bytes of scratch,
 * 64-aligned. The result does not depend on the number of threads. Thread-safe: runs share p. */
void tide__cpu_gemm_run(const cpu_gemm_plan *p, const cpu_gemm *g, void *work);
/* Plan and run in one: bytes of scratch, and the product. */
int64_t tide__cpu_gemm_work(const cpu_gemm *g, int nthread);
/* Returns the bytes of scratch that suffice for any m up to g->m and any k up to g->k. */
int64_t tide__cpu_gemm_most(const cpu_gemm *g, int nthread);
void    tide__cpu_gemm(const cpu_gemm *g, int nthread, void *work);
