/* An op: a descriptor made from its row in op.def, and a call on its way through dispatch.
 *
 * A public op function fills one tide__call (operands, attributes, shapes of the results) and
 * passes it to tide__dispatch, which allocates, chooses a kernel, launches and records. Derivatives
 * are rules beside the forward, written with ops.
 */
#pragma once

#include "core/tensor/tensor.h"
#include "kernels/kernel.h"

enum {
#define TIDE_OP(ID, name, key, save_in, save_out, grad, flags) TIDE_OP_##ID,
#include "core/op/op.def"
#undef TIDE_OP
  TIDE__NOP
};

enum { TIDE__MAX_IN = 14, TIDE__MAX_OUT = 8 };
/* Flags beyond the public TIDE_OPF_*. */
enum {
  TIDE__OPF_BCAST = 1 << 8, TIDE__OPF_RATES = 1 << 9, TIDE__OPF_RECOMPUTES = 1 << 10,
  TIDE__OPF_CODES = 1 << 11, TIDE__OPF_CROSS = 1 << 12
};
/* Inputs of rope_joined before those that it turns. */
enum { TIDE__TURNED = 2 };
/* Key operands: inputs are 0 and up, O0 is the first output. */
enum { TIDE__KEY_O0 = -1 };

/* Attributes by value: large enough for every op, copied into the tape. */
typedef union tide__attrs {
  k_scalar_attrs scalar;
  k_reduce_attrs reduce;
  k_dim_attrs dim;
  k_pad_attrs pad;
  k_roll_attrs roll;
  k_arange_attrs arange;
  k_linear_act_attrs linear_act;
  k_fp8_attrs fp8;
  k_fp8_product_attrs fp8_product;
  k_nf4_attrs nf4;
  k_row_norm_attrs row_norm;
  k_gated_norm_attrs gated_norm;
  k_conv1d_attrs conv1d;
  k_ssd_attrs ssd;
  k_rope_attrs rope;
  k_attention_attrs attention;
  k_cross_entropy_attrs cross_entropy;
  k_random_attrs random;
  k_adamw_attrs adamw;
  k_sgd_attrs sgd;
  k_norm_all_attrs norm_all;
  k_dyn8_attrs dyn8;
  struct { int64_t start, step; int32_t dim; } slice;
  struct { int32_t order[TIDE_MAX_DIM]; } permute;
  struct { uint32_t mask; bool keepdim; } dims; /* of a reduction, in x's own dims */
} tide__attrs;

/* Geometry of an operand that outlives its bytes. */
typedef struct tide__meta {
  int32_t ndim, dtype, device;
  int64_t shape[TIDE_MAX_DIM]; /* ndim of them */
} tide__meta;

/* A call in progress: filled by the public function, read by dispatch and by the tape. For lists
 * (cat, optimiser steps) in and out point at the caller's arrays. */
typedef struct tide__call {
  tide_ctx *ctx;
  int op;
  int device;
  int nin, nout;
  tide_tensor **in;             /* null: optional operand absent */
  tide_tensor **out;            /* made by dispatch, or the targets of an in-place op */
  tide__meta *make;             /* shapes of nout results to make; ndim -1: not wanted */
  tide__attrs attrs;
  tide__attrs tape;             /* attributes for the derivative, if they differ from attrs */
  bool tape_differs;
  tide_tensor **into;           /* null, or memory for result i where into[i] is not null */
  tide_tensor **tape_in;        /* null, or the inputs for the tape where the kernel sees views */
  tide_tensor **lists;          /* the caller's lists, joined: nlist bytes, behind in and out */
  size_t nlist;
  tide_tensor *in_[TIDE__MAX_IN], *out_[TIDE__MAX_OUT];
  tide__meta make_[TIDE__MAX_OUT];
} tide__call;

/* What a derivative rule asks the walk for: memory in the joint buffer, in which another op wants
 * the gradients of its results side by side. Filled by grad/joint.c. */
struct tide__grad_call;
typedef struct tide__joint_calls {
  /* Returns memory for the gradient of input i, in its shape; null if no op wants it side by side
   * with others, or the memory was given away before. The strides may be any but the last one,
   * which is 1. Must be written before it is read. Owned. */
  int (*part)(tide_tensor **out, const struct tide__grad_call *g, int i);
  /* The same for a rule that may write over gout[k]: also returns the part that was given away for
   * gout[k], if that lies there. Owned. */
  int (*part_over)(tide_tensor **out, const struct tide__grad_call *g, int i, int k);
  /* Returns the joint buffer of this call's results, or null if no rule asked for a part of it.
   * Borrowed. */
  tide_tensor *(*whole)(const struct tide__grad_call *g);
} tide__joint_calls;

