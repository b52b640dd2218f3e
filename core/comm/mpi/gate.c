/* The gate of a communicator over MPI, and how a failure travels. See mpi.h. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/comm/mpi/mpi.h"

/* Seconds of yielding at the gate before naps. A yield that takes longer than foreign_slice was
 * spent in time slices of others: who yields again waits for them again, who naps has used little
 * and is woken at once. */
static const double yield_seconds = 1e-3, foreign_slice = 1e-3;
/* SHARED_WAITS: waits that nap from the start, before a yield is tried again. */
enum { SPINS = 5000, SHORT_NAP = 20000, LONG_NAP = 1000000, LAST_LOOKS = 500, SHARED_WAITS = 64 };

/* ---- patience -------------------------------------------------------------------------------- */

void tide__mpi_be_patient(tide__mpi_comm *s, tide__mpi_patience *p, int64_t spins, double limit)
{
  if (s->crowd || s->shared > 0) spins = 0;
  if (s->shared > 0) s->shared--;
  *p = (tide__mpi_patience){.start = tide_trace_clock(), .limit = limit, .spins = spins,
                            .nap = SHORT_NAP};
}

static void take_nap(long ns)
{
  struct timespec ts = {0, ns};
  nanosleep(&ts, NULL);
}

bool tide__mpi_pause(tide__mpi_comm *s, tide__mpi_patience *p)
{
  p->polls++;
  if (p->polls < p->spins) return p->polls % 256 == 0;
  double before = tide_trace_clock();
  if (s->shared > 0) {
    take_nap(p->nap);
    if (before - p->start > p->limit && p->nap < LONG_NAP) p->nap *= 2;
    return true;
  }
  sched_yield();
  double now = tide_trace_clock();
  if (now - before > foreign_slice) s->shared = SHARED_WAITS;
  if (p->polls % 16) return false;
  if (now - p->start < p->limit) return true;
  take_nap(p->nap);
  if (p->nap < LONG_NAP) p->nap *= 2;
  return true;
}

/* ---- life ------------------------------------------------------------------------------------ */

static size_t packet_bytes(const tide__mpi_comm *s) { return sizeof(tide__mpi_packet) + s->room; }

