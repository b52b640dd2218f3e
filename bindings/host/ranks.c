/* Ranks as threads: the job object, its contexts, its threads.
 *
 * The one idea: everything ranks share is made on the calling thread before the first rank starts
 * and ended there after the last has stopped; in between each rank owns its context, its Lua state
 * and its row of the table, so nothing needs a lock. Only `first` is written by several.
 *
 * Layer 7. Rank, size and group are fields of package.loaded['tide.host'] in each state.
 */
#include "ranks.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tide_lua.h"

enum { MAX_RANK = 1024, STACK_BYTES = 16 << 20, MAX_ARG = 4096 };

typedef struct rank_row {
  tide_host_ranks *all;
  tide_ctx *ctx;
  pthread_t thread;
  bool started;
  int index, status;
  char *message, *result; /* owned; null: none */
  size_t nresult;
} rank_row;

struct tide_host_ranks {
  int nrank, nthread, narg, read_env;
  bool ran;
  char *root, *path, *code, *name, *params; /* owned copies; null: absent */
  size_t ncode;
  char **args;
  tide_host_ranks_hooks hooks;
  tide_group *group;      /* what the ranks' communicators join */
  atomic_int first;
  rank_row *rows;
};

/* ---- the job --------------------------------------------------------------------------------- */

static char *copy_bytes(const char *from, size_t n)
{
  char *to = malloc(n + 1);
  if (to) {
    memcpy(to, from, n);
    to[n] = 0;
  }
  return to;
}

static int set_text(char **to, const char *from)
{
  char *copy = from ? copy_bytes(from, strlen(from)) : NULL;
  if (from && !copy) return TIDE_E_NOMEM;
  free(*to);
  *to = copy;
  return TIDE_OK;
}

tide_host_ranks *tide_host_ranks_new(int nrank, const char *root)
{
  if (nrank < 1 || nrank > MAX_RANK) return NULL;
  tide_host_ranks *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  r->rows = calloc((size_t)nrank, sizeof *r->rows);
  r->nrank = nrank;
  atomic_init(&r->first, -1);
  if (!r->rows || set_text(&r->root, root) < 0) {
    tide_host_ranks_free(r);
    return NULL;
  }
  for (int i = 0; i < nrank; i++) r->rows[i] = (rank_row){.all = r, .index = i};
  return r;
}

void tide_host_ranks_free(tide_host_ranks *r)
{
  if (!r) return;
  for (int i = 0; r->rows && i < r->nrank; i++) {
    free(r->rows[i].message);
    free(r->rows[i].result);
  }
  for (int i = 0; i < r->narg; i++) free(r->args[i]);
  free(r->args);
  free(r->rows);
  free(r->root);
  free(r->path);
  free(r->code);
  free(r->name);
  free(r->params);
  free(r);
}

int tide_host_ranks_code(tide_host_ranks *r, const char *code, size_t n, const char *name)
{
  if (!r || !code) return TIDE_E_ARG;
  char *copy = copy_bytes(code, n);
  if (!copy) return TIDE_E_NOMEM;
  free(r->code);
  r->code = copy;
  r->ncode = n;
  set_text(&r->path, NULL);
  return set_text(&r->name, name ? name : "=rank");
}

int tide_host_ranks_file(tide_host_ranks *r, const char *path)
{
  return r && path ? set_text(&r->path, path) : TIDE_E_ARG;
}

int tide_host_ranks_arg(tide_host_ranks *r, const char *value)
{
  if (!r || !value || r->narg >= MAX_ARG) return TIDE_E_ARG;
  char **more = realloc(r->args, (size_t)(r->narg + 1) * sizeof *more);
  if (!more) return TIDE_E_NOMEM;
  r->args = more;
  r->args[r->narg] = copy_bytes(value, strlen(value));
  if (!r->args[r->narg]) return TIDE_E_NOMEM;
  r->narg++;
  return TIDE_OK;
}

int tide_host_ranks_nthread(tide_host_ranks *r, int n)
{
  if (!r || n < 0) return TIDE_E_ARG;
  r->nthread = n;
  return TIDE_OK;
}

