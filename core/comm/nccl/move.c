/* What a communicator over NCCL moves, and how ranks compare their calls. See nccl.h.
 *
 * The one idea: what NCCL has no collective for is a group of sends and receives; a reduce_scatter
 * of unequal parts is a group of reduces. A call ends for the host when NCCL has taken it; the host
 * waits for a stream in two places only: in a barrier, which says that all ranks have come, and,
 * with check, for what the ranks are about to do, which it compares before anything moves. That
 * goes over a stream beside compute, so that the calls of a captured step are compared when they
 * are recorded, and not again when it is replayed.
 *
 * Layer 4.
 */
#include <stdio.h>
#include <string.h>

#include "core/comm/nccl/nccl.h"

/* ---- moving data ----------------------------------------------------------------------------- */

enum { BYTES = 1 }; /* ncclUint8 */

static int type_of(int dtype)
{
  switch (dtype) {
  case TIDE_F32: return 7;
  case TIDE_F64: return 8;
  case TIDE_F16: return 6;
  case TIDE_BF16: return 9;
  case TIDE_I64: return 4;
  case TIDE_I32: return 2;
  default: return BYTES; /* u8, bool */
  }
}

/* The product of flags is their minimum. */
static int op_of(int reduce, int dtype)
{
  static const int op[TIDE_NREDUCE] = {
    [TIDE_SUM] = 0, [TIDE_MEAN] = 4, [TIDE_MIN] = 3, [TIDE_MAX] = 2, [TIDE_PROD] = 1};
  return dtype == TIDE_BOOL && reduce == TIDE_PROD ? 3 : op[reduce];
}

static int segs(tide__nccl_comm *s, const tide__coll *c)
{
  const tide__nccl *l = &s->all->api;
  int rc = TIDE__NCCL_OK;
  for (int64_t i = 0; i < c->nseg && tide__nccl_going(rc); i++) {
    const tide__seg *g = &c->seg[i];
    size_t n = (size_t)g->nout;
    int type = type_of(g->out_type);
    if (n == 0) continue;
    if (c->op == TIDE__BROADCAST)
      rc = l->broadcast(g->out, g->out, n, type, c->root, s->comm, s->stream);
    else if (c->op == TIDE__REDUCE)
      rc = l->reduce(g->out, g->out, n, type, op_of(c->reduce, g->out_type), c->root, s->comm,
                     s->stream);
    else
      rc = l->all_reduce(g->out, g->out, n, type, op_of(c->reduce, g->out_type), s->comm,
                         s->stream);
  }
  return rc;
}

static int put(const tide__nccl_comm *s, const char *p, size_t n, int to)
{
  return n ? s->all->api.send(p, n, BYTES, to, s->comm, s->stream) : TIDE__NCCL_OK;
}

static int take(const tide__nccl_comm *s, char *p, size_t n, int from)
{
  return n ? s->all->api.recv(p, n, BYTES, from, s->comm, s->stream) : TIDE__NCCL_OK;
}

static int send_recv(tide__nccl_comm *s, const tide__coll *c)
{
  int rc = TIDE__NCCL_OK;
  for (int64_t i = 0; i < c->nseg && tide__nccl_going(rc); i++) {
    const tide__seg *g = &c->seg[i];
    if (c->to >= 0)
      rc = put(s, g->in, (size_t)(g->nin * tide_dtype_size(g->in_type)), c->to);
    if (tide__nccl_going(rc) && c->from >= 0)
      rc = take(s, g->out, (size_t)(g->nout * tide_dtype_size(g->out_type)), c->from);
  }
  return rc;
}

/* Bytes from this rank to q, and from q to this rank; each list of parts lies in rank order. */
static void parts(const tide__nccl_comm *s, const tide__coll *c, int q, size_t *give, size_t *get)
{
  size_t n = (size_t)c->count * c->size;
  bool me_root = s->rank == c->root, q_root = q == c->root;
  *give = *get = n;
  if (c->op == TIDE__ALL_TO_ALL_V) *give = (size_t)c->in_counts[q] * c->size;
  if (c->op == TIDE__ALL_GATHER_V) *give = (size_t)c->out_counts[s->rank] * c->size;
  if (c->op == TIDE__ALL_TO_ALL_V || c->op == TIDE__ALL_GATHER_V)
    *get = (size_t)c->out_counts[q] * c->size;
  if (c->op == TIDE__GATHER) *give = q_root ? n : 0, *get = me_root ? n : 0;
  if (c->op == TIDE__SCATTER) *give = me_root ? n : 0, *get = q_root ? n : 0;
}

/* all_to_all, all_to_all_v, all_gather_v, gather, scatter: whoever has a part for whom. */
static int pairs(tide__nccl_comm *s, const tide__coll *c)
{
  bool same = c->op == TIDE__ALL_GATHER_V || c->op == TIDE__GATHER; /* one input for all */
  size_t give, get, from = 0, to = 0;
  int rc = TIDE__NCCL_OK;
  for (int q = 0; q < s->nrank && tide__nccl_going(rc); q++) {
    parts(s, c, q, &give, &get);
    rc = put(s, c->in + (same ? 0 : from), give, q);
    if (tide__nccl_going(rc)) rc = take(s, c->out + to, get, q);
    from += give;
    to += get;
  }
  return rc;
}