static void release_all(tide__mpi_comm *s)
{
  for (int q = 0; s->peer && q < s->nrank; q++) free(s->peer[q].inbox);
  free(s->peer);
  free(s->member);
  free(s->out);
  free(s->bye);
  free(s->farewell);
  free(s->req);
  free(s->who);
  free(s->incoming);
  free(s->over);
  free(s->scratch);
  pthread_mutex_destroy(&s->busy);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

static bool fill(tide__mpi_comm *s, const int *member)
{
  size_t n = (size_t)s->nrank;
  s->member = malloc(n * sizeof *s->member);
  s->peer = calloc(n, sizeof *s->peer);
  s->out = calloc(1, packet_bytes(s));
  s->bye = calloc(1, packet_bytes(s));
  s->farewell = calloc(1, packet_bytes(s));
  s->req = malloc(2 * n * sizeof *s->req);
  s->who = malloc(2 * n * sizeof *s->who);
  s->incoming = malloc(2 * n * sizeof *s->incoming);
  s->over = malloc(2 * n * sizeof *s->over);
  s->scratch = malloc(2 * ((size_t)TIDE__MPI_CHUNK + (n + 1) * 64));
  bool ok = s->member && s->peer && s->out && s->bye && s->farewell && s->req && s->who &&
            s->incoming && s->over && s->scratch;
  for (int q = 0; ok && q < s->nrank; q++) {
    s->member[q] = member[q];
    s->peer[q].seq = -1;
    ok = (s->peer[q].inbox = calloc(1, packet_bytes(s))) != NULL;
  }
  return ok;
}

static void listen(tide__mpi_comm *s, int q)
{
  tide__mpi_peer *p = &s->peer[q];
  if (q == s->rank || p->receiving || p->here || tide__mpi_dead(s->mpi)) return;
  p->receiving = tide__mpi_recv(s->mpi, p->inbox, packet_bytes(s), s->member[q], s->tag,
                                &p->recv) == 0;
}

tide__mpi_comm *tide__mpi_comm_new(tide__mpi *m, int id, int rank, int nrank, const int *member,
                                   bool check, const char *name)
{
  tide__mpi_comm *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->rank = rank;
  s->nrank = nrank;
  s->tag = 2 * id;
  s->pid = getpid();
  s->check = check;
  size_t counts = 2 * (size_t)nrank * sizeof(int64_t);
  s->room = counts > TIDE__COMM_TEXT ? counts : TIDE__COMM_TEXT;
  s->cause_rank = -1;
  snprintf(s->name, sizeof s->name, "%s", name);
  pthread_mutex_init(&s->busy, NULL);
  pthread_mutex_init(&s->lock, NULL);
  if (!fill(s, member)) {
    release_all(s);
    return NULL;
  }
  s->mpi = tide__mpi_hold(m);
  for (int q = 0; q < nrank; q++) listen(s, q);
  return s;
}

static bool over(tide__mpi_comm *s, tide__mpi_handle *r, bool *active)
{
  bool done = !*active;
  if (!done && !tide__mpi_dead(s->mpi)) tide__mpi_test(s->mpi, r, &done);
  if (done) *active = false;
  return done;
}

/* True when the farewell of q has come. */
static bool has_left(tide__mpi_comm *s, int q)
{
  tide__mpi_peer *p = &s->peer[q];
  for (int i = 0; i < LAST_LOOKS; i++) {
    if (p->receiving && over(s, &p->recv, &p->receiving)) p->here = true;
    if (p->here && p->inbox->kind == TIDE__MPI_LEAVE) return true;
    if (p->here) {
      p->here = false;
      listen(s, q);
    } else {
      sched_yield();
    }
  }
  return false;
}

/* What MPI still owns stays allocated for good. A farewell that comes later is taken in before MPI
 * ends. */
void tide__mpi_comm_free(tide__mpi_comm *s)
{
  bool idle = true;
  if (s->pid != getpid() || !tide__mpi_my_thread(s->mpi)) return;
  tide__mpi_leave(s, "");
  for (int q = 0; q < s->nrank; q++) {
    tide__mpi_peer *p = &s->peer[q];
    if (q == s->rank || tide__mpi_dead(s->mpi)) continue;
    bool left = has_left(s, q);
    if (p->receiving) tide__mpi_cancel(s->mpi, &p->recv);
    for (int i = 0; i < LAST_LOOKS && !over(s, &p->recv, &p->receiving); i++) sched_yield();
    for (int i = 0; i < LAST_LOOKS && !over(s, &p->send, &p->sending); i++) sched_yield();
    if (!left) tide__mpi_owe(s->mpi);
    idle = idle && !p->receiving && !p->sending;
  }
  if (!idle || tide__mpi_dead(s->mpi)) return;
  tide__mpi_drop(s->mpi);
  release_all(s);
}

/* ---- failures -------------------------------------------------------------------------------- */

/* The first one stays. */
static void keep(tide__mpi_comm *s, int status, int rank, bool told, const char *text)
{
  pthread_mutex_lock(&s->lock);
  if (!s->cause) {
    s->cause = status;
    s->cause_rank = rank;
    s->told = told;
    snprintf(s->text, sizeof s->text, "%s", text);
    atomic_store_explicit(&s->failed, 1, memory_order_release);
  }
  pthread_mutex_unlock(&s->lock);
}

int tide__mpi_cause(tide__mpi_comm *s, int rank, char *text, size_t n)
{
  pthread_mutex_lock(&s->lock);
  int status = s->cause;
  if (status == TIDE_E_INTERRUPT && s->cause_rank != rank) status = TIDE_E_PEER;
  if (status) snprintf(text, n, "%s", s->text);
  pthread_mutex_unlock(&s->lock);
  return status;
}

/* A packet to one rank. Small, so MPI takes it at once; if not, its buffer stays. */
static void post(tide__mpi_comm *s, int q, const tide__mpi_packet *p)
{
  tide__mpi_peer *to = &s->peer[q];
  size_t n = sizeof *p + (size_t)p->nmore;
  for (int i = 0; i < LAST_LOOKS && !over(s, &to->send, &to->sending); i++) sched_yield();
  if (to->sending || tide__mpi_dead(s->mpi)) return;
  to->sending = tide__mpi_send(s->mpi, p, n, s->member[q], s->tag, &to->send) == 0;
}

/* Under busy: sends the failure that is kept to everyone, once. */
static void tell(tide__mpi_comm *s)
{
  pthread_mutex_lock(&s->lock);
  bool told = s->told;
  s->told = true;
  s->bye->kind = TIDE__MPI_FAIL;
  s->bye->status = s->cause;
  s->bye->nmore = (int64_t)strlen(s->text) + 1;
  memcpy(s->bye->more, s->text, (size_t)s->bye->nmore);
  pthread_mutex_unlock(&s->lock);
  if (told || tide__mpi_dead(s->mpi)) return;
  s->bye->seq = s->done;
  for (int q = 0; q < s->nrank; q++)
    if (q != s->rank) post(s, q, s->bye);
}

int tide__mpi_fail(tide__mpi_comm *s, tide__coll *c, int status, const char *text)
{
  if (text) keep(s, status, s->rank, status == TIDE_E_COMM, text);
  tell(s);
  return tide__mpi_cause(s, s->rank, c->message, sizeof c->message);
}

void tide__mpi_poison(tide__mpi_comm *s, int status, const char *text)
{
  keep(s, status, s->rank, false, text);
  if (s->pid != getpid() || !tide__mpi_my_thread(s->mpi)) return;
  if (pthread_mutex_trylock(&s->busy)) return;
  tell(s);
  pthread_mutex_unlock(&s->busy);
}

/* While a call is under way it is told to end, and the farewell waits for the state's end. */
void tide__mpi_leave(tide__mpi_comm *s, const char *text)
{
  if (s->left || s->pid != getpid() || !tide__mpi_my_thread(s->mpi)) return;
  if (pthread_mutex_trylock(&s->busy)) {
    keep(s, TIDE_E_PEER, s->rank, false, text);
    return;
  }
  s->left = true;
  s->farewell->kind = TIDE__MPI_LEAVE;
  s->farewell->seq = s->done;
  s->farewell->nmore = snprintf(s->farewell->more, s->room, "%s", text) + 1;
  for (int q = 0; q < s->nrank; q++)
    if (q != s->rank) post(s, q, s->farewell);
  pthread_mutex_unlock(&s->busy);
}

/* ---- packets --------------------------------------------------------------------------------- */

static uint64_t fold_segs(const tide__coll *c, bool sent)
{
  uint64_t h = (uint64_t)c->nseg;
  for (int64_t i = 0; i < c->nseg; i++) {
    const tide__seg *g = &c->seg[i];
    h = tide__hash_step(h, sent ? (uint64_t)g->nin << 8 | (uint64_t)(uint8_t)g->in_type
                                : (uint64_t)g->nout << 8 | (uint64_t)(uint8_t)g->out_type);
  }
  return h;
}

static void describe(tide__mpi_comm *s, const tide__coll *c)
{
  tide__mpi_packet *p = s->out;
  size_t n = (size_t)s->nrank * sizeof(int64_t);
  *p = (tide__mpi_packet){.kind = TIDE__MPI_CALL, .seq = c->seq, .words = tide__call_pack(c),
                          .to = c->to, .from = c->from};
  memcpy(p->site, c->site, sizeof p->site);
  if (c->op == TIDE__SEND_RECV) {
    p->nseg = (int32_t)c->nseg;
    if (c->nseg && c->to >= 0) p->give_n = c->seg[0].nin, p->give_type = c->seg[0].in_type;
    if (c->nseg && c->from >= 0) p->take_n = c->seg[0].nout, p->take_type = c->seg[0].out_type;
    if (c->to >= 0) p->give = fold_segs(c, true);
    if (c->from >= 0) p->take = fold_segs(c, false);
  } else if (c->op == TIDE__ALL_TO_ALL_V) {
    memcpy(p->more, c->in_counts, n);
    memcpy(p->more + n, c->out_counts, n);
    p->nmore = (int64_t)(2 * n);
  }
}

static const tide__mpi_packet *packet_of(const tide__mpi_comm *s, int q)
{
  return q == s->rank ? s->out : s->peer[q].inbox;
}

/* True once a packet of q is in its inbox. */
static bool look(tide__mpi_comm *s, int q)
{
  tide__mpi_peer *p = &s->peer[q];
  if (p->here || q == s->rank) return true;
  if (p->receiving && over(s, &p->recv, &p->receiving)) p->here = true;
  return p->here;
}

/* The packet of q is a failure or a farewell that concerns a call after `done`: takes it over. */
static bool is_bye(tide__mpi_comm *s, int q, int64_t done)
{
  const tide__mpi_peer *p = &s->peer[q];
  if (q == s->rank || !p->here || p->inbox->kind == TIDE__MPI_CALL) return false;
  if (p->inbox->seq > done) return false;
  int status = p->inbox->kind == TIDE__MPI_LEAVE ? TIDE_E_PEER : p->inbox->status;
  p->inbox->more[s->room - 1] = 0;
  keep(s, status, q, true, p->inbox->more);
  return true;
}

/* ---- comparing calls ------------------------------------------------------------------------- */

static int64_t count_at(const tide__mpi_packet *p, int64_t i)
{
  int64_t v;
  memcpy(&v, p->more + (size_t)i * sizeof v, sizeof v);
  return v;
}

/* What rank a sends must be what b expects. False: text names the pair and what differs. */
static bool counts_fit(const tide__mpi_comm *s, int a, int b, char *text, size_t n)
{
  int64_t sent = count_at(packet_of(s, a), b);
  int64_t expected = count_at(packet_of(s, b), s->nrank + a);
  if (sent == expected) return true;
  snprintf(text, n, "rank %d sends %lld elements to rank %d, which expects %lld", a,
           (long long)sent, b, (long long)expected);
  return false;
}

static bool sends_fit(const tide__mpi_comm *s, int from, int to, char *text, size_t n)
{
  const tide__mpi_packet *a = packet_of(s, from), *b = packet_of(s, to);
  bool sends = a->to == to, expects = b->from == from;
  if (sends != expects)
    snprintf(text, n, sends ? "rank %d sends to rank %d, which receives from %d"
                            : "rank %d does not send to rank %d, which receives from %d",
             from, to, b->from);
  else if (sends && a->nseg != b->nseg)
    snprintf(text, n, "rank %d sends %d tensors to rank %d, which expects %d", from, a->nseg, to,
             b->nseg);
  else if (sends && (a->give_n != b->take_n || a->give_type != b->take_type))
    snprintf(text, n, "tensor 1: rank %d sends %lld elements of %s to rank %d, which expects %lld "
             "of %s", from, (long long)a->give_n, tide_dtype_name(a->give_type), to,
             (long long)b->take_n, tide_dtype_name(b->take_type));
  else if (sends && a->give != b->take)
    snprintf(text, n, "rank %d sends tensors of other counts or dtypes than rank %d expects", from,
             to);
  else return true;
  return false;
}

static bool pairs_fit(const tide__mpi_comm *s, int op, char *text, size_t n)
{
  for (int a = 0; a < s->nrank; a++) {
    const tide__mpi_packet *p = packet_of(s, a);
    if (op == TIDE__ALL_TO_ALL_V) {
      for (int b = 0; b < s->nrank; b++)
        if (!counts_fit(s, a, b, text, n)) return false;
    } else {
      if (p->to >= 0 && !sends_fit(s, a, p->to, text, n)) return false;
      if (p->from >= 0 && !sends_fit(s, p->from, a, text, n)) return false;
    }
  }
  return true;
}

static bool same_call(const tide__mpi_packet *a, const tide__mpi_packet *b)
{
  return memcmp(&a->words, &b->words, sizeof a->words) == 0;
}

/* Ranks with equal calls share a line. */
static void list_calls(const tide__mpi_comm *s, char *buf, size_t n, size_t *at)
{
  bool listed[TIDE__MAX_RANK] = {false};
  for (int q = 0; q < s->nrank; q++) {
    const tide__mpi_packet *p = packet_of(s, q);
    char call[128];
    int same = 0;
    if (listed[q]) continue;
    tide__append(buf, n, at, "\n  rank %d", q);
    for (int k = q + 1; k < s->nrank; k++) {
      const tide__mpi_packet *o = packet_of(s, k);
      if (!same_call(p, o) || memcmp(p->site, o->site, sizeof p->site)) continue;
      listed[k] = true;
      if (same++ < 16) tide__append(buf, n, at, ", %d", k);
    }
    tide__append(buf, n, at, ": %s at %s", tide__call_text(&p->words, call, sizeof call),
                 p->site[0] ? p->site : "?");
  }
}

/* The same answer on every rank, from the same packets. */
static bool calls_agree(const tide__mpi_comm *s, const tide__coll *c, char *text, size_t n)
{
  char why[256] = "";
  size_t at = 0;
  bool same = true;
  for (int q = 0; q < s->nrank && same; q++) same = same_call(s->out, packet_of(s, q));
  if (same && c->op != TIDE__SEND_RECV && c->op != TIDE__ALL_TO_ALL_V) return true;
  if (same && pairs_fit(s, c->op, why, sizeof why)) return true;
  tide__append(text, n, &at, "ranks disagree about call #%lld on '%s'%s%s; no data was moved",
               (long long)c->seq, s->name, *why ? ": " : "", why);
  list_calls(s, text, n, &at);
  return false;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static void say_call(const tide__mpi_comm *s, const tide__coll *c, char *buf, size_t n, size_t *at)
{
  char call[128];
  tide__call_words w = tide__call_pack(c);
  tide__append(buf, n, at, "#%lld %s on '%s' at %s", (long long)c->seq,
               tide__call_text(&w, call, sizeof call), s->name, c->site[0] ? c->site : "?");
}

int tide__mpi_late(tide__mpi_comm *s, tide__coll *c, const bool *missing)
{
  char text[TIDE__COMM_TEXT], call[128];
  size_t at = 0;
  int n = 0;
  tide__append(text, sizeof text, &at, "rank %d waited %g s in ", s->rank, c->timeout);
  say_call(s, c, text, sizeof text, &at);
  for (int q = 0; q < s->nrank; q++) {
    const tide__mpi_peer *p = &s->peer[q];
    if (!missing[q] || n++ >= 8) continue;
    bool came = p->seq >= c->seq; /* and did not take or give its data */
    tide__append(text, sizeof text, &at, came ? "\n  rank %d came but does not move its data"
                                              : "\n  rank %d has not come", q);
    if (came) continue;
    if (p->seq > 0)
      tide__append(text, sizeof text, &at, "; its last call here was #%lld %s at %s",
                   (long long)p->seq, tide__call_text(&p->words, call, sizeof call),
                   p->site[0] ? p->site : "?");
    else if (s->check) tide__append(text, sizeof text, &at, "; it has made no call here yet");
  }
  if (n > 8) tide__append(text, sizeof text, &at, "\n  and %d more", n - 8);
  tide__mpi_note_late(s->mpi);
  return tide__mpi_fail(s, c, TIDE_E_TIMEOUT, text);
}

static int stopped(tide__mpi_comm *s, tide__coll *c)
{
  char text[TIDE__COMM_TEXT];
  size_t at = 0;
  tide__append(text, sizeof text, &at, "rank %d was interrupted in ", s->rank);
  say_call(s, c, text, sizeof text, &at);
  atomic_store(c->interrupt, 0); /* answered */
  return tide__mpi_fail(s, c, TIDE_E_INTERRUPT, text);
}

int tide__mpi_trouble(tide__mpi_comm *s, tide__coll *c)
{
  for (int q = 0; q < s->nrank; q++) {
    look(s, q);
    if (is_bye(s, q, c->seq - 1)) break;
  }
  if (atomic_load_explicit(&s->failed, memory_order_acquire)) return tide__mpi_fail(s, c, 0, NULL);
  if (c->interrupt && atomic_load_explicit(c->interrupt, memory_order_relaxed) > 1)
    return stopped(s, c);
  return TIDE_OK;
}

/* The send of the packet before is long over, but must be before `out` changes. */
static int await_sends(tide__mpi_comm *s, tide__coll *c)
{
  tide__mpi_patience wait;
  tide__mpi_be_patient(s, &wait, SPINS, yield_seconds);
  for (int q = 0; q < s->nrank; q++)
    while (!over(s, &s->peer[q].send, &s->peer[q].sending)) {
      if (!tide__mpi_pause(s, &wait)) continue;
      int rc = tide__mpi_trouble(s, c);
      if (rc) return rc;
      if (tide_trace_clock() - wait.start <= c->timeout) continue;
      bool missing[TIDE__MAX_RANK] = {false};
      missing[q] = true;
      return tide__mpi_late(s, c, missing);
    }
  return TIDE_OK;
}

static int await_packets(tide__mpi_comm *s, tide__coll *c)
{
  tide__mpi_patience wait;
  tide__mpi_be_patient(s, &wait, SPINS, yield_seconds);
  for (int i = 1; i < s->nrank; i++) {
    int q = (s->rank + i) % s->nrank;
    while (!look(s, q)) {
      if (!tide__mpi_pause(s, &wait)) continue;
      int rc = tide__mpi_trouble(s, c);
      if (rc) return rc;
      if (tide_trace_clock() - wait.start <= c->timeout) continue;
      bool missing[TIDE__MAX_RANK];
      for (int k = 0; k < s->nrank; k++) missing[k] = !look(s, k);
      return tide__mpi_late(s, c, missing);
    }
    if (is_bye(s, q, c->seq - 1)) return tide__mpi_fail(s, c, 0, NULL);
  }
  return TIDE_OK;
}

/* Inboxes become free again. */
static void turn_page(tide__mpi_comm *s)
{
  for (int q = 0; q < s->nrank; q++) {
    tide__mpi_peer *p = &s->peer[q];
    if (q == s->rank) continue;
    p->words = p->inbox->words;
    p->seq = p->inbox->seq;
    memcpy(p->site, p->inbox->site, sizeof p->site);
    p->here = false;
    listen(s, q);
  }
}

int tide__mpi_gate(tide__mpi_comm *s, tide__coll *c)
{
  char text[TIDE__COMM_TEXT];
  int rc = await_sends(s, c);
  if (rc) return rc;
  describe(s, c);
  for (int i = 1; i < s->nrank; i++) post(s, (s->rank + i) % s->nrank, s->out);
  rc = await_packets(s, c);
  if (rc) return rc;
  bool agree = calls_agree(s, c, text, sizeof text);
  turn_page(s);
  return agree ? TIDE_OK : tide__mpi_fail(s, c, TIDE_E_COMM, text);
}