/* The arguments of a derivative rule. It fills gin[i] (owned) for every i with need[i]; recording
 * is off. gout[k] is null if no gradient reached output k. in and out hold what op.def says to
 * save. */
typedef struct tide__grad_call {
  tide_ctx *ctx;
  int op, nin, nout;
  tide_tensor *const *gout;
  tide_tensor *const *in;
  tide_tensor *const *out;
  const tide__meta *meta;       /* of the inputs */
  const bool *need;
  /* The gradient of each input so far where a rule may add to it in place of making one; else null,
   * and sum itself may be null. sum_dtype: of those sums, in which a rule may give its gradient
   * too: the input's, or f32 of a 16-bit one; null where sum is. */
  tide_tensor *const *sum;
  const int32_t *sum_dtype;
  const tide__attrs *attrs;
  const tide__joint_calls *joint;
  struct tide__node *node;      /* of the call, for joint */
  bool consume;                 /* saved results may be overwritten: the walk frees them */
  tide_tensor **gin;
} tide__grad_call;
typedef int (*tide__grad_fn)(const tide__grad_call *g);

typedef struct tide__op {
  const char *name;
  int key;
  uint32_t save_in, save_out;
  tide__grad_fn grad;
  int flags;
} tide__op;

/* Returns the row of an op. Static. */
const tide__op *tide__op_get(int op);

/* Starts a call and sets its operands. Fails on null or gone operands, operands of another context
 * or device, and if no operand is given. x[i] may be null if bit i of optional is set. */
int tide__begin(tide__call *c, int op, tide_tensor **out, int nin, tide_tensor *const *x,
                uint32_t optional);
/* Runs the checks of tide__begin on one operand; the first one sets the device of the call. It is
 * named "argument i+1", or "list[i+1]". */
int tide__check_operand(tide__call *c, const char *list, int64_t i, const tide_tensor *x);
/* Declares result i. */
void tide__result(tide__call *c, int i, int dtype, int ndim, const int64_t *shape);
/* Allocates the results, runs the kernel, records, and returns the first nuser results in out[0..];
 * the others (statistics for the derivative) live only as long as the tape keeps them. */
int tide__dispatch(tide__call *c, tide_tensor **out, int nuser);
/* tide__dispatch of a call with one result. */
int tide__dispatch_one(tide__call *c, tide_tensor **out, int dtype, int ndim, const int64_t *shape);
/* Runs the kernel on c's operands. Allocates no results and records nothing. */
int tide__launch(tide__call *c);
/* tide__launch, with the reference beside it if parameter check is set. Ops use this one. */
int tide__launch_checked(tide__call *c);
/* Records op on c's inputs as the history of *out (a fresh view), if recording needs it. */
int tide__record(tide__call *c);

/* Starts a call over lists of tensors: n per list, with space for nin inputs and nout targets,
 * which end frees. Call end only if begin succeeded. */
int  tide__lists_begin(tide_ctx *ctx, tide__call *c, int op, int64_t n, int64_t nin, int64_t nout);
void tide__lists_end(tide__call *c);
/* Copies the n of xs into dst and checks each; errors name list[i]. optional: xs or one of them may
 * be null. */
int  tide__list_take(tide__call *c, tide_tensor **dst, const char *list, int64_t n,
                     tide_tensor *const *xs, bool optional);
/* Fails unless every xs[i], if there, has the shape of like[i], its `of` ("parameter"). */
int  tide__list_shapes(tide__call *c, const char *list, int64_t n, tide_tensor *const *xs,
                       const char *of, tide_tensor *const *like);

/* ---- derivative.c ---------------------------------------------------------------------------- */

/* The intermediate tensors of a rule, which are released together, and its first failure. Start
 * with {0}. */
typedef struct tide__temps {
  int rc, n;
  tide_tensor *t[24];
} tide__temps;
/* Returns the result of op(&result, ...), kept by the temps; null after a failure, of which the op
 * is not called. Does not nest: give an op the variable that holds the result of another. */
