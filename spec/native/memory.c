/* A host that owns all memory: bookkeeping through resize, tensors through tensor_alloc. Each block
 * is freed once, with its size, on the thread of the context, and none is left at the end. */
#include "check.h"

#include <pthread.h>
#include <unistd.h>

enum { NBLOCK = 256 };

typedef struct owner {
  int64_t host;                      /* bytes out through resize */
  int64_t bytes, blocks, calls;      /* of tensors: out now; calls of tensor_alloc */
  int64_t limit;                     /* most bytes of tensors; 0: any */
  size_t  shift;                     /* bytes that addresses are off by */
  struct { void *ptr; size_t size; int32_t device; } block[NBLOCK];
  pthread_t thread;
} owner;

static void *host_resize(void *user, void *ptr, size_t nold, size_t nnew)
{
  ((owner *)user)->host += (int64_t)nnew - (int64_t)nold;
  if (nnew) return realloc(ptr, nnew);
  free(ptr);
  return NULL;
}

static void *host_alloc(void *user, size_t size, size_t align, int32_t device)
{
  owner *o = user;
  char *p = NULL;
  int i = 0;
  o->calls++;
  assert_true(pthread_equal(pthread_self(), o->thread));
  assert_int_equal(align, 64);
  assert_true(device == TIDE_DEV_CPU || device == TIDE_DEV_REF);
  if (o->limit && o->bytes + (int64_t)size > o->limit) return NULL;
  assert_int_equal(posix_memalign((void **)&p, align, size + align), 0);
  memset(p, 0xa5, size + align);
  while (o->block[i].ptr) assert_true(++i < NBLOCK);
  o->block[i].ptr = p + o->shift;
  o->block[i].size = size;
  o->block[i].device = device;
  o->bytes += (int64_t)size;
  o->blocks++;
  return p + o->shift;
}

static void host_free(void *user, void *ptr, size_t size, int32_t device)
{
  owner *o = user;
  int i = 0;
  assert_true(pthread_equal(pthread_self(), o->thread));
  while (o->block[i].ptr != ptr) assert_true(++i < NBLOCK);
  assert_int_equal(o->block[i].size, size);
  assert_int_equal(o->block[i].device, device);
  o->block[i].ptr = NULL;
  o->bytes -= (int64_t)size;
  o->blocks--;
  free((char *)ptr - o->shift);
}

static tide_ctx *open_owner(owner *o, const char *params)
{
  tide_opts opts;
  tide_opts_init(&opts);
  opts.resize = host_resize;
  opts.tensor_alloc = host_alloc;
  opts.tensor_free = host_free;
  opts.user = o;
  opts.nthread = 2;
  opts.params = params;
  o->thread = pthread_self();
  return open_with(&opts);
}

static void close_owner(owner *o, tide_ctx *ctx)
{
  close_ctx(ctx);
  assert_int_equal(o->blocks, 0);
  assert_int_equal(o->bytes, 0);
  assert_int_equal(o->host, 0);
}

/* Loss and gradient of a product, on a device, large enough for kernel scratch. */
static void train(tide_ctx *ctx, int device)
{
  const int64_t shape[] = {96, 96};
  tide_tensor *w, *y, *sq, *loss, *g;
  double value;
  OK(ctx, tide_full(&w, ctx, device, TIDE_F32, 2, shape, 1));
  OK(ctx, tide_set_needs_grad(w, true));
  OK(ctx, tide_matmul(&y, w, w));
  OK(ctx, tide_square(&sq, y));
  OK(ctx, tide_mean(&loss, sq, 0, NULL, false));
  OK(ctx, tide_backward_run(loss, NULL));
  OK(ctx, tide_grad(&g, w));
  OK(ctx, tide_item(loss, &value));
  assert_true(value == 96 * 96);
  tide_tensor *const all[] = {w, loss, g, sq, y};
  for (size_t i = 0; i < LENGTH(all); i++) tide_tensor_release(all[i]);
}

/* With the cache (segments of the host, given back by a trim) and without it. */
static void owns_all(void **state)
{
  static const char *const params[] = {NULL, "cache=0", "poison=1"};
  (void)state;
  for (size_t i = 0; i < LENGTH(params); i++) {
    owner o = {0};
    tide_ctx *ctx = open_owner(&o, params[i]);
    assert_int_equal(o.blocks, 0);
    train(ctx, TIDE_DEV_CPU);
    int64_t calls = o.calls;
    assert_true(calls > 0);
    train(ctx, TIDE_DEV_CPU);
    if (i != 1) assert_int_equal(o.calls, calls); /* out of the cache */
    train(ctx, TIDE_DEV_REF);
    assert_true(o.calls > calls);
    assert_int_equal(tide_ctx_stats(ctx)->cached, o.bytes);
    tide_cache_trim(ctx);
    assert_int_equal(o.bytes, 0);
    assert_int_equal(tide_ctx_stats(ctx)->cached, 0);
    close_owner(&o, ctx);
  }
}

