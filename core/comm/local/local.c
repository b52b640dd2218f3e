/* comm_local: ranks are threads of one process and read each other's buffers where they lie.
 *
 * The one idea: between gate and floor every rank may read its peers' descriptions, so no byte is
 * staged. A reduction is cut into one slice a rank; a rank reads its slice from all buffers, in
 * rank order, and writes the result to all of them: each byte is read once and written once, the
 * least an all-reduce can do. The other collectives copy straight from where the data lie. Only
 * what is so small that a meeting costs more than a copy (post_size) is left on the seat: one
 * meeting instead of two.
 *
 * No function between gate and floor can fail or wait for anything but the other ranks.
 *
 * Where the operands lie on a device that the ranks share, they meet just the same and wait for
 * nothing else: what is moved there is enqueued, and events say in which order (device.c).
 *
 * Layer 4. See local.h for gate and floor.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/device/device.h"
#include "core/comm/local/local.h"
#include "kernels/reduce_ranks.h"

static const tide__coll *peer(const tide__room *room, int rank) { return room->seat[rank].coll; }

static int64_t sum_counts(const int64_t *counts, int n)
{
  int64_t sum = 0;
  for (int i = 0; i < n; i++) sum += counts[i];
  return sum;
}

/* ---- moving data, between gate and floor ----------------------------------------------------- */

/* Slice `me` of every segment: all ranks' values to the buffers of one rank (root) or of all. */
static void reduce_segs(tide__room *room, int me, tide__coll *c, int root)
{
  int n = room->nrank;
  void *dst[TIDE__MAX_RANK];
  const void *src[TIDE__MAX_RANK];
  for (int64_t s = 0; s < c->nseg; s++) {
    int dtype = c->seg[s].out_type;
    size_t size = (size_t)tide_dtype_size(dtype);
    tide__slice part = tide__slice_of(c->seg[s].nout, me, n, size);
    size_t from = (size_t)part.at * size;
    if (part.n == 0) continue;
    for (int q = 0; q < n; q++) {
      char *p = peer(room, q)->seg[s].out + from;
      src[q] = p;
      if (root < 0) dst[q] = p;
      else if (q == root) dst[0] = p;
    }
    tide__coll_reduce(c, dst, root < 0 ? n : 1, src, n, part.n, dtype, c->reduce);
  }
}

static void move_all_reduce(tide__room *room, int me, tide__coll *c)
{
  reduce_segs(room, me, c, -1);
}

static void move_reduce(tide__room *room, int me, tide__coll *c)
{
  reduce_segs(room, me, c, c->root);
}

static void move_broadcast(tide__room *room, int me, tide__coll *c)
{
  const tide__coll *root = peer(room, c->root);
  for (int64_t s = 0; me != c->root && s < c->nseg; s++)
    tide__coll_copy(c, c->seg[s].out, root->seg[s].out,
                    (size_t)c->seg[s].nout * (size_t)tide_dtype_size(c->seg[s].out_type));
}

/* This rank's part of out may be where its input lies already. */
static void copy_part(tide__coll *c, char *dst, const char *src, size_t n)
{
  if (dst != src) tide__coll_copy(c, dst, src, n);
}

static void move_all_gather(tide__room *room, int me, tide__coll *c)
{
  size_t n = (size_t)c->count * c->size;
  for (int i = 0; i < room->nrank; i++) {
    int q = (me + i) % room->nrank;
    copy_part(c, c->out + (size_t)q * n, peer(room, q)->in, n);
  }
}

static void move_all_gather_v(tide__room *room, int me, tide__coll *c)
{
  (void)me;
  char *to = c->out;
  for (int q = 0; q < room->nrank; q++) {
    size_t n = (size_t)c->out_counts[q] * c->size;
    copy_part(c, to, peer(room, q)->in, n);
    to += n;
  }
}

static void reduce_part(tide__room *room, tide__coll *c, int64_t at, int64_t n)
{
  const void *src[TIDE__MAX_RANK];
  void *dst[1] = {c->out};
  for (int q = 0; q < room->nrank; q++) src[q] = peer(room, q)->in + (size_t)at * c->size;
  if (n > 0) tide__coll_reduce(c, dst, 1, src, room->nrank, n, c->dtype, c->reduce);
}

static void move_reduce_scatter(tide__room *room, int me, tide__coll *c)
{
  reduce_part(room, c, me * c->count, c->count);
}