#define TIDE__TEMP(v, op, ...) \
  tide__temp_done(v, (v)->rc < 0 ? (v)->rc : op(tide__temp_slot(v), __VA_ARGS__))
/* Makes the call, which returns a status, unless something failed before. */
#define TIDE__DO(v, call) ((v)->rc = (v)->rc < 0 ? (v)->rc : (call))
tide_tensor **tide__temp_slot(tide__temps *v);
tide_tensor *tide__temp_done(tide__temps *v, int rc);
/* Returns a scalar on the device of the rule's inputs. */
tide_tensor *tide__temp_number(tide__temps *v, const tide__grad_call *g, int dtype, double x);
/* Releases the tensors and returns the first failure. */
int tide__temps_end(tide__temps *v);

/* Runs a derivative that is one kernel, on operands x; x[0], the gradient of the output, may be
 * null: zeros like x[1]. Result i is the gradient of input i, for the first `always` of nresult
 * inputs and for others that need one. */
int tide__grad_launch(const tide__grad_call *g, int op, int n, tide_tensor *const *x,
                      uint32_t optional, int nresult, int always);
/* The same; result i goes into into[i] where that is not null. */
int tide__grad_launch_into(const tide__grad_call *g, int op, int n, tide_tensor *const *x,
                           uint32_t optional, int nresult, int always, tide_tensor **into);
/* Sums x down to a broadcast shape: the adjoint of broadcasting. Owned result. */
int tide__sum_to(tide_tensor **out, tide_tensor *x, const tide__meta *m);

/* ---- joined.c -------------------------------------------------------------------------------- */

/* Returns the view that n tensors make up along dim, without history; null unless all are there and
 * each begins where the one before it ends. Owned. */
int tide__side_by_side(tide_tensor **out, int n, tide_tensor *const *xs, int dim);
/* Returns entries [at, at + n) of dim, without history. Owned. */
int tide__narrow(tide_tensor **out, tide_tensor *x, int dim, int64_t at, int64_t n);
/* Cuts x along dim into n parts of these sizes, without history; on failure into none. Owned. */
int tide__cut(tide_tensor **parts, tide_tensor *x, int dim, int n, const int64_t *sizes);
/* Releases n tensors and sets them to null. */
void tide__release_all(int n, tide_tensor **xs);
/* Fails unless a list has 1 to TIDE_MAX_JOINED tensors. */
int tide__check_joined(tide_ctx *ctx, const char *op, const char *arg, int n,
                       tide_tensor *const *list);
/* Returns whether two tensors of one shape are the same elements. */
bool tide__same_elements(const tide_tensor *a, const tide_tensor *b);

/* ---- checks and helpers ---------------------------------------------------------------------- */

/* Returns t itself, or a contiguous copy, without history; owned. */
int tide__dense(tide_tensor **out, tide_tensor *t, const char *op);
/* Returns rc, the status of filling a fresh *out; a failure releases *out and sets it to null. */
int tide__created(tide_tensor **out, int rc);
/* Returns whether recording is on and an input needs a gradient. */
bool tide__wants_grad(const tide__call *c);
/* Returns shape, dtype and device of t. */
tide__meta tide__meta_of(const tide_tensor *t);
/* Returns dim of x counted from 0, or fails. */
int tide__check_dim(const tide_tensor *x, int dim, const char *op);
/* Fails unless a and b have one dtype and shape. */
int tide__check_alike(tide__call *c, const tide_tensor *a, const char *a_arg,
                      const tide_tensor *b, const char *b_arg);
/* Runs a call whose kernel works along the last dim, on dim `dim` of x. dtype: of the result. */
int tide__dispatch_along(tide__call *c, tide_tensor **out, tide_tensor *x, int dim, int dtype);
/* Fails unless t is a floating tensor. */
int tide__check_float(const tide_tensor *t, const char *op, const char *arg);
/* Fails unless every element of a target has its own address (no dim repeats by stride 0) and no
 * collective uses it. */
int tide__check_distinct(const tide_tensor *t, const char *op);
/* Fails unless t is a target for the sum of products of a and b: of their dtype, or f32 of 16-bit
 * ones, and no gradient is lost by adding in place. */
int tide__check_sum_target(tide_tensor *t, const char *op, const tide_tensor *a,
                           const tide_tensor *b);
