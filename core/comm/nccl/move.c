/* What a communicator over NCCL moves, and how ranks exchange their calls. See nccl.h.
 *
 * What NCCL has no collective for is a group of sends and receives; a reduce_scatter
 * of unequal parts is a group of reduces. A call ends for the host when NCCL has taken it; the host
 * waits for a stream in two places only: in a barrier, which says that all ranks have come, and,
 * with check, for what the ranks are about to do, which it compares before anything moves. That
 * goes over a stream beside compute, so that the calls of a captured step are compared when they
 * are recorded, and not again when it is replayed.
 */
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

/* Returns NCCL's reduction; the product of flags is their minimum. */
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

/* Sends and receives the parts of all ranks, which NCCL has no collective for. */
static int parts(tide__nccl_comm *s, const tide__coll *c)
{
  int rc = TIDE__NCCL_OK;
  for (int64_t i = 0; i < tide__move_count(c); i++)
    for (int q = 0; q < s->nrank && tide__nccl_going(rc); q++) {
      tide__part p = tide__move_part(c, s->rank, q, i);
      rc = put(s, p.in, p.nin, q);
      if (tide__nccl_going(rc)) rc = take(s, p.out, p.nout, q);
    }
  return rc;
}

static int reduce_scatter_v(tide__nccl_comm *s, const tide__coll *c)
{
  int rc = TIDE__NCCL_OK;
  for (int q = 0; q < s->nrank && tide__nccl_going(rc); q++) {
    tide__slice share = tide__move_share(c, 0, c->size, q, s->nrank);
    if (share.n)
      rc = s->all->api.reduce(c->in + (size_t)share.at * c->size, c->out, (size_t)share.n,
                              type_of(c->dtype), op_of(c->reduce, c->dtype), q, s->comm, s->stream);
  }
  return rc;
}

static int nccl_move_enqueue(tide__nccl_comm *s, const tide__coll *c)
{
  const tide__nccl *l = &s->all->api;
  int type = type_of(c->dtype), op = c->reduce >= 0 ? op_of(c->reduce, c->dtype) : 0;
  size_t n = (size_t)c->count;
  switch (c->op) {
  case TIDE__ALL_REDUCE: case TIDE__REDUCE: case TIDE__BROADCAST: return segs(s, c);
  case TIDE__REDUCE_SCATTER_V: return reduce_scatter_v(s, c);
  case TIDE__ALL_GATHER:
    return n ? l->all_gather(c->in, c->out, n, type, s->comm, s->stream) : TIDE__NCCL_OK;
  case TIDE__REDUCE_SCATTER:
    return n ? l->reduce_scatter(c->in, c->out, n, type, op, s->comm, s->stream) : TIDE__NCCL_OK;
  case TIDE__BARRIER:
    return l->all_reduce(s->scratch, s->scratch, 8, BYTES, 0, s->comm, s->stream);
  default: return parts(s, c);
  }
}

/* ---- exchanging calls ------------------------------------------------------------------------ */

enum { BARRIER = 64 };

/* Returns the bytes of a call and its list, as gathered. */
static size_t call_size(const tide__nccl_comm *s)
{
  return sizeof(tide__comm_call) + (size_t)tide__call_nlist(s->nrank) * sizeof(int64_t);
}

size_t tide__nccl_scratch_size(const tide__nccl_comm *s)
{
  return BARRIER + (size_t)(s->nrank + 1) * call_size(s);
}

/* Gathers the calls of all ranks by way of the device, and compares them. */
static int exchange(tide__nccl_comm *s, tide__coll *c)
{
  const tide__streams *st = tide__nccl_streams(s);
  size_t n = call_size(s), at = sizeof(tide__comm_call);
  char *mine = s->calls, *all = mine + n, *on_device = s->scratch + BARRIER;
  tide__call_ref calls[TIDE__MAX_RANK];
  memset(mine, 0, n);
  tide__call_of(c, s->nrank, (tide__comm_call *)mine, (int64_t *)(mine + at));
  if (tide__nccl_behind_last(s, s->aside, false) < 0) return tide__nccl_device_failed(s, c);
  if (st->move(s->all->device, s->aside, on_device, mine, n, true) < 0)
    return tide__nccl_device_failed(s, c);
  int rc = s->all->api.all_gather(on_device, on_device + n, n, BYTES, s->comm, s->aside);
  if (tide__nccl_going(rc) && tide__nccl_ready(s, c) < 0) return s->failure.status;
  if (!tide__nccl_going(rc)) return tide__nccl_failed(s, c, rc);
  if (st->move(s->all->device, s->aside, all, on_device + n, (size_t)s->nrank * n, false) < 0)
    return tide__nccl_device_failed(s, c);
  TIDE_TRY(tide__nccl_wait(s, c, s->aside)); /* the host reads them */
  for (int q = 0; q < s->nrank; q++) {
    char *block = all + (size_t)q * n;
    calls[q] = (tide__call_ref){(tide__comm_call *)block, (int64_t *)(block + at)};
  }
  rc = tide__agree(calls, s->nrank, s->name, c->message, sizeof c->message);
  return rc < 0 ? tide__nccl_fail(s, c, rc, c->message) : TIDE_OK;
}

int tide__nccl_move(tide__nccl_comm *s, tide__coll *c)
{
  const tide__nccl *l = &s->all->api;
  const tide__streams *st = tide__nccl_streams(s);
  if (st->bind(s->all->device) < 0) return tide__nccl_device_failed(s, c);
  if (s->calls) TIDE_TRY(exchange(s, c));
  if (st->behind(s->all->device, s->stream) < 0) return tide__nccl_device_failed(s, c);
  if (tide__nccl_behind_last(s, s->stream, c->captured) < 0) return tide__nccl_device_failed(s, c);
  s->forked = c->captured;
  int rc = l->group_start();
  if (tide__nccl_going(rc)) {
    rc = nccl_move_enqueue(s, c);
    int end = l->group_end();
    if (tide__nccl_going(rc)) rc = end;
  }
  if (!tide__nccl_going(rc)) return tide__nccl_failed(s, c, rc);
  TIDE_TRY(tide__nccl_ready(s, c));
  if (c->op == TIDE__BARRIER) return tide__nccl_wait(s, c, s->stream); /* until all have arrived */
  c->device = s->all->on;
  if (st->record_event(s->all->device, s->stream, &c->event) < 0)
    return tide__nccl_device_failed(s, c);
  if (!c->captured) atomic_fetch_add(&s->flying, 1);
  return TIDE_OK;
}
