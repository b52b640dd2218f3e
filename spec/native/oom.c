/* Out of memory: allocation n fails for n = 1, 2, 3, ... until nothing fails any more, once and
 * from n on, through the resize hook (host memory) and through parameter fail_alloc (tensor memory
 * too). Every failure is E_NOMEM with a message, what succeeds has the right result (a cache that
 * cannot remember a free block may simply give it back), and nothing leaks. */
#include "check.h"

#include <unistd.h>

typedef struct heap {
  int64_t bytes, count, fail_at;
  bool    persistent, hit;
} heap;

static void *resize(void *user, void *ptr, size_t nold, size_t nnew)
{
  heap *h = user;
  if (nnew == 0) {
    h->bytes -= (int64_t)nold;
    free(ptr);
    return NULL;
  }
  h->count++;
  if (h->fail_at && (h->count == h->fail_at || (h->persistent && h->count > h->fail_at))) {
    h->hit = true;
    return NULL;
  }
  void *p = realloc(ptr, nnew);
  if (p) h->bytes += (int64_t)nnew - (int64_t)(ptr ? nold : 0);
  return p;
}

enum { NTENSOR = 20 };

typedef struct scene {
  tide_ctx *ctx;
  tide_tensor *t[NTENSOR];
  tide_file *file;
  tide_json *json;
  tide_backward *walk;
  const char *path;
} scene;

#define STEP(call)            \
  do {                        \
    int rc_ = (call);         \
    if (rc_ < 0) return rc_;  \
  } while (0)

/* Model: y = relu(x w + b), mean, backward by events, clip, AdamW. */
static int train(scene *s)
{
  const int64_t xs[] = {4, 8}, ws[] = {8, 8}, bs[] = {8};
  tide_ctx *ctx = s->ctx;
  tide_tensor **t = s->t;
  tide_event event;
  tide_adamw_attrs attrs;
  STEP(tide_full(&t[0], ctx, TIDE_DEV_CPU, TIDE_F32, 2, xs, 0.5));
  STEP(tide_empty(&t[1], ctx, TIDE_DEV_CPU, TIDE_F32, 2, ws));
  STEP(tide_normal_(t[1], 0, 1, NULL));
  STEP(tide_full(&t[2], ctx, TIDE_DEV_CPU, TIDE_F32, 1, bs, 0.1));
  STEP(tide_set_needs_grad(t[1], true));
  STEP(tide_set_needs_grad(t[2], true));
  STEP(tide_matmul(&t[3], t[0], t[1]));
  STEP(tide_add(&t[4], t[3], t[2]));
  STEP(tide_relu(&t[5], t[4]));
  STEP(tide_mean(&t[6], t[5], 0, NULL, false));
  STEP(tide_backward_begin(&s->walk, t[6], NULL, false));
  for (int rc; (rc = tide_backward_next(s->walk, &event)) != TIDE_OK;) STEP(rc);
  STEP(tide_grad(&t[7], t[1]));
  STEP(tide_norm(&t[8], ctx, 1, &t[7], 2, false));
  STEP(tide_clip_factor(&t[9], t[8], 1.0));
  STEP(tide_full(&t[10], ctx, TIDE_DEV_CPU, TIDE_F32, 2, ws, 0));
  STEP(tide_full(&t[11], ctx, TIDE_DEV_CPU, TIDE_F32, 2, ws, 0));
  tide_adamw_attrs_init(&attrs);
  attrs.step = 1;
  return tide_adamw_(ctx, 1, &t[1], &t[7], &t[10], &t[11], NULL, t[9], NULL, NULL, &attrs);
}

/* A weight with a change of low rank: few rows keep h, many copy the weight. */
static int adapted(scene *s, int64_t rows)
{
  const int64_t xs[] = {rows, 8}, as[] = {2, 8}, bs[] = {8, 2};
  tide_tensor **t = s->t + 14;
  tide_event event;
  for (int i = 0; i < 5; i++) tide_tensor_release(t[i]), t[i] = NULL;
  STEP(tide_full(&t[0], s->ctx, TIDE_DEV_CPU, TIDE_F32, 2, xs, 0.5));
  STEP(tide_full(&t[1], s->ctx, TIDE_DEV_CPU, TIDE_F32, 2, as, 0.25));
  STEP(tide_full(&t[2], s->ctx, TIDE_DEV_CPU, TIDE_F32, 2, bs, 2));
  for (int i = 0; i < 3; i++) STEP(tide_set_needs_grad(t[i], true));
  STEP(tide_linear_lora(&t[3], t[0], s->t[1], NULL, t[1], t[2], 0.5));
  STEP(tide_mean(&t[4], t[3], 0, NULL, false));
  tide_backward_release(s->walk);
  s->walk = NULL;
  STEP(tide_backward_begin(&s->walk, t[4], NULL, false));
  for (int rc; (rc = tide_backward_next(s->walk, &event)) != TIDE_OK;) STEP(rc);
  return TIDE_OK;
}

/* The weights to a file and back, and a piece of JSON. */
static int files(scene *s)
{
  static const char text[] = "{\"a\": [1, 2, {\"b\": \"c\"}], \"d\": null}";
  const char *name = "w", *key = "k", *value = "v";
  tide_tensor *turned = NULL;
  STEP(tide_transpose(&s->t[12], s->t[1], 0, 1));
  turned = s->t[12];
  STEP(tide_file_save(s->ctx, s->path, 1, &name, &turned, 1, &key, &value));
  STEP(tide_file_open(&s->file, s->ctx, s->path));
  STEP(tide_file_load(&s->t[13], s->file, 0, TIDE_DEV_CPU));
  return tide_json_parse(&s->json, s->ctx, text, sizeof text - 1, 0, 0, NULL);
}

