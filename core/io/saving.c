/* Saving in the background: a thread writes host copies of tensors.
 *
 * The thread has a context of its own, which holds the copies and nothing else, so allocator,
 * errors and reference counts are never shared. The owner makes context and copies, hands both over
 * when the thread starts, and owns them again after joining it.
 *
 * Invariant: between pthread_create and pthread_join only the thread touches `own`; `done` is set
 * by its last write.
 */
#include "core/tensor/tensor.h"

static const char op[] = "file_save_async";

struct tide_saving {
  tide__object object;
  tide_ctx *ctx;              /* of the caller, held */
  tide_ctx *own;              /* of the thread */
  pthread_t thread;
  atomic_int done;
  bool running;               /* created and not joined */
  int rc;
  int64_t n, nmeta;
  tide_tensor **copies;       /* n, in own */
  char **names;               /* n, then the path */
  char **meta;                /* nmeta keys, then their values; null for none */
  char digits[17];
};

static void *saving_run(void *arg)
{
  tide_saving *s = arg;
  const char *path = s->names[s->n];
  tide_ctx_attach(s->own);
  const char *const *keys = (const char *const *)s->meta;
  s->rc = tide_file_save(s->own, path, s->n, (const char *const *)s->names, s->copies, s->nmeta,
                         keys, keys ? keys + s->nmeta : NULL);
  if (s->rc == TIDE_OK) s->rc = tide_path_hash(s->own, path, s->digits);
  atomic_store_explicit(&s->done, 1, memory_order_release);
  return NULL;
}

static void saving_join(tide_saving *s)
{
  if (!s->running) return;
  pthread_join(s->thread, NULL);
  s->running = false;
  tide_ctx_attach(s->own);
}

static void free_texts(tide_ctx *ctx, char **list, int64_t n)
{
  if (!list) return;
  for (int64_t i = 0; i < n; i++)
    if (list[i]) tide__free(ctx, list[i], strlen(list[i]) + 1);
  tide__free(ctx, list, (size_t)n * sizeof *list);
}

static void saving_destroy(tide__object *o, int n)
{
  tide_saving *s = (tide_saving *)o;
  tide_ctx *ctx = s->ctx;
  (void)n;
  saving_join(s);
  for (int64_t i = 0; s->copies && i < s->n; i++) tide_tensor_release(s->copies[i]);
  if (s->copies) tide__free(ctx, s->copies, (size_t)(s->n + 1) * sizeof *s->copies);
  free_texts(ctx, s->names, s->n + 1);
  free_texts(ctx, s->meta, 2 * s->nmeta);
  if (s->own) tide_ctx_release(s->own);
  tide__object_free(o);
}

void tide_saving_release(tide_saving *s) { tide__object_release(s, TIDE__KIND_SAVING); }

static int copy_text(tide_ctx *ctx, char **out, const char *text)
{
  size_t n = strlen(text) + 1;
  *out = tide__alloc(ctx, n);
  if (!*out) return tide__fail(ctx, TIDE_E_NOMEM, op, "no host memory for names");
  memcpy(*out, text, n);
  return TIDE_OK;
}

static int copy_tensor(tide_saving *s, int64_t i, tide_tensor *t)
{
  tide_tensor *c = NULL;
  int rc = tide_empty(&c, s->own, TIDE_DEV_CPU, t->dtype, t->ndim, t->shape);
  if (rc < 0)
    return tide__fail(s->ctx, rc, op, "no host memory for a copy of '%.200s'", s->names[i]);
  s->copies[i] = c;
  size_t bytes = (size_t)tide_tensor_numel(t) * (size_t)tide_dtype_size(t->dtype);
  return bytes ? tide__relabel(s->ctx, tide_to_bytes(t, tide_tensor_data(c), bytes), op) : TIDE_OK;
}

/* Makes the thread's context. Its tensors are allocated and freed by the caller's thread, so a host
 * that owns their memory provides it; bookkeeping of the thread is not the host's. */
static int saving_open(tide_saving *s)
{
  char msg[256];
  tide_opts opts;
  tide_opts_init(&opts);
  opts.tensor_alloc = s->ctx->hooks.tensor_alloc;
  opts.tensor_free = s->ctx->hooks.tensor_free;
  opts.user = s->ctx->hooks.user;
  int rc = tide_ctx_new(&s->own, &opts, msg, sizeof msg);
  return rc < 0 ? tide__fail(s->ctx, rc, op, "%s", msg) : TIDE_OK;
}

