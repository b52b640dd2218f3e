/* The constants of a distribution, for kernels: what kernels/ref/draw.h makes of the attributes.
 */
#pragma once

#include "kernels/kernel.h"
#ifndef __cplusplus
#include "kernels/ref/draw.h"
#endif

enum { TIDE_DRAW_UNIFORM, TIDE_DRAW_NORMAL, TIDE_DRAW_TRUNC };

/* As ref_draw. */
typedef struct tide_draw { double base, scale, low, high, p0, dp, sign; } tide_draw;

int tide_cuda_draw(tide_draw *out, int kind, const k_call *call);
int tide_cuda_check_dropout(const k_call *call);