static void move_reduce_scatter_v(tide__room *room, int me, tide__coll *c)
{
  reduce_part(room, c, sum_counts(c->in_counts, me), c->in_counts[me]);
}

static void move_all_to_all(tide__room *room, int me, tide__coll *c)
{
  size_t n = (size_t)c->count * c->size;
  for (int i = 0; i < room->nrank; i++) {
    int q = (me + i) % room->nrank;
    tide__coll_copy(c, c->out + (size_t)q * n, peer(room, q)->in + (size_t)me * n, n);
  }
}

static void move_all_to_all_v(tide__room *room, int me, tide__coll *c)
{
  char *to = c->out;
  for (int q = 0; q < room->nrank; q++) {
    const tide__coll *p = peer(room, q);
    size_t n = (size_t)c->out_counts[q] * c->size;
    tide__coll_copy(c, to, p->in + (size_t)sum_counts(p->in_counts, me) * c->size, n);
    to += n;
  }
}

/* Each rank brings its own part to root. */
static void move_gather(tide__room *room, int me, tide__coll *c)
{
  size_t n = (size_t)c->count * c->size;
  copy_part(c, peer(room, c->root)->out + (size_t)me * n, c->in, n);
}

static void move_scatter(tide__room *room, int me, tide__coll *c)
{
  size_t n = (size_t)c->count * c->size;
  copy_part(c, c->out, peer(room, c->root)->in + (size_t)me * n, n);
}

static void move_send_recv(tide__room *room, int me, tide__coll *c)
{
  (void)me;
  for (int64_t s = 0; c->from >= 0 && s < c->nseg; s++)
    tide__coll_copy(c, c->seg[s].out, peer(room, c->from)->seg[s].in,
                    (size_t)c->seg[s].nout * (size_t)tide_dtype_size(c->seg[s].out_type));
}

static void move_nothing(tide__room *room, int me, tide__coll *c)
{
  (void)room, (void)me, (void)c;
}

/* ---- small payloads, on the seats ------------------------------------------------------------ */

static int index_of(const tide__device *d) { return d->backend->streams->index(d->state); }

/* Bytes of payload that each rank may leave on its seat, -1: too much, or not such a call; FAR and
 * below: operands on a device, and which. The same on all ranks whose calls agree. */
enum { FAR = -2 };
static int64_t post_size(const tide__room *room, const tide__coll *c)
{
  int64_t bytes = -1;
  if (c->far) return FAR - index_of(c->far->device);
  if (c->op == TIDE__BARRIER) return 0;
  if (c->op == TIDE__ALL_GATHER) bytes = c->count * (int64_t)c->size;
  if ((c->op == TIDE__ALL_REDUCE || c->op == TIDE__BROADCAST) && c->nseg == 1)
    bytes = c->seg[0].nout * tide_dtype_size(c->seg[0].out_type);
  return bytes <= TIDE__POST && bytes * room->nrank <= 16 * TIDE__POST ? bytes : -1;
}

static char *payload(tide__room *room, int rank, const tide__coll *c)
{
  return room->seat[rank].page[c->seq & 1].payload;
}

/* Before the gate. */
static int64_t post(tide__room *room, int me, const tide__coll *c)
{
  int64_t bytes = post_size(room, c);
  if (bytes > 0 && (c->op != TIDE__BROADCAST || c->root == me))
    memcpy(payload(room, me, c), c->op == TIDE__ALL_GATHER ? c->in : c->seg[0].out, (size_t)bytes);
  return bytes;
}

/* After the gate, without a floor. */
static void take_posted(tide__room *room, int me, tide__coll *c, size_t bytes)
{
  const void *src[TIDE__MAX_RANK];
  if (bytes == 0) return;
  if (c->op == TIDE__ALL_REDUCE) {
    void *dst[1] = {c->seg[0].out};
    for (int q = 0; q < room->nrank; q++) src[q] = payload(room, q, c);
    k_cpu_reduce_ranks(dst, 1, src, room->nrank, c->seg[0].nout, c->seg[0].out_type, c->reduce);
  } else if (c->op == TIDE__ALL_GATHER) {
    for (int q = 0; q < room->nrank; q++)
      memcpy(c->out + (size_t)q * bytes, payload(room, q, c), bytes);
  } else if (c->root != me) {
    memcpy(c->seg[0].out, payload(room, c->root, c), bytes);
  }
}

