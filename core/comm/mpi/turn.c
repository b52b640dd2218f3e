/* Turns over MPI: processes whose programs run in steps, such as the lines of a prompt.
 *
 * Each turn begins and ends on all ranks of the world. At its end a rank sends every other rank a
 * note: for each communicator the number of its last call, the packets sent, and whether it has
 * failed. A rank that waits for others learns from their notes which of them will not make the
 * call. Each turn begins with the notes of all ranks, so all know the same communicators to have
 * failed. These are mended: each rank receives the packets that were sent, which the notes count,
 * and forgets the failure. Data are never under way then: they move after all packets have arrived,
 * and an interrupt does not stop them.
 *
 * Notes have a tag of the private world. One receive per rank is posted.
 */
#include <math.h>
#include <stdlib.h>

#include "core/comm/mpi/mpi.h"

enum { LISTED = 1024 };        /* communicators that a note can describe */

/* A communicator at the end of a turn. */
typedef struct entry {
  int32_t tag, failed;
  int64_t called, sent;        /* see tide__mpi_comm; sent -1: unknown */
} entry;

typedef struct note {
  int64_t turn, n;
  entry entry[];
} note;

typedef struct other {
  note *inbox, *known;         /* known: the last one that has arrived */
  tide__mpi_handle recv, send;
  bool receiving, sending;
} other;

struct tide__mpi_turn {
  atomic_int refs;             /* communicators */
  pthread_mutex_t lock;        /* everything below */
  tide__mpi *mpi;
  int rank, nrank, tag;
  tide__mpi_comm *comms;
  int64_t now;                 /* number of the turn; 0: not begun */
  bool paused;
  atomic_bool active;
  note *out;                   /* null until the first pause, as is other */
  other *other;
};

static const tide__patience patience = {.yield = 1e-3, .polls = 16, .nap = 20000,
                                        .longest = 1000000};
/* Seconds: for notes that MPI has not sent yet; for the notes of the last turn at the end; between
 * the first missing rank and the message; between an interrupt and the end of a call. */
static const double send_seconds = 5, last_seconds = 0.5, name_seconds = 0.3, stop_seconds = 0.5;

static size_t note_bytes(int64_t n) { return sizeof(note) + (size_t)n * sizeof(entry); }

/* ---- life ------------------------------------------------------------------------------------ */

tide__mpi_turn *tide__mpi_turn_new(tide__mpi *m)
{
  tide__mpi_turn *t = calloc(1, sizeof *t);
  if (!t) return NULL;
  pthread_mutex_init(&t->lock, NULL);
  t->mpi = m;
  t->rank = tide__mpi_rank(m);
  t->nrank = tide__mpi_size(m);
  t->tag = tide__mpi_max_tag(m);
  return t;
}

void tide__mpi_turn_add(tide__mpi_turn *t, tide__mpi_comm *s)
{
  atomic_fetch_add(&t->refs, 1);
  pthread_mutex_lock(&t->lock);
  s->turn = t;
  s->next = t->comms;
  t->comms = s;
  pthread_mutex_unlock(&t->lock);
}

static void turn_listen(tide__mpi_turn *t, int q)
{
  other *o = &t->other[q];
  if (q == t->rank || o->receiving || tide__mpi_dead(t->mpi)) return;
  o->receiving = tide__mpi_recv(t->mpi, o->inbox, note_bytes(LISTED), q, t->tag, &o->recv) == 0;
}

/* Returns whether a request has ended. */
static bool turn_over(tide__mpi_turn *t, tide__mpi_handle *r, bool *active)
{
  bool done = !*active;
  if (!done && !tide__mpi_dead(t->mpi)) tide__mpi_test(t->mpi, r, &done);
  if (done) *active = false;
  return done;
}

/* Takes in the notes of this turn that have arrived; a rank that has resumed may have sent one of
 * the next turn too. The caller holds the lock. */
