/* Products of matrices, and their gradients (matmul.c). */
#pragma once

#include "core/op/derivative.h"

/* Checks the operands of a linear and declares its result. bias may be null. */
int tide__check_linear(tide__call *c, const tide_tensor *x, const tide_tensor *w,
                       const tide_tensor *bias);
/* Fails unless t is a target for the sum of products of a and b: of their dtype, or f32 of 16-bit
 * ones, and no gradient is lost by adding in place. */
int tide__check_sum_target(tide_tensor *t, const char *op, const tide_tensor *a,
                           const tide_tensor *b);
/* Returns x with all leading dims as one: a view where strides allow. Owned. */
int tide__rows_of(tide_tensor **out, tide_tensor *x);
/* Returns x with a stride of 1 in one of its last two dims, as products require. Owned. */
int tide__matrix_layout(tide_tensor **out, tide_tensor *x);
/* Computes a b of matrices in dtype: the operands', or f32 of 16-bit ones. */
int tide__product(tide_tensor **out, tide_tensor *a, tide_tensor *b, int dtype);
/* Computes a b, the gradient of input i or of a matrix of its rows: adds it to the sum of g, or
 * makes *out in the dtype of that sum. */
int tide__grad_product(tide_tensor **out, const tide__grad_call *g, int i, tide_tensor *a,
                       tide_tensor *b);
/* Computes a b for input 0, of whose rows a is a matrix: fills g's gin[0], in the input's shape. */
int tide__grad_of_rows(const tide__grad_call *g, tide_tensor *a, tide_tensor *b);
