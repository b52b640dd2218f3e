/* The transport of ranks that are threads of one process: they read each other's buffers in place.
 *
 * Between entry and exit every rank may read the other ranks' descriptions, so no byte is staged. A
 * reduction is cut into one share a rank; a rank reads its share from all buffers, in rank order,
 * and writes the result to all of them: each byte is read once and written once, the least an
 * all-reduce can do. The other collectives copy straight from where the data lie. Only a payload so
 * small that a barrier costs more than a copy is left in the slot: one barrier instead of two.
 *
 * No function between entry and exit can fail or wait for anything but the other ranks. Where the
 * operands lie on a device that the ranks share, what is moved there is enqueued, and events say in
 * which order (device.c).
 */
#include <math.h>
#include <sched.h>

#include "core/comm/local/local.h"

typedef tide__local_comm local;

#define LOAD(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define STORE(x, v) atomic_store_explicit(&(x), v, memory_order_release)

static const tide__coll *peer(const local *s, int rank) { return s->slot[rank].coll; }

/* ---- moving data, between entry and exit ----------------------------------------------------- */

/* Combines this rank's share of tensor i of all ranks (i < 0: of their inputs). */
static void reduce_share(local *s, int me, tide__coll *c, int64_t i, int64_t count, int dtype)
{
  size_t size = (size_t)tide_dtype_size(dtype);
  tide__slice share = tide__move_share(c, count, size, me, s->nrank);
  size_t at = (size_t)share.at * size;
  const void *src[TIDE__MAX_RANK];
  void *dst[TIDE__MAX_RANK];
  int n = 0;
  if (share.n == 0) return;
  for (int q = 0; q < s->nrank; q++) {
    const tide__coll *p = peer(s, q);
    src[q] = (i < 0 ? p->in : p->seg[i].out) + at;
    if (i >= 0 && (c->root < 0 || q == c->root)) dst[n++] = p->seg[i].out + at;
  }
  if (i < 0) dst[n++] = c->out;
  tide__coll_reduce(c, dst, n, src, s->nrank, share.n, dtype, c->reduce);
}

/* Copies part i of rank q. A rank fetches what it receives; to a root each rank writes its own
 * part. A part may already be in its place. */
static void copy_part(local *s, int me, tide__coll *c, int q, int64_t i)
{
  bool brings = c->op == TIDE__GATHER;
  tide__part mine = tide__move_part(c, me, q, i);
  size_t n = brings ? mine.nin : mine.nout;
  if (n == 0) return; /* and q may have no part i */
  tide__part other = tide__move_part(peer(s, q), q, me, i);
  char *to = brings ? other.out : mine.out;
  const char *from = brings ? mine.in : other.in;
  if (to != from) tide__coll_copy(c, to, from, n);
}

static void move_data(local *s, int me, tide__coll *c)
{
  if (c->op == TIDE__REDUCE_SCATTER || c->op == TIDE__REDUCE_SCATTER_V)
    reduce_share(s, me, c, -1, 0, c->dtype);
  for (int64_t i = 0; c->op <= TIDE__REDUCE && i < c->nseg; i++)
    reduce_share(s, me, c, i, c->seg[i].nout, c->seg[i].out_type);
  for (int64_t i = 0; i < tide__move_count(c); i++)
    for (int k = 0; k < s->nrank; k++) copy_part(s, me, c, (me + k) % s->nrank, i);
}

/* ---- small payloads, in the slots ------------------------------------------------------------ */

/* Returns the bytes that each rank leaves in its slot, or -1: too many, or not such a call. The
 * same on all ranks whose calls agree. */
static int64_t post_size(const local *s, const tide__coll *c)
{
  int64_t bytes = -1;
  if (c->stream) return -1;
  if (c->op == TIDE__BARRIER) return 0;
  if (c->op == TIDE__ALL_GATHER) bytes = c->count * (int64_t)c->size;
  if ((c->op == TIDE__ALL_REDUCE || c->op == TIDE__BROADCAST) && c->nseg == 1)
    bytes = c->seg[0].nout * tide_dtype_size(c->seg[0].out_type);
  return bytes <= TIDE__POST && bytes * s->nrank <= 16 * TIDE__POST ? bytes : -1;
}

static char *payload(local *s, int rank, const tide__coll *c)
{
  return s->slot[rank].page[c->seq & 1].payload;
}

