/* Contexts on threads: each thread with its own gives the same numbers; handles released by other
 * threads are settled by the owner; a context can be handed over. */
#include "check.h"

#include <pthread.h>
#include <stdatomic.h>

enum { NTHREAD = 8, N = 64 };

/* Sum of gelu(a a^T + u), u drawn from the context's generator. */
static int work(tide_ctx *ctx, double *value)
{
  const int64_t shape[] = {N, N};
  tide_tensor *a = NULL, *t = NULL, *p = NULL, *u = NULL, *s = NULL, *g = NULL, *sum = NULL;
  int rc = tide_empty(&a, ctx, TIDE_DEV_CPU, TIDE_F32, 2, shape);
  if (rc == TIDE_OK) rc = tide_normal_(a, 0, 1, NULL);
  if (rc == TIDE_OK) rc = tide_transpose(&t, a, 0, 1);
  if (rc == TIDE_OK) rc = tide_matmul(&p, a, t);
  if (rc == TIDE_OK) rc = tide_empty(&u, ctx, TIDE_DEV_CPU, TIDE_F32, 2, shape);
  if (rc == TIDE_OK) rc = tide_uniform_(u, 0, 1, NULL);
  if (rc == TIDE_OK) rc = tide_add(&s, p, u);
  if (rc == TIDE_OK) rc = tide_gelu(&g, s);
  if (rc == TIDE_OK) rc = tide_sum(&sum, g, 0, NULL, false);
  if (rc == TIDE_OK) rc = tide_item(sum, value);
  tide_tensor *const all[] = {a, t, p, u, s, g, sum};
  for (size_t i = 0; i < LENGTH(all); i++) tide_tensor_release(all[i]);
  return rc;
}

typedef struct seat {
  pthread_t thread;
  double value;
  int rc;
  tide_ctx *ctx;
  tide_tensor *t[N];
} seat;

static void *own_context(void *arg)
{
  seat *s = arg;
  for (int i = 0; i < 10; i++) {
    tide_ctx *ctx = NULL;
    double value = 0;
    s->rc = tide_ctx_new(&ctx, NULL, NULL, 0);
    if (s->rc == TIDE_OK) s->rc = work(ctx, &value);
    if (s->rc == TIDE_OK && i > 0 && value != s->value) s->rc = TIDE_E_INTERNAL;
    s->value = value;
    if (ctx && tide_ctx_stats(ctx)->ntensor != 0) s->rc = TIDE_E_STATE;
    tide_ctx_release(ctx);
    if (s->rc < 0) return NULL;
  }
  return NULL;
}

static void contexts_in_parallel(void **state)
{
  seat seats[NTHREAD] = {{0}};
  double alone;
  (void)state;
  tide_ctx *ctx = open_ctx(NULL);
  OK(ctx, work(ctx, &alone));
  close_ctx(ctx);
  for (int i = 0; i < NTHREAD; i++)
    assert_int_equal(pthread_create(&seats[i].thread, NULL, own_context, &seats[i]), 0);
  for (int i = 0; i < NTHREAD; i++) pthread_join(seats[i].thread, NULL);
  for (int i = 0; i < NTHREAD; i++) {
    assert_int_equal(seats[i].rc, TIDE_OK);
    assert_true(seats[i].value == alone);
  }
}

static void *release_all(void *arg)
{
  seat *s = arg;
  for (int i = 0; i < N; i++) tide_tensor_release(s->t[i]);
  return NULL;
}

static void foreign_release(void **state)
{
  seat seats[NTHREAD] = {{0}};
  (void)state;
  tide_ctx *ctx = open_ctx(NULL);
  tide_tensor *shared = vector_f32(ctx, 1, (float[]){1});
  for (int i = 0; i < NTHREAD; i++) {
    for (int k = 0; k < N; k++) {
      seats[i].t[k] = k % 2 ? vector_f32(ctx, 2, (float[]){1, 2}) : shared;
      if (k % 2 == 0) OK(ctx, tide_tensor_retain(shared));
    }
    assert_int_equal(pthread_create(&seats[i].thread, NULL, release_all, &seats[i]), 0);
    tide_tensor *more = vector_f32(ctx, 1, (float[]){2}); /* the owner goes on working */
    tide_tensor_release(more);
  }
  for (int i = 0; i < NTHREAD; i++) pthread_join(seats[i].thread, NULL);
  tide_tensor *twice = NULL; /* an op settles what has piled up */
  OK(ctx, tide_add(&twice, shared, shared));
  assert_int_equal(tide_ctx_stats(ctx)->ntensor, 2);
  tide_tensor_release(twice);
  tide_tensor_release(shared);
  close_ctx(ctx);
}

