/* Ranks as threads: their contexts, their threads, and their ends.
 *
 * Contexts are made on the calling thread before the first rank starts and released there after the
 * last has ended. A rank that does not end in the grace period after a failure is abandoned: the
 * call returns, and the rank's thread releases the context itself, whenever it ends.
 *
 * Rank, size and group are fields of package.loaded['tide.host'] in each state.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chunks.h"
#include "ranks_job.h"
#include "state.h"
#include "tide_lua.h"

enum { STACK_BYTES = 16 << 20 };

/* ---- what the ranks share -------------------------------------------------------------------- */

/* Requires the lock. */
static void set_failure(rank_row *row, int status, const char *message)
{
  row->status = status;
  free(row->message);
  row->message = rank_copy_bytes(message, strlen(message));
}

static void fail_before_start(rank_row *row, int status, const char *message)
{
  set_failure(row, status, message);
  atomic_store(&row->all->first, row->index);
}

/* Shares the threads of a new context, which are the cores of the process, among the ranks. */
static int share_cores(tide_ctx *ctx, int nrank)
{
  int share = tide_nthread(ctx) / nrank;
  return tide_set_nthread(ctx, share > 0 ? share : 1);
}

/* Makes one context per rank, and the group they may join. */
static int make_contexts(tide_host_ranks *r)
{
  char msg[512] = "";
  tide_opts opts;
  tide_opts_init(&opts);
  int rc = tide_group_new(&r->group, r->nrank, NULL, msg, sizeof msg);
  if (rc < 0) fail_before_start(&r->rows[0], rc, msg);
  opts.nthread = r->nthread;
  opts.read_env = r->read_env;
  opts.params = r->params;
  for (int i = 0; rc == TIDE_OK && i < r->nrank; i++) {
    rc = tide_ctx_new(&r->rows[i].ctx, &opts, msg, sizeof msg);
    if (rc < 0) fail_before_start(&r->rows[i], rc, msg);
    else if (r->nthread == 0) rc = share_cores(r->rows[i].ctx, r->nrank);
  }
  return rc;
}

/* Contexts of abandoned ranks stay with their threads, and the group with the job. */
static void end_contexts(tide_host_ranks *r)
{
  for (int i = 0; i < r->nrank; i++) {
    tide_ctx *ctx = r->rows[i].ctx;
    if (!ctx || r->rows[i].abandoned) continue;
    r->rows[i].ctx = NULL;
    tide_ctx_attach(ctx);
    tide_ctx_release(ctx);
  }
  if (tide_host_ranks_running(r) > 0) return;
  tide_group_release(r->group);
  r->group = NULL;
}

