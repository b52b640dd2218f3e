/* Shared by the forward (scan_fwd.c) and the backward (scan_bwd.c) of the SSD scan on the CPU.
 *
 * State-space duality (arXiv 2405.21060): within a chunk of Q tokens the recurrence is a product
 * with a lower triangular matrix S[t, s] = (C_t . B_s) exp(cum_t - cum_s), and the part from before
 * the chunk is a product with the state; so nearly all work is register tiles (tile.h). C B' is
 * computed once per group and chunk and serves all heads.
 *
 * Chunks are cut where a sequence begins, so a product never sees two sequences and values of one
 * (NaN too) cannot reach another: a piece lies within one chunk and one sequence. Only the first
 * piece of a chunk can have a state before it, only the last one can pass its state on.
 *
 * The forward's tasks are (batch, group, block of heads of the group); each walks along the chunks
 * with the states of its heads in the cache. The result of a head does not depend on the block, so
 * blocks are as small as needed to occupy all threads.
 *
 * Exponents are differences of sums: the sums run in f64 and are split into two floats, so that a
 * difference is as exact as its own size allows, however large the sums are.
 *
 * Legend: Q chunk, P channels of a head, N state size; "panel" is packed for a tile. Triangles are
 * stored transposed: row s, column t >= s.
 */
#pragma once

#include "kernels/cpu/row.h"
#include "kernels/cpu/gemm/panel.h"

typedef struct ssd {
  const k_tensor *x, *dt, *A, *B, *C, *D, *bias, *initial, *seq;
  const k_ssd_attrs *attrs;
  int64_t nb, T, H, P, G, N, Q, nchunk;
  int64_t heads, nblock;     /* most heads of a block, blocks of a group */
  int     last;              /* the final state is an output */
  int64_t ld;                /* row length of Q x Q matrices */
  const tile_kernel *kern;
  int     half;              /* products read bf16 */
} ssd;

/* Returns the length of a scratch row that holds any row of the piece. */
static inline int64_t ssd_longest(const ssd *s)
{
  int64_t n = s->ld > s->N ? s->ld : s->N;
  return n > s->P ? n : s->P;
}

/* The tokens of one piece as one head sees them; arrays of Q. */
typedef struct ssd_steps {
  float   *raw, *step, *slope;  /* dt; after bias, softplus and limits; its derivative */
  float   *hi, *lo;             /* cumulative step * A */
  float   *in, *out;            /* decay from the piece's start, to its end */
  float    whole;               /* decay over the piece */
} ssd_steps;

/* Position of one task: batch, group, heads, and the current piece. */
typedef struct ssd_at {
  int64_t b, g, h0, nh;         /* heads h0 .. h0 + nh - 1 */
  int64_t c, t0, n;             /* chunk; the piece's first token, its tokens */
  int     seen, used;           /* a state precedes it; the state after it is used */
} ssd_at;

void    tide__ssd_plan(ssd *s, const k_call *call, const k_tensor *in);
int64_t tide__ssd_tasks(const ssd *s);
void    tide__ssd_task(const ssd *s, int64_t i, ssd_at *at);

/* Moves to chunk c, before its first piece; then to its next piece: returns 0 after the last. */
void tide__ssd_chunk(const ssd *s, ssd_at *at, int64_t c);
int  tide__ssd_next(const ssd *s, ssd_at *at);
/* Fills `st` for head h. */
void tide__ssd_steps(const ssd *s, const ssd_at *at, int64_t h, ssd_steps *st);

void tide__ssd_take_steps(panel_arena *r, const ssd *s, ssd_steps *st);

/* Writes n f32 values at element i in operand form: bf16, or f32, where they may lie already. */
void tide__ssd_put(const ssd *s, void *to, int64_t i, const float *row, int64_t n);
/* Returns n values from a matrix element on as a source for packing. */
static inline panel_mat ssd_own(const ssd *s, const void *src, int64_t is, int64_t ps)
{
  return (panel_mat){src, is, ps, s->half ? TIDE_BF16 : TIDE_F32};
}
/* Returns the piece's rows of B or C, packed along the state (transposed: along the tokens). */
static inline panel_mat ssd_rows(const k_tensor *t, const ssd_at *at, int transposed)
{
  const void *src = row_at(t, at->b * t->stride[0] + at->t0 * t->stride[1] + at->g * t->stride[2]);
  return transposed ? (panel_mat){src, 1, t->stride[1], t->dtype}
                : (panel_mat){src, t->stride[1], 1, t->dtype};
}

/* ---- single elements, for which the loops of row.h are too large ----------------------------- */

static inline float ssd_get(const k_tensor *t, int64_t i) { return vec_get(t->data, i, t->dtype); }

static inline void ssd_set(const k_tensor *t, int64_t i, float v)
{
  vec_put(t->data, i, t->dtype, v);
}

/* ---- loops over vectors -------------------------------------------------------------------- */

void tide__ssd_scale(float *y, const float *x, float a, int64_t n); /* y = a x; 0 if a is 0 */
/* Writes D of head h for each of its P channels; zeros without D. */
void  tide__ssd_skip(const ssd *s, int64_t h, float *row);
/* Computes out[t] = cb[t] exp(cum_t - cum_s) for s <= t < n. */
void  tide__ssd_decay_row(float *out, const float *cb, const ssd_steps *st, int64_t s, int64_t n);
