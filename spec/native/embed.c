/* tide inside a host: two contexts with allocators and log hooks of their own, interleaved; nothing
 * printed, no signal disposition or environment touched, every counter back at zero. */
#include "check.h"

#include <fcntl.h>
#include <fenv.h>
#include <math.h>
#include <signal.h>
#include <unistd.h>

typedef struct host {
  int64_t bytes, blocks, calls; /* outstanding */
  int     nlog, level; /* lines so far; of the last one */
  char    last[256];
} host;

static void *host_resize(void *user, void *ptr, size_t nold, size_t nnew)
{
  host *h = user;
  h->calls++;
  if (nnew == 0) {
    h->bytes -= (int64_t)nold;
    h->blocks -= ptr != NULL;
    free(ptr);
    return NULL;
  }
  void *p = realloc(ptr, nnew);
  if (p) {
    h->bytes += (int64_t)nnew - (int64_t)(ptr ? nold : 0);
    h->blocks += ptr == NULL;
  }
  return p;
}

static void host_log(void *user, int32_t level, const char *text)
{
  host *h = user;
  h->level = level;
  h->nlog++;
  snprintf(h->last, sizeof h->last, "%s", text);
}

static tide_ctx *open_host(host *h, const char *params)
{
  tide_opts opts;
  tide_opts_init(&opts);
  opts.resize = host_resize;
  opts.log = host_log;
  opts.user = h;
  opts.nthread = 2;
  opts.params = params;
  return open_with(&opts);
}

/* loss = sum((x w)^2), its gradient, one optimiser step. Returns the loss. */
static double train_step(tide_ctx *ctx)
{
  const float xv[] = {1, 2, 3, 4}, wv[] = {0.5f, -1, 0.25f, 2};
  const int64_t shape[] = {2, 2};
  tide_tensor *x, *w, *y, *sq, *loss, *g, *m, *v;
  double value;
  tide_adamw_attrs attrs;
  OK(ctx, tide_from_bytes(&x, ctx, TIDE_DEV_CPU, TIDE_F32, 2, shape, xv, sizeof xv));
  OK(ctx, tide_from_bytes(&w, ctx, TIDE_DEV_CPU, TIDE_F32, 2, shape, wv, sizeof wv));
  OK(ctx, tide_set_needs_grad(w, true));
  OK(ctx, tide_matmul(&y, x, w));
  OK(ctx, tide_square(&sq, y));
  OK(ctx, tide_sum(&loss, sq, 0, NULL, false));
  OK(ctx, tide_backward_run(loss, NULL));
  OK(ctx, tide_grad(&g, w));
  assert_non_null(g);
  OK(ctx, tide_full(&m, ctx, TIDE_DEV_CPU, TIDE_F32, 2, shape, 0));
  OK(ctx, tide_full(&v, ctx, TIDE_DEV_CPU, TIDE_F32, 2, shape, 0));
  tide_adamw_attrs_init(&attrs);
  attrs.lr = 0.1;
  attrs.step = 1;
  OK(ctx, tide_adamw_(ctx, 1, &w, &g, &m, &v, NULL, NULL, NULL, NULL, &attrs));
  OK(ctx, tide_item(loss, &value));
  tide_tensor *const all[] = {w, loss, x, g, sq, v, y, m}; /* any order will do */
  for (size_t i = 0; i < LENGTH(all); i++) tide_tensor_release(all[i]);
  return value;
}

static void two_contexts(void **state)
{
  host a = {0}, b = {0};
  (void)state;
  tide_ctx *first = open_host(&a, NULL), *second = open_host(&b, "cache=0");
  assert_true(a.bytes > 0 && b.bytes > 0);
  double x = train_step(first), y = train_step(second);
  assert_true(x == y);
  /* x w = [[1, 3], [2.5, 5]]: the squares sum to 41.25 */
  assert_true(x == 41.25);
  assert_true(tide_ctx_stats(first)->nop > 0);
  tide_tensor *bad = NULL, *p = vector_f32(first, 2, (float[]){1, 2}),
              *q = vector_f32(second, 3, (float[]){1, 2, 3});
  assert_int_equal(tide_add(&bad, p, p), TIDE_OK);
  tide_tensor_release(bad);
  bad = p;
  assert_true(tide_add(&bad, p, q) < 0); /* of two contexts */
  assert_null(bad);
  tide_tensor_release(p);
  tide_tensor_release(q);
  close_ctx(first);
  assert_int_equal(a.blocks, 0);
  assert_int_equal(a.bytes, 0);
  assert_true(train_step(second) == 41.25);
  close_ctx(second);
  assert_int_equal(b.blocks, 0);
  assert_int_equal(b.bytes, 0);
}