/* Checks the operands of a linear and declares its result. bias may be null. */
int tide__check_linear(tide__call *c, const tide_tensor *x, const tide_tensor *w,
                       const tide_tensor *bias);
/* Returns x with all leading dims as one: a view where strides allow. Owned. */
int tide__rows_of(tide_tensor **out, tide_tensor *x);
/* Computes a b of matrices in dtype: the operands', or f32 of 16-bit ones. */
int tide__product(tide_tensor **out, tide_tensor *a, tide_tensor *b, int dtype);
/* Computes a b, the gradient of input i or of a matrix of its rows: adds it to the sum of g, or
 * makes *out in the dtype of that sum. */
int tide__grad_product(tide_tensor **out, const tide__grad_call *g, int i, tide_tensor *a,
                       tide_tensor *b);
/* The same for input 0, of whose rows a is a matrix: fills g's gin[0], in the input's shape. */
int tide__grad_of_rows(const tide__grad_call *g, tide_tensor *a, tide_tensor *b);
/* Returns x with a stride of 1 in one of its last two dims, as products require. Owned. */
int tide__matrix_layout(tide_tensor **out, tide_tensor *x);
/* Fails if a collective reads or writes the target. */
int tide__check_idle(const tide_tensor *t, const char *op);
/* tide__check_distinct, and writing the target now changes no gradient: for in-place ops. */
int tide__check_target(tide_tensor *t, const char *op);
/* Checks operands and attributes of an attention call, without its bias. */
int tide__check_attention(const tide_tensor *q, const tide_tensor *k, const tide_tensor *v,
                          const tide_attention_attrs *a);
/* Returns the attributes that kernels take, with the default scale filled in. */
k_attention_attrs tide__attention_attrs_of(const tide_tensor *q, const tide_attention_attrs *a);
/* dst += factor * src, of one shape. factor: one number, f32 (f64 for f64), of their device. */
int tide__axpy_by_(tide_tensor *dst, tide_tensor *src, tide_tensor *factor);
/* Returns the dtype of a norm's statistics: f32 (f64 for f64). */
int tide__stat_dtype(const tide_tensor *x);
/* Fails unless x is floating with a dim, and v null or a vector of x's last dim and dtype. */
int tide__check_rows(tide__call *c, const tide_tensor *x, const tide_tensor *v, const char *arg);
/* Fails unless t is i64 or i32. */
int tide__check_index(const tide_tensor *t, const char *op, const char *arg);
/* Fails unless sequence is null or i32/i64 [B or 1, T] for x [B, T, ...]. */
int tide__check_sequence(const tide_tensor *x, const tide_tensor *sequence, const char *op);
/* One kernel row of kernels/kernel.def. */
typedef struct tide__kernel {
  int op, device;
  k_fn fn;
  k_work_fn work; /* null: no scratch */
  uint32_t dtypes;
  int layout;
} tide__kernel;
/* Indexes the rows by (op, device, dtype), once per context. */
int  tide__kernels_open(tide_ctx *ctx);
void tide__kernels_close(tide_ctx *ctx);
/* Returns the row, or null if the device has no such kernel. */
const tide__kernel *tide__kernel_find(tide_ctx *ctx, int op, int device, int dtype);

#define TIDE__NAME(c) (tide__op_get((c)->op)->name)
/* tide__fail in the context of a call, under the name of its op. */
#define TIDE__FAIL(c, status, ...) tide__fail((c)->ctx, status, TIDE__NAME(c), __VA_ARGS__)

/* The derivative rules of op.def; several ops may share one. */
#define TIDE__DECLARE_RULE(name) int tide__grad_##name(const tide__grad_call *g);
#define TIDE__DECLARE_NULL
#define TIDE_OP(ID, name, key, save_in, save_out, grad, flags) TIDE__DECLARE_##grad
#define TIDE_RECOMPUTE(ID, name) \
  int tide__recompute_##name(tide_tensor **out, const tide__grad_call *g);
#include "core/op/op.def"
#undef TIDE_OP
#undef TIDE_RECOMPUTE

/* Computes output 0 of an op again from what its derivative saved (g's in, out and attrs); null
 * where the op has no such rule. The result is owned. */
typedef int (*tide__recompute_fn)(tide_tensor **out, const tide__grad_call *g);
tide__recompute_fn tide__recompute_of(int op);