/* Leaves a small payload in the slot, before the entry. Returns its size, or -1. */
static int64_t local_post(local *s, int me, const tide__coll *c)
{
  int64_t bytes = post_size(s, c);
  if (bytes > 0 && (c->op != TIDE__BROADCAST || c->root == me))
    memcpy(payload(s, me, c), c->op == TIDE__ALL_GATHER ? c->in : c->seg[0].out, (size_t)bytes);
  return bytes;
}

/* Takes the payloads of all ranks, behind the entry. Needs no exit. */
static void take_posted(local *s, int me, tide__coll *c, size_t bytes)
{
  const void *src[TIDE__MAX_RANK];
  if (bytes == 0) return;
  if (c->op == TIDE__ALL_REDUCE) {
    void *dst[1] = {c->seg[0].out};
    for (int q = 0; q < s->nrank; q++) src[q] = payload(s, q, c);
    tide__coll_reduce(c, dst, 1, src, s->nrank, c->seg[0].nout, c->seg[0].out_type, c->reduce);
  } else if (c->op == TIDE__ALL_GATHER) {
    for (int q = 0; q < s->nrank; q++) memcpy(c->out + (size_t)q * bytes, payload(s, q, c), bytes);
  } else if (c->root != me) {
    memcpy(c->seg[0].out, payload(s, c->root, c), bytes);
  }
}

/* ---- exchanging calls ------------------------------------------------------------------------ */

/* Returns the word that ranks compare first, one load a rank. The odd factors make calls that
 * differ in one word differ here for certain, and those that differ in several except for one in
 * 2^64. */
static uint64_t tag_of(const tide__call_same *same)
{
  uint64_t w[sizeof *same / 8];
  memcpy(w, same, sizeof w);
  return w[0] * 0xbf58476d1ce4e5b9u + w[1] * 0x94d049bb133111ebu + w[2] * 0xd6e8feb86659fd93u +
         w[3] * 0xff51afd7ed558ccdu;
}

/* Describes the call to other ranks. */
static uint64_t local_announce(local *s, int me, const tide__coll *c, const tide__comm_call *call)
{
  tide__slot *slot = &s->slot[me];
  uint64_t version = LOAD(slot->version), tag = tag_of(&call->same);
  atomic_store_explicit(&slot->version, version + 1, memory_order_relaxed);
  for (size_t i = 0; i < TIDE__CALL_WORDS; i++) {
    uint64_t word;
    memcpy(&word, (const char *)call + i * sizeof word, sizeof word);
    STORE(slot->word[i], word);
  }
  STORE(slot->version, version + 2);
  tide__page *page = &slot->page[c->seq & 1];
  page->to = call->to;
  page->from = call->from;
  page->sent = call->sent;
  page->expected = call->expected;
  slot->coll = c;
  STORE(s->entry->tag[me][c->seq & 1], tag); /* last: the next store to its line is the arrival */
  return tag;
}

static int compare_calls(local *s, tide__coll *c)
{
  tide__call_ref calls[TIDE__MAX_RANK];
  for (int q = 0; q < s->nrank; q++) calls[q] = (tide__call_ref){&s->slot[q].call, s->slot[q].list};
  return tide__agree(calls, s->nrank, s->name, c->message, sizeof c->message);
}

static const tide__page *page_of(const local *s, int rank, const tide__coll *c)
{
  return &s->slot[rank].page[c->seq & 1];
}

/* Returns whether rank a sends what its partner expects, and receives from a rank that sends to
 * it. */
static bool pair_matches(const local *s, const tide__coll *c, int a)
{
  const tide__page *p = page_of(s, a, c), *to = p->to < 0 ? NULL : page_of(s, p->to, c);
  if (to && (to->from != a || to->expected != p->sent)) return false;
  return p->from < 0 || page_of(s, p->from, c)->to == a;
}

/* Returns the same on every rank, from the same slots. What matches here agrees, but for a chance
 * of 2^-64; tide__agree decides about the rest. */
static int local_agree(local *s, tide__coll *c, uint64_t tag)
{
  bool same = c->op != TIDE__ALL_TO_ALL_V;
  for (int q = 0; q < s->nrank && same; q++) same = LOAD(s->entry->tag[q][c->seq & 1]) == tag;
  for (int q = 0; q < s->nrank && same && c->op == TIDE__SEND_RECV; q++)
    same = pair_matches(s, c, q);
  int rc = same ? TIDE_OK : compare_calls(s, c);
  if (rc < 0) tide__failure_set(&s->failure, rc, -1, c->message, NULL);
  return rc;
}

/* ---- waiting --------------------------------------------------------------------------------- */