static int scenario(scene *s)
{
  int depth = tide_scope_push(s->ctx);
  STEP(depth);
  int rc = train(s);
  if (rc == TIDE_OK) rc = adapted(s, 2);
  if (rc == TIDE_OK) rc = adapted(s, 40);
  if (rc == TIDE_OK) rc = files(s);
  int popped = tide_scope_pop(s->ctx, depth, &s->t[1], rc == TIDE_OK);
  return rc < 0 ? rc : popped;
}

/* Tidies up whatever there is; the context goes last. */
static void clear(scene *s)
{
  tide_backward_release(s->walk);
  tide_file_release(s->file);
  tide_json_release(s->json);
  for (int i = 0; i < NTENSOR; i++) tide_tensor_release(s->t[i]);
}

static tide_ctx *open_on(heap *h, const char *params, int *rc)
{
  tide_opts opts;
  char msg[256] = "";
  tide_ctx *ctx = NULL;
  tide_opts_init(&opts);
  opts.resize = resize;
  opts.user = h;
  opts.nthread = 1;
  opts.params = params;
  *rc = tide_ctx_new(&ctx, &opts, msg, sizeof msg);
  if (*rc < 0) {
    assert_null(ctx);
    assert_true(msg[0] != 0);
  }
  return ctx;
}

/* A finished scenario must have made the same weights as one without any fault. */
static void check_result(const scene *s, int64_t n)
{
  static double right[64];
  double got[64];
  assert_int_equal(tide_to_doubles(s->t[1], got, 64), TIDE_OK);
  if (right[0] == 0) memcpy(right, got, sizeof right);
  if (memcmp(right, got, sizeof right) != 0) fail_msg("n = %ld: other weights", (long)n);
}

/* One run with the fault armed. True: it was reached. */
static bool run_host(int64_t n, bool persistent, const char *path)
{
  heap h = {.fail_at = n, .persistent = persistent};
  int rc;
  tide_ctx *ctx = open_on(&h, NULL, &rc);
  if (ctx) {
    scene s = {.ctx = ctx, .path = path};
    rc = scenario(&s);
    if (rc < 0 && tide_error(ctx)->code != rc) fail_msg("n = %ld: no record", (long)n);
    h.fail_at = 0;
    if (rc == TIDE_OK) check_result(&s, n);
    clear(&s);
    assert_int_equal(tide_ctx_stats(ctx)->ntensor, 0);
    tide_ctx_release(ctx);
  }
  if (rc < 0 && rc != TIDE_E_NOMEM) fail_msg("n = %ld: status %d", (long)n, rc);
  if (h.bytes != 0) fail_msg("n = %ld: %ld bytes leaked", (long)n, (long)h.bytes);
  return h.hit;
}

static void host_memory(void **state)
{
  char path[256];
  (void)state;
  scratch(path, sizeof path, "oom");
  for (int persistent = 0; persistent < 2; persistent++) {
    int64_t n = 1;
    while (run_host(n, persistent, path)) n++;
    assert_true(n > 20); /* the scenario does allocate */
  }
  unlink(path);
}

static int run_tensors(int64_t n, const char *path)
{
  heap h = {0};
  char params[64];
  int rc;
  snprintf(params, sizeof params, "cache=0 fail_alloc=%ld", (long)n);
  tide_ctx *ctx = open_on(&h, params, &rc);
  if (!ctx) {
    assert_int_equal(rc, TIDE_E_NOMEM);
    assert_int_equal(h.bytes, 0);
    return rc;
  }
  scene s = {.ctx = ctx, .path = path};
  rc = scenario(&s);
  OK(ctx, tide_param_set(ctx, "fail_alloc", "0"));
  if (rc == TIDE_OK) check_result(&s, n);
  clear(&s);
  assert_int_equal(tide_ctx_stats(ctx)->live, 0);
  assert_int_equal(tide_ctx_stats(ctx)->ntensor, 0);
  assert_int_equal(tide_ctx_stats(ctx)->nnode, 0);
  tide_ctx_release(ctx);
  if (rc < 0 && rc != TIDE_E_NOMEM) fail_msg("fail_alloc=%ld: status %d", (long)n, rc);
  if (h.bytes != 0) fail_msg("fail_alloc=%ld: %ld bytes leaked", (long)n, (long)h.bytes);
  return rc;
}

static void tensor_memory(void **state)
{
  char path[256];
  (void)state;
  scratch(path, sizeof path, "oom");
  for (int sign = 1; sign >= -1; sign -= 2) {
    int fine = 0, failed = 0; /* far past the last allocation when 200 runs in a row are fine */
    for (int64_t n = 1; fine < 200; n++) {
      int rc = run_tensors(sign * n, path);
      fine = rc == TIDE_OK ? fine + 1 : 0;
      failed += rc < 0;
    }
    assert_true(failed > 20);
  }
  unlink(path);
}

/* The limit on live bytes: refused in words that say how much, and usable afterwards. */
static void memory_limit(void **state)
{
  tide_ctx *ctx = open_ctx("memory=1m cache=0");
  tide_tensor *small = NULL, *big = NULL;
  const int64_t few = 1000, many = 1 << 20;
  (void)state;
  OK(ctx, tide_full(&small, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &few, 1));
  assert_int_equal(tide_full(&big, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &many, 1), TIDE_E_NOMEM);
  assert_null(big);
  assert_true(strlen(tide_error(ctx)->message) > 10);
  OK(ctx, tide_add(&big, small, small));
  tide_tensor_release(big);
  tide_tensor_release(small);
  close_ctx(ctx);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(host_memory), cmocka_unit_test(tensor_memory), cmocka_unit_test(memory_limit),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
