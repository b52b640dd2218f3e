/* The tape: recorded ops in execution order.
 *
 * A node is appended when an op runs, so the list is already sorted and the reverse walk follows
 * `prev`: no graph search, no recursion. Nodes are counted by the handles of their outputs and by
 * the nodes that consumed them, so dropping the last handle of an unused result frees its part of
 * the tape at once, without a backward pass.
 *
 * Gradients accumulate in the slots of the node that made a tensor, or in the leaf itself. A node
 * with a filled slot is pending; the walk visits pending nodes in order until there are no more.
 * Saved tensors are freed as the walk passes.
 *
 * Implements tide__recorder.
 */
#pragma once

#include "core/op/derivative.h"
#include "core/op/op.h"

/* Destination of an input's gradient: a leaf, a slot of the node that made it, or none (both null).
 * Both are counted. */
typedef struct tide__edge {
  struct tide__node *node;
  int32_t slot;
  tide_tensor *leaf;
} tide__edge;

typedef struct tide__saved {
  tide_tensor *t;      /* counted, null: not saved */
  int64_t version;     /* of its storage when it was saved */
  bool recompute;       /* t is null: the op of the edge's node runs again (recompute.c) */
} tide__saved;

typedef struct tide__input {
  tide__edge edge;
  tide__saved saved;
} tide__input;

typedef struct tide__output {
  tide__saved saved;   /* a second handle without history, so that no cycle arises */
  tide_tensor *grad;   /* counted: gradient accumulated so far */
  tide_tensor *recomputed;  /* counted: this result, recomputed for the ops that read it */
} tide__output;

/* One block: the node, nin inputs, nout outputs, the attributes, nin metas. The fields that making
 * and freeing a node touch come first. */
typedef struct tide__node {
  struct tide__node *prev, *next;   /* execution order */
  struct tide__node *doomed;        /* chain of nodes to be freed */
  int64_t refs;
  int32_t op;                       /* TIDE_OP_*, or TIDE__HOST */
  int32_t nin, nout;
  bool walked;
  tide_tensor *joint;               /* counted: memory for the gradients of all outputs (joint.c) */
  uint32_t given;                   /* outputs whose part of it was given away */
  struct tide_backward *walk;       /* the walk that filled a slot; null: the node is not pending */
  tide__output *out;
  tide__attrs *attrs;               /* undefined if the op has none (TIDE__OPF_BCAST) */
  tide__meta *meta;                 /* of the inputs; undefined where an input is absent */
  double tag;                       /* of a host function */
  tide__input in[];
} tide__node;

enum { TIDE__HOST = -1, TIDE__SMALL_IN = 8, TIDE__SMALL_OUT = 4 };

typedef struct tide__tape {
  tide__node *last;
  /* Free nodes by (nin, nout), linked by doomed: a steady loop allocates none. */
  tide__node *pool[TIDE__SMALL_IN][TIDE__SMALL_OUT];
  double *dropped;                  /* tags of host functions whose nodes have gone */
  int64_t ndropped, cap_dropped;
} tide__tape;

int  tide__tape_open(tide_ctx *ctx);
void tide__tape_close(tide_ctx *ctx);
/* Appends a node, edges and metas filled from xs. refs is 1, the caller's. */
int  tide__node_new(tide__node **out, tide_ctx *ctx, int op, int nin, tide_tensor *const *xs,
                    int nout);
void tide__node_retain(tide__node *n);
void tide__node_release(tide_ctx *ctx, tide__node *n);
/* Drops edges and saved tensors. */
void tide__node_clear(tide_ctx *ctx, tide__node *n);
void tide__save(tide__saved *s, tide_tensor *t);
/* Makes t output `slot` of n. */
void tide__attach(tide_tensor *t, tide__node *n, int slot);

/* Fails with E_GONE or E_STATE if a saved tensor is absent or was changed in place. */
int  tide__check_node(tide_ctx *ctx, const tide__node *n);
/* Returns whether input i of op, being recorded, can be recomputed by the node of x and need not be
 * saved. */
bool tide__is_recomputed(const tide_ctx *ctx, int op, int i, const tide_tensor *x);
/* Returns that result, computed at the first call; borrowed from the node of the edge. */
int  tide__recompute(tide_tensor **out, tide_ctx *ctx, const tide__edge *edge);

extern const tide__joint_calls tide__joint;
/* Releases the joint buffer of a node's outputs. */
void tide__joint_drop(tide__node *n);

extern const struct tide__recorder tide__tape_recorder;