static const tide__patience patience = {.yield = 200e-6, .polls = 1, .nap = 50000000,
                                        .longest = 50000000};
/* Seconds between two searches for ranks that wait for each other. */
static const double search_seconds = 0.25;

static int local_failed(local *s, int me, tide__coll *c)
{
  return tide__failure_get(&s->failure, me, c->message, sizeof c->message);
}

static void local_name_missing(local *s, const tide__coll *c, tide__text *t)
{
  int named = 0;
  for (int q = 0; q < s->nrank; q++) {
    tide__comm_call last;
    int64_t done;
    tide__slot_read(&s->slot[q], &last, &done);
    if (last.seq >= c->seq || named++ >= 8) continue;
    tide__add_missing(t, q, &last);
    tide__group_whereabouts(s->group, s, s->member[q], t);
  }
  if (named > 8) tide__add(t, "\n  and %d more", named - 8);
  if (named == 0) tide__add(t, "\n  the last rank arrived as the time ran out");
}

/* Ends the wait of this rank with a failure. Returns PASSED if the others have arrived meanwhile:
 * they use this rank's operands and wait for it at the exit, even if a failure is set by then. */
static int give_up(local *s, int me, tide__coll *c, int why)
{
  char buf[TIDE__COMM_TEXT];
  tide__text t = tide__text_in(buf, sizeof buf);
  if (why == TIDE_E_COMM) tide__turn_describe(s, c, &t);
  else tide__add_ended(&t, why, me, c, s->name);
  if (why == TIDE_E_TIMEOUT) local_name_missing(s, c, &t);
  const uint32_t *last = &s->slot[me].entered;
  if (!tide__failure_end(&s->failure, c, why, me, buf, last)) return TIDE__PASSED;
  return tide__barrier_close(&s->entry->barrier, last) ? TIDE__CLOSED : TIDE__PASSED;
}

/* Returns how long to spin: a rank on this processor cannot arrive meanwhile. */
static int spin_for(local *s, int me)
{
  int cpu = sched_getcpu();
  if (LOAD(s->slot[me].cpu) != cpu)
    atomic_store_explicit(&s->slot[me].cpu, cpu, memory_order_relaxed);
  for (int q = 0; s->spin > 0 && q < s->nrank; q++)
    if (q != me && LOAD(s->slot[q].cpu) == cpu) return 0;
  return s->spin;
}

/* What one search has found. */
typedef struct finding { uint64_t cycle; int npaused; } finding;

/* Searches for what keeps the missing ranks. Returns E_COMM if some have paused: when all of them
 * have, or in the second search, as others may be about to. */
static int search_missing(local *s, int me, const tide__coll *c, finding *f)
{
  int npaused, nmissing = tide__turn_missing(s, c, &npaused);
  if (npaused > 0 && (npaused == nmissing || f->npaused > 0)) return TIDE_E_COMM;
  f->npaused = npaused;
  f->cycle = tide__group_deadlock(s, me, f->cycle);
  return TIDE_OK;
}

/* Passes the entry. Returns PASSED or CLOSED. */
static int local_enter(local *s, int me, tide__coll *c)
{
  tide__barrier *entry = &s->entry->barrier;
  uint32_t last = s->slot[me].entered += (uint32_t)s->nrank;
  finding f = {0};
  int state = tide__barrier_arrive(entry, last), kept = TIDE_OK;
  if (state != TIDE__WAITING) return state;
  tide__wait w = tide__wait_begin(&patience, search_seconds);
  w.patience.spins = s->slot[me].spin;
  if (w.timeout > c->timeout) w.timeout = c->timeout;
  while ((state = tide__barrier_wait(entry, last, &w, c)) == TIDE_E_TIMEOUT &&
         w.timeout < c->timeout) {
    kept = search_missing(s, me, c, &f);
    if (kept < 0) break;
    w.timeout += search_seconds;
    if (w.timeout > c->timeout) w.timeout = c->timeout;
  }
  return state < 0 ? give_up(s, me, c, kept < 0 ? kept : state) : state;
}

/* Names the ranks that this one still waits for at the exit. */
static void name_moving(local *s, const tide__coll *c, tide__text *t)
{
  int named = 0;
  for (int q = 0; q < s->nrank; q++) {
    if (LOAD(s->slot[q].moved) >= c->seq || named++ >= 8) continue;
    tide__add(t, "%s %d", named == 1 ? ": still moving data: rank" : ",", q);
  }
}

