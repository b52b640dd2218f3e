/* What the ops of attention share (attention.c). */
#pragma once

#include "core/op/op.h"

/* Checks operands and attributes of an attention call, without its bias. */
int tide__check_attention(const tide_tensor *q, const tide_tensor *k, const tide_tensor *v,
                          const tide_attention_attrs *a);
/* Returns whether a tensor is an index: i32 [.., .., 2 or 3]. */
bool tide__fits_index(const tide_tensor *index);
/* Checks that sinks are a float [H] of x [B, T, H, D]; null: none. */
int tide__check_sinks(const tide_tensor *x, const tide_tensor *sinks, const char *op);
/* Gives sinks their share of attention's fresh out and lse, in place. Not recorded. */
int tide__attention_sinks(tide_tensor *out, tide_tensor *lse, tide_tensor *sinks);
/* Makes the gradient of sinks; dlse may be null. */
int tide__attention_dsinks(tide_tensor **dsinks, tide_tensor *dout, tide_tensor *out,
                           tide_tensor *lse, tide_tensor *sinks, tide_tensor *dlse);
/* Returns whether lse is the [B, H, T] of x [B, T, H, D]. */
bool tide__fits_lse(const tide_tensor *x, const tide_tensor *lse);
/* Refuses operands with a history: these ops are not recorded, and the gradient would be lost. */
int tide__check_history(const tide__call *c, const char *op, int n, tide_tensor *const *x,
                        const char *const *names, const char *advice);
/* Returns the attributes that kernels take, with the default scale filled in. */
k_attention_attrs tide__attention_attrs_of(const tide_tensor *q, const tide_attention_attrs *a);