/* ---- split: the first rank of each color makes the room -------------------------------------- */

/* Ranks of my color, in order of (key, rank); returns how many, *mine is my place. */
static int members_of(tide__room *room, int me, int *list, int *mine)
{
  int n = 0, color = peer(room, me)->color;
  for (int q = 0; q < room->nrank; q++) {
    if (peer(room, q)->color != color) continue;
    int i = n++;
    for (; i > 0 && peer(room, list[i - 1])->key > peer(room, q)->key; i--) list[i] = list[i - 1];
    list[i] = q;
  }
  for (int i = 0; i < n; i++)
    if (list[i] == me) *mine = i;
  return n;
}

static int pass_floor(tide__room *room, int me, tide__coll *c, int spin);

static void move_split(tide__room *room, int me, tide__coll *c)
{
  int list[TIDE__MAX_RANK], member[TIDE__MAX_RANK], mine = 0;
  int n = c->color >= 0 ? members_of(room, me, list, &mine) : 0;
  if (n > 0 && mine == 0) {
    for (int i = 0; i < n; i++) member[i] = room->member[list[i]];
    tide__room *made = tide__room_new(room->group, n, member, c->name);
    for (int i = 1; made && i < n; i++) tide__room_hold(made);
    c->sub = made;
  }
  pass_floor(room, me, c, room->spin);
  if (n > 0 && mine > 0) c->sub = peer(room, list[0])->sub;
  c->sub_rank = mine;
  c->sub_size = n;
}

/* ---- comparing calls ------------------------------------------------------------------------- */

#define LOAD(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define STORE(x, v) atomic_store_explicit(&(x), v, memory_order_release)

/* What peers compare, in one word: one load a peer. The odd factors make calls that differ in one
 * word differ here for certain, in several but for one chance in 2^64. Where send_recv has its
 * operands is between sender and receiver: who does neither has none. */
static uint64_t tag_of(const tide__coll *c, const tide__call_words *w, int64_t posted)
{
  if (c->op == TIDE__SEND_RECV) posted = -1;
  return (uint64_t)posted * 0x9e3779b97f4a7c15u + w->what * 0xbf58476d1ce4e5b9u +
         w->count * 0x94d049bb133111ebu + w->root * 0xd6e8feb86659fd93u +
         w->hash * 0xff51afd7ed558ccdu;
}

/* c->seq and the call, for peers. */
static void announce(tide__seat *seat, const tide__coll *c, const tide__call_words *w,
                     uint64_t tag)
{
  tide__page *page = &seat->page[c->seq & 1];
  uint64_t version = LOAD(seat->version), site[TIDE__SITE / 8];
  memcpy(site, c->site, sizeof site);
  atomic_store_explicit(&seat->version, version + 1, memory_order_relaxed);
  STORE(page->tag, tag);
  STORE(page->what, w->what);
  STORE(page->count, w->count);
  STORE(page->root, w->root);
  STORE(page->hash, w->hash);
  STORE(seat->seq, c->seq);
  for (int i = 0; i < TIDE__SITE / 8; i++) STORE(seat->site[i], site[i]);
  STORE(seat->version, version + 2);
  seat->coll = c;
}

/* The device of a call's operands, -1: the host. */
static int place_of(const tide__coll *c) { return c->far ? index_of(c->far->device) : -1; }

static const char *place_name(const tide__coll *c) { return c->far ? "a device" : "the host"; }

/* What a rank sends must be what the other expects. False names the pair and what differs. */
static bool pair_fits(tide__room *room, int from, int to, char *text, size_t n)
{
  const tide__coll *a = peer(room, from), *b = peer(room, to);
  if (a->op == TIDE__ALL_TO_ALL_V) {
    if (a->in_counts[to] == b->out_counts[from]) return true;
    snprintf(text, n, "rank %d sends %lld elements to rank %d, which expects %lld", from,
             (long long)a->in_counts[to], to, (long long)b->out_counts[from]);
    return false;
  }
  bool sends = a->to == to, expects = b->from == from;
  if (sends != expects) {
    snprintf(text, n, sends ? "rank %d sends to rank %d, which receives from %d"
                            : "rank %d does not send to rank %d, which receives from %d",
             from, to, b->from);
    return false;
  }
  if (sends && a->nseg != b->nseg) {
    snprintf(text, n, "rank %d sends %lld tensors to rank %d, which expects %lld", from,
             (long long)a->nseg, to, (long long)b->nseg);
    return false;
  }
  if (sends && place_of(a) != place_of(b)) {
    snprintf(text, n, "rank %d sends from %s to rank %d, which receives on %s%s", from,
             place_name(a), to, place_name(b), a->far && b->far ? " of another number" : "");
    return false;
  }
  for (int64_t s = 0; sends && s < a->nseg; s++) {
    const tide__seg *x = &a->seg[s], *y = &b->seg[s];
    if (x->nin == y->nout && x->in_type == y->out_type) continue;
    snprintf(text, n, "tensor %lld: rank %d sends %lld elements of %s to rank %d, which expects "
             "%lld of %s", (long long)s + 1, from, (long long)x->nin, tide_dtype_name(x->in_type),
             to, (long long)y->nout, tide_dtype_name(y->out_type));
    return false;
  }
  return true;
}

