/* The transport of ranks that are processes of an MPI job: its table, split and the world. Calls
 * are exchanged in exchange.c, data move in move.c.
 */
#include <sched.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/comm/mpi/mpi.h"

/* Polls for a farewell after a transfer that took long. */
enum { MANY_LOOKS = 256 };

/* ---- split ----------------------------------------------------------------------------------- */

/* What each rank sends for a split. */
typedef struct split_request { int32_t color, key, next_id; } split_request;

/* Splits. Different colors may use the same number: no two ranks are in both. */
static int mpi_split(tide__mpi_comm *s, tide__coll *c)
{
  split_request all[TIDE__MAX_RANK], own = {c->color, c->key, tide__mpi_next_id(s->mpi)};
  int color[TIDE__MAX_RANK], key[TIDE__MAX_RANK];
  int list[TIDE__MAX_RANK], member[TIDE__MAX_RANK], mine = 0, id = 0;
  TIDE_TRY(tide__mpi_swap(s, c, &own, all, sizeof own));
  for (int q = 0; q < s->nrank; q++) {
    id = all[q].next_id > id ? all[q].next_id : id;
    color[q] = all[q].color;
    key[q] = all[q].key;
  }
  tide__mpi_raise_id(s->mpi, id + 1);
  int n = tide__split_members(color, key, s->nrank, s->rank, list, &mine);
  for (int i = 0; i < n; i++) member[i] = s->member[list[i]];
  c->sub_rank = mine;
  c->sub_size = n;
  if (n == 0) return TIDE_OK;
  bool room = id < (tide__mpi_max_tag(s->mpi) - 1) / 2;
  if (room) c->sub = tide__mpi_comm_new(s->mpi, id, mine, n, member, s->check, c->name);
  if (c->sub) {
    ((tide__mpi_comm *)c->sub)->crowd = s->crowd;
    if (s->turn) tide__mpi_turn_add(s->turn, c->sub);
    return TIDE_OK;
  }
  snprintf(c->message, sizeof c->message, room ? "no memory for a communicator of %d"
           : "this MPI has no message tags left for a communicator of %d", n);
  return TIDE_E_NOMEM;
}

/* ---- one collective -------------------------------------------------------------------------- */

static int usable(tide__mpi_comm *s, tide__coll *c)
{
  TIDE_TRY(tide__failure_get(&s->failure, s->rank, c->message, sizeof c->message));
  if (s->pid != getpid() || !tide__mpi_my_thread(s->mpi)) {
    snprintf(c->message, sizeof c->message, "%s", s->pid != getpid()
             ? "this process is a fork of the one that started MPI"
             : "this MPI allows calls from the main thread only");
    return TIDE_E_STATE;
  }
  if (!tide__mpi_dead(s->mpi)) return TIDE_OK;
  snprintf(c->message, sizeof c->message, "MPI cannot be used in this process any more, since a "
           "collective failed with data on the way");
  return TIDE_E_PEER;
}

/* Looks for a farewell that was sent while the data were on their way: what was received may be
 * incomplete. */
static int long_move(tide__mpi_comm *s, tide__coll *c, double began)
{
  if (tide_trace_clock() - began < 0.5) return TIDE_OK;
  int rc = TIDE_OK;
  for (int i = 0; i < MANY_LOOKS && !rc; i++) rc = tide__mpi_look(s, c, NULL, NULL);
  return rc;
}

/* Fails the call if an interrupt was requested in a program of turns: it ends a call before it is
 * announced or while it waits, not while data move. */
static int stopped(tide__mpi_comm *s, tide__coll *c)
{
  char buf[TIDE__COMM_TEXT];
  tide__text t = tide__text_in(buf, sizeof buf);
  if (!tide__mpi_turn_active(s) || !c->interrupt || atomic_load(c->interrupt) < 2) return TIDE_OK;
  tide__add_ended(&t, TIDE_E_INTERRUPT, s->rank, c, s->name);
  return tide__mpi_fail(s, c, TIDE_E_INTERRUPT, buf);
}

