/* The tensor handle: creation, views, reference counts, accessors. */
#include "core/tensor/tensor.h"

/* Free handles for the next tensors: a steady loop allocates none. */
struct tide__tensor_pool {
  tide_tensor *free;
  tide__storage *hollow[TIDE_NDEV]; /* what spent handles of a device have for bytes */
};

static tide_tensor *handle(tide_ctx *ctx)
{
  if (!ctx->tensors && !(ctx->tensors = tide__alloc(ctx, sizeof *ctx->tensors))) return NULL;
  tide_tensor *t = ctx->params.reuse ? ctx->tensors->free : NULL;
  if (t) tide__prefetch(ctx->tensors->free = t->next, 3);
  else if (!(t = tide__alloc(ctx, sizeof *t))) return NULL;
  t->tag = TIDE__TAG(TIDE__KIND_TENSOR);
  t->refs = 1;
  t->spent = 0;
  t->grad_dtype = -1;
  t->kept = false;
  t->part = TIDE__WHOLE;
  t->ctx = ctx;
  t->storage = NULL;
  t->requires_grad = false;
  t->node = NULL;
  t->grad = NULL;
  t->codes = NULL;
  t->next = NULL;
  t->id = ++ctx->next_id;
  ctx->stats.ntensor++;
  tide__ctx_hold(ctx);
  return t;
}

/* Takes the bytes and the history from a tensor; spent references keep the handle. */
static void make_hollow(tide_tensor *t)
{
  tide__storage *none = t->ctx->tensors->hollow[t->storage->device], *s = t->storage;
  tide__storage_retain(none);
  t->storage = none;
  tide__storage_release(s);
}

void tide__tensor_mark_part(tide_tensor *t)
{
  t->part = TIDE__PART;
  t->storage->parts++;
}

/* Drops the bytes if n handles are left, all of them parts that were given up. */
static void drop_given_up(tide__storage *s, int64_t n)
{
  if (n > 0 && s->refs == n && s->parts_given_up == n && s->pins == 0) tide__storage_drop(s);
}

void tide__tensor_give_up(tide_tensor *t)
{
  tide__storage *s = t->storage;
  if (t->part == TIDE__PART) {
    t->part = TIDE__PART_GIVEN_UP;
    s->parts_given_up++;
    drop_given_up(s, s->parts);
  } else if (s->refs == 1 && s->pins == 0) {
    tide__storage_drop(s);
  }
}

/* Takes t, a part, out of the counts of its storage, before t releases it. */
static void leave_parts(tide_tensor *t)
{
  tide__storage *s = t->storage;
  s->parts--;
  if (t->part == TIDE__PART_GIVEN_UP) s->parts_given_up--;
  t->part = TIDE__WHOLE;
  s->refs--; /* as if t had let go already */
  drop_given_up(s, s->parts);
  s->refs++;
}

void tide__codes_drop(tide_tensor *t)
{
  tide__codes *c = t->codes;
  if (!c) return;
  t->codes = NULL;
  for (int i = 0; i < 4; i++) tide_tensor_release(c->t[i]);
  tide__free(t->ctx, c, sizeof *c);
}

static void tensor_recycle(tide_tensor *t)
{
  tide_ctx *ctx = t->ctx;
  tide__codes_drop(t);
  if (t->part) leave_parts(t);
  if (t->node || t->grad) ctx->recorder->forget(t);
  if (t->spent > 0) {
    make_hollow(t);
    return;
  }
  tide__storage_release(t->storage);
  t->storage = NULL;
  t->tag = ~t->tag;
  t->next = ctx->tensors->free;
  ctx->tensors->free = t;
  ctx->stats.ntensor--;
  tide__ctx_drop(ctx);
}

