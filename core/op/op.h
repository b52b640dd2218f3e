/* An op: a descriptor made from its row in op.def, and a call on its way through dispatch.
 *
 * A public op function fills one tide__call (operands, attributes, shapes of the results) and
 * passes it to tide__dispatch, which allocates, chooses a kernel, launches and records. The headers
 * beside this one hold what ops share: checks of operands (operand.h), calls over lists (list.h),
 * products (product.h), tensors side by side (joined.h), derivatives (derivative.h).
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
/* Inputs of rope_joined before those that it rotates. */
enum { TIDE__TURNED = 2 };
/* Key operands: inputs are 0 and up, O0 is the first output. */
enum { TIDE__KEY_O0 = -1 };

/* Attributes by value: large enough for every op, copied into the tape. */
typedef union tide__attrs {
  k_scalar_attrs scalar;
  k_reduce_attrs reduce;
  k_topk_attrs topk;
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
  k_gated_delta_attrs gated_delta;
  k_rope_attrs rope;
  k_swiglu_attrs swiglu;
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

typedef struct tide__grad_call tide__grad_call; /* derivative.h */
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
/* Dispatches a call with one result, as tide__dispatch. */
int tide__dispatch_one(tide__call *c, tide_tensor **out, int dtype, int ndim, const int64_t *shape);
/* Runs a call whose kernel works along the last dim, on dim `dim` of x. dtype: of the result. */
int tide__dispatch_along(tide__call *c, tide_tensor **out, tide_tensor *x, int dim, int dtype);
/* Runs the kernel on c's operands. Allocates no results and records nothing. */
int tide__launch(tide__call *c);
/* Runs the kernel as tide__launch does, with the reference beside it if parameter check is set. Ops
 * use this one. */
int tide__launch_checked(tide__call *c);
/* Records op on c's inputs as the history of *out (a fresh view), if recording needs it. */
int tide__record(tide__call *c);
/* Returns whether recording is on and an input needs a gradient. */
bool tide__wants_grad(const tide__call *c);
/* Returns shape, dtype and device of t. */
tide__meta tide__meta_of(const tide_tensor *t);

#define TIDE__NAME(c) (tide__op_get((c)->op)->name)
/* tide__fail in the context of a call, under the name of its op. */
#define TIDE__FAIL(c, status, ...) tide__fail((c)->ctx, status, TIDE__NAME(c), __VA_ARGS__)