static void turn_read(tide__mpi_turn *t)
{
  for (int q = 0; q < t->nrank; q++) {
    other *o = &t->other[q];
    while (o->known->turn < t->now && o->receiving && turn_over(t, &o->recv, &o->receiving)) {
      memcpy(o->known, o->inbox, note_bytes(o->inbox->n));
      turn_listen(t, q);
    }
  }
}

/* Returns whether all notes of the current turn have arrived. */
static bool turn_has_notes(tide__mpi_turn *t)
{
  turn_read(t);
  for (int q = 0; q < t->nrank; q++)
    if (q != t->rank && t->other[q].known->turn < t->now) return false;
  return true;
}

static bool turn_has_sent(tide__mpi_turn *t)
{
  bool all = true;
  for (int q = 0; q < t->nrank; q++)
    all = turn_over(t, &t->other[q].send, &t->other[q].sending) && all;
  return all;
}

/* Polls for so many seconds. Returns whether is_so. */
static bool turn_await(tide__mpi_turn *t, bool (*is_so)(tide__mpi_turn *t), double seconds)
{
  tide__wait w = tide__wait_begin(&patience, seconds);
  double begin = tide_trace_clock();
  for (; !is_so(t); tide__wait_pause(&w))
    if (tide__mpi_dead(t->mpi) || tide_trace_clock() - begin > seconds) return false;
  return true;
}

static void turn_free_notes(tide__mpi_turn *t)
{
  for (int q = 0; t->other && q < t->nrank; q++) {
    free(t->other[q].inbox);
    free(t->other[q].known);
  }
  free(t->other);
  free(t->out);
  t->other = NULL;
  t->out = NULL;
}

/* Ends the receives. Returns false if MPI still owns memory. */
static bool turn_close(tide__mpi_turn *t)
{
  bool idle = turn_await(t, turn_has_sent, last_seconds);
  if (t->paused) turn_await(t, turn_has_notes, last_seconds);
  if (tide__mpi_dead(t->mpi)) return false;
  for (int q = 0; q < t->nrank; q++) {
    other *o = &t->other[q];
    if (q == t->rank) continue;
    if (o->known->turn < t->now) tide__mpi_owe(t->mpi);
    if (o->receiving) tide__mpi_cancel(t->mpi, &o->recv);
    for (int i = 0; i < LISTED && !turn_over(t, &o->recv, &o->receiving); i++) {
    }
    idle = idle && !o->receiving;
  }
  return idle;
}

void tide__mpi_turn_remove(tide__mpi_comm *s)
{
  tide__mpi_turn *t = s->turn;
  bool idle = true;
  if (!t) return;
  pthread_mutex_lock(&t->lock);
  tide__mpi_comm **at = &t->comms;
  while (*at != s) at = &(*at)->next;
  *at = s->next;
  s->turn = NULL;
  bool last = atomic_fetch_sub(&t->refs, 1) == 1;
  if (last && t->other) idle = turn_close(t);
  pthread_mutex_unlock(&t->lock);
  if (!last || !idle) return;
  turn_free_notes(t);
  pthread_mutex_destroy(&t->lock);
  free(t);
}

/* ---- the end of a turn ----------------------------------------------------------------------- */

static bool turn_alloc(tide__mpi_turn *t)
{
  if (t->out) return true;
  t->out = calloc(1, note_bytes(LISTED));
  t->other = calloc((size_t)t->nrank, sizeof *t->other);
  bool ok = t->out && t->other;
  for (int q = 0; ok && q < t->nrank; q++) {
    t->other[q].inbox = calloc(1, note_bytes(LISTED));
    t->other[q].known = calloc(1, note_bytes(LISTED));
    ok = t->other[q].inbox && t->other[q].known;
  }
  if (!ok) turn_free_notes(t);
  for (int q = 0; ok && q < t->nrank; q++) {
    t->other[q].known->turn = -1;
    turn_listen(t, q);
  }
  return ok;
}