void tide__tensor_pool_close(tide_ctx *ctx)
{
  if (!ctx->tensors) return;
  for (tide_tensor *t = ctx->tensors->free, *next; t; t = next) {
    next = t->next;
    tide__free(ctx, t, sizeof *t);
  }
  for (int i = 0; i < TIDE_NDEV; i++) tide__storage_release(ctx->tensors->hollow[i]);
  tide__free(ctx, ctx->tensors, sizeof *ctx->tensors);
  ctx->tensors = NULL;
}

int tide__check_shape(tide_ctx *ctx, int dtype, int ndim, const int64_t *shape, const char *op,
                      int64_t *bytes)
{
  if (!tide__dtype_valid(dtype))
    return tide__fail(ctx, TIDE_E_DTYPE, op, "dtype %d does not exist", dtype);
  if (ndim < 0 || ndim > TIDE_MAX_DIM || (ndim && !shape))
    return tide__fail(ctx, TIDE_E_SHAPE, op, "ndim: expected 0 to %d dims, got %d", TIDE_MAX_DIM,
                      ndim);
  int64_t n = tide__numel(ndim, shape);
  if (n >= 0) n = tide__mul_size(n, tide_dtype_size(dtype));
  if (n < 0)
    return tide__fail(ctx, TIDE_E_SHAPE, op, "shape %s has a negative size or too many elements",
                      TIDE__SHAPE(ndim, shape));
  *bytes = n;
  return TIDE_OK;
}

/* Returns a handle of a row-major tensor without a storage, and its bytes; the shape is checked. */
static int shaped(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
                  const int64_t *shape, const char *op, int64_t *bytes)
{
  *out = NULL;
  TIDE_TRY(tide__check_shape(ctx, dtype, ndim, shape, op, bytes));
  if (!tide__device_get(ctx, device, op)) return TIDE_E_DEVICE;
  tide_tensor *t = handle(ctx);
  if (!t) return tide__fail(ctx, TIDE_E_NOMEM, op, "no host memory for a tensor handle");
  t->ndim = ndim;
  t->dtype = dtype;
  t->offset = 0;
  for (int d = 0; d < ndim; d++) t->shape[d] = shape[d];
  tide__strides_contiguous(ndim, t->shape, t->stride);
  *out = t;
  return TIDE_OK;
}

/* Recycles a handle that got no storage. Returns rc. */
static int stored(tide_tensor **out, int rc)
{
  if (rc >= 0) return rc;
  tensor_recycle(*out);
  *out = NULL;
  return rc;
}

static int tensor_make(tide_tensor **out, tide_ctx *ctx, int device, bool pinned, int dtype,
                       int ndim, const int64_t *shape, const char *op)
{
  int64_t bytes = 0;
  TIDE_TRY(shaped(out, ctx, device, dtype, ndim, shape, op, &bytes));
  return stored(out, tide__storage_new(&(*out)->storage, ctx, device, (size_t)bytes, pinned));
}

int tide__tensor_new_lent(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
                          const int64_t *shape, const tide__lent *lent, const char *op)
{
  int64_t bytes = 0;
  TIDE_TRY(shaped(out, ctx, device, dtype, ndim, shape, op, &bytes));
  return stored(out, tide__storage_new_lent(&(*out)->storage, ctx, device, (size_t)bytes, lent));
}

int tide__tensor_new(tide_tensor **out, tide_ctx *ctx, int device, int dtype, int ndim,
                     const int64_t *shape, const char *op)
{
  return tensor_make(out, ctx, device, false, dtype, ndim, shape, op);
}

int tide__tensor_new_pinned(tide_tensor **out, tide_ctx *ctx, int dtype, int ndim,
                            const int64_t *shape, const char *op)
{
  *out = NULL;
  if (!tide__device_get(ctx, TIDE__PINNING, op)) return TIDE_E_DEVICE;
  return tensor_make(out, ctx, TIDE_DEV_CPU, true, dtype, ndim, shape, op);
}

