/* A piece of a row of logits in 16 bits each: how far it lies below the largest of the piece.
 *
 * linear_cross_entropy keeps logits this way between its two walks, where computing them again
 * costs more. bf16 would not do: it rounds a logit of 20 by up to 0.06, and a probability by as
 * much. A code is off by at most 2^-11 of a logit, and the largest is exact; so a probability is
 * off by at most a quarter of what its gradient loses when it is rounded to bf16.
 */
#pragma once

#include <stdint.h>

/* z = max - step * code. Code 65535 is -inf: a logit 64 or more below max, of which no probability
 * above 2^-92 is left. */
typedef struct logit16_scale { float max, step; } logit16_scale;

/* Writes the codes of n > 0 logits. A maximum that is not finite makes codes without meaning: the
 * sums of such a row, and so its gradients, are NaN, or all of the piece is -inf. */
logit16_scale tide__logit16_write(uint16_t *codes, const float *z, int64_t n);
void tide__logit16_read(float *z, const uint16_t *codes, logit16_scale scale, int64_t n);