int tide_host_ranks_params(tide_host_ranks *r, const char *params, int read_env)
{
  if (!r) return TIDE_E_ARG;
  r->read_env = read_env != 0;
  return set_text(&r->params, params);
}

void tide_host_ranks_set_hooks(tide_host_ranks *r, const tide_host_ranks_hooks *hooks)
{
  r->hooks = hooks ? *hooks : (tide_host_ranks_hooks){0};
}

/* ---- what the ranks share -------------------------------------------------------------------- */

static int cores(void)
{
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return 1;
  int n = CPU_COUNT(&set);
  return n > 0 ? n : 1;
}

static void set_failure(rank_row *row, int status, const char *message)
{
  row->status = status;
  free(row->message);
  row->message = copy_bytes(message, strlen(message));
}

static int make_group(tide_host_ranks *r)
{
  char msg[512] = "";
  int rc = tide_group_new(&r->group, r->nrank, NULL, msg, sizeof msg);
  if (rc == TIDE_OK) return rc;
  set_failure(&r->rows[0], rc, msg);
  atomic_store(&r->first, 0);
  return rc;
}

/* One context for each rank, and the group they may join. */
static int make_contexts(tide_host_ranks *r)
{
  if (make_group(r) < 0) return r->rows[0].status;
  tide_opts opts;
  tide_opts_init(&opts);
  int share = cores() / r->nrank;
  opts.nthread = r->nthread > 0 ? r->nthread : share > 0 ? share : 1;
  opts.read_env = r->read_env;
  opts.params = r->params;
  for (int i = 0; i < r->nrank; i++) {
    char msg[512] = "";
    int rc = tide_ctx_new(&r->rows[i].ctx, &opts, msg, sizeof msg);
    if (rc < 0) {
      set_failure(&r->rows[i], rc, msg);
      atomic_store(&r->first, i);
      return rc;
    }
  }
  return TIDE_OK;
}

static void end_contexts(tide_host_ranks *r)
{
  for (int i = 0; i < r->nrank; i++) {
    tide_ctx *ctx = r->rows[i].ctx;
    if (!ctx) continue;
    r->rows[i].ctx = NULL;
    tide_ctx_attach(ctx);
    tide_ctx_release(ctx);
  }
  tide_group_release(r->group);
  r->group = NULL;
}

void tide_host_ranks_interrupt(tide_host_ranks *r)
{
  for (int i = 0; i < r->nrank; i++)
    if (r->rows[i].ctx) tide_interrupt(r->rows[i].ctx);
}

/* ---- one rank -------------------------------------------------------------------------------- */

/* The first interrupt is a request that a loop may answer at its leisure; the second makes the
 * next op raise E_INTERRUPT. A rank that waits for a failed one must stop now. */
static void stop(tide_ctx *ctx)
{
  tide_interrupt(ctx);
  tide_interrupt(ctx);
}

/* Records a failure; the first one stops the others. It is noted before the group hears of it: the
 * ranks that this wakes fail too, and must not come before the cause. */
static void fail(rank_row *row, int status, const char *message)
{
  set_failure(row, status, message);
  int none = -1;
  bool first = atomic_compare_exchange_strong(&row->all->first, &none, row->index);
  tide_group_leave(row->all->group, row->index, status, message);
  if (!first) return;
  for (int i = 0; i < row->all->nrank; i++)
    if (i != row->index) stop(row->all->rows[i].ctx);
  const tide_host_ranks_hooks *h = &row->all->hooks;
  if (h->failed) h->failed(row->index, h->user);
}

static int describe_protected(lua_State *L)
{
  const rank_row *row = lua_touserdata(L, 1);
  lua_getglobal(L, "package");
  lua_getfield(L, -1, "loaded");
  lua_getfield(L, -1, "tide.host");
  lua_pushinteger(L, row->index);
  lua_setfield(L, -2, "rank");
  lua_pushinteger(L, row->all->nrank);
  lua_setfield(L, -2, "nrank");
  lua_pushlightuserdata(L, row->all->group);
  lua_setfield(L, -2, "group");
  return 0;
}