/* Passes the exit: blocks until all ranks have moved their data. Other ranks read and write this
 * rank's operands until then, so it cannot return earlier. When the timeout expires or the user
 * interrupts, it sets the failure, which ends every later call on all ranks, and waits on. Returns
 * a status. */
static int leave_together(local *s, int me, tide__coll *c)
{
  char buf[TIDE__COMM_TEXT];
  tide__text t = tide__text_in(buf, sizeof buf);
  uint32_t last = s->slot[me].left += (uint32_t)s->nrank;
  STORE(s->slot[me].moved, c->seq);
  if (tide__barrier_arrive(&s->exit, last) == TIDE__PASSED) return TIDE_OK;
  tide__wait w = tide__wait_begin(&patience, c->timeout);
  w.patience.spins = s->slot[me].spin;
  int why = tide__barrier_wait(&s->exit, last, &w, c);
  if (why == TIDE__PASSED) return TIDE_OK;
  tide__add_ended(&t, why, me, c, s->name);
  name_moving(s, c, &t);
  tide__failure_end(&s->failure, c, why, me, buf, NULL);
  tide__coll patient = {.timeout = HUGE_VAL}; /* no interrupt, no end */
  w.timeout = HUGE_VAL;
  tide__barrier_wait(&s->exit, last, &w, &patient);
  return local_failed(s, me, c);
}

/* ---- on a shared device ---------------------------------------------------------------------- */

/* Enqueues the moves between entry and exit. after: receives the events of the ranks whose moves
 * use this rank's memory. Returns their number. The ranks may have left their calls when the
 * events are waited for. */
static int move_on_device(local *s, int me, tide__coll *c, void **after)
{
  int n = 0;
  for (int q = 0; q < s->nrank; q++)
    if (q != me && tide__move_touches(c, q)) tide__coll_wait_event(c, peer(s, q)->stream->ready);
  move_data(s, me, c);
  tide__coll_record(c, &c->stream->moved);
  for (int q = 0; q < s->nrank; q++)
    if (q != me && tide__move_touches(peer(s, q), me)) after[n++] = peer(s, q)->stream->moved;
  return n;
}

/* Sets the failure of this rank's device, which the other ranks read. */
static void fail_device(local *s, int me, const tide__coll *c)
{
  const tide__device *d = c->stream->device;
  const char *why = d->backend->failed(d->state);
  char text[TIDE__COMM_TEXT];
  snprintf(text, sizeof text, "rank %d: its device failed in #%lld %s on '%s'%s%.300s", me,
           (long long)c->seq, tide_coll_name(c->op), s->name, why ? ": " : "", why ? why : "");
  tide__failure_set(&s->failure, TIDE_E_PEER, me, text, NULL);
}

/* Ends a call on the device, behind the exit, where every rank has enqueued its moves. Also after
 * a failure: the moves that succeeded still run. */
static int end_on_device(local *s, int me, tide__coll *c, void *const *after, int n)
{
  s->slot[me].on_device = c->seq;
  for (int i = 0; i < n; i++) tide__coll_wait_event(c, after[i]);
  tide__coll_record(c, &c->event);
  if (c->device_status < 0) fail_device(s, me, c);
  else if (LOAD(s->device_failed) != c->seq) return TIDE_OK;
  int rc = local_failed(s, me, c);
  tide__coll_set_error(c, rc);
  return rc;
}

/* ---- split ----------------------------------------------------------------------------------- */

/* Lists the ranks of this rank's color in order of (key, rank); returns how many. *mine: which of
 * them this rank is. */
static int members_of(local *s, int me, int *list, int *mine)
{
  int color[TIDE__MAX_RANK], key[TIDE__MAX_RANK];
  for (int q = 0; q < s->nrank; q++) {
    color[q] = peer(s, q)->color;
    key[q] = peer(s, q)->key;
  }
  return tide__split_members(color, key, s->nrank, me, list, mine);
}

/* Splits: the first rank of each color makes the new state. */
static void local_split(local *s, int me, tide__coll *c)
{
  int list[TIDE__MAX_RANK], member[TIDE__MAX_RANK], mine = 0;
  int n = members_of(s, me, list, &mine);
  if (n > 0 && mine == 0) {
    for (int i = 0; i < n; i++) member[i] = s->member[list[i]];
    local *made = tide__local_new(s->group, n, member, c->name);
    for (int i = 1; made && i < n; i++) tide__local_hold(made);
    c->sub = made;
  }
  leave_together(s, me, c);
  if (n > 0 && mine > 0) c->sub = peer(s, list[0])->sub;
  c->sub_rank = mine;
  c->sub_size = n;
}

