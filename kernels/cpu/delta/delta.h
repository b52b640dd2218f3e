/* Shared by the forward (delta_fwd.c) and the backward (delta_bwd.c) of the gated delta rule on the
 * CPU.
 *
 * Chunks as in arXiv 2412.06464: in a piece of up to 64 tokens that begins with state S,
 *   D[t, s] = exp(cum_t - cum_s)
 *   A = beta_t D (k_t . k_s) for s < t,  P = D (q_t . k_s) for s <= t
 *   R = v - in * (K S),  U = (1 + A)^-1 (beta * R),  o = scale (in * (Q S) + P U)
 *   S <- whole S + (out * K)' U
 * with in_t = exp(cum_t), out_t = exp(cum_n - cum_t), whole = exp(cum_n). All products are register
 * tiles (panel.h). (1 + A)^-1 is computed row by row; it is small beside them. K K' and K Q' are
 * computed once for the value heads that share a key head.
 *
 * Pieces are cut where a sequence begins, so a product never sees two sequences and values of one
 * (NaN too) cannot reach another. The sums in exponents run in f64 and are split into two floats,
 * so that a difference is as exact as its own size allows, however large the sums are.
 *
 * Triangles are stored transposed: row s, column t >= s. All is f32, whatever the dtype.
 */
#pragma once

#include "kernels/cpu/row.h"
#include "kernels/cpu/gemm/panel.h"

enum { DELTA_PIECE = 64 };

typedef struct gdelta {
  const k_tensor *q, *k, *v, *g, *beta, *initial, *seq;
  const k_gated_delta_attrs *attrs;
  int64_t nb, T, Hk, Hv, Dk, Dv;
  int64_t group;             /* value heads of a key head */
  int64_t chunk, nchunk;     /* tokens between kept states */
  int64_t Q;                 /* most tokens of a piece */
  int     last;              /* the final state is an output, or has a gradient */
  const tile_kernel *kern;
} gdelta;

enum { DELTA_LD = DELTA_PIECE }; /* row length of triangles */

/* The tokens of one piece as one head sees them; arrays of Q. */
typedef struct delta_steps {
  float *beta;
  float *hi, *lo;            /* cumulative g */
  float *in, *out;           /* decay from the piece's start, to its end */
  float  whole;              /* decay over the piece */
} delta_steps;

/* Position of one task: batch, key head, and the current piece. */
typedef struct delta_at {
  int64_t b, hk;
  int64_t c, t0, n;          /* chunk; the piece's first token, its tokens */
  int     seen, used;        /* a state precedes it; the state after it is used */
} delta_at;

void tide__delta_plan(gdelta *s, const k_call *call, const k_tensor *in);

/* Moves to chunk c, before its first piece; then to its next piece: returns 0 after the last. */
void tide__delta_chunk(const gdelta *s, delta_at *at, int64_t c);
int  tide__delta_next(const gdelta *s, delta_at *at);

void tide__delta_take_steps(panel_arena *r, const gdelta *s, delta_steps *st);
/* Fills `st` for value head h. */
void tide__delta_steps(const gdelta *s, const delta_at *at, int64_t h, delta_steps *st);
/* Writes n rows from token t0 on of q or k, normalized if the op asks for it. factor (may be null)
 * then receives what each row was multiplied by. */
void tide__delta_rows(const gdelta *s, const k_tensor *t, const delta_at *at, int64_t t0, int64_t n,
                      float *to, float *factor);
/* Writes the state before token 0, or another [B, Hv, Dk, Dv]; zeros if t is absent. */
void tide__delta_state(const gdelta *s, const k_tensor *t, int64_t b, int64_t h, float *state);

/* Writes D of a piece of n tokens. */
void tide__delta_decays(float *D, const delta_steps *st, int64_t n);
/* Computes P = D (q_t . k_s) from D and the products QK. */
void tide__delta_pairs(const gdelta *s, float *P, const float *QK, const float *D, int64_t n);
/* Computes inverse = (1 + A)^-1 from D, the products KK and beta. */
void tide__delta_inverse(float *inverse, const float *KK, const float *D, const float *beta,
                         int64_t n);

/* Returns the offset of row (token t, head h). */
static inline int64_t delta_offset(const k_tensor *t, int64_t b, int64_t token, int64_t h)
{
  return b * t->stride[0] + token * t->stride[1] + h * t->stride[2];
}

/* Rows of f32 as A or B of a product: along the rows of the matrix, or transposed. */
static inline panel_mat delta_mat(const float *src, int64_t width)
{
  return (panel_mat){src, width, 1, TIDE_F32};
}
static inline panel_mat delta_mat_t(const float *src, int64_t width)
{
  return (panel_mat){src, 1, width, TIDE_F32};
}

/* y = a x; 0 if a is 0, also for infinite x. y may be x. */
void tide__delta_scale(float *y, const float *x, float a, int64_t n);
