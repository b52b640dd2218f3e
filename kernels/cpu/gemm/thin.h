/* Products in f32 with one thin dimension: the large operand is read once, in place.
 *
 * Such a product does too little with each element of its large operand to pay for packing it. The
 * small operand is packed; the large one is A, whose rows a tile multiplies where they lie. See
 * thin.c.
 */
#pragma once

#include "kernels/cpu/gemm/tile.h"

/* One panel of rows of C. */
typedef struct thin_job {
  int64_t      k;
  const float *a;          /* rows of A in place */
  int64_t      a_rs, a_cs; /* one of them is 1 */
  const float *b;          /* packed panels of the columns, b_step elements apart */
  int64_t      b_step;
  const float *bias;       /* of the columns, added to what C starts from; or null */
  float       *c;
  int64_t      c_rs, cols;
  int          skip;       /* rows at the beginning that are computed and not stored */
  int          load;       /* start from what c holds, not from zero */
} thin_job;

/* Returns the function that computes a panel with tiles of this width, for an A along k or across;
 * null if this build cannot compile it. The caller has checked the instruction set. */
typedef void (*thin_fn)(const thin_job *job);
thin_fn tide__thin_avx2(int width, int is_along);

/* Returns whether the product is thin, with its A as the large operand, and this level has tiles
 * for it. */
int  tide__thin_takes(const cpu_gemm *g, int isa);
/* Plans and runs such a product; p->isa and p->nthread are set. */
void tide__thin_plan(cpu_gemm_plan *p, const cpu_gemm *g);
void tide__thin_run(const cpu_gemm_plan *p, const cpu_gemm *g, void *work);
/* Returns bytes of scratch that suffice for any m, n and k up to those of g. */
int64_t tide__thin_most(const cpu_gemm *g);