static bool pairs_fit(tide__room *room, char *text, size_t n)
{
  for (int a = 0; a < room->nrank; a++) {
    const tide__coll *c = peer(room, a);
    if (c->op == TIDE__SEND_RECV) {
      if (c->to >= 0 && !pair_fits(room, a, c->to, text, n)) return false;
      if (c->from >= 0 && !pair_fits(room, c->from, a, text, n)) return false;
    } else {
      for (int b = 0; b < room->nrank; b++)
        if (!pair_fits(room, a, b, text, n)) return false;
    }
  }
  return true;
}

/* Ranks with equal calls share a line: "ranks 0, 2: all_reduce(sum, f32, 8 elements) at a.lua:3" */
static void list_calls(tide__room *room, char *buf, size_t n, size_t *at)
{
  bool told[TIDE__MAX_RANK] = {false};
  for (int q = 0; q < room->nrank; q++) {
    tide__seat_copy mine, other;
    char call[128];
    int same = 0;
    if (told[q]) continue;
    tide__seat_read(&room->seat[q], &mine);
    tide__append(buf, n, at, "\n  rank %d", q);
    for (int k = q + 1; k < room->nrank; k++) {
      tide__seat_read(&room->seat[k], &other);
      if (memcmp(&mine.words, &other.words, sizeof mine.words) || strcmp(mine.site, other.site))
        continue;
      told[k] = true;
      if (same++ < 16) tide__append(buf, n, at, ", %d", k);
    }
    tide__append(buf, n, at, ": %s at %s", tide__call_text(&mine.words, call, sizeof call),
                 mine.site[0] ? mine.site : "?");
  }
}

/* The same answer on every rank, from the same seats. */
static bool calls_agree(tide__room *room, const tide__coll *c, uint64_t tag, char *text, size_t n)
{
  char why[256] = "";
  size_t at = 0;
  bool same = true;
  for (int q = 0; q < room->nrank && same; q++)
    same = LOAD(room->seat[q].page[c->seq & 1].tag) == tag;
  if (same && c->op != TIDE__SEND_RECV && c->op != TIDE__ALL_TO_ALL_V) return true;
  if (same && pairs_fit(room, why, sizeof why)) return true;
  tide__append(text, n, &at, "ranks disagree about call #%lld on '%s'%s%s; no data was moved",
               (long long)c->seq, room->name, *why ? ": " : "", why);
  list_calls(room, text, n, &at);
  return false;
}

/* ---- one collective -------------------------------------------------------------------------- */

static int poisoned(void *state, int me, char *text, size_t n)
{
  tide__room *room = state;
  pthread_mutex_lock(&room->lock);
  int status = room->cause;
  if (status == TIDE_E_INTERRUPT && room->cause_rank != me) status = TIDE_E_PEER;
  if (status) snprintf(text, n, "%s", room->text);
  pthread_mutex_unlock(&room->lock);
  return status;
}

static void name_missing(tide__room *room, const tide__coll *c, char *text, size_t n, size_t *at)
{
  int told = 0;
  for (int q = 0; q < room->nrank; q++) {
    tide__seat_copy copy;
    char call[128];
    tide__seat_read(&room->seat[q], &copy);
    if (copy.seq >= c->seq || told++ >= 8) continue;
    tide__append(text, n, at, "\n  rank %d has not come", q);
    if (copy.seq > 0)
      tide__append(text, n, at, "; its last call here was #%lld %s at %s", (long long)copy.seq,
                   tide__call_text(&copy.words, call, sizeof call),
                   copy.site[0] ? copy.site : "?");
    else tide__append(text, n, at, "; it has made no call here yet");
    tide__group_whereabouts(room->group, room, room->member[q], text, n, at);
  }
  if (told > 8) tide__append(text, n, at, "\n  and %d more", told - 8);
  if (told == 0) tide__append(text, n, at, "\n  the last rank came as the time ran out");
}