typedef struct lender { int given; void *data; } lender;

static void take_back(void *user, void *data)
{
  lender *l = user;
  l->given++;
  l->data = data;
}

static int lend(tide_ctx *ctx, tide_tensor **out, float *data, int64_t n, lender *l)
{
  return tide_from_memory(out, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n, data, (size_t)n * sizeof *data,
                          take_back, l);
}

/* A tensor over memory of the host reads and writes it in place, and gives it back once. */
static void memory_of_the_host(void **state)
{
  (void)state;
  host h = {0};
  tide_ctx *ctx = open_host(&h, NULL);
  _Alignas(64) float data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int at = 0; at < 3; at++) { /* at any multiple of an element */
    lender l = {0};
    tide_tensor *t, *row;
    int64_t live = tide_ctx_stats(ctx)->live;
    assert_int_equal(lend(ctx, &t, data + at, 4, &l), TIDE_OK);
    assert_ptr_equal(tide_tensor_data(t), data + at);
    assert_true(tide_ctx_stats(ctx)->live == live);
    OK(ctx, tide_slice(&row, t, 0, 1, 3, 1));
    float before = data[at + 1], outside = data[at + 3];
    OK(ctx, tide_scale_(row, 3));
    assert_true(data[at + 1] == 3 * before && data[at + 3] == outside);
    tide_tensor_release(t);
    assert_int_equal(l.given, 0); /* the view holds it */
    tide_tensor_release(row);
    assert_int_equal(l.given, 1);
    assert_ptr_equal(l.data, data + at);
  }
  close_ctx(ctx);
  assert_int_equal(h.bytes, 0);
}

/* Memory that is lent twice: an in-place op reads what was there before it wrote. */
static void memory_lent_twice(void **state)
{
  enum { N = 5000, BY = 3 };
  (void)state;
  float data[N + BY];
  lender l = {0};
  tide_ctx *ctx = open_ctx(NULL);
  for (int way = -1; way <= 1; way += 2) {
    tide_tensor *to, *from;
    for (int i = 0; i < N + BY; i++) data[i] = (float)i;
    assert_int_equal(lend(ctx, &to, data + (way > 0 ? BY : 0), N, &l), TIDE_OK);
    assert_int_equal(lend(ctx, &from, data + (way > 0 ? 0 : BY), N, &l), TIDE_OK);
    OK(ctx, tide_copy_(to, from));
    const float *got = tide_tensor_data(to);
    for (int i = 0; i < N; i++) assert_true(got[i] == (float)(way > 0 ? i : i + BY));
    for (int i = 0; i < N + BY; i++) data[i] = (float)i;
    OK(ctx, tide_axpy_(to, from, 1));
    for (int i = 0; i < N; i++) assert_true(got[i] == (float)(2 * i + BY));
    tide_tensor_release(to);
    tide_tensor_release(from);
  }
  close_ctx(ctx);
}

/* Dropped bytes are the host's again; a scope drops them; restored bytes are the context's. */
static void memory_given_back(void **state)
{
  (void)state;
  tide_ctx *ctx = open_ctx(NULL);
  float data[4] = {1, 2, 3, 4};
  lender l = {0};
  tide_tensor *t, *sum = NULL;
  assert_int_equal(lend(ctx, &t, data, 4, &l), TIDE_OK);
  OK(ctx, tide_tensor_drop(t));
  assert_int_equal(l.given, 1);
  assert_int_equal(tide_sum(&sum, t, 0, NULL, false), TIDE_E_GONE);
  OK(ctx, tide_tensor_restore(t));
  assert_true(tide_tensor_data(t) != (void *)data);
  tide_tensor_release(t);
  assert_int_equal(l.given, 1);
  int depth = tide_scope_push(ctx);
  assert_int_equal(lend(ctx, &t, data, 4, &l), TIDE_OK);
  OK(ctx, tide_scope_pop(ctx, depth, NULL, 0));
  assert_int_equal(l.given, 2);
  tide_tensor_release(t);
  assert_int_equal(lend(ctx, &t, NULL, 0, &l), TIDE_OK);
  assert_int_equal(l.given, 3); /* empty */
  tide_tensor_release(t);
  close_ctx(ctx);
}