void tide_host_ranks_interrupt(tide_host_ranks *r)
{
  for (int i = 0; r && !atomic_load(&r->over) && i < r->nrank; i++)
    if (r->rows[i].ctx) tide_interrupt(r->rows[i].ctx);
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* Interrupts a rank that waits for a failed one, twice: the first interrupt is a request that a
 * training loop may answer after its step, the second makes the next op raise E_INTERRUPT. */
static void stop(tide_ctx *ctx)
{
  tide_interrupt(ctx);
  tide_interrupt(ctx);
}

static struct timespec after(double seconds)
{
  struct timespec t;
  double whole = floor(seconds);
  clock_gettime(CLOCK_MONOTONIC, &t);
  t.tv_sec += (time_t)whole;
  t.tv_nsec += (long)((seconds - whole) * 1e9);
  if (t.tv_nsec >= 1000000000) {
    t.tv_nsec -= 1000000000;
    t.tv_sec++;
  }
  return t;
}

/* Returns whether rank `first` only quotes the failure of the row's rank. Requires the lock. */
static bool is_quoted(const tide_host_ranks *r, int first, const rank_row *row)
{
  static const char *const how[] = {"waited", "was interrupted"};
  const char *text = r->rows[first].message;
  for (int i = 0; text && i < 2; i++) {
    char name[64];
    snprintf(name, sizeof name, "rank %d %s", row->index, how[i]);
    if (strstr(text, name)) return true;
  }
  /* an interrupted rank was perhaps interrupted because `first` failed */
  return r->rows[first].status == TIDE_E_PEER && row->status != TIDE_E_PEER &&
         row->status != TIDE_E_INTERRUPT;
}

/* Returns whether the row's failure is the cause of the job's: it is the first, unless it quotes
 * that of another rank, which may end later. Requires the lock. */
static bool note_first(tide_host_ranks *r, const rank_row *row)
{
  int first = atomic_load(&r->first);
  if (first < 0) r->deadline = after(r->grace);
  if (first < 0 || is_quoted(r, first, row)) atomic_store(&r->first, row->index);
  pthread_cond_signal(&r->changed);
  return first < 0;
}

/* Records a failure; the first one stops the other ranks. It is recorded before the group is marked
 * as failed: the ranks that this wakes fail too, and must not be taken for the cause. */
static void rank_fail(rank_row *row, int status, const char *message)
{
  tide_host_ranks *r = row->all;
  pthread_mutex_lock(&r->lock);
  bool first = false;
  if (!row->abandoned) {
    set_failure(row, status, message);
    first = note_first(r, row);
    row->hooked = first && r->hooks.failed;
  }
  pthread_mutex_unlock(&r->lock);
  tide_group_leave(r->group, row->index, status, message);
  if (!first) return;
  for (int i = 0; i < r->nrank; i++)
    if (i != row->index) stop(r->rows[i].ctx);
  if (r->hooks.failed) r->hooks.failed(row->index, r->hooks.user);
  pthread_mutex_lock(&r->lock);
  row->hooked = false;
  pthread_cond_signal(&r->changed);
  pthread_mutex_unlock(&r->lock);
}

/* Returns whether a hook of the host may run: not for an abandoned rank, whose host has
 * returned. */
static bool enter_hook(rank_row *row, bool wanted)
{
  pthread_mutex_lock(&row->all->lock);
  row->hooked = wanted && !row->abandoned;
  bool entered = row->hooked;
  pthread_mutex_unlock(&row->all->lock);
  return entered;
}

static void leave_hook(rank_row *row)
{
  pthread_mutex_lock(&row->all->lock);
  row->hooked = false;
  pthread_cond_signal(&row->all->changed);
  pthread_mutex_unlock(&row->all->lock);
}

static void describe_rank(lua_State *L, const void *user)
{
  const rank_row *row = user;
  lua_pushinteger(L, row->index);
  lua_setfield(L, -2, "rank");
  lua_pushinteger(L, row->all->nrank);
  lua_setfield(L, -2, "nrank");
  lua_pushlightuserdata(L, row->all->group);
  lua_setfield(L, -2, "group");
}

static bool keep_result(rank_row *row, const char *result, size_t n)
{
  char *copy = rank_copy_bytes(result, n);
  pthread_mutex_lock(&row->all->lock);
  if (!row->abandoned) {
    free(row->result);
    row->result = copy;
    row->nresult = copy ? n : 0;
  }
  bool kept = row->abandoned || copy;
  if (row->abandoned) free(copy);
  pthread_mutex_unlock(&row->all->lock);
  return kept;
}

static void rank_run_chunk(rank_row *row, lua_State *L)
{
  const tide_host_ranks *r = row->all;
  const char *const *args = (const char *const *)r->args;
  int rc = r->path ? tide_lua_run_file(L, r->path, r->narg, args)
                   : tide_lua_run_string(L, r->code, r->ncode, r->name, r->narg, args);
  if (rc < 0) {
    const char *message = tide_lua_message(L);
    rank_fail(row, rc, *message ? message : tide_status_text(rc));
    return;
  }
  size_t n = 0;
  const char *result = tide_lua_result(L, &n);
  if (result && !keep_result(row, result, n))
    rank_fail(row, TIDE_E_NOMEM, "no memory for the result");
}

static void run_state(rank_row *row, lua_State *L)
{
  const tide_host_ranks_hooks *h = &row->all->hooks;
  if (tide_host_describe(L, describe_rank, row) || tide_host_rank_exit(L)) {
    rank_fail(row, TIDE_E_NOMEM, "no memory to set up the rank");
    return;
  }
  bool begun = true;
  if (enter_hook(row, h->begin)) {
    begun = h->begin(L, row->index, h->user) == 0;
    leave_hook(row);
  }
  if (!begun) rank_fail(row, TIDE_E_HOST, "the host's begin hook failed");
  else rank_run_chunk(row, L);
  tide_host_rank_code(L);
  if (!enter_hook(row, h->end)) return;
  h->end(L, row->index, h->user);
  leave_hook(row);
}

static void open_and_run(rank_row *row)
{
  char msg[1024] = "";
  lua_State *L = NULL;
  int rc = tide_ctx_attach(row->ctx);
  if (rc < 0) {
    rank_fail(row, rc, "the context cannot move to the thread of its rank");
    return;
  }
  rc = host_state_open(&L, row->ctx, row->all->root, row->all->chunks, msg, sizeof msg);
  if (rc < 0) {
    rank_fail(row, rc, msg);
    return;
  }
  run_state(row, L);
  lua_close(L); /* ends the rank's remaining work */
  if (row->status == TIDE_OK) tide_group_leave(row->all->group, row->index, TIDE_OK, NULL);
}

static void *rank_main(void *p)
{
  rank_row *row = p;
  tide_host_ranks *r = row->all;
  open_and_run(row);
  pthread_mutex_lock(&r->lock);
  bool abandoned = row->abandoned;
  tide_ctx *ctx = row->ctx;
  row->ended = true;
  if (abandoned) row->ctx = NULL;
  pthread_cond_signal(&r->changed);
  pthread_mutex_unlock(&r->lock);
  if (abandoned) tide_ctx_release(ctx);
  rank_job_unref(r);
  return NULL;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static bool start_thread(rank_row *row, const pthread_attr_t *attr)
{
  tide_host_ranks *r = row->all;
  pthread_mutex_lock(&r->lock);
  r->refs++;
  pthread_mutex_unlock(&r->lock);
  row->started = pthread_create(&row->thread, attr, rank_main, row) == 0;
  if (!row->started) rank_job_unref(r);
  return row->started;
}

static void start_threads(tide_host_ranks *r)
{
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, STACK_BYTES);
  for (int i = 0; i < r->nrank; i++) {
    if (start_thread(&r->rows[i], &attr)) continue;
    rank_fail(&r->rows[i], TIDE_E_NOMEM, "the system refused a thread for this rank; "
              "start fewer ranks, or raise ulimit -u or the pids.max of the cgroup");
    break;
  }
  pthread_attr_destroy(&attr);
}

static bool is_running(const rank_row *row) { return row->started && !row->ended; }

/* Returns whether ranks run; *hooked: whether one of them is in a hook of the host. Requires the
 * lock. */
static bool any_running(const tide_host_ranks *r, bool *hooked)
{
  bool running = false;
  *hooked = false;
  for (int i = 0; i < r->nrank; i++) {
    running = running || is_running(&r->rows[i]);
    *hooked = *hooked || (is_running(&r->rows[i]) && r->rows[i].hooked);
  }
  return running;
}

/* Requires the lock. */
static void rank_abandon(tide_host_ranks *r)
{
  char text[1024];
  int first = atomic_load(&r->first);
  const char *why = r->rows[first].message ? r->rows[first].message : "";
  for (int i = 0; i < r->nrank; i++) {
    rank_row *row = &r->rows[i];
    if (!is_running(row)) continue;
    row->abandoned = true;
    pthread_detach(row->thread);
    if (i == first) continue;
    snprintf(text, sizeof text, "rank %d has not stopped %g s after rank %d failed; its thread "
             "goes on. Rank %d failed with: %.600s", i, r->grace, first, first, why);
    set_failure(row, TIDE_E_TIMEOUT, text);
  }
}

/* Blocks until all ranks have ended, or until the grace period after a failure is over. Never
 * returns while a hook of the host runs. */
static void wait_for_ranks(tide_host_ranks *r)
{
  bool hooked, late = false;
  pthread_mutex_lock(&r->lock);
  while (any_running(r, &hooked) && (!late || hooked)) {
    if (atomic_load(&r->first) < 0 || late) pthread_cond_wait(&r->changed, &r->lock);
    else
      late = pthread_cond_timedwait(&r->changed, &r->lock, &r->deadline) == ETIMEDOUT;
  }
  if (any_running(r, &hooked)) rank_abandon(r);
  pthread_mutex_unlock(&r->lock);
  for (int i = 0; i < r->nrank; i++)
    if (r->rows[i].started && !r->rows[i].abandoned) pthread_join(r->rows[i].thread, NULL);
}

/* Adds the failed rank to the messages of ranks that were stopped because of it. */
static void name_cause(tide_host_ranks *r)
{
  int first = atomic_load(&r->first);
  if (first < 0) return;
  const char *why = r->rows[first].message ? r->rows[first].message : "";
  char text[1024];
  snprintf(text, sizeof text, "rank %d failed first: %s", first, why);
  for (int i = 0; i < r->nrank; i++) {
    rank_row *row = &r->rows[i];
    bool idle = !row->started && !row->message;
    if (i != first && (row->status == TIDE_E_INTERRUPT || idle))
      set_failure(row, TIDE_E_PEER, text);
  }
}

int tide_host_ranks_run(tide_host_ranks *r)
{
  if (!r || (!r->code && !r->path)) return TIDE_E_ARG;
  if (r->ran) return TIDE_E_STATE;
  r->ran = true;
  if (!r->chunks && r->nrank > 1) r->chunks = tide_host_chunks_new();
  if (make_contexts(r) == TIDE_OK) {
    start_threads(r);
    wait_for_ranks(r);
  }
  atomic_store(&r->over, true);
  end_contexts(r);
  name_cause(r);
  int first = atomic_load(&r->first);
  return first < 0 ? TIDE_OK : r->rows[first].status;
}