/* This rank waits no longer. PASSED if the others came in the meantime. */
static int give_up(tide__room *room, int me, tide__coll *c, uint32_t gen, int why)
{
  char text[TIDE__COMM_TEXT], call[128];
  size_t at = 0;
  tide__call_words w = tide__call_pack(c);
  const char *name = tide__call_text(&w, call, sizeof call);
  if (why == TIDE__STOPPED)
    tide__append(text, sizeof text, &at, "rank %d was interrupted in #%lld %s on '%s' at %s", me,
                 (long long)c->seq, name, room->name, c->site[0] ? c->site : "?");
  else {
    tide__append(text, sizeof text, &at, "rank %d waited %g s in #%lld %s on '%s' at %s", me,
                 c->timeout, (long long)c->seq, name, room->name, c->site[0] ? c->site : "?");
    name_missing(room, c, text, sizeof text, &at);
  }
  int status = why == TIDE__STOPPED ? TIDE_E_INTERRUPT : TIDE_E_TIMEOUT;
  if (!tide__room_fail(room, &gen, status, me, text)) return TIDE__PASSED;
  if (why == TIDE__STOPPED) atomic_store(c->interrupt, 0); /* answered */
  return TIDE__POISONED;
}

/* How long to spin: a rank on this processor cannot come while we do. */
static int spin_for(tide__room *room, int me)
{
  int cpu = sched_getcpu();
  atomic_store_explicit(&room->seat[me].cpu, cpu, memory_order_relaxed);
  for (int q = 0; room->spin > 0 && q < room->nrank; q++)
    if (q != me && LOAD(room->seat[q].cpu) == cpu) return 0;
  return room->spin;
}

/* The ranks that this one still waits for on the floor. */
static void name_moving(tide__room *room, const tide__coll *c, char *text, size_t n, size_t *at)
{
  int named = 0;
  for (int q = 0; q < room->nrank; q++) {
    if (LOAD(room->seat[q].moved) >= c->seq || named++ >= 8) continue;
    tide__append(text, n, at, "%s %d", named == 1 ? ": still moving data: rank" : ",", q);
  }
}

/* Blocks until all ranks have moved their data; a status. The peers read and write this rank's
 * operands until then, so it cannot return earlier. When the timeout expires or the user
 * interrupts, it records the failure, which ends every later call on all ranks, and waits on. A
 * peer that passed the gate waits for nothing but the others here: spec/comm/protocol_spec.lua. */
static int pass_floor(tide__room *room, int me, tide__coll *c, int spin)
{
  char text[TIDE__COMM_TEXT], call[128];
  uint32_t gen;
  size_t at = 0;
  STORE(room->seat[me].moved, c->seq);
  int state = tide__meet_arrive(&room->floor, room->nrank, spin, &gen, c->timeout, c->interrupt);
  if (state == TIDE__PASSED) return TIDE_OK;
  bool stopped = state == TIDE__STOPPED;
  tide__call_words w = tide__call_pack(c);
  tide__append(text, sizeof text, &at, "rank %d %s #%lld %s on '%s' at %s", me,
               stopped ? "was interrupted in" : "waited too long for the end of",
               (long long)c->seq, tide__call_text(&w, call, sizeof call), room->name,
               c->site[0] ? c->site : "?");
  name_moving(room, c, text, sizeof text, &at);
  tide__room_fail(room, NULL, stopped ? TIDE_E_INTERRUPT : TIDE_E_TIMEOUT, me, text);
  if (stopped) atomic_store(c->interrupt, 0);
  tide__meet_wait(&room->floor, gen, 0, NULL);
  return poisoned(room, me, c->message, sizeof c->message);
}

/* Seconds between two looks for ranks that wait for each other. */
static const double look_seconds = 0.25;