static void run_chunk(rank_row *row, lua_State *L)
{
  const tide_host_ranks *r = row->all;
  const char *const *args = (const char *const *)r->args;
  int rc = r->path ? tide_lua_run_file(L, r->path, r->narg, args)
                   : tide_lua_run_string(L, r->code, r->ncode, r->name, r->narg, args);
  if (rc < 0) {
    const char *message = tide_lua_message(L);
    fail(row, rc, *message ? message : tide_status_text(rc));
    return;
  }
  size_t n = 0;
  const char *result = tide_lua_result(L, &n);
  if (!result) return;
  row->result = copy_bytes(result, n);
  row->nresult = n;
  if (!row->result) fail(row, TIDE_E_NOMEM, "no memory for the result");
}

static void run_state(rank_row *row, lua_State *L)
{
  const tide_host_ranks_hooks *h = &row->all->hooks;
  if (lua_cpcall(L, describe_protected, row)) {
    fail(row, TIDE_E_NOMEM, "no memory to set up the rank");
    return;
  }
  if (h->begin && h->begin(L, row->index, h->user) != 0)
    fail(row, TIDE_E_HOST, "the host's begin hook failed");
  else run_chunk(row, L);
  if (h->end) h->end(L, row->index, h->user);
}

static void *rank_main(void *p)
{
  rank_row *row = p;
  char msg[1024] = "";
  lua_State *L = NULL;
  int rc = tide_ctx_attach(row->ctx);
  if (rc < 0) {
    fail(row, rc, "the context cannot move to the thread of its rank");
    return NULL;
  }
  rc = tide_lua_open(&L, row->ctx, row->all->root, msg, sizeof msg);
  if (rc < 0) {
    fail(row, rc, msg);
    return NULL;
  }
  run_state(row, L);
  lua_close(L); /* ends what the rank still has under way */
  if (row->status == TIDE_OK) tide_group_leave(row->all->group, row->index, TIDE_OK, NULL);
  return NULL;
}

/* ---- all ranks ------------------------------------------------------------------------------- */

static void start_threads(tide_host_ranks *r)
{
  pthread_attr_t attr;
  pthread_attr_init(&attr);
  pthread_attr_setstacksize(&attr, STACK_BYTES);
  for (int i = 0; i < r->nrank; i++) {
    rank_row *row = &r->rows[i];
    row->started = pthread_create(&row->thread, &attr, rank_main, row) == 0;
    if (row->started) continue;
    fail(row, TIDE_E_NOMEM, "the system refused a thread for this rank");
    break;
  }
  pthread_attr_destroy(&attr);
}

/* Ranks that were stopped because another failed say so. */
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
  if (make_contexts(r) == TIDE_OK) {
    start_threads(r);
    for (int i = 0; i < r->nrank; i++)
      if (r->rows[i].started) pthread_join(r->rows[i].thread, NULL);
  }
  end_contexts(r);
  name_cause(r);
  int first = atomic_load(&r->first);
  return first < 0 ? TIDE_OK : r->rows[first].status;
}

int tide_host_ranks_first(const tide_host_ranks *r) { return atomic_load(&r->first); }

static const rank_row *row_of(const tide_host_ranks *r, int rank)
{
  return rank >= 0 && rank < r->nrank ? &r->rows[rank] : NULL;
}

int tide_host_ranks_status(const tide_host_ranks *r, int rank)
{
  const rank_row *row = row_of(r, rank);
  return row ? row->status : TIDE_E_ARG;
}

const char *tide_host_ranks_message(const tide_host_ranks *r, int rank)
{
  const rank_row *row = row_of(r, rank);
  return row && row->message ? row->message : "";
}

const char *tide_host_ranks_result(const tide_host_ranks *r, int rank, size_t *n)
{
  const rank_row *row = row_of(r, rank);
  if (n) *n = row ? row->nresult : 0;
  return row ? row->result : NULL;
}
