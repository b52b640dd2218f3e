/* Dispatch of every op: check the operands, allocate, choose a kernel, launch, record on the tape.
 *
 * An op describes itself in a tide__call; only this file turns tensors into the plain operands of
 * a kernel and makes the contiguous copies that a kernel asks for. It waits in one case: an operand
 * whose asynchronous copy has not completed.
 *
 * An op on the null device runs no kernel. With parameter `rehearse` it takes, in counters alone,
 * the copies and the scratch of the kernel that another device would run.
 */
#include "core/op/derivative.h"
#include "core/op/kernels.h"
#include "core/op/op.h"
#include "core/op/operand.h"
#include "kernels/threads.h"

#define I0 0
#define I1 1
#define O0 TIDE__KEY_O0
#define IN(i) (1u << (i))
#define OUT(i) (1u << (i))
#define VIEW TIDE_OPF_VIEW
#define INPLACE (TIDE_OPF_INPLACE | TIDE_OPF_NOGRAD)
#define RANDOM TIDE_OPF_RANDOM
#define BWD (TIDE_OPF_BACKWARD | TIDE_OPF_NOGRAD)
#define BCAST TIDE__OPF_BCAST
#define RATES TIDE__OPF_RATES
#define RECOMPUTES TIDE__OPF_RECOMPUTES
#define CODES TIDE__OPF_CODES
#define CROSS TIDE__OPF_CROSS
#define RULE(name) tide__grad_##name

