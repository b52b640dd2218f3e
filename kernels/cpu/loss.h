/* Pieces of a row of logits: its logsumexp and its gradient, shared by the two cross entropies.
 *
 * A row may be given in pieces, in order, so the linear cross entropy can use a piece while it is
 * in the cache. The logsumexp is kept in two parts, max and logsum: their sum in f32 would lose
 * logsum beside a large max.
 *
 * Logits and gradients are f32, bf16 or f16.
 */
#pragma once

#include "kernels/kernel.h"

/* Running sums over the pieces so far. Start with loss_sum_empty. */
typedef struct loss_sum {
  float  max;
  double exps; /* sum of exp(z - max); of exp(z) while max is -inf */
  double all;  /* sum of z, if requested */
} loss_sum;
loss_sum tide__loss_sum_empty(void);
void tide__loss_sum_add(loss_sum *s, const void *z, int dtype, int64_t n, int wants_all);
/* Also replaces each of n logits by exp(z - base). bases: one for each LOSS_PIECE of them. */
enum { LOSS_PIECE = 512 };
void tide__loss_sum_exp(loss_sum *s, float *z, int64_t n, int wants_all, float *bases);

/* The logsumexp of a whole row is max + logsum. max is 0 if all is -inf. */
typedef struct loss_norm { float max; double logsum; } loss_norm;
loss_norm tide__loss_sum_norm(const loss_sum *s);

/* Returns the loss of a counted token; z_target is its target's logit. */
double tide__loss_value(float z_target, loss_norm norm, double all, int64_t nclass,
                        const k_cross_entropy_attrs *attrs);

/* The gradient of one token's loss is exp_scale * exp(z - max) - shift, minus target_shift at its
 * target. */
typedef struct loss_slope { float max, exp_scale, shift, target_shift; } loss_slope;
loss_slope tide__loss_slope(loss_norm norm, double scale, int64_t nclass,
                            const k_cross_entropy_attrs *attrs);

/* Writes n elements of the gradient. target counts from the first of them and may lie outside. grad
 * may be z if the types are equal. stream: bypass the caches, for a result too large for them; the
 * caller then ends with tide__loss_stream_end before another thread may read. next: the row to
 * prefetch meanwhile, whose maximum is computed next, or null. */
void tide__loss_grad(void *grad, int grad_dtype, const void *z, int dtype, int64_t n,
                     int64_t target, loss_slope slope, int stream, const void *next);
/* Computes the gradient from what tide__loss_sum_exp left, without another exponential. grad may be
 * e. */
void tide__loss_grad_of_exp(void *grad, int grad_dtype, const float *e, const float *bases,
                            int64_t n, int64_t target, loss_slope slope);
void tide__loss_stream_end(int stream);