static void memory_refused(void **state)
{
  (void)state;
  tide_ctx *ctx = open_ctx(NULL);
  float data[4] = {0};
  lender l = {0};
  int64_t n = 4;
  tide_tensor *t;
  assert_int_equal(lend(ctx, &t, NULL, 4, &l), TIDE_E_ARG);
  assert_null(t);
  assert_int_equal(lend(ctx, &t, (float *)((char *)data + 2), 3, &l), TIDE_E_ARG);
  assert_non_null(strstr(tide_error(ctx)->message, "a multiple of 4"));
  assert_int_equal(tide_from_memory(&t, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n, data, 15, take_back,
                                    &l), TIDE_E_ARG);
  assert_int_equal(tide_from_memory(&t, ctx, TIDE_DEV_NULL, TIDE_F32, 1, &n, data, 16, take_back,
                                    &l), TIDE_E_DEVICE);
  assert_int_equal(tide_from_memory(&t, ctx, TIDE_DEV_CPU, 99, 1, &n, data, 16, take_back, &l),
                   TIDE_E_DTYPE);
  assert_int_equal(l.given, 0);
  close_ctx(ctx);
}

/* Releases a context `times` times while it has a tensor, which must stay readable until its own
 * release. */
static void release_before_tensor(int times)
{
  host h = {0};
  tide_ctx *ctx = open_host(&h, NULL);
  tide_tensor *t = vector_f32(ctx, 2, (float[]){1, 2});
  for (int i = 0; i < times; i++) tide_ctx_release(ctx);
  assert_true(h.bytes > 0);
  double values[2];
  assert_int_equal(tide_to_doubles(t, values, 2), TIDE_OK);
  assert_true(values[1] == 2);
  tide_tensor_release(t);
  assert_int_equal(h.bytes, 0);
}

/* A context lives until the last tensor made on it is gone. */
static void order_of_release(void **state)
{
  (void)state;
  release_before_tensor(1);
}

static int made(tide_ctx *ctx, int dtype, double value)
{
  tide_tensor *t;
  const int64_t n = 2;
  int full = tide_full(&t, ctx, TIDE_DEV_CPU, dtype, 1, &n, value);
  tide_tensor_release(t);
  int arange = tide_arange(&t, ctx, TIDE_DEV_CPU, dtype, n, value < 0 ? value + 1 : value - 1,
                           value < 0 ? -1 : 1);
  tide_tensor_release(t);
  assert_int_equal(full, full == TIDE_OK ? TIDE_OK : TIDE_E_DTYPE);
  assert_int_equal(arange, full == TIDE_OK || !isfinite(value) ? arange : TIDE_E_ARG);
  return full == TIDE_OK && arange == TIDE_OK;
}

/* Numbers that an integer dtype does not have are refused, not clamped or wrapped. */
static void numbers_out_of_range(void **state)
{
  (void)state;
  tide_ctx *ctx = open_ctx(NULL);
  assert_true(made(ctx, TIDE_U8, 255) && !made(ctx, TIDE_U8, 256) && !made(ctx, TIDE_U8, -1));
  assert_true(made(ctx, TIDE_I32, 2147483647.0) && !made(ctx, TIDE_I32, 2147483648.0));
  assert_true(made(ctx, TIDE_I32, -2147483648.0) && !made(ctx, TIDE_I32, -2147483649.0));
  assert_true(made(ctx, TIDE_I64, 0x1p62) && !made(ctx, TIDE_I64, 0x1p63));
  assert_true(!made(ctx, TIDE_I64, INFINITY) && !made(ctx, TIDE_U8, NAN));
  assert_true(made(ctx, TIDE_BOOL, 2) && made(ctx, TIDE_F16, 1e30));
  close_ctx(ctx);
}

/* A host that releases a context twice releases no reference of the tensors. */
static void second_release(void **state)
{
  (void)state;
  release_before_tensor(2);
}