static int run_under_lock(tide__mpi_comm *s, tide__coll *c)
{
  int rc = usable(s, c);
  if (rc == TIDE_OK) rc = stopped(s, c);
  bool exchange = s->check || c->op == TIDE__BARRIER || c->op == TIDE__SPLIT;
  if (rc == TIDE_OK && exchange && s->nrank > 1) {
    rc = tide__mpi_exchange(s, c);
    if (rc == TIDE_OK) rc = tide__mpi_look(s, c, NULL, NULL); /* ranks may have left meanwhile */
  }
  if (rc != TIDE_OK) return rc;
  if (tide__mpi_turn_active(s)) c->interrupt = NULL;
  double began = tide_trace_clock();
  rc = c->op == TIDE__SPLIT ? mpi_split(s, c) : tide__mpi_move(s, c);
  if (rc == TIDE_OK) rc = long_move(s, c, began);
  if (rc == TIDE_OK) s->done = c->seq;
  return rc;
}

static int mpi_run(void *state, int rank, tide__coll *c)
{
  tide__mpi_comm *s = state;
  (void)rank;
  pthread_mutex_lock(&s->busy);
  int rc = run_under_lock(s, c);
  pthread_mutex_unlock(&s->busy);
  return rc;
}

/* ---- the rest of the table ------------------------------------------------------------------- */

static tide__failure *mpi_failure(void *state) { return &((tide__mpi_comm *)state)->failure; }

static void mpi_leave(void *state, int rank)
{
  tide__mpi_comm *s = state;
  char buf[TIDE__COMM_TEXT];
  tide__text t = tide__text_in(buf, sizeof buf);
  tide__add_left(&t, rank, s->name, &s->out->call);
  tide__mpi_leave(s, buf);
}

static int64_t mpi_mended(void *state) { return ((tide__mpi_comm *)state)->nmend; }

static void mpi_close_comm(void *state, int rank)
{
  (void)rank;
  tide__mpi_comm_free(state);
}

#define TABLE                                                                             \
  .name = "mpi", .bytes = true, .run = mpi_run, .failure = mpi_failure, .abort = tide__mpi_abort, \
  .leave = mpi_leave, .close = mpi_close_comm, .mended = mpi_mended

static const tide__transport with_helper = {TABLE};
/* The transport where MPI allows one thread: asynchronous calls are complete when they return. */
static const tide__transport one_thread = {TABLE, .instant = true};

/* ---- the world ------------------------------------------------------------------------------- */

void tide_mpi_opts_init(tide_mpi_opts *opts)
{
  *opts = (tide_mpi_opts){.size = sizeof *opts, .check = 1, .timeout = 600};
}

/* What each rank sends in the first call: its host and the processors it may use. */
typedef struct host_info { uint64_t host; cpu_set_t cpus; } host_info;

static host_info my_host(tide__mpi *m)
{
  char name[1024];
  host_info mine = {0};
  tide__mpi_host(m, name, sizeof name);
  for (const char *p = name; *p; p++)
    mine.host = tide__hash_step(mine.host, (uint64_t)(unsigned char)*p);
  if (sched_getaffinity(0, sizeof mine.cpus, &mine.cpus)) CPU_SET(0, &mine.cpus);
  return mine;
}

/* Returns the ranks on this host; s->crowd: they have fewer processors together than they are. */
static int count_host(tide__mpi_comm *s, const host_info *mine, const host_info *all)
{
  int n = 0;
  cpu_set_t cpus;
  CPU_ZERO(&cpus);
  for (int q = 0; q < s->nrank; q++) {
    if (all[q].host != mine->host) continue;
    CPU_OR(&cpus, &cpus, &all[q].cpus);
    n++;
  }
  s->crowd = n > CPU_COUNT(&cpus);
  return n;
}

/* Makes the first call, which compares library and options of all ranks. *host_size: ranks on this
 * host. */