/* Arrives at the gate and waits for the others: how it ended. */
static int pass_gate(tide__room *room, int me, tide__coll *c, int spin)
{
  uint32_t gen = 0;
  uint64_t cycle = 0;
  double slice = c->timeout < look_seconds ? c->timeout : look_seconds, left = c->timeout;
  int state = tide__meet_arrive(&room->gate, room->nrank, spin, &gen, slice, c->interrupt);
  while (state == TIDE__EXPIRED && (left -= slice) > 0) {
    cycle = tide__group_deadlock(room, me, cycle);
    if (left < slice) slice = left;
    state = tide__meet_wait(&room->gate, gen, slice, c->interrupt);
  }
  return state >= TIDE__EXPIRED ? give_up(room, me, c, gen, state) : state;
}

typedef void (*move_fn)(tide__room *room, int me, tide__coll *c);

/* Whether the rank that makes this call moves bytes from or to memory of rank q. */
static bool touches(const tide__coll *c, int q)
{
  switch (c->op) {
  case TIDE__BROADCAST: case TIDE__GATHER: case TIDE__SCATTER: return q == c->root;
  case TIDE__SEND_RECV: return q == c->from;
  default: return true;
  }
}

/* What lies on a device, between gate and floor. after: the events of those whose moves this rank's
 * memory must wait for, their number returned; peers' calls are gone when that is done. */
static int move_far(tide__room *room, int me, tide__coll *c, move_fn move, void **after)
{
  int n = 0;
  for (int q = 0; q < room->nrank; q++)
    if (q != me && touches(c, q)) tide__coll_after(c, peer(room, q)->far->ready);
  move(room, me, c);
  tide__coll_mark(c, &c->far->moved);
  for (int q = 0; q < room->nrank; q++)
    if (q != me && touches(peer(room, q), me)) after[n++] = peer(room, q)->far->moved;
  return n;
}

/* This rank's device failed; the others learn of it. */
static void fail_far(tide__room *room, int me, const tide__coll *c)
{
  const tide__device *d = c->far->device;
  const char *why = d->backend->failed(d->state);
  char text[TIDE__COMM_TEXT];
  snprintf(text, sizeof text, "rank %d: its device failed in #%lld %s on '%s'%s%.300s", me,
           (long long)c->seq, tide_coll_name(c->op), room->name, why ? ": " : "", why ? why : "");
  tide__room_fail(room, NULL, TIDE_E_PEER, me, text);
}

/* Behind the floor, where every rank has enqueued its moves. Also after a failure: those that went
 * well still run. */
static int end_far(tide__room *room, int me, tide__coll *c, void *const *after, int n)
{
  room->seat[me].far = c->seq;
  for (int i = 0; i < n; i++) tide__coll_after(c, after[i]);
  tide__coll_mark(c, &c->event);
  if (c->far_status < 0) fail_far(room, me, c);
  else if (LOAD(room->far_failed) != c->seq) return TIDE_OK;
  int rc = poisoned(room, me, c->message, sizeof c->message);
  tide__coll_spoil(c, rc);
  return rc;
}

/* Compares the calls that all ranks have announced, and moves the data if they agree. */
static int exchange(tide__room *room, int me, tide__coll *c, move_fn move, uint64_t tag,
                    int64_t posted, int spin)
{
  void *after[TIDE__NEAR_RANKS];
  int nafter = 0, rc = TIDE_OK;
  bool agree = calls_agree(room, c, tag, c->message, sizeof c->message);
  if (!agree) tide__room_fail(room, NULL, TIDE_E_COMM, -1, c->message);
  else if (posted >= 0) take_posted(room, me, c, (size_t)posted);
  else if (c->far) nafter = move_far(room, me, c, move, after);
  else move(room, me, c);
  if (c->far_status < 0) {
    STORE(room->far_failed, c->seq);
    fail_far(room, me, c);
  }
  if (!agree) {
    char text[TIDE__COMM_TEXT];
    memcpy(text, c->message, sizeof text);
    pass_floor(room, me, c, spin);
    memcpy(c->message, text, sizeof text);
    return TIDE_E_COMM;
  }
  if (posted < 0) rc = pass_floor(room, me, c, spin);
  int far = c->far ? end_far(room, me, c, after, nafter) : TIDE_OK;
  return rc < 0 ? rc : far;
}

/* A failed room is looked at before anything is written: peers may still read what this rank left
 * on its seat for the last call that passed the gate, and there are only two pages. */