static void *release_spent(void *arg)
{
  seat *s = arg;
  for (int i = 0; i < N; i++) tide_tensor_release_spent(s->t[i]);
  return NULL;
}

/* A spent reference and a plain one of the same handle, each released on a thread of its own. */
static void foreign_release_spent(void **state)
{
  seat seats[2] = {{0}};
  (void)state;
  tide_ctx *ctx = open_ctx(NULL);
  for (int k = 0; k < N; k++) {
    seats[0].t[k] = seats[1].t[k] = vector_f32(ctx, 2, (float[]){1, 2});
    OK(ctx, tide_tensor_retain(seats[0].t[k]));
    assert_int_equal(tide_tensor_spend(seats[0].t[k]), TIDE_OK);
    assert_int_equal(tide_tensor_spend(seats[0].t[k]), TIDE_MORE); /* one reference at most */
    assert_false(tide_tensor_is_gone(seats[0].t[k]));
  }
  assert_int_equal(pthread_create(&seats[0].thread, NULL, release_spent, &seats[0]), 0);
  assert_int_equal(pthread_create(&seats[1].thread, NULL, release_all, &seats[1]), 0);
  for (int i = 0; i < 2; i++) pthread_join(seats[i].thread, NULL);
  OK(ctx, tide_ctx_attach(ctx));
  assert_int_equal(tide_ctx_stats(ctx)->ntensor, 0);
  assert_int_equal(tide_ctx_stats(ctx)->live, 0);
  close_ctx(ctx);
}

typedef struct handles {
  tide_comm *comm[N];
  tide_work *work[N];
} handles;

static void *release_comms(void *arg)
{
  handles *h = arg;
  for (int i = 0; i < N; i++) {
    tide_work_release(h->work[i]);
    tide_comm_release(h->comm[i]);
  }
  return NULL;
}

/* Makes communicators and works. */
static void make_comms(tide_ctx *ctx, tide_comm *world, handles *h)
{
  for (int k = 0; k < N; k++) {
    tide_tensor *t = vector_f32(ctx, 1, (float[]){1});
    OK(ctx, tide_comm_split(&h->comm[k], world, 0, 0, "part"));
    OK(ctx, tide_comm_all_reduce(&h->work[k], h->comm[k], 1, &t, TIDE_SUM));
    tide_tensor_release(t);
  }
}

static void release_on(pthread_t *thread, handles *h)
{
  assert_int_equal(pthread_create(thread, NULL, release_comms, h), 0);
}

/* A resize hook that counts: when a context has gone, every byte has come back. */
static void *count_bytes(void *user, void *ptr, size_t nold, size_t nnew)
{
  *(int64_t *)user += (int64_t)nnew - (int64_t)nold;
  if (nnew) return realloc(ptr, nnew);
  free(ptr);
  return NULL;
}

static tide_ctx *counted_ctx(int64_t *bytes)
{
  tide_opts opts;
  tide_ctx *ctx = NULL;
  tide_opts_init(&opts);
  opts.resize = count_bytes;
  opts.user = bytes;
  *bytes = 0;
  assert_int_equal(tide_ctx_new(&ctx, &opts, NULL, 0), TIDE_OK);
  return ctx;
}