static const tide__op ops[TIDE__NOP] = {
#define TIDE_OP(ID, name, key, save_in, save_out, grad, flags) \
  {#name, key, save_in, save_out, grad, flags},
#include "core/op/op.def"
#undef TIDE_OP
};

static const tide__recompute_fn recompute[TIDE__NOP] = {
#define TIDE_OP(...)
#define TIDE_RECOMPUTE(ID, name) [TIDE_OP_##ID] = tide__recompute_##name,
#include "core/op/op.def"
#undef TIDE_OP
#undef TIDE_RECOMPUTE
};

const tide__op *tide__op_get(int op) { return &ops[op]; }
tide__recompute_fn tide__recompute_of(int op) { return op < 0 ? NULL : recompute[op]; }
int tide_op_count(void) { return TIDE__NOP; }
const char *tide_op_name(int op) { return op >= 0 && op < TIDE__NOP ? ops[op].name : NULL; }

int tide_op_flags(int op)
{
  if (op < 0 || op >= TIDE__NOP) return 0;
  return (ops[op].flags & (TIDE__OPF_BCAST - 1)) | (ops[op].grad ? 0 : TIDE_OPF_NOGRAD);
}

tide__meta tide__meta_of(const tide_tensor *t)
{
  tide__meta m = {.ndim = t->ndim, .dtype = t->dtype, .device = t->storage->device};
  for (int d = 0; d < t->ndim; d++) m.shape[d] = t->shape[d];
  return m;
}

/* ---- the start of a call --------------------------------------------------------------------- */

/* Writes "argument 2", or "p[2]" of a list. */
static const char *operand_name(char *text, size_t n, const char *list, int64_t i)
{
  snprintf(text, n, list ? "%s[%lld]" : "%s %lld", list ? list : "argument", (long long)i + 1);
  return text;
}

int tide__check_operand(tide__call *c, const char *list, int64_t i, const tide_tensor *x)
{
  const char *op = ops[c->op].name;
  char name[64];
  if (!tide__alive(x, TIDE__KIND_TENSOR))
    return tide__refuse_operand(c->ctx, op, operand_name(name, sizeof name, list, i), x,
                                TIDE__KIND_TENSOR);
  if (x->ctx != c->ctx)
    return tide__fail(c->ctx, TIDE_E_ARG, op, "%s belongs to another context",
                      operand_name(name, sizeof name, list, i));
  if (x->storage->gone)
    return tide__fail(c->ctx, TIDE_E_GONE, op, "%s (tensor %.0f, %s %s) was dropped: %s",
                      operand_name(name, sizeof name, list, i), x->id, tide_dtype_name(x->dtype),
                      TIDE__SHAPE(x->ndim, x->shape),
                      x->storage->hollow ? "its maker gave it up at its last use; clone it before"
                                         : "keep it in the scope's results or do not release it");
  if (x->storage->copy && tide__async_copy_wait(x->storage) < 0)
    return tide__async_copy_failed(x->storage, op);
  if (x->storage->writers > 0)
    return tide__fail(c->ctx, TIDE_E_STATE, op, "%s is being written by a collective under way; "
                      "wait for its work first", operand_name(name, sizeof name, list, i));
  if (c->device < 0) c->device = x->storage->device;
  if (x->storage->device != c->device)
    return tide__fail(c->ctx, TIDE_E_DEVICE, op, "%s is on '%s', the others are on '%s'; move it "
                      "with to_device", operand_name(name, sizeof name, list, i),
                      tide_device_name(x->storage->device), tide_device_name(c->device));
  return TIDE_OK;
}

int tide__begin(tide__call *c, int op, tide_tensor **out, int nin, tide_tensor *const *x,
                uint32_t optional)
{
  if (out) *out = NULL;
  c->ctx = NULL;
  c->op = op;
  c->device = -1;
  c->nin = nin;
  c->nout = 0;
  c->in = c->in_;
  c->out = c->out_;
  c->make = c->make_;
  c->tape_differs = false;
  c->tape_in = NULL;
  c->into = NULL;
  for (int i = 0; i < nin && !c->ctx; i++)
    if (tide__alive(x[i], TIDE__KIND_TENSOR)) c->ctx = x[i]->ctx;
  if (!c->ctx)
    return tide__refuse_operand(NULL, ops[op].name, "argument 1", nin > 0 ? x[0] : NULL,
                                TIDE__KIND_TENSOR);
  tide__tensor_drain(c->ctx);
  for (int i = 0; i < nin; i++) {
    c->in_[i] = x[i];
    if (x[i] || !(optional >> i & 1)) TIDE_TRY(tide__check_operand(c, NULL, i, x[i]));
  }
  if (atomic_load_explicit(&c->ctx->interrupt, memory_order_relaxed) > 1) {
    atomic_store(&c->ctx->interrupt, 0);
    return tide__fail(c->ctx, TIDE_E_INTERRUPT, ops[op].name, "interrupted");
  }
  return TIDE_OK;
}

void tide__result(tide__call *c, int i, int dtype, int ndim, const int64_t *shape)
{
  tide__meta *m = &c->make[i];
  m->dtype = dtype;
  m->ndim = ndim;
  for (int d = 0; d < ndim; d++) m->shape[d] = shape[d];
  if (i >= c->nout) c->nout = i + 1;
}

int tide__check_float(const tide_tensor *t, const char *op, const char *arg)
{
  if (1 << t->dtype & K_FLOAT) return TIDE_OK;
  return tide__fail(t->ctx, TIDE_E_DTYPE, op, "%s: expected a floating dtype (f32, f64, bf16, "
                    "f16), got %s", arg, tide_dtype_name(t->dtype));
}

int tide__check_dim(const tide_tensor *x, int dim, const char *op)
{
  int d = tide__resolve_dim(dim, x->ndim);
  if (d >= 0) return d;
  return tide__fail(x->ctx, TIDE_E_ARG, op, "dim: %d is outside a tensor of %d dims", dim, x->ndim);
}

int tide__check_alike(tide__call *c, const tide_tensor *a, const char *a_arg,
                      const tide_tensor *b, const char *b_arg)
{
  if (a->dtype == b->dtype && tide__tensor_same_shape(a, b)) return TIDE_OK;
  return TIDE__FAIL(c, TIDE_E_SHAPE, "%s %s and %s %s differ", a_arg, TIDE__TEXT(a), b_arg,
                    TIDE__TEXT(b));
}

int tide__check_index(const tide_tensor *t, const char *op, const char *arg)
{
  if (t->dtype == TIDE_I64 || t->dtype == TIDE_I32) return TIDE_OK;
  return tide__fail(t->ctx, TIDE_E_DTYPE, op, "%s: expected i64 or i32, got %s", arg,
                    tide_dtype_name(t->dtype));
}

/* ---- launch ---------------------------------------------------------------------------------- */

enum { SMALL_CALL = 16 };

/* The state of one launch beside the call: plain operands, temporary copies, scratch. */
typedef struct launch {
  k_tensor in_[SMALL_CALL], out_[SMALL_CALL];
  tide_tensor *copy_[SMALL_CALL];
  k_tensor *in, *out;
  tide_tensor **copy;   /* contiguous copies of inputs, released afterwards */
  size_t heap;          /* bytes allocated at in, if the call is large */
  tide__block *work;
  size_t nwork;
} launch;

static void operand(k_tensor *k, const tide_tensor *t)
{
  if (!t) {
    k->data = NULL;
    k->ndim = -1;
    k->dtype = -1;
    return;
  }
  k->data = tide__tensor_ptr(t);
  k->ndim = t->ndim;
  k->dtype = t->dtype;
  memcpy(k->shape, t->shape, sizeof k->shape);
  memcpy(k->stride, t->stride, sizeof k->stride);
}

static int launch_begin(launch *l, tide__call *c)
{
  l->work = NULL;
  l->nwork = l->heap = 0;
  l->in = l->in_;
  l->out = l->out_;
  l->copy = l->copy_;
  if (c->nin > SMALL_CALL || c->nout > SMALL_CALL) {
    size_t n = (size_t)c->nin + (size_t)c->nout;
    l->heap = n * sizeof(k_tensor) + (size_t)c->nin * sizeof(tide_tensor *);
    l->in = tide__alloc(c->ctx, l->heap);
    if (!l->in) return TIDE__FAIL(c, TIDE_E_NOMEM, "no host memory");
    l->out = l->in + c->nin;
    l->copy = (tide_tensor **)(l->in + n);
  } else {
    memset(l->copy_, 0, (size_t)c->nin * sizeof l->copy_[0]);
  }
  return TIDE_OK;
}

static void launch_end(launch *l, tide__call *c)
{
  for (int i = 0; i < c->nin; i++) tide_tensor_release(l->copy[i]);
  struct tide__cache *cache = c->ctx->devices->device[c->device].cache;
  if (l->nwork) tide__cache_give(c->ctx, cache, l->nwork, l->work, c->ctx->stats_epoch);
  if (l->heap) tide__free(c->ctx, l->in, l->heap);
}

/* Returns whether consecutive rows do not overlap: the stride of the innermost row dim with more
 * than one entry is at least a row. */
static bool rows_apart(const k_tensor *k)
{
  int last = k->ndim - 1, d = last - 1;
  while (d >= 0 && k->shape[d] == 1) d--;
  return d < 0 || k->stride[d] >= k->shape[last];
}

static bool dispatch_fits(const k_tensor *k, int layout)
{
  if (layout == K_ANY || k->ndim <= 0) return true;
  if (layout == K_CONTIG) return tide__is_contiguous(k->ndim, k->shape, k->stride);
  int last = k->ndim - 1;
  if (k->shape[last] > 1 && k->stride[last] != 1) return false;
  return layout != K_ROWS || rows_apart(k);
}

/* Makes a contiguous copy of input i with the geometry that the kernel sees. */
static int make_copy(launch *l, tide__call *c, int i)
{
  tide_tensor *x = c->in[i], *view;
  k_tensor *k = &l->in[i];
  TIDE_TRY(tide__tensor_new(&l->copy[i], c->ctx, c->device, x->dtype, k->ndim, k->shape,
                            TIDE__NAME(c)));
  TIDE_TRY(tide__tensor_view(&view, x, k->ndim, k->shape, k->stride, x->offset));
  tide__call copy = {.ctx = c->ctx, .op = TIDE_OP_COPY_, .device = c->device, .nin = 1, .nout = 1,
                     .in = &view, .out = &l->copy[i]};
  int rc = tide__launch(&copy);
  tide_tensor_release(view);
  if (rc == TIDE_OK) operand(k, l->copy[i]);
  return rc;
}

static int dispatch_prepare(launch *l, tide__call *c, const tide__kernel *row)
{
  for (int i = 0; i < c->nout; i++) {
    operand(&l->out[i], c->out[i]);
    if (!dispatch_fits(&l->out[i], row->layout))
      return TIDE__FAIL(c, TIDE_E_UNSUPPORTED, "target %d with shape %s is not contiguous; use "
                        "contiguous()", i + 1, TIDE__SHAPE_OF(c->out[i]));
  }
  for (int i = 0; i < c->nin; i++) {
    k_tensor *k = &l->in[i];
    operand(k, c->in[i]);
    if (ops[c->op].flags & TIDE__OPF_BCAST) {
      int64_t stride[TIDE_MAX_DIM];
      const k_tensor *o = &l->out[0];
      tide__expand(k->ndim, k->shape, k->stride, o->ndim, o->shape, stride); /* always fits */
      memcpy(k->stride, stride, sizeof stride);
      memcpy(k->shape, o->shape, sizeof k->shape);
      k->ndim = o->ndim;
    }
    if (c->in[i] && !dispatch_fits(k, row->layout)) TIDE_TRY(make_copy(l, c, i));
  }
  return TIDE_OK;
}

static int scratch(launch *l, tide__call *c, const tide__kernel *row, k_call *k)
{
  int64_t n = row->work ? row->work(k) : 0;
  if (n <= 0) return TIDE_OK;
  TIDE_TRY(tide__cache_take(c->ctx, c->ctx->devices->device[c->device].cache, (size_t)n, &l->work));
  l->nwork = (size_t)n;
  k->work = tide__block_data(l->work);
  return TIDE_OK;
}

static const tide__kernel *dispatch_choose(tide__call *c, int device)
{
  int key = ops[c->op].key;
  const tide_tensor *t = key == TIDE__KEY_O0 ? c->out[0] : c->in[key];
  const tide__kernel *row = tide__kernel_find(c->ctx, c->op, device, t->dtype);
  if (!row)
    TIDE__FAIL(c, TIDE_E_UNSUPPORTED, "no kernel for %s on device '%s'; cast to a dtype it has, or "
               "move the operands", tide_dtype_name(t->dtype), tide_device_name(device));
  return row;
}

/* Logs that the system has refused threads to the kernels of the calling thread, once. */
static void log_refusal(const tide__call *c)
{
  int got, wanted = tide__pool_refused(&got);
  if (!wanted) return;
  tide__log(c->ctx, TIDE_LOG_WARN, "%s: the system started %d of %d threads; ops of this thread "
            "compute with %d from now on; raise pids.max, ulimit -u or ulimit -v, or set nthread "
            "to %d", TIDE__NAME(c), got, wanted, got, got);
}

static int dispatch_run(launch *l, tide__call *c, const tide__kernel *row)
{
  char msg[K_MSG] = "";
  _Alignas(64) char plan[K_PLAN];
  TIDE_TRY(dispatch_prepare(l, c, row));
  k_call k = {.op = c->op, .nin = c->nin, .nout = c->nout, .in = l->in, .out = l->out,
              .attrs = &c->attrs, .nthread = c->ctx->nthread, .msg = msg,
              .plan = row->work ? plan : NULL,
              .stream = c->ctx->devices->device[c->device].queue};
  TIDE_TRY(scratch(l, c, row, &k));
  if (row->device != c->device) return TIDE_OK; /* a rehearsal */
  int rc = row->fn(&k);
  log_refusal(c);
  if (rc < 0)
    return tide__fail(c->ctx, rc, TIDE__NAME(c), "%s", msg[0] ? msg : tide_status_text(rc));
  return TIDE_OK;
}

/* Results without elements need no kernel, for any sizes of the operands. */
static bool nothing_to_do(const tide__call *c)
{
  for (int i = 0; i < c->nout; i++)
    if (c->out[i] && tide__tensor_numel(c->out[i]) != 0) return false;
  return c->nout > 0;
}

/* Refuses, while a step is captured, an op that a replay would not repeat or would repeat with
 * stale numbers. */
static int capturable(const tide__call *c)
{
  if (!tide__captures(c->ctx, c->device))
    return TIDE__FAIL(c, TIDE_E_STATE, "it runs on '%s' while a step is captured on another "
                      "device, and would not be repeated with it; do it before or after",
                      tide_device_name(c->device));
  if (ops[c->op].flags & TIDE__OPF_RATES && !c->in[c->nin - 2])
    return TIDE__FAIL(c, TIDE_E_STATE, "a captured step would repeat step number and learning rate "
                      "of the capture; give them in rates, as the optimiser's step does");
  return TIDE_OK;
}

int tide__launch(tide__call *c)
{
  if (!*c->ctx->fork_mark)
    return TIDE__FAIL(c, TIDE_E_STATE, "this process is a fork of the one that made the context, "
                      "whose threads it does not have; make a context of its own here, or fork "
                      "before the first one is made");
  c->ctx->stats.nop++;
  bool has_bytes = c->ctx->devices->device[c->device].backend->has_bytes;
  int device = has_bytes ? c->device : (int)c->ctx->params.rehearse;
  if (device < 0 || nothing_to_do(c)) return TIDE_OK;
  if (c->ctx->capture && has_bytes) TIDE_TRY(capturable(c));
  const tide__kernel *row = dispatch_choose(c, device);
  if (!row) return TIDE_E_UNSUPPORTED;
  double t0 = tide__trace_begin(c->ctx);
  tide__range(c->ctx, TIDE__NAME(c));
  launch l;
  int rc = launch_begin(&l, c);
  if (rc == TIDE_OK) {
    rc = dispatch_run(&l, c, row);
    launch_end(&l, c);
  }
  tide__range(c->ctx, NULL);
  return rc == TIDE_OK ? tide__trace_end(c->ctx, "op", TIDE__NAME(c), t0) : rc;
}

/* ---- record and finish ----------------------------------------------------------------------- */

bool tide__wants_grad(const tide__call *c)
{
  if (!c->ctx->recording || !ops[c->op].grad) return false;
  for (int i = 0; i < c->nin; i++)
    if (c->in[i] && tide__tensor_needs_grad(c->in[i])) return true;
  return false;
}

int tide__record(tide__call *c)
{
  if (c->tape_in) c->in = c->tape_in;
  return tide__wants_grad(c) ? c->ctx->recorder->record(c->ctx, c) : TIDE_OK;
}

static int make_results(tide__call *c)
{
  for (int i = 0; i < c->nout; i++) c->out[i] = NULL;
  for (int i = 0; i < c->nout; i++) {
    const tide__meta *m = &c->make[i];
    if (m->ndim < 0) continue;
    if (c->into && c->into[i]) {
      tide_tensor_retain(c->out[i] = c->into[i]);
      continue;
    }
    TIDE_TRY(tide__tensor_new(&c->out[i], c->ctx, c->device, m->dtype, m->ndim, m->shape,
                              TIDE__NAME(c)));
  }
  return TIDE_OK;
}

int tide__dispatch(tide__call *c, tide_tensor **out, int nuser)
{
  int rc = make_results(c);
  if (rc == TIDE_OK) rc = tide__launch_checked(c);
  if (rc == TIDE_OK) rc = tide__record(c);
  for (int i = 0; i < c->nout; i++) {
    if (i < nuser && rc == TIDE_OK) out[i] = c->out[i];
    else tide_tensor_release(c->out[i]);
  }
  return rc;
}

int tide__dispatch_one(tide__call *c, tide_tensor **out, int dtype, int ndim, const int64_t *shape)
{
  tide__result(c, 0, dtype, ndim, shape);
  return tide__dispatch(c, out, 1);
}

int tide__dispatch_along(tide__call *c, tide_tensor **out, tide_tensor *x, int dim, int dtype)
{
  tide__temps v = {0};
  int d = tide__check_dim(x, dim, TIDE__NAME(c));
  if (d < 0) return d;
  bool last = d == x->ndim - 1;
  tide_tensor *y = NULL, *moved = last ? x : TIDE__TEMP(&v, tide_transpose, x, d, -1);
  c->in_[0] = moved;
  TIDE__DO(&v, tide__dispatch_one(c, last ? out : &y, dtype, moved->ndim, moved->shape));
  if (!last) TIDE__DO(&v, tide_transpose(out, y, d, -1));
  tide_tensor_release(y);
  return tide__temps_end(&v);
}
