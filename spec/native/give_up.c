/* A rank gives up while the others pass the entry of its call and fail behind it: it must take part
 * in the call, whose operands are in use. spec/comm/protocol.lua searches every order of these
 * steps; here the library goes through the one order, held at the lock of the group, which a rank
 * takes to name the ranks that it misses. */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"
#include "core/comm/local/local.h"

enum { NRANK = 2, N = 3000 }; /* too large for a page: ranks meet at the exit, too */

typedef struct seat {
  tide_group *group;
  int rank, status;
  float values[N];
  atomic_int ready, *go, ended;
  pthread_t thread;
} seat;

static void *reduce_once(void *arg)
{
  seat *s = arg;
  int64_t n = N;
  tide_tensor *t = NULL;
  tide_comm *comm = NULL;
  tide_ctx *ctx = open_ctx(NULL);
  OK(ctx, tide_full(&t, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n, 1 + s->rank));
  OK(ctx, tide_comm_join(&comm, ctx, s->group, s->rank));
  atomic_store(&s->ready, 1);
  while (atomic_load(s->go) <= s->rank) usleep(1000);
  s->status = tide_comm_all_reduce(NULL, comm, 1, &t, TIDE_SUM);
  OK(ctx, tide_to_bytes(t, s->values, sizeof s->values));
  atomic_store(&s->ended, 1);
  tide_tensor_release(t);
  tide_comm_release(comm);
  tide_ctx_release(ctx);
  return NULL;
}

/* Waits until *flag is set; false after ten seconds. */
static bool is_set(atomic_int *flag)
{
  for (int i = 0; i < 10000 && !atomic_load(flag); i++) usleep(1000);
  return atomic_load(flag);
}

/* In this order: rank 0 gives up, rank 1 passes, rank 1 fails at the exit, rank 0 goes on. */
static void run_in_order(tide_group *group, seat *seats, atomic_int *go)
{
  for (int r = 0; r < NRANK; r++) assert_true(is_set(&seats[r].ready));
  pthread_mutex_lock(&group->lock);
  atomic_store(go, 1);
  usleep(300000); /* a rank looks at its timeout each 50 ms */
  atomic_store(go, 2);
  assert_true(is_set(&group->world->failure.seen));
  pthread_mutex_unlock(&group->lock);
}

static void passes(void **state)
{
  seat seats[NRANK] = {{0}};
  atomic_int go = 0;
  tide_group *group = NULL;
  tide_group_opts opts;
  (void)state;
  tide_group_opts_init(&opts);
  opts.timeout = 1e-3;
  assert_int_equal(tide_group_new(&group, NRANK, &opts, NULL, 0), TIDE_OK);
  for (int r = 0; r < NRANK; r++) {
    seats[r].group = group;
    seats[r].rank = r;
    seats[r].go = &go;
    assert_int_equal(pthread_create(&seats[r].thread, NULL, reduce_once, &seats[r]), 0);
  }
  run_in_order(group, seats, &go);
  for (int r = 0; r < NRANK; r++)
    if (!is_set(&seats[r].ended)) fail_msg("rank %d waits for ever", r);
  for (int r = 0; r < NRANK; r++) {
    pthread_join(seats[r].thread, NULL);
    for (int i = 0; i < N; i++) assert_true(seats[r].values[i] == 3);
  }
  assert_int_equal(seats[0].status, TIDE_OK);
  assert_int_equal(seats[1].status, TIDE_E_TIMEOUT);
  tide_group_release(group);
}

int main(void)
{
  const struct CMUnitTest tests[] = {cmocka_unit_test(passes)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