/* One context's failure is not another's, and the record holds what the caller needs. */
static void errors_apart(void **state)
{
  (void)state;
  tide_ctx *a = open_ctx(NULL), *b = open_ctx(NULL);
  tide_tensor *x = vector_f32(a, 2, (float[]){1, 2}), *y = vector_f32(a, 3, (float[]){1, 2, 3});
  tide_tensor *out = x;
  assert_int_equal(tide_add(&out, x, y), TIDE_E_SHAPE);
  assert_null(out);
  assert_int_equal(tide_error(a)->code, TIDE_E_SHAPE);
  assert_string_equal(tide_error(a)->op, "add");
  assert_non_null(strstr(tide_error(a)->message, "[2]"));
  assert_non_null(strstr(tide_error(a)->message, "[3]"));
  assert_int_equal(tide_error(b)->code, TIDE_OK);
  tide_tensor_release(x);
  tide_tensor_release(y);
  close_ctx(a);
  close_ctx(b);
}

static void bad_options(void **state)
{
  tide_opts opts;
  tide_ctx *ctx = NULL;
  char msg[256] = "";
  (void)state;
  tide_opts_init(&opts);
  opts.params = "no_such_parameter=1";
  assert_int_equal(tide_ctx_new(&ctx, &opts, msg, sizeof msg), TIDE_E_ARG);
  assert_null(ctx);
  assert_non_null(strstr(msg, "no_such_parameter"));
  tide_opts_init(&opts);
  opts.size = 0;
  assert_true(tide_ctx_new(&ctx, &opts, msg, sizeof msg) < 0);
  tide_opts_init(&opts);
  opts.params = "check=7";
  assert_true(tide_ctx_new(&ctx, &opts, NULL, 0) < 0);
  assert_int_equal(tide_ctx_new(&ctx, NULL, NULL, 0), TIDE_OK);
  tide_ctx_release(ctx);
  tide_ctx_release(NULL);
  tide_tensor_release(NULL);
}

/* The process is the host's: descriptors, signals, environment, standard streams. */
static void manners(void **state)
{
  struct sigaction before[32], after;
  char path[256];
  extern char **environ;
  (void)state;
  scratch(path, sizeof path, "streams");
  for (int s = 1; s < 32; s++) sigaction(s, NULL, &before[s]);
  char **env = environ;
  size_t nenv = 0;
  while (env[nenv]) nenv++;
  int saved_out = dup(1), saved_err = dup(2), file = open(path, O_RDWR | O_TRUNC);
  int lowest = dup(0);
  fflush(NULL);
  dup2(file, 1);
  dup2(file, 2);
  tide_ctx *ctx = open_ctx("log=3");
  train_step(ctx);
  tide_tensor *out = NULL;
  tide_empty(&out, ctx, 99, 99, 99, NULL); /* a failure is as quiet */
  close_ctx(ctx);
  fflush(NULL);
  dup2(saved_out, 1);
  dup2(saved_err, 2);
  assert_int_equal(lseek(file, 0, SEEK_END), 0);
  close(lowest);
  int again = dup(0);
  assert_int_equal(again, lowest); /* nothing was left open */
  close(again);
  close(saved_out);
  close(saved_err);
  close(file);
  for (int s = 1; s < 32; s++) {
    sigaction(s, NULL, &after);
    assert_true(after.sa_handler == before[s].sa_handler);
  }
  assert_ptr_equal(environ, env);
  size_t n = 0;
  while (environ[n]) n++;
  assert_int_equal(n, nenv);
  unlink(path);
}

static void logged(const host *h, int n, int level, const char *words)
{
  assert_int_equal(h->nlog, n);
  assert_int_equal(h->level, level);
  if (!strstr(h->last, words)) fail_msg("no '%s' in the line '%s'", words, h->last);
}

/* What happens is told at its level, and no more than was asked for. */
static void lines(void **state)
{
  host h = {0};
  tide_comm *comm;
  (void)state;
  tide_ctx *ctx = open_host(&h, "log=3");
  logged(&h, 1, TIDE_LOG_DEBUG, "2 threads");
  tide_device_available(ctx, TIDE_DEV_CUDA);
  logged(&h, 2, TIDE_LOG_INFO, "device 'cuda' is "); /* open, or not available */
  OK(ctx, tide_comm_join(&comm, ctx, NULL, 0));
  OK(ctx, tide_comm_barrier(NULL, comm));
  assert_int_equal(h.nlog, 2);
  OK(ctx, tide_comm_set_timeout(comm, 1e-9));
  OK(ctx, tide_param_set(ctx, "log", "0"));
  OK(ctx, tide_comm_barrier(NULL, comm));
  assert_int_equal(h.nlog, 2);
  OK(ctx, tide_param_set(ctx, "log", "1"));
  OK(ctx, tide_comm_barrier(NULL, comm));
  logged(&h, 3, TIDE_LOG_WARN, "barrier on 'world'");
  tide_comm_abort(comm, "enough");
  assert_true(tide_comm_barrier(NULL, comm) < 0);
  assert_true(tide_comm_barrier(NULL, comm) < 0); /* the same failure */
  logged(&h, 4, TIDE_LOG_ERROR, "'world' has failed");
  tide_comm_release(comm);
  close_ctx(ctx);
  assert_int_equal(h.nlog, 4);
}