static int run(tide__room *room, int me, tide__coll *c, move_fn move)
{
  tide__seat *seat = &room->seat[me];
  tide__call_words w = tide__call_pack(c);
  if (tide__meet_poisoned(&room->gate)) return poisoned(room, me, c->message, sizeof c->message);
  if (c->far) tide__coll_mark(c, &c->far->ready);
  int64_t posted = post(room, me, c);
  uint64_t tag = tag_of(c, &w, posted);
  announce(seat, c, &w, tag);
  int spin = spin_for(room, me);
  int state = pass_gate(room, me, c, spin);
  int rc = state == TIDE__POISONED ? poisoned(room, me, c->message, sizeof c->message)
                                   : exchange(room, me, c, move, tag, posted, spin);
  STORE(seat->done, c->seq);
  return rc;
}

#define RUN(name)                                                      \
  static int run_##name(void *state, int rank, tide__coll *c)          \
  {                                                                    \
    return run(state, rank, c, move_##name);                           \
  }
RUN(all_reduce) RUN(reduce) RUN(broadcast) RUN(all_gather) RUN(all_gather_v)
RUN(reduce_scatter) RUN(reduce_scatter_v) RUN(all_to_all) RUN(all_to_all_v) RUN(gather)
RUN(scatter) RUN(send_recv) RUN(nothing)

static int run_split(void *state, int rank, tide__coll *c)
{
  int rc = run(state, rank, c, move_split);
  if (rc == TIDE_OK && c->sub_size > 0 && !c->sub) {
    snprintf(c->message, sizeof c->message, "no memory for a communicator of %d", c->sub_size);
    return TIDE_E_NOMEM;
  }
  return rc;
}

/* ---- the rest of the table ------------------------------------------------------------------- */

static void await_call(void *state, int rank, int64_t seq)
{
  tide__room *room = state;
  tide__owner *owner = &room->group->owner[room->member[rank]];
  if (seq > 0) atomic_store_explicit(&owner->seq, seq, memory_order_relaxed);
  atomic_store_explicit(&owner->room, seq > 0 ? room : NULL, memory_order_release);
}

static void abort_room(void *state, int rank, int status, const char *text)
{
  tide__room_fail(state, NULL, status, rank, text);
}

static void leave(void *state, int rank)
{
  tide__room *room = state;
  char text[TIDE__COMM_TEXT], call[128];
  size_t at = 0;
  tide__seat_copy copy;
  tide__seat_read(&room->seat[rank], &copy);
  tide__append(text, sizeof text, &at, "rank %d has left '%s'", rank, room->name);
  if (copy.seq > 0)
    tide__append(text, sizeof text, &at, " after #%lld %s at %s", (long long)copy.seq,
                 tide__call_text(&copy.words, call, sizeof call), copy.site[0] ? copy.site : "?");
  else tide__append(text, sizeof text, &at, " without a call");
  tide__room_fail(room, NULL, TIDE_E_PEER, rank, text);
}

/* Peers that passed the gate of this rank's last call on a device may not have asked for its events
 * yet. They wait for nobody there. */
static void close_room(void *state, int rank)
{
  tide__room *room = state;
  for (int q = 0; q < room->nrank; q++)
    while (atomic_load_explicit(&room->seat[q].done, memory_order_acquire) < room->seat[rank].far)
      sched_yield();
  tide__room_drop(room);
}

const tide__transport tide__transport_local = {
  .name = "local",
  .bytes = true,
  .near = true,
  .run = {
    [TIDE__ALL_REDUCE] = run_all_reduce, [TIDE__REDUCE] = run_reduce,
    [TIDE__BROADCAST] = run_broadcast, [TIDE__ALL_GATHER] = run_all_gather,
    [TIDE__ALL_GATHER_V] = run_all_gather_v, [TIDE__REDUCE_SCATTER] = run_reduce_scatter,
    [TIDE__REDUCE_SCATTER_V] = run_reduce_scatter_v, [TIDE__ALL_TO_ALL] = run_all_to_all,
    [TIDE__ALL_TO_ALL_V] = run_all_to_all_v, [TIDE__GATHER] = run_gather,
    [TIDE__SCATTER] = run_scatter, [TIDE__SEND_RECV] = run_send_recv,
    [TIDE__BARRIER] = run_nothing, [TIDE__SPLIT] = run_split,
  },
  .look = tide__near_look,
  .order = tide__near_order,
  .forget = tide__near_forget,
  .cause = poisoned,
  .abort = abort_room,
  .await = await_call,
  .leave = leave,
  .close = close_room,
};
