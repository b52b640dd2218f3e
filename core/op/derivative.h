/* Derivative rules: functions beside the forward, which are written with ops.
 *
 * The backward walk (grad/backward.c) calls the rule of each recorded op. A rule keeps its
 * intermediate tensors in a tide__temps, which releases them.
 */
#pragma once

#include "core/op/op.h"

/* What a derivative rule asks the walk for: memory in the joint buffer, in which another op wants
 * the gradients of its results side by side. Filled by grad/joint.c. */
typedef struct tide__joint_calls {
  /* Returns memory for the gradient of input i, in its shape; null if no op wants it side by side
   * with others, or the memory was given away before. The strides may be any but the last one,
   * which is 1. Must be written before it is read. Owned. */
  int (*part)(tide_tensor **out, const tide__grad_call *g, int i);
  /* The same for a rule that may write over gout[k]: also returns the part that was given away for
   * gout[k], if that lies there. Owned. */
  int (*part_over)(tide_tensor **out, const tide__grad_call *g, int i, int k);
  /* Returns the joint buffer of this call's results, or null if no rule asked for a part of it.
   * Borrowed. */
  tide_tensor *(*whole)(const tide__grad_call *g);
} tide__joint_calls;

/* The arguments of a derivative rule. It fills gin[i] (owned) for every i with need[i]; recording
 * is off. gout[k] is null if no gradient reached output k. in and out hold what op.def says to
 * save. */
struct tide__grad_call {
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
};

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
/* Runs a derivative as tide__grad_launch does; result i goes into the tensor into[i] where that is
 * not null. */
int tide__grad_launch_into(const tide__grad_call *g, int op, int n, tide_tensor *const *x,
                           uint32_t optional, int nresult, int always, tide_tensor **into);
/* Sums x down to a broadcast shape: the adjoint of broadcasting. Owned result. */
int tide__sum_to(tide_tensor **out, tide_tensor *x, const tide__meta *m);

/* Computes x * factor. */
int tide__times(tide_tensor **out, tide_tensor *x, double factor);