/* A new segment of the device's memory fails once, as allocation `at`: what is cached goes back, it
 * is tried again, and told. */
static bool short_of_memory(int at)
{
  const int64_t little = 1, much = 300 << 20;
  char number[16];
  host h = {0};
  tide_tensor *first, *t = NULL;
  tide_ctx *ctx = open_host(&h, NULL);
  OK(ctx, tide_empty(&first, ctx, TIDE_DEV_CPU, TIDE_U8, 1, &little));
  snprintf(number, sizeof number, "%d", at);
  OK(ctx, tide_param_set(ctx, "fail_alloc", number));
  int rc = tide_empty(&t, ctx, TIDE_DEV_CPU, TIDE_U8, 1, &much);
  bool told = rc == TIDE_OK && h.nlog == 1;
  if (told) logged(&h, 1, TIDE_LOG_WARN, "device 'cpu' has no 314572800 bytes left");
  tide_tensor_release(t);
  tide_tensor_release(first);
  close_ctx(ctx);
  return told;
}

static void memory_line(void **state)
{
  int told = 0;
  (void)state;
  for (int at = 1; at <= 12; at++) told += short_of_memory(at);
  assert_true(told > 0);
}

/* Numbers of ops that divide by 0 and round, over several threads. */
static void numbers(tide_ctx *ctx, float *out, int64_t n)
{
  tide_tensor *x, *zero, *y, *bad;
  OK(ctx, tide_full(&x, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n, 0.1));
  OK(ctx, tide_full(&zero, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n, 0));
  OK(ctx, tide_exp(&y, x));
  OK(ctx, tide_mul(&bad, y, x));
  OK(ctx, tide_to_bytes(bad, out, (size_t)n * sizeof *out));
  tide_tensor_release(bad);
  OK(ctx, tide_div(&bad, zero, zero));
  tide_tensor *const all[] = {x, zero, y, bad};
  for (size_t i = 0; i < LENGTH(all); i++) tide_tensor_release(all[i]);
}

/* A host that rounds upwards or traps gets the same numbers, and keeps its state. */
static void floating_point_of_the_host(void **state)
{
  enum { N = 1 << 17 };
  static float want[N], got[N];
  (void)state;
  tide_ctx *ctx = open_ctx(NULL);
  numbers(ctx, want, N);
  assert_int_equal(fesetround(FE_UPWARD), 0);
  numbers(ctx, got, N);
  assert_int_equal(fegetround(), FE_UPWARD);
  fesetround(FE_TONEAREST);
  assert_memory_equal(got, want, sizeof want);
#ifdef __GLIBC__
  feclearexcept(FE_ALL_EXCEPT);
  feenableexcept(FE_DIVBYZERO | FE_INVALID);
  numbers(ctx, got, N);
  assert_int_equal(fegetexcept(), FE_DIVBYZERO | FE_INVALID);
  fedisableexcept(FE_ALL_EXCEPT);
  assert_memory_equal(got, want, sizeof want);
#endif
  close_ctx(ctx);
}

static void many_contexts(void **state)
{
  (void)state;
  for (int i = 0; i < 200; i++) {
    tide_ctx *ctx = open_ctx(i % 2 ? "cache=0" : NULL);
    assert_true(train_step(ctx) == 41.25);
    close_ctx(ctx);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(memory_of_the_host),
    cmocka_unit_test(memory_given_back),
    cmocka_unit_test(memory_lent_twice),
    cmocka_unit_test(memory_refused),
    cmocka_unit_test(two_contexts), cmocka_unit_test(order_of_release),
    cmocka_unit_test(second_release),
    cmocka_unit_test(numbers_out_of_range),
    cmocka_unit_test(errors_apart), cmocka_unit_test(bad_options),
    cmocka_unit_test(manners),      cmocka_unit_test(many_contexts),
    cmocka_unit_test(lines),        cmocka_unit_test(memory_line),
    cmocka_unit_test(floating_point_of_the_host),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