static int reduce_scatter_v(tide__nccl_comm *s, const tide__coll *c)
{
  int rc = TIDE__NCCL_OK;
  const char *at = c->in;
  for (int q = 0; q < s->nrank && tide__nccl_going(rc); q++) {
    size_t n = (size_t)c->in_counts[q];
    if (n) rc = s->all->api.reduce(at, c->out, n, type_of(c->dtype), op_of(c->reduce, c->dtype), q,
                                   s->comm, s->stream);
    at += n * c->size;
  }
  return rc;
}

static int enqueue(tide__nccl_comm *s, const tide__coll *c)
{
  const tide__nccl *l = &s->all->api;
  int type = type_of(c->dtype), op = c->reduce >= 0 ? op_of(c->reduce, c->dtype) : 0;
  size_t n = (size_t)c->count;
  switch (c->op) {
  case TIDE__ALL_REDUCE: case TIDE__REDUCE: case TIDE__BROADCAST: return segs(s, c);
  case TIDE__SEND_RECV: return send_recv(s, c);
  case TIDE__REDUCE_SCATTER_V: return reduce_scatter_v(s, c);
  case TIDE__ALL_GATHER:
    return n ? l->all_gather(c->in, c->out, n, type, s->comm, s->stream) : TIDE__NCCL_OK;
  case TIDE__REDUCE_SCATTER:
    return n ? l->reduce_scatter(c->in, c->out, n, type, op, s->comm, s->stream) : TIDE__NCCL_OK;
  case TIDE__BARRIER:
    return l->all_reduce(s->scratch, s->scratch, 8, BYTES, 0, s->comm, s->stream);
  default: return pairs(s, c);
  }
}

/* ---- comparing calls ------------------------------------------------------------------------- */

enum { WORDS = sizeof(tide__call_words), BARRIER = 64 };

size_t tide__nccl_scratch_size(const tide__nccl_comm *s)
{
  return BARRIER + (size_t)(s->nrank + 1) * WORDS;
}

/* Each rank says what it is about to do: ranks that share a call share a line. */
static int disagree(tide__nccl_comm *s, tide__coll *c, const tide__call_words *all)
{
  char *text = c->message, call[128];
  size_t n = sizeof c->message, at = 0;
  tide__append(text, n, &at, "ranks disagree about call #%lld at %s; no data was moved",
               (long long)c->seq, c->site[0] ? c->site : "?");
  for (int q = 0; q < s->nrank; q++) {
    int first = 0;
    while (memcmp(&all[first], &all[q], WORDS)) first++;
    if (first < q) continue;
    tide__append(text, n, &at, "\n  rank %d", q);
    for (int k = q + 1; k < s->nrank; k++)
      if (memcmp(&all[k], &all[q], WORDS) == 0) tide__append(text, n, &at, ", %d", k);
    tide__append(text, n, &at, ": %s", tide__call_text(&all[q], call, sizeof call));
  }
  return tide__nccl_fail(s, c, TIDE_E_COMM, c->message);
}

/* The words of all ranks, by way of the device. The same answer on every rank. */
static int compare(tide__nccl_comm *s, tide__coll *c)
{
  const tide__streams *st = tide__nccl_streams(s);
  tide__call_words *mine = (tide__call_words *)s->words, *all = mine + 1;
  char *on_device = s->scratch + BARRIER;
  *mine = tide__call_pack(c);
  int rc = st->move(s->all->device, s->aside, on_device, mine, WORDS, true);
  if (rc < 0) return tide__nccl_device_failed(s, c);
  rc = s->all->api.all_gather(on_device, on_device + WORDS, WORDS, BYTES, s->comm, s->aside);
  if (tide__nccl_going(rc) && tide__nccl_ready(s, c) < 0) return s->cause;
  if (tide__nccl_going(rc) && st->move(s->all->device, s->aside, all, on_device + WORDS,
                                       (size_t)s->nrank * WORDS, false) < 0)
    return tide__nccl_device_failed(s, c);
  if (!tide__nccl_going(rc)) return tide__nccl_failed(s, c, rc);
  rc = tide__nccl_wait(s, c, s->aside); /* the host reads them */
  for (int q = 0; q < s->nrank && rc == TIDE_OK; q++)
    if (memcmp(&all[q], mine, WORDS)) rc = disagree(s, c, all);
  return rc;
}

static int run_inside(tide__nccl_comm *s, tide__coll *c)
{
  const tide__nccl *l = &s->all->api;
  const tide__streams *st = tide__nccl_streams(s);
  if (st->bind(s->all->device) < 0) return tide__nccl_device_failed(s, c);
  int status = s->words ? compare(s, c) : TIDE_OK;
  if (status < 0) return status;
  if (st->behind(s->all->device, s->stream) < 0) return tide__nccl_device_failed(s, c);
  s->forked = c->captured;
  int rc = l->group_start();
  if (tide__nccl_going(rc)) {
    rc = enqueue(s, c);
    int end = l->group_end();
    if (tide__nccl_going(rc)) rc = end;
  }
  if (!tide__nccl_going(rc)) return tide__nccl_failed(s, c, rc);
  status = tide__nccl_ready(s, c);
  if (status < 0) return status;
  if (c->op == TIDE__BARRIER) return tide__nccl_wait(s, c, s->stream); /* that all have come */
  if (st->mark(s->all->device, s->stream, &c->event) < 0) return tide__nccl_device_failed(s, c);
  if (!c->captured) atomic_fetch_add(&s->flying, 1);
  return TIDE_OK;
}

int tide__nccl_run(void *state, int rank, tide__coll *c)
{
  tide__nccl_comm *s = state;
  (void)rank;
  return tide__nccl_enter(s, c) ? tide__nccl_leave(s, run_inside(s, c)) : s->cause;
}