/* In the first round all handles live together, so the pools have their largest size after it. */
static void foreign_comm(void **state)
{
  handles all[4];
  pthread_t thread[4];
  tide_comm *world = NULL;
  int64_t bytes;
  (void)state;
  tide_ctx *ctx = counted_ctx(&bytes);
  OK(ctx, tide_comm_join(&world, ctx, NULL, 0));
  for (int round = 0; round < 3; round++) {
    for (int i = 0; i < 4; i++) {
      make_comms(ctx, world, &all[i]);
      if (round > 0) release_on(&thread[i], &all[i]);
    }
    for (int i = 0; i < 4 && round == 0; i++) release_on(&thread[i], &all[i]);
    for (int i = 0; i < 4; i++) pthread_join(thread[i], NULL);
    OK(ctx, tide_comm_barrier(NULL, world)); /* a collective settles them, as an op does */
    assert_int_equal(tide_ctx_stats(ctx)->ntensor, 0);
  }
  tide_comm_release(world);
  close_ctx(ctx);
  assert_int_equal(bytes, 0);
}

/* ---- a case for each type that needs no device: made by the owner, released beside it -------- */

enum { NSLOT = 64, NMADE = 2000 };

/* What is handed over, and how it is released. */
typedef struct mailbox {
  _Atomic(void *) slot[NSLOT];
  atomic_int stop;
  void (*release)(void *object);
} mailbox;

static void *release_mail(void *arg)
{
  mailbox *m = arg;
  for (;;) {
    int stop = atomic_load(&m->stop), any = 0;
    for (int i = 0; i < NSLOT; i++) {
      void *object = atomic_exchange(&m->slot[i], NULL);
      if (object) m->release(object);
      any |= object != NULL;
    }
    if (stop && !any) return NULL;
  }
}

static char path[256]; /* of a safetensors file, for the types that need one */

static void *make_json(tide_ctx *ctx)
{
  tide_json *json = NULL;
  OK(ctx, tide_json_parse(&json, ctx, "[1]", 3, 0, 0, NULL));
  return json;
}

static void *make_blob(tide_ctx *ctx)
{
  tide_blob *blob = NULL;
  OK(ctx, tide_path_read(&blob, ctx, path, 0));
  return blob;
}

static void *make_file(tide_ctx *ctx)
{
  tide_file *file = NULL;
  OK(ctx, tide_file_open(&file, ctx, path));
  return file;
}

/* Null while the lock before has not been settled. */
static void *make_lock(tide_ctx *ctx)
{
  tide_lock *lock = NULL;
  OK(ctx, tide_path_lock(&lock, ctx, path));
  return lock;
}

static void *make_saving(tide_ctx *ctx)
{
  char to[300];
  tide_saving *saving = NULL;
  snprintf(to, sizeof to, "%s.saved", path);
  OK(ctx, tide_saving_begin(&saving, ctx, to, 0, NULL, NULL));
  return saving;
}

/* Walks nest, so one is ended before the next begins. */
static void *make_backward(tide_ctx *ctx)
{
  tide_event event;
  tide_backward *walk = NULL;
  tide_tensor *x = vector_f32(ctx, 1, (float[]){1}), *y = NULL;
  OK(ctx, tide_set_needs_grad(x, true));
  OK(ctx, tide_exp(&y, x));
  OK(ctx, tide_backward_begin(&walk, y, NULL, false));
  assert_int_equal(tide_backward_next(walk, &event), TIDE_OK);
  tide_tensor_release(y);
  tide_tensor_release(x);
  return walk;
}

static void drop_json(void *p) { tide_json_release(p); }
static void drop_blob(void *p) { tide_blob_release(p); }
static void drop_file(void *p) { tide_file_release(p); }
static void drop_lock(void *p) { tide_lock_release(p); }
static void drop_saving(void *p) { tide_saving_release(p); }
static void drop_backward(void *p) { tide_backward_release(p); }