static int first_call(tide__mpi_comm *s, const tide_mpi_opts *o, int *host_size, tide__coll *c)
{
  host_info mine = my_host(s->mpi), all[TIDE__MAX_RANK];
  *c = (tide__coll){.op = TIDE__BARRIER, .reduce = -1, .dtype = -1, .root = -1, .to = -1,
                    .from = -1, .timeout = o->timeout};
  c->hash = (uint64_t)(o->check != 0);
  for (const char *p = tide_version(); *p; p++) c->hash = tide__hash_step(c->hash, (uint64_t)*p);
  snprintf(c->site, sizeof c->site, "tide_comm_mpi");
  s->crowd = true;
  TIDE_TRY(mpi_run(s, s->rank, c));
  int rc = tide__mpi_swap(s, c, &mine, all, sizeof mine);
  if (rc == TIDE_OK) *host_size = count_host(s, &mine, all);
  return rc;
}

/* Drops the reference to m; the state holds its own. */
static int make_state(tide__mpi_comm **out, tide_ctx *ctx, tide__mpi *m, bool check)
{
  int member[TIDE__MAX_RANK], n = tide__mpi_size(m);
  *out = NULL;
  if (n > TIDE__MAX_RANK) {
    tide__mpi_drop(m);
    return tide__fail(ctx, TIDE_E_UNSUPPORTED, "comm_mpi", "the job has %d processes, at most %d "
                      "can be ranks", n, TIDE__MAX_RANK);
  }
  for (int q = 0; q < n; q++) member[q] = q;
  tide__mpi_turn *turn = tide__mpi_turn_new(m);
  if (turn) *out = tide__mpi_comm_new(m, 0, tide__mpi_rank(m), n, member, check, "world");
  if (*out) {
    (*out)->done = (*out)->called = -1; /* the first call is number 0 */
    tide__mpi_turn_add(turn, *out);
  } else {
    free(turn);
  }
  tide__mpi_raise_id(m, 1);
  tide__mpi_drop(m);
  return *out ? TIDE_OK : tide__fail(ctx, TIDE_E_NOMEM, "comm_mpi", "no memory for %d ranks", n);
}

static int mpi_check_opts(tide_ctx *ctx, const tide_mpi_opts *o)
{
  if (!(o->timeout > 0 && o->timeout < 1e9))
    return tide__fail(ctx, TIDE_E_ARG, "comm_mpi", "opts.timeout: expected seconds > 0, got %g",
                      o->timeout);
  return TIDE_OK;
}

int tide_comm_mpi(tide_comm **out, tide_ctx *ctx, const tide_mpi_opts *opts)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  char msg[9000] = "";
  tide__mpi *m;
  tide__mpi_comm *s;
  tide__coll c;
  tide_mpi_opts o;
  int host_size;
  tide_mpi_opts_init(&o);
  if (!tide__options(&o, sizeof o, opts))
    return tide__fail(ctx, TIDE_E_ARG, "comm_mpi", "opts.size is %u: call tide_mpi_opts_init",
                      (unsigned)opts->size);
  TIDE_TRY(mpi_check_opts(ctx, &o));
  int rc = tide__mpi_open(&m, o.library, msg, sizeof msg);
  if (rc < 0) return tide__fail(ctx, rc, "comm_mpi", "%s", msg);
  const tide__transport *transport =
      tide__mpi_level(m) >= TIDE__MPI_SERIALIZED ? &with_helper : &one_thread;
  TIDE_TRY(make_state(&s, ctx, m, o.check != 0));
  rc = first_call(s, &o, &host_size, &c);
  if (rc < 0) {
    tide__mpi_comm_free(s);
    return tide__fail(ctx, rc, "comm_mpi", "%s", c.message);
  }
  TIDE_TRY(tide__comm_new(out, ctx, transport, s, NULL, s->rank, s->nrank, "world"));
  tide__log(ctx, TIDE_LOG_INFO, "MPI: rank %d of %d, %d on this host", s->rank, s->nrank,
            host_size);
  (*out)->timeout = o.timeout;
  (*out)->host_size = host_size;
  return TIDE_OK;
}