int tide__tensor_view(tide_tensor **out, tide_tensor *t, int ndim, const int64_t *shape,
                      const int64_t *stride, int64_t offset)
{
  *out = handle(t->ctx);
  if (!*out) return tide__fail(t->ctx, TIDE_E_NOMEM, "view", "no host memory for a tensor handle");
  tide_tensor *v = *out;
  v->ndim = ndim;
  v->dtype = t->dtype;
  v->offset = offset;
  for (int d = 0; d < ndim; d++) {
    v->shape[d] = shape[d];
    v->stride[d] = stride[d];
  }
  v->storage = t->storage;
  tide__storage_retain(v->storage);
  return TIDE_OK;
}

int tide__tensor_alias(tide_tensor **out, tide_tensor *t)
{
  return tide__tensor_view(out, t, t->ndim, t->shape, t->stride, t->offset);
}

int tide_tensor_retain(tide_tensor *t)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  t->refs++;
  return TIDE_OK;
}

/* Puts the handle on the stack at its first release; further ones only count. n: 1 or
 * TIDE__SPENT. */
static void push_foreign(tide_tensor *t, int n)
{
  if (atomic_fetch_add_explicit(&t->foreign, n, memory_order_acq_rel) > 0) return;
  void *head = atomic_load_explicit(&t->ctx->foreign, memory_order_relaxed);
  do t->next = head;
  while (!atomic_compare_exchange_weak_explicit(&t->ctx->foreign, &head, t, memory_order_release,
                                                memory_order_relaxed));
}

static void release_owned(tide_tensor *t, int64_t n)
{
  t->refs -= n;
  if (t->refs == 0) tensor_recycle(t);
}

static void release_spent(tide_tensor *t, int n)
{
  t->spent -= n;
  if (t->refs == 0 && t->spent == 0) tensor_recycle(t);
}

void tide_tensor_release(tide_tensor *t)
{
  if (!tide__alive(t, TIDE__KIND_TENSOR)) return;
  if (pthread_equal(pthread_self(), t->ctx->owner)) release_owned(t, 1);
  else push_foreign(t, 1);
}

void tide_tensor_release_spent(tide_tensor *t)
{
  if (!tide__alive(t, TIDE__KIND_TENSOR)) return;
  if (pthread_equal(pthread_self(), t->ctx->owner)) release_spent(t, 1);
  else push_foreign(t, TIDE__SPENT);
}

int tide_tensor_spend(tide_tensor *t)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  struct tide__tensor_pool *pool = t->ctx->tensors;
  if (t->kept || t->spent > 0) return TIDE_MORE;
  tide__storage **none = &pool->hollow[t->storage->device];
  if (!*none) TIDE_TRY(tide__storage_new_hollow(none, t->ctx, t->storage->device));
  t->spent++;
  release_owned(t, 1);
  return TIDE_OK;
}

void tide_tensor_keep(tide_tensor *t) { if (tide__alive(t, TIDE__KIND_TENSOR)) t->kept = true; }

void tide__tensor_drain(tide_ctx *ctx)
{
  tide__objects_settle(ctx);
  if (!atomic_load_explicit(&ctx->foreign, memory_order_relaxed)) return;
  tide_tensor *t = atomic_exchange_explicit(&ctx->foreign, NULL, memory_order_acquire);
  while (t) {
    tide_tensor *next = t->next; /* read first: a handle of count 0 may be reused */
    int n = atomic_exchange_explicit(&t->foreign, 0, memory_order_acq_rel);
    int plain = n % TIDE__SPENT, spent = n / TIDE__SPENT;
    if (plain) release_owned(t, plain);
    if (spent) release_spent(t, spent);
    t = next;
  }
}

int tide_tensor_drop(tide_tensor *t)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  if (t->storage->pins > 0)
    return tide__fail(t->ctx, TIDE_E_STATE, "tensor_drop", "an asynchronous collective is using "
                      "the bytes; wait for it first");
  if (t->storage->kept > 0)
    return tide__fail(t->ctx, TIDE_E_STATE, "tensor_drop", "a communicator has registered the "
                      "bytes; close it first");
  tide__storage_drop(t->storage);
  return TIDE_OK;
}

