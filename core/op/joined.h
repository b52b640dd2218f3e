/* Tensors that lie side by side in memory, and parts of one (joined.c). */
#pragma once

#include "core/op/op.h"

/* Returns the view that n tensors make up along dim, without history. Null if one is null, or does
 * not begin where the one before it ends. Owned. */
int tide__side_by_side(tide_tensor **out, int n, tide_tensor *const *xs, int dim);
/* Returns entries [at, at + n) of dim, without history. Owned. */
int tide__narrow(tide_tensor **out, tide_tensor *x, int dim, int64_t at, int64_t n);
/* Cuts x along dim into n parts of these sizes, without history; on failure into none. Owned. */
int tide__cut(tide_tensor **parts, tide_tensor *x, int dim, int n, const int64_t *sizes);
/* Releases n tensors and sets them to null. */
void tide__release_all(int n, tide_tensor **xs);
/* Sets the results of a call over n operands to null, at most TIDE_MAX_JOINED and at least one. */
void tide__no_results(tide_tensor **outs, int n);
/* Fails unless a list has 1 to TIDE_MAX_JOINED tensors. */
int tide__check_joined(tide_ctx *ctx, const char *op, const char *arg, int n,
                       tide_tensor *const *list);
/* Returns whether two tensors of one shape are the same elements. */
bool tide__same_elements(const tide_tensor *a, const tide_tensor *b);
