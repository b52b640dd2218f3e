/* Checks of operands and targets, and what ops make of them. */
#pragma once

#include "core/op/op.h"

/* Returns dim of x counted from 0, or fails. */
int tide__check_dim(const tide_tensor *x, int dim, const char *op);
/* Fails unless t is a floating tensor. */
int tide__check_float(const tide_tensor *t, const char *op, const char *arg);
/* Fails unless t is i64 or i32. */
int tide__check_index(const tide_tensor *t, const char *op, const char *arg);
/* Fails unless a and b have one dtype and shape. */
int tide__check_alike(tide__call *c, const tide_tensor *a, const char *a_arg,
                      const tide_tensor *b, const char *b_arg);
/* Fails unless x is floating with a dim, and v null or a vector of x's last dim and dtype. */
int tide__check_rows(tide__call *c, const tide_tensor *x, const tide_tensor *v, const char *arg);
/* Fails unless sequence is null or i32/i64 [B or 1, T] for x [B, T, ...]. */
int tide__check_sequence(const tide_tensor *x, const tide_tensor *sequence, const char *op);

/* Fails if a collective reads or writes the target. */
int tide__check_idle(const tide_tensor *t, const char *op);
/* Fails unless every element of a target has its own address (no dim repeats by stride 0) and no
 * collective uses it. */
int tide__check_distinct(const tide_tensor *t, const char *op);
/* Fails as tide__check_distinct does, and if writing the target now would change a gradient: for
 * in-place ops. */
int tide__check_target(tide_tensor *t, const char *op);

/* Returns t itself, or a contiguous copy, without history; owned. */
int tide__dense(tide_tensor **out, tide_tensor *t, const char *op);
/* Returns rc, the status of filling a fresh *out; a failure releases *out and sets it to null. */
int tide__created(tide_tensor **out, int rc);
/* Returns the dtype of a norm's statistics: f32 (f64 for f64). */
int tide__stat_dtype(const tide_tensor *x);
/* Computes dst += factor * src, of one shape. factor: one number, f32 (f64 for f64), of their
 * device. */
int tide__axpy_by_(tide_tensor *dst, tide_tensor *src, tide_tensor *factor);
