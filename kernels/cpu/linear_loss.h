/* Linear cross entropy: how a call is cut, where its scratch lies, and its products. See
 * linear_loss.c.
 */
#pragma once

#include "kernels/cpu/counted.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/logit16.h"
#include "kernels/cpu/loss.h"

enum { LL_ROW_STEP = 32,   /* a chunk is a multiple of this: whole register tiles */
       LL_SPAN_MOST = 2048 /* classes of a span, at most */ };

/* The operands and the layout of the scratch. Unused parts are null. */
typedef struct ll_plan {
  const k_call *call;
  const k_tensor *x, *w, *bias, *targets, *dx, *dw, *dbias;
  const k_cross_entropy_attrs *attrs;
  int64_t n, dim, nclass;      /* x [n, dim], w [nclass, dim] */
  int64_t chunk, span, stride; /* rows, classes; floats from one row of logits to the next */
  int by_span;                 /* both walks visit all rows, a span at a time */
  int dw_whole;                /* by span, and one product makes a span of dw */
  counted_rows rows;           /* those that count, if others are left out */
  k_tensor dense_x, dense_targets; /* the operands then: n is rows.n, and dx is spread at the end */
  int64_t kept;                /* spans whose logits are kept in 16 bits */
  uint16_t *codes;             /* [kept, n, span] */
  logit16_scale *scales;       /* [kept, n] */
  float *logits;               /* [chunk, stride], of all classes or of a span */
  float *bases;                /* [chunk, pieces] of the exponentials that take their place; not by
                                * span, where logits are kept or computed again */
  void *grads;                 /* [chunk, span] of x's dtype, unless that is f32 */
  loss_sum *sums;              /* [chunk], or [n] */
  float *z_target;             /* likewise */
  float *bias32, *dbias32;     /* [nclass] */
  float *dx32, *dw32;          /* [chunk, dim], [nclass, dim], unless dx and dw are f32; by
                                * span [n, dim], and [span, dim] if there are several chunks */
  void *gemm;
  int64_t bytes;
} ll_plan;

/* Rows and classes of a step: m rows from `row` on and n classes from `first` on. */
typedef struct ll_part { int64_t row, m, first, n; } ll_part;

/* Lays out a call. Without scratch in the call, only sizes are valid. */
ll_plan tide__ll_plan(const k_call *call);
/* Returns the rows of each but the last of the fewest chunks of up to `most` rows, a multiple of
 * LL_ROW_STEP, as is `most`. */
int64_t tide__ll_even_chunks(int64_t n, int64_t most);
int     tide__ll_wants_grad(const ll_plan *p);

/* Returns the pieces of a row that have a base each. A span begins with one. */
int64_t tide__ll_pieces(const ll_plan *p);

/* Returns the address of element i of t, null for an absent tensor. */
void *tide__ll_element(const k_tensor *t, int64_t i);
/* Returns the logits of the part's classes, first row, and the index of its rows' first sum. */
float  *tide__ll_part_logits(const ll_plan *p, ll_part t);
int64_t tide__ll_part_sums(const ll_plan *p, ll_part t);
/* Returns the gradients of a span of classes from `first` on, and the distance of their rows. */
const void *tide__ll_grads(const ll_plan *p, int64_t first);
int64_t     tide__ll_grad_stride(const ll_plan *p);

/* The products of a part: logits = x w^T + bias; dx (+)= grad w; dw (+)= grad^T x. */
cpu_gemm tide__ll_logits(const ll_plan *p, ll_part t);
cpu_gemm tide__ll_dx(const ll_plan *p, ll_part t);
cpu_gemm tide__ll_dw(const ll_plan *p, ll_part t, int accumulate);