/* The owner makes objects while another thread releases them; every byte is freed. */
static void hand_over(void *(*make)(tide_ctx *ctx), void (*release)(void *object), int n)
{
  mailbox m = {.release = release};
  pthread_t thread;
  int64_t bytes;
  tide_ctx *ctx = counted_ctx(&bytes);
  const char header[10] = {2, 0, 0, 0, 0, 0, 0, 0, '{', '}'}; /* of a file without tensors */
  scratch(path, sizeof path, "thread");
  OK(ctx, tide_path_write(ctx, path, header, sizeof header));
  release(make(ctx)); /* on the owner's thread */
  assert_int_equal(pthread_create(&thread, NULL, release_mail, &m), 0);
  for (int i = 0; i < n; i++) {
    void *object = make(ctx), *none = NULL;
    while (object && !atomic_compare_exchange_strong(&m.slot[i % NSLOT], &none, object))
      none = NULL;
  }
  atomic_store(&m.stop, 1);
  pthread_join(thread, NULL);
  OK(ctx, tide_ctx_attach(ctx)); /* settles */
  close_ctx(ctx);
  assert_int_equal(bytes, 0);
  remove(path);
}

static void foreign_json(void **state) { (void)state; hand_over(make_json, drop_json, 20000); }
static void foreign_blob(void **state) { (void)state; hand_over(make_blob, drop_blob, NMADE); }
static void foreign_file(void **state) { (void)state; hand_over(make_file, drop_file, NMADE); }
static void foreign_lock(void **state) { (void)state; hand_over(make_lock, drop_lock, NMADE); }
static void foreign_backward(void **state)
{
  (void)state;
  hand_over(make_backward, drop_backward, NMADE);
}
static void foreign_saving(void **state)
{
  char to[300];
  (void)state;
  hand_over(make_saving, drop_saving, 50);
  snprintf(to, sizeof to, "%s.saved", path);
  remove(to);
}

/* The last handles of a context may go on another thread, after the owner has let it go. */
static void *release_last(void *arg)
{
  tide_tensor_release(arg);
  return NULL;
}

static void foreign_last(void **state)
{
  (void)state;
  for (int i = 0; i < 20; i++) {
    pthread_t thread;
    tide_ctx *ctx = open_ctx(NULL);
    tide_tensor *t = vector_f32(ctx, 1, (float[]){1});
    assert_int_equal(pthread_create(&thread, NULL, release_last, t), 0);
    pthread_join(thread, NULL);
    tide_ctx_release(ctx);
  }
}

static void *attach_and_work(void *arg)
{
  seat *s = arg;
  s->rc = tide_ctx_attach(s->ctx);
  if (s->rc == TIDE_OK) s->rc = work(s->ctx, &s->value);
  return NULL;
}

static void handed_over(void **state)
{
  seat s = {.ctx = open_ctx(NULL)};
  double alone;
  (void)state;
  tide_ctx *other = open_ctx(NULL);
  OK(other, work(other, &alone));
  close_ctx(other);
  assert_int_equal(pthread_create(&s.thread, NULL, attach_and_work, &s), 0);
  pthread_join(s.thread, NULL);
  assert_int_equal(s.rc, TIDE_OK);
  assert_true(s.value == alone);
  assert_int_equal(tide_ctx_attach(s.ctx), TIDE_OK);
  close_ctx(s.ctx);
}

static void *interrupt(void *arg)
{
  tide_interrupt(arg);
  return NULL;
}

static void interrupted(void **state)
{
  pthread_t thread;
  double value;
  (void)state;
  tide_ctx *ctx = open_ctx(NULL);
  assert_int_equal(tide_interrupted(ctx), 0);
  assert_int_equal(pthread_create(&thread, NULL, interrupt, ctx), 0);
  pthread_join(thread, NULL);
  assert_int_equal(tide_interrupted(ctx), 1);
  assert_int_equal(tide_interrupted(ctx), 0);
  assert_int_equal(work(ctx, &value), TIDE_OK);
  close_ctx(ctx);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(contexts_in_parallel), cmocka_unit_test(foreign_release),
    cmocka_unit_test(foreign_release_spent),
    cmocka_unit_test(foreign_comm),
    cmocka_unit_test(foreign_json), cmocka_unit_test(foreign_blob),
    cmocka_unit_test(foreign_file), cmocka_unit_test(foreign_lock),
    cmocka_unit_test(foreign_saving), cmocka_unit_test(foreign_backward),
    cmocka_unit_test(foreign_last), cmocka_unit_test(handed_over), cmocka_unit_test(interrupted),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