int tide_tensor_restore(tide_tensor *t)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  tide__tensor_drain(t->ctx);
  return tide__storage_restore(t->storage);
}

int tide_tensor_refilled(tide_tensor *t)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, t));
  if (t->storage->gone)
    return tide__fail(t->ctx, TIDE_E_GONE, "tensor_refilled", "the bytes are absent; restore and "
                      "fill them first");
  if (!tide__storage_refilled(t->storage))
    return tide__fail(t->ctx, TIDE_E_STATE, "tensor_refilled", "the bytes were not restored since "
                      "they were dropped, or were declared refilled already");
  return TIDE_OK;
}

tide_ctx *tide_tensor_ctx(const tide_tensor *t)
{
  if (t && t->tag == ~TIDE__TAG(TIDE__KIND_TENSOR)) return t->ctx;
  TIDE_DOOR_OR(NULL, TIDE_OBJECT(TENSOR, t));
  return t->ctx;
}

int tide_tensor_ndim(const tide_tensor *t) { return TIDE_IS(TENSOR, t) ? t->ndim : TIDE_E_ARG; }

int64_t tide_tensor_dim(const tide_tensor *t, int dim)
{
  TIDE_DOOR_OR(-1, TIDE_OBJECT(TENSOR, t));
  dim = tide__resolve_dim(dim, t->ndim);
  return dim < 0 ? -1 : t->shape[dim];
}

int64_t tide_tensor_stride(const tide_tensor *t, int dim)
{
  TIDE_DOOR_OR(-1, TIDE_OBJECT(TENSOR, t));
  dim = tide__resolve_dim(dim, t->ndim);
  return dim < 0 ? -1 : t->stride[dim];
}

int64_t tide_tensor_numel(const tide_tensor *t)
{
  return TIDE_IS(TENSOR, t) ? tide__tensor_numel(t) : -1;
}

int tide_tensor_debt_reaches(const tide_tensor *t, int64_t bytes)
{
  return TIDE_IS(TENSOR, t) ? t->ctx->stats.debt >= bytes : TIDE_E_ARG;
}

int tide_tensor_dtype(const tide_tensor *t) { return TIDE_IS(TENSOR, t) ? t->dtype : TIDE_E_ARG; }

int tide_tensor_device(const tide_tensor *t)
{
  return TIDE_IS(TENSOR, t) ? t->storage->device : TIDE_E_ARG;
}

double tide_tensor_id(const tide_tensor *t) { return TIDE_IS(TENSOR, t) ? t->id : -1; }

int64_t tide_tensor_version(const tide_tensor *t)
{
  return TIDE_IS(TENSOR, t) ? t->storage->version : -1;
}

int tide_tensor_is_gone(const tide_tensor *t)
{
  return TIDE_IS(TENSOR, t) ? t->storage->gone : TIDE_E_ARG;
}

int tide_tensor_is_contiguous(const tide_tensor *t)
{
  return TIDE_IS(TENSOR, t) ? tide__is_contiguous(t->ndim, t->shape, t->stride) : TIDE_E_ARG;
}

int tide_tensor_same_storage(const tide_tensor *a, const tide_tensor *b)
{
  TIDE_DOOR(TIDE_OBJECT(TENSOR, a), TIDE_OBJECT(TENSOR, b));
  return a->storage == b->storage && !a->storage->hollow;
}

void *tide_tensor_data(tide_tensor *t)
{
  TIDE_DOOR_OR(NULL, TIDE_OBJECT(TENSOR, t));
  tide__device *d = &t->ctx->devices->device[t->storage->device];
  if (!d->backend->host) return NULL;
  if (t->storage->copy && tide__async_copy_wait(t->storage) < 0) return NULL;
  return tide__tensor_ptr(t);
}