/* Describes the communicators. Returns false if there are too many. */
static bool turn_describe(tide__mpi_turn *t)
{
  t->out->turn = t->now;
  t->out->n = 0;
  for (tide__mpi_comm *s = t->comms; s; s = s->next) {
    if (t->out->n == LISTED) return false;
    entry *e = &t->out->entry[t->out->n++];
    *e = (entry){s->tag, tide__failed(&s->failure), s->called, -1};
    for (int q = 0; q < s->nrank; q++) {
      if (q == s->rank) continue;
      bool first = e->sent == -1 && q == (s->rank == 0);
      e->sent = first || e->sent == s->peer[q].sent ? s->peer[q].sent : -2;
    }
  }
  return true;
}

static int turn_pause(tide__mpi_turn *t, const char **why)
{
  *why = "no memory for the notes of ranks";
  if (!turn_alloc(t)) return TIDE_E_NOMEM;
  if (t->paused) return TIDE_OK;
  *why = "MPI cannot be used in this process any more, since a collective failed with data on the "
         "way";
  if (tide__mpi_dead(t->mpi) || !turn_await(t, turn_has_sent, send_seconds)) return TIDE_E_PEER;
  *why = "more than 1024 communicators are open; close those that are not used";
  if (!turn_describe(t)) return TIDE_E_UNSUPPORTED;
  for (int q = 0; q < t->nrank; q++)
    if (q != t->rank)
      t->other[q].sending = tide__mpi_send(t->mpi, t->out, note_bytes(t->out->n), q, t->tag,
                                           &t->other[q].send) == 0;
  t->paused = true;
  atomic_store(&t->active, true);
  turn_await(t, turn_has_sent, last_seconds);
  return TIDE_OK;
}

/* ---- in a turn ------------------------------------------------------------------------------- */

static const entry *find_entry(const note *n, int tag)
{
  for (int64_t i = 0; i < n->n; i++)
    if (n->entry[i].tag == tag) return &n->entry[i];
  return NULL;
}

bool tide__mpi_turn_active(const tide__mpi_comm *s)
{
  return s->turn && atomic_load(&s->turn->active);
}

/* Returns whether rank q has paused without having made call seq. */
static bool is_absent(tide__mpi_comm *s, int q, int64_t seq)
{
  const note *n = s->turn->other[s->member[q]].known;
  const entry *e = n->turn >= s->turn->now ? find_entry(n, s->tag) : NULL;
  return n->turn >= s->turn->now && (!e || e->called < seq);
}

int tide__mpi_turn_look(tide__mpi_comm *s, const tide__coll *c,
                        bool (*missing)(tide__mpi_comm *s, int q), int *absent)
{
  int n = 0, late = 0;
  if (!missing || !tide__mpi_turn_active(s)) return 0;
  pthread_mutex_lock(&s->turn->lock);
  turn_read(s->turn);
  for (int q = 0; q < s->nrank; q++) {
    if (q == s->rank || !missing(s, q)) continue;
    if (is_absent(s, q, c->seq)) absent[n++] = q;
    else late++;
  }
  pthread_mutex_unlock(&s->turn->lock);
  double now = tide_trace_clock();
  if (n > 0 && s->absent_since == 0) s->absent_since = now;
  return late == 0 || now - s->absent_since > name_seconds ? n : 0;
}

void tide__mpi_turn_others(tide__mpi_comm *s, void (*fn)(tide__mpi_comm *o, void *arg), void *arg)
{
  if (!s->turn) return;
  pthread_mutex_lock(&s->turn->lock);
  for (tide__mpi_comm *o = s->turn->comms; o; o = o->next)
    if (o != s) fn(o, arg);
  pthread_mutex_unlock(&s->turn->lock);
}

