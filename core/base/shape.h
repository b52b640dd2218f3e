/* Shape algebra: broadcasting, strides, dim resolution. Pure functions of integers. Shapes are
 * int64 arrays of at most TIDE_MAX_DIM sizes; strides count elements. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Returns the number of elements, or -1 on a negative size or overflow. A scalar (ndim 0) has
 * one. */
int64_t tide__numel(int ndim, const int64_t *shape);
bool tide__same_shape(int na, const int64_t *a, int nb, const int64_t *b);
void tide__strides_contiguous(int ndim, const int64_t *shape, int64_t *stride);
bool tide__is_contiguous(int ndim, const int64_t *shape, const int64_t *stride);
/* Broadcasts two shapes; returns false if they do not fit. out: TIDE_MAX_DIM sizes. */
bool tide__broadcast(int na, const int64_t *a, int nb, const int64_t *b, int *nout, int64_t *out);
/* Computes the strides of a tensor in the broadcast shape (0 where it repeats). False: no fit. */
bool tide__expand(int ndim, const int64_t *shape, const int64_t *stride, int nout,
                  const int64_t *out, int64_t *ostride);
/* Computes the strides of the same elements in another shape, or returns false if only a copy can
 * have it. */
bool tide__reshape_view(int ndim, const int64_t *shape, const int64_t *stride, int nout,
                        const int64_t *out, int64_t *ostride);
/* Maps dim in [-ndim, ndim) to [0, ndim), or returns -1. */
int tide__resolve_dim(int dim, int ndim);
/* Writes "[2, 3]" into buf; returns buf. */
const char *tide__shape_text(int ndim, const int64_t *shape, char *buf, size_t n);

/* Writes "f32 [2, 3]" into buf; returns buf. */
const char *tide__typed_text(int dtype, int ndim, const int64_t *shape, char *buf, size_t n);

/* Text of a shape for one error message: TIDE__SHAPE(t) is valid to the end of the statement. */
#define TIDE__SHAPE(ndim, shape) tide__shape_text(ndim, shape, (char[96]){0}, 96)