/* Views and second handles share one block; it goes back with the last of them, or at a drop. */
static void views(void **state)
{
  owner o = {0};
  const int64_t n = 1000, shape[] = {10, 100};
  tide_tensor *x, *view, *row, *again;
  (void)state;
  tide_ctx *ctx = open_owner(&o, "cache=0");
  OK(ctx, tide_empty(&x, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n));
  OK(ctx, tide_reshape(&view, x, 2, shape));
  OK(ctx, tide_select(&row, view, 0, 3));
  OK(ctx, tide_detach(&again, row));
  assert_int_equal(o.blocks, 1);
  assert_int_equal(tide_ctx_stats(ctx)->live, o.bytes);
  assert_ptr_equal(tide_tensor_data(x), o.block[0].ptr);
  tide_tensor_release(x);
  tide_tensor_release(view);
  tide_tensor_release(row);
  assert_int_equal(o.blocks, 1);
  OK(ctx, tide_tensor_drop(again));
  assert_int_equal(o.blocks, 0);
  OK(ctx, tide_tensor_restore(again));
  assert_int_equal(o.blocks, 1);
  tide_tensor_release(again);
  close_owner(&o, ctx);
}

/* Null is E_NOMEM with the sizes in the message; the context works on. A limit of its own refuses
 * before the host is asked. */
static void refuses(void **state)
{
  owner o = {.limit = 1 << 20};
  const int64_t few = 1000, many = 4 << 20;
  tide_tensor *t, *big;
  (void)state;
  tide_ctx *ctx = open_owner(&o, "cache=0");
  OK(ctx, tide_empty(&t, ctx, TIDE_DEV_CPU, TIDE_U8, 1, &few));
  assert_int_equal(tide_empty(&big, ctx, TIDE_DEV_CPU, TIDE_U8, 1, &many), TIDE_E_NOMEM);
  assert_null(big);
  assert_int_equal(tide_error(ctx)->code, TIDE_E_NOMEM);
  assert_non_null(strstr(tide_error(ctx)->message, "tensor_alloc gave no 4194304 bytes"));
  assert_int_equal(tide_ctx_stats(ctx)->live, o.bytes);
  o.limit = 0;
  OK(ctx, tide_empty(&big, ctx, TIDE_DEV_CPU, TIDE_U8, 1, &many));
  tide_tensor_release(big);
  int64_t calls = o.calls;
  OK(ctx, tide_param_set(ctx, "memory", "1m"));
  assert_int_equal(tide_empty(&big, ctx, TIDE_DEV_CPU, TIDE_U8, 1, &many), TIDE_E_NOMEM);
  assert_non_null(strstr(tide_error(ctx)->message, "memory parameter"));
  assert_int_equal(o.calls, calls);
  tide_tensor_release(t);
  close_owner(&o, ctx);
}

/* An address that kernels cannot use goes back at once. */
static void misaligned(void **state)
{
  owner o = {.shift = 16};
  const int64_t n = 8;
  tide_tensor *t;
  (void)state;
  tide_ctx *ctx = open_owner(&o, NULL);
  assert_int_equal(tide_empty(&t, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n), TIDE_E_NOMEM);
  assert_non_null(strstr(tide_error(ctx)->message, "aligned to 64"));
  close_owner(&o, ctx);
}

static void *release(void *tensor)
{
  tide_tensor_release(tensor);
  return NULL;
}

/* What another thread releases goes back on the context's thread. */
static void foreign_release(void **state)
{
  owner o = {0};
  const int64_t n = 8;
  pthread_t thread;
  tide_tensor *t, *next;
  (void)state;
  tide_ctx *ctx = open_owner(&o, "cache=0");
  OK(ctx, tide_empty(&t, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n));
  assert_int_equal(pthread_create(&thread, NULL, release, t), 0);
  pthread_join(thread, NULL);
  assert_int_equal(o.blocks, 1);
  OK(ctx, tide_full(&next, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n, 0));
  assert_int_equal(o.blocks, 1);
  tide_tensor_release(next);
  close_owner(&o, ctx);
}

/* The copies of a background save and the buffers of an asynchronous collective are the host's. */
static void other_threads(void **state)
{
  owner o = {0};
  char path[256], digits[17];
  const char *name = "w";
  const int64_t n = 1 << 20;
  tide_tensor *t;
  tide_saving *s;
  tide_comm *comm;
  tide_work *work;
  (void)state;
  scratch(path, sizeof path, "memory");
  tide_ctx *ctx = open_owner(&o, NULL);
  OK(ctx, tide_full(&t, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n, 2));
  OK(ctx, tide_comm_join(&comm, ctx, NULL, 0));
  OK(ctx, tide_comm_all_reduce(&work, comm, 1, &t, TIDE_SUM));
  OK(ctx, tide_work_wait(work));
  tide_work_release(work);
  tide_comm_release(comm);
  int64_t calls = o.calls;
  OK(ctx, tide_file_save_async(&s, ctx, path, 1, &name, &t, 0, NULL, NULL));
  assert_true(o.calls > calls);
  OK(ctx, tide_saving_wait(s, digits));
  tide_saving_release(s);
  tide_tensor_release(t);
  close_owner(&o, ctx);
  unlink(path);
}

/* One hook without the other is a mistake. */
static void half(void **state)
{
  tide_opts opts;
  tide_ctx *ctx;
  char msg[256] = "";
  (void)state;
  tide_opts_init(&opts);
  opts.tensor_alloc = host_alloc;
  assert_int_equal(tide_ctx_new(&ctx, &opts, msg, sizeof msg), TIDE_E_ARG);
  assert_non_null(strstr(msg, "tensor_free"));
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(owns_all),        cmocka_unit_test(views),
    cmocka_unit_test(refuses),         cmocka_unit_test(misaligned),
    cmocka_unit_test(foreign_release), cmocka_unit_test(other_threads),
    cmocka_unit_test(half),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