bool tide__mpi_turn_holds(tide__mpi_comm *s)
{
  if (!tide__mpi_turn_active(s)) return false;
  double now = tide_trace_clock();
  if (s->stopped_since == 0) s->stopped_since = now;
  return now - s->stopped_since < stop_seconds;
}

/* ---- the beginning of a turn ----------------------------------------------------------------- */

static const note *note_of(const tide__mpi_comm *s, int q)
{
  return q == s->rank ? s->turn->out : s->turn->other[s->member[q]].known;
}

/* Returns whether a communicator has failed on some rank and no rank has left it. */
static bool can_mend(const tide__mpi_comm *s)
{
  bool failed = false;
  for (int q = 0; q < s->nrank; q++) {
    const entry *e = find_entry(note_of(s, q), s->tag);
    if (!e || (s->nrank > 1 && e->sent < 0)) return false;
    failed = failed || e->failed;
  }
  return failed && !s->left;
}

static int turn_mend(tide__mpi_turn *t, double seconds)
{
  for (tide__mpi_comm *s = t->comms; s; s = s->next) {
    if (!can_mend(s)) continue;
    for (int q = 0; q < s->nrank; q++)
      if (q != s->rank && !tide__mpi_drain(s, q, find_entry(note_of(s, q), s->tag)->sent, seconds))
        return TIDE_E_TIMEOUT;
    tide__mpi_renew(s);
  }
  return TIDE_OK;
}

static int turn_resume(tide__mpi_turn *t, double seconds, const char **why)
{
  *why = "this rank has not paused; pause it first";
  if (!t->paused) return TIDE_E_STATE;
  *why = "not all ranks have ended the turn before";
  if (!turn_await(t, turn_has_notes, seconds)) return TIDE_E_TIMEOUT;
  *why = "a packet that another rank has sent does not arrive";
  TIDE_TRY(turn_mend(t, seconds));
  t->now++;
  t->paused = false;
  return TIDE_OK;
}

/* ---- the public calls ------------------------------------------------------------------------ */

/* Returns the turns of a world, or null after a message. */
static tide__mpi_turn *turn_of(tide_comm *comm, const char *op, int *rc)
{
  bool ours = strcmp(comm->transport->name, "mpi") == 0 && !comm->group;
  tide__mpi_comm *s = ours ? comm->state : NULL;
  bool usable = s && s->turn && s->nrank == s->turn->nrank && tide__mpi_my_thread(s->mpi);
  *rc = usable ? TIDE_OK : tide__fail(comm->ctx, TIDE_E_ARG, op, "argument 'comm': expected the "
                                      "world of an MPI job, on a thread that may call MPI");
  return usable ? s->turn : NULL;
}

int tide_comm_pause(tide_comm *comm)
{
  TIDE_DOOR(TIDE_OBJECT(COMM, comm));
  const char *why;
  int rc;
  tide__mpi_turn *t = turn_of(comm, "comm_pause", &rc);
  if (!t) return rc;
  tide__comm_each(comm->ctx, NULL, tide__comm_rest);
  pthread_mutex_lock(&t->lock);
  rc = turn_pause(t, &why);
  pthread_mutex_unlock(&t->lock);
  return rc < 0 ? tide__fail(comm->ctx, rc, "comm_pause", "%s", why) : TIDE_OK;
}

int tide_comm_resume(tide_comm *comm)
{
  TIDE_DOOR(TIDE_OBJECT(COMM, comm));
  const char *why;
  int rc;
  tide__mpi_turn *t = turn_of(comm, "comm_resume", &rc);
  if (!t) return rc;
  pthread_mutex_lock(&t->lock);
  rc = turn_resume(t, comm->timeout, &why);
  pthread_mutex_unlock(&t->lock);
  if (rc < 0) return tide__fail(comm->ctx, rc, "comm_resume", "%s", why);
  tide__comm_each(comm->ctx, NULL, tide__comm_adopt);
  return TIDE_OK;
}
