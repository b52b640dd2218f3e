/* Calls over lists of tensors (list.c): optimiser steps and foreach ops. */
#pragma once

#include "core/op/op.h"

/* Starts a call over lists of tensors: n per list, with space for nin inputs and nout targets,
 * which end frees. Call end only if begin succeeded. */
int  tide__lists_begin(tide_ctx *ctx, tide__call *c, int op, int64_t n, int64_t nin, int64_t nout);
void tide__lists_end(tide__call *c);
/* Copies the n of xs into dst and checks each; errors name list[i]. optional: xs or one of them may
 * be null. */
int  tide__list_take(tide__call *c, tide_tensor **dst, const char *list, int64_t n,
                     tide_tensor *const *xs, bool optional);
/* Fails unless every xs[i] that is not null has the shape of like[i], its `of` ("parameter"). */
int  tide__list_shapes(tide__call *c, const char *list, int64_t n, tide_tensor *const *xs,
                       const char *of, tide_tensor *const *like);