static int saving_fill(tide_saving *s, const char *path, const char *const *names,
                       tide_tensor *const *tensors)
{
  size_t count = (size_t)(s->n + 1);
  s->names = tide__alloc(s->ctx, count * sizeof *s->names);
  s->copies = tide__alloc(s->ctx, count * sizeof *s->copies);
  if (!s->names || !s->copies)
    return tide__fail(s->ctx, TIDE_E_NOMEM, op, "no host memory for %lld names",
                      (long long)s->n);
  TIDE_TRY(copy_text(s->ctx, &s->names[s->n], path));
  TIDE_TRY(saving_open(s));
  for (int64_t i = 0; i < s->n; i++) {
    if (!names[i] || !tensors[i])
      return tide__fail(s->ctx, TIDE_E_ARG, op, "name or tensor %lld is null",
                        (long long)i + 1);
    TIDE_TRY(copy_text(s->ctx, &s->names[i], names[i]));
    TIDE_TRY(copy_tensor(s, i, tensors[i]));
  }
  return TIDE_OK;
}

/* Copies the pairs of metadata. */
static int saving_fill_meta(tide_saving *s, const char *const *keys, const char *const *values)
{
  if (s->nmeta == 0) return TIDE_OK;
  s->meta = tide__alloc(s->ctx, (size_t)(2 * s->nmeta) * sizeof *s->meta);
  if (!s->meta)
    return tide__fail(s->ctx, TIDE_E_NOMEM, op, "no host memory for %lld metadata entries",
                      (long long)s->nmeta);
  for (int64_t i = 0; i < s->nmeta; i++) {
    if (!keys[i] || !values[i])
      return tide__fail(s->ctx, TIDE_E_ARG, op, "argument '%s': entry %lld is null",
                        keys[i] ? "values" : "keys", (long long)i + 1);
    TIDE_TRY(copy_text(s->ctx, &s->meta[i], keys[i]));
    TIDE_TRY(copy_text(s->ctx, &s->meta[s->nmeta + i], values[i]));
  }
  return TIDE_OK;
}

int tide_file_save_async(tide_saving **out, tide_ctx *ctx, const char *path, int64_t n,
                         const char *const *names, tide_tensor *const *tensors, int64_t nmeta,
                         const char *const *keys, const char *const *values)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  if (!path || n < 0 || n > INT32_MAX || (n && (!names || !tensors)))
    return tide__fail(ctx, TIDE_E_ARG, op, "expected a path and n >= 0 "
                      "names and tensors, got %s and n = %lld", path ? "a path" : "null",
                      (long long)n);
  if (nmeta < 0 || nmeta > INT32_MAX || (nmeta && (!keys || !values)))
    return tide__fail(ctx, TIDE_E_ARG, op, "expected nmeta >= 0 keys and values, got "
                      "nmeta = %lld", (long long)nmeta);
  TIDE_TRY(tide__check_tensors(ctx, op, "tensors", n, tensors));
  tide__objects_settle(ctx);
  tide_saving *s = tide__object_new(ctx, TIDE__KIND_SAVING, sizeof *s, saving_destroy);
  if (!s) return tide__fail(ctx, TIDE_E_NOMEM, op, "no host memory");
  s->ctx = ctx;
  s->n = n;
  s->nmeta = nmeta;
  int rc = saving_fill(s, path, names, tensors);
  if (rc == TIDE_OK) rc = saving_fill_meta(s, keys, values);
  if (rc == TIDE_OK && pthread_create(&s->thread, NULL, saving_run, s))
    rc = tide__fail(ctx, TIDE_E_NOMEM, op, "the system refused a thread; raise ulimit -u or "
                    "the pids.max of the cgroup, or save without one");
  s->running = rc == TIDE_OK;
  if (rc < 0) tide_saving_release(s);
  else *out = s;
  return rc;
}

int tide_saving_begin(tide_saving **out, tide_ctx *ctx, const char *path, int64_t n,
                      const char *const *names, tide_tensor *const *tensors)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  int rc = tide_file_save_async(out, ctx, path, n, names, tensors, 0, NULL, NULL);
  return tide__relabel(ctx, rc, "saving_begin");
}

int tide_saving_test(const tide_saving *s)
{
  TIDE_DOOR(TIDE_OBJECT(SAVING, s));
  return !s->running || atomic_load_explicit(&((tide_saving *)s)->done, memory_order_acquire);
}

int tide_saving_wait(tide_saving *s, char *digits)
{
  TIDE_DOOR(TIDE_OBJECT(SAVING, s));
  saving_join(s);
  if (s->rc < 0) return tide__fail(s->ctx, s->rc, "file_save", "%s", tide_error(s->own)->message);
  memcpy(digits, s->digits, sizeof s->digits);
  return TIDE_OK;
}
