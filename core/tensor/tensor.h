/* struct tide_tensor: storage + offset + shape + strides + dtype + its history.
 *
 * A tensor is a view of counted bytes. Handles are counted, recycled through a free list and have
 * an id that is never reused. The history fields belong to the tape, which implements
 * tide__recorder.
 */
#pragma once

#include "core/device/storage.h"

struct tide__node;
struct tide__call;

/* The fields that making, using and releasing a handle touch fill the first two cache lines. */
struct tide_tensor {
  uint32_t tag;                  /* TIDE__TAG of its kind, its complement once released */
  int32_t node_out;              /* which output of node this is */
  tide_ctx *ctx;                 /* counted; tag and ctx lie as in tide__head (base/door.h) */
  int64_t refs;                  /* references that keep the bytes */
  tide__storage *storage;
  struct tide__node *node;       /* counted: the recorded op that made it, or null */
  tide_tensor *grad;             /* counted: accumulated gradient of a leaf */
  tide_tensor *next;             /* free list, or the stack of foreign releases */
  /* References released by other threads, not yet settled: plain ones, and spent ones times
   * TIDE__SPENT. */
  atomic_int foreign;
  int8_t  spent;                 /* 1: a reference keeps the handle alone (tide_tensor_spend) */
  int8_t  grad_dtype;            /* of a gradient that backward begins; -1: dtype */
  bool    kept;                  /* tide_tensor_keep: no reference can be spent */
  bool    requires_grad;         /* a marked leaf */
  int8_t  part;                  /* enum below */
  int32_t ndim, dtype;
  int64_t offset;                /* elements */
  double  id;
  int64_t shape[TIDE_MAX_DIM];
  int64_t stride[TIDE_MAX_DIM];  /* elements; 0 repeats, never negative */
  struct tide__codes *codes;     /* owned: what linear_fp8 keeps of a weight, or null */
};

/* The FP8 codes of a weight and their scales (op/fp8.c), valid while the storage has this version
 * and no capture began, ended or was replayed. */
typedef struct tide__codes {
  tide_tensor *t[4];             /* counted; null: absent */
  int64_t version, turns;        /* of the storage; ctx->graph_turns */
  int kind;                      /* K_FP8_* */
  bool f32_scale;
} tide__codes;

enum { TIDE__SPENT = 1 << 16 };
/* Of a tensor that is a part of its storage (tide__tensor_mark_part): given up when it was the
 * gradient of a leaf that has dropped it. */
enum { TIDE__WHOLE, TIDE__PART, TIDE__PART_GIVEN_UP };

/* Calls into the tape; the functions are null in a context without one. */
struct tide__recorder {
  void (*forget)(tide_tensor *t); /* a handle is freed: drops node and grad */
  int  (*record)(tide_ctx *ctx, const struct tide__call *call);
};

/* The text of a tensor or a tide__meta, or of its shape, for one error message. Valid to the end of
 * the block. */
#define TIDE__TEXT(t) tide__typed_text((t)->dtype, (t)->ndim, (t)->shape, (char[112]){0}, 112)
#define TIDE__SHAPE_OF(t) TIDE__SHAPE((t)->ndim, (t)->shape)

/* Checks dtype and shape, and returns the bytes of such a tensor. E_DTYPE, E_SHAPE. */
int  tide__check_shape(tide_ctx *ctx, int dtype, int ndim, const int64_t *shape, const char *op,
                       int64_t *bytes);
/* Makes a tensor of fresh bytes. op names the caller in errors. */
int  tide__tensor_new(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
                      const int64_t *shape, const char *op);
/* Makes a tensor in pinned host memory. E_DEVICE without a CUDA device. */
int  tide__tensor_new_pinned(tide_tensor **out, tide_ctx *ctx, int dtype, int ndim,
                             const int64_t *shape, const char *op);
/* Makes a tensor over memory of the host; on failure the host keeps it. */
int  tide__tensor_new_lent(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
                           const int64_t *shape, const tide__lent *lent, const char *op);
/* Makes a handle on t's bytes with other geometry and no history. */
int  tide__tensor_view(tide_tensor **out, tide_tensor *t, int ndim, const int64_t *shape,
                       const int64_t *stride, int64_t offset);
/* Makes a handle with the same geometry and no history. */
int  tide__tensor_alias(tide_tensor **out, tide_tensor *t);
/* Notes that t shares no element with another part of its storage. A storage whose handles are all
 * parts has no other reader of t's elements than t. */
void tide__tensor_mark_part(tide_tensor *t);
/* Gives up the elements of t: the bytes are dropped if no other handle has a part that is not given
 * up. */
void tide__tensor_give_up(tide_tensor *t);
/* Releases the codes of t. */
void tide__codes_drop(tide_tensor *t);
/* Performs the releases from other threads. Called at the start of every op. */
void tide__tensor_drain(tide_ctx *ctx);
void tide__tensor_pool_close(tide_ctx *ctx);

static inline int64_t tide__tensor_numel(const tide_tensor *t)
{
  int64_t n = 1;
  for (int d = 0; d < t->ndim; d++) n *= t->shape[d];
  return n;
}
static inline bool tide__tensor_same_shape(const tide_tensor *a, const tide_tensor *b)
{
  return tide__same_shape(a->ndim, a->shape, b->ndim, b->shape);
}
static inline bool tide__tensor_needs_grad(const tide_tensor *t)
{
  return t->requires_grad || t->node;
}
/* Returns the dtype in which backward adds up the gradient of a leaf. */
static inline int tide__grad_dtype(const tide_tensor *leaf)
{
  return leaf->grad ? leaf->grad->dtype : leaf->grad_dtype < 0 ? leaf->dtype : leaf->grad_dtype;
}
/* Returns the address of the first element; NULL if absent. */
static inline char *tide__tensor_ptr(const tide_tensor *t)
{
  char *base = t->storage->data;
  return base ? base + t->offset * tide_dtype_size(t->dtype) : NULL;
}