/* Gives this rank's reference to the new state back where the split has failed behind the first
 * exit. All ranks of the color hold one and have passed the second exit. Returns rc. */
static int end_split(tide__coll *c, int rc)
{
  if (rc < 0 && c->sub) {
    tide__local_drop(c->sub);
    c->sub = NULL;
  }
  return rc;
}

/* ---- one collective -------------------------------------------------------------------------- */

/* Moves the data if the calls agree, behind the entry, and passes the exit either way. */
static int local_pass(local *s, int me, tide__coll *c, uint64_t tag, int64_t posted)
{
  void *after[TIDE__DEVICE_RANKS];
  int n = 0, rc = local_agree(s, c, tag);
  if (rc == TIDE_OK && posted >= 0) {
    take_posted(s, me, c, (size_t)posted);
    return TIDE_OK;
  }
  if (rc == TIDE_OK && c->op == TIDE__SPLIT) local_split(s, me, c);
  else if (rc == TIDE_OK && c->stream) n = move_on_device(s, me, c, after);
  else if (rc == TIDE_OK) move_data(s, me, c);
  if (c->device_status < 0) {
    STORE(s->device_failed, c->seq);
    fail_device(s, me, c);
  }
  if (rc < 0) {
    char text[TIDE__COMM_TEXT];
    memcpy(text, c->message, sizeof text);
    leave_together(s, me, c);
    memcpy(c->message, text, sizeof text);
    return rc;
  }
  rc = leave_together(s, me, c);
  int on_device = c->stream ? end_on_device(s, me, c, after, n) : TIDE_OK;
  if (rc == TIDE_OK && c->sub_size > 0 && !c->sub) {
    snprintf(c->message, sizeof c->message, "no memory for a communicator of %d", c->sub_size);
    return TIDE_E_NOMEM;
  }
  return end_split(c, rc < 0 ? rc : on_device);
}

static int local_run(void *state, int me, tide__coll *c)
{
  local *s = state;
  tide__slot *slot = &s->slot[me];
  tide__comm_call call;
  if (slot->closed) return local_failed(s, me, c);
  if (c->stream) tide__coll_record(c, &c->stream->ready);
  tide__call_of(c, s->nrank, &call, slot->list);
  int64_t posted = local_post(s, me, c);
  uint64_t tag = local_announce(s, me, c, &call);
  slot->spin = spin_for(s, me);
  slot->closed = local_enter(s, me, c) == TIDE__CLOSED;
  int rc = slot->closed ? local_failed(s, me, c) : local_pass(s, me, c, tag, posted);
  STORE(slot->done, c->seq);
  return rc;
}

/* ---- the rest of the table ------------------------------------------------------------------- */

static tide__failure *local_failure(void *state) { return &((local *)state)->failure; }

static int64_t local_mended(void *state) { return ((local *)state)->nmend; }

static void await_call(void *state, int rank, int64_t seq)
{
  local *s = state;
  tide__owner *owner = &s->group->owner[s->member[rank]];
  if (seq > 0) atomic_store_explicit(&owner->seq, seq, memory_order_relaxed);
  atomic_store_explicit(&owner->comm, seq > 0 ? s : NULL, memory_order_release);
}

static void local_leave(void *state, int rank)
{
  local *s = state;
  char buf[TIDE__COMM_TEXT];
  tide__text t = tide__text_in(buf, sizeof buf);
  tide__comm_call last;
  int64_t done;
  tide__slot_read(&s->slot[rank], &last, &done);
  tide__add_left(&t, rank, s->name, &last);
  atomic_store(&s->left, true);
  tide__failure_set(&s->failure, TIDE_E_PEER, rank, buf, NULL);
}

/* Waits for ranks that passed the entry of this rank's last call on a device and may not have
 * waited for its events yet. They wait for no rank there. */
static void local_close_comm(void *state, int rank)
{
  local *s = state;
  for (int q = 0; q < s->nrank; q++)
    while (atomic_load_explicit(&s->slot[q].done, memory_order_acquire) < s->slot[rank].on_device)
      sched_yield();
  tide__local_drop(s);
}

const tide__transport tide__transport_local = {
  .name = "local",
  .bytes = true,
  .shared_device = true,
  .run = local_run,
  .failure = local_failure,
  .mended = local_mended,
  .await = await_call,
  .leave = local_leave,
  .close = local_close_comm,
};
