/* Data of collectives over MPI, as point-to-point messages.
 *
 * A reduction is cut into one share a rank, as among threads: each rank gets its
 * share from everyone, combines them in rank order with the same loop, and hands the result out.
 * MPI's own reductions, whose order depends on algorithm and size, are not used, so N processes and
 * N threads give the same bits. All messages are nonblocking and polled: no rank waits longer than
 * the timeout, and a waiting rank soon yields its processor.
 *
 * Large reductions go in chunks through a scratch buffer of fixed size; many small tensors are
 * packed into one chunk. Messages are at most TIDE__MPI_PIECE bytes.
 */
#include <sched.h>

#include "core/comm/mpi/mpi.h"

/* Seconds of yielding in a transfer before sleeps: MPI moves bytes only when it is called. */
static const double move_seconds = 0.2;
/* Reductions up to ONE_ROUND bytes go in one round: everyone sends all to everyone. */
enum { LINE = 64, ONE_ROUND = 2048, MANY_LOOKS = 256, MOVE_SPINS = 50000 };

static int failed_call(tide__mpi_comm *s, tide__coll *c, int code)
{
  char text[TIDE__COMM_TEXT], why[512];
  snprintf(text, sizeof text, "rank %d: MPI failed in %s #%lld on '%s': %s", s->rank,
           tide_coll_name(c->op), (long long)c->seq, s->name,
           tide__mpi_error(s->mpi, code, why, sizeof why));
  return tide__mpi_fail(s, c, TIDE_E_PEER, text);
}

/* ---- requests -------------------------------------------------------------------------------- */

static int add_request(tide__mpi_comm *s, int q, bool incoming, int rc, tide__mpi_handle r)
{
  if (rc) return rc;
  s->req[s->nreq++] = (tide__mpi_request){r, q, incoming, false};
  return 0;
}

static int add_send(tide__mpi_comm *s, int q, const char *p, size_t n)
{
  tide__mpi_handle r;
  if (n == 0) return 0;
  int rc = tide__mpi_send(s->mpi, p, n, s->member[q], s->tag + 1, &r);
  return add_request(s, q, false, rc, r);
}

static int add_recv(tide__mpi_comm *s, int q, char *p, size_t n)
{
  tide__mpi_handle r;
  if (n == 0) return 0;
  int rc = tide__mpi_recv(s->mpi, p, n, s->member[q], s->tag + 1, &r);
  return add_request(s, q, true, rc, r);
}

/* Ends a call that failed with requests in progress. Receives that no message has matched are
 * cancelled. Any other request could write memory that the caller is about to free, so this
 * process makes no more calls of MPI. */
static void abandon(tide__mpi_comm *s)
{
  bool idle = true;
  for (int i = 0; i < s->nreq; i++)
    if (!s->req[i].over && s->req[i].incoming) tide__mpi_cancel(s->mpi, &s->req[i].handle);
  for (int i = 0; i < s->nreq; i++) {
    tide__mpi_request *r = &s->req[i];
    for (int k = 0; k < MANY_LOOKS && !r->over; k++) {
      tide__mpi_test(s->mpi, &r->handle, &r->over);
      if (!r->over) sched_yield();
    }
    idle = idle && r->over;
  }
  s->nreq = 0;
  if (!idle) tide__mpi_give_up(s->mpi);
}

/* Returns whether data to or from rank q are under way. */
static bool is_moving(tide__mpi_comm *s, int q)
{
  for (int i = 0; i < s->nreq; i++)
    if (!s->req[i].over && s->req[i].with_rank == q) return true;
  return false;
}

/* Waits for the requests that were added; rc: the error of one that could not be. */
static int finish(tide__mpi_comm *s, tide__coll *c, int rc)
{
  tide__wait w = tide__mpi_wait(s, c, MOVE_SPINS, move_seconds);
  int status = rc ? failed_call(s, c, rc) : TIDE_OK;
  for (int i = 0; i < s->nreq && !status; i++) {
    while (!status) {
      rc = tide__mpi_test(s->mpi, &s->req[i].handle, &s->req[i].over);
      if (rc) status = failed_call(s, c, rc);
      if (s->req[i].over) break;
      if (tide__wait_pause(&w)) status = tide__mpi_look(s, c, &w, is_moving);
    }
    if (w.npoll > MANY_LOOKS) w = tide__mpi_wait(s, c, MOVE_SPINS, move_seconds);
  }
  if (status) abandon(s);
  s->nreq = 0;
  return status;
}

/* Sends and receives part[q] to and from each other rank q. */
static int trade(tide__mpi_comm *s, tide__coll *c, const tide__part *part)
{
  int rc = 0;
  for (int k = 1; k < s->nrank && !rc; k++) {
    int q = (s->rank + s->nrank - k) % s->nrank;
    rc = add_recv(s, q, part[q].out, part[q].nout);
  }
  for (int k = 1; k < s->nrank && !rc; k++) {
    int q = (s->rank + k) % s->nrank;
    rc = add_send(s, q, part[q].in, part[q].nin);
  }
  return finish(s, c, rc);
}

/* ---- copies: parts to and from every rank ---------------------------------------------------- */

static size_t piece_of(size_t n, size_t at)
{
  size_t left = n > at ? n - at : 0;
  return left < TIDE__MPI_PIECE ? left : TIDE__MPI_PIECE;
}

/* Exchanges part i with every rank. Pairs agree about the sizes of their messages, so rounds
 * match. */
static int exchange_part(tide__mpi_comm *s, tide__coll *c, int64_t i)
{
  size_t at = 0, most;
  tide__part own = tide__move_part(c, s->rank, s->rank, i), now[TIDE__MAX_RANK];
  if (own.nout && own.out != own.in) tide__coll_copy(c, own.out, own.in, own.nout);
  do {
    most = 0;
    for (int q = 0; q < s->nrank; q++) {
      tide__part p = tide__move_part(c, s->rank, q, i);
      now[q] = (tide__part){p.in + at, p.out + at, piece_of(p.nin, at), piece_of(p.nout, at)};
      if (q != s->rank && p.nout > most) most = p.nout;
      if (q != s->rank && p.nin > most) most = p.nin;
    }
    TIDE_TRY(trade(s, c, now));
    at += TIDE__MPI_PIECE;
  } while (at < most);
  return TIDE_OK;
}

static int move_parts(tide__mpi_comm *s, tide__coll *c)
{
  int rc = TIDE_OK;
  for (int64_t i = 0; i < tide__move_count(c) && !rc; i++) rc = exchange_part(s, c, i);
  return rc;
}

/* ---- reductions ------------------------------------------------------------------------------ */

/* Sends share q of in to each rank q, receives this rank's from all and combines them in rank order
 * in *out, or where *out is null in scratch, which it then is. */
static int reduce_round(tide__mpi_comm *s, tide__coll *c, const char *in, const tide__slice *share,
                        int dtype, char **out)
{
  size_t size = (size_t)tide_dtype_size(dtype);
  tide__slice own = share[s->rank];
  size_t bytes = (size_t)own.n * size, stride = (bytes + LINE - 1) / LINE * LINE;
  const void *src[TIDE__MAX_RANK];
  tide__part part[TIDE__MAX_RANK];
  for (int q = 0; q < s->nrank; q++) {
    char *room = s->scratch + (size_t)q * stride;
    part[q] = (tide__part){in + (size_t)share[q].at * size, room, (size_t)share[q].n * size, bytes};
    src[q] = q == s->rank ? part[q].in : room;
  }
  int rc = trade(s, c, part);
  if (!*out) *out = s->scratch + (size_t)s->rank * stride;
  void *dst[1] = {*out};
  if (rc == TIDE_OK && own.n > 0)
    tide__coll_reduce(c, dst, 1, src, s->nrank, own.n, dtype, c->reduce);
  return rc;
}

/* Moves a reduce_scatter: shares in rounds that fit in the scratch buffer. */
static int move_reduce_scatter(tide__mpi_comm *s, tide__coll *c)
{
  int64_t step = TIDE__MPI_CHUNK / s->nrank / (int64_t)c->size, most = 0;
  tide__slice all[TIDE__MAX_RANK], now[TIDE__MAX_RANK];
  for (int q = 0; q < s->nrank; q++) {
    all[q] = tide__move_share(c, 0, c->size, q, s->nrank);
    if (all[q].n > most) most = all[q].n;
  }
  for (int64_t at = 0; at < most; at += step) {
    char *out = c->out + (size_t)at * c->size;
    for (int q = 0; q < s->nrank; q++) {
      int64_t left = all[q].n - at;
      now[q] = (tide__slice){all[q].at + at, left < 0 ? 0 : left < step ? left : step};
    }
    TIDE_TRY(reduce_round(s, c, c->in, now, c->dtype, &out));
  }
  return TIDE_OK;
}

/* ---- collectives in place: spans of one dtype ------------------------------------------------ */

/* At most TIDE__MPI_CHUNK bytes at p. */
typedef struct span { char *p; int64_t n; int dtype; size_t size; } span;
typedef int (*span_fn)(tide__mpi_comm *s, tide__coll *c, const span *v);

/* Returns the part of v that rank q combines, or all of it: sent from v and received there. */
static tide__part share_of(tide__mpi_comm *s, const tide__coll *c, const span *v, int q, bool whole)
{
  tide__slice share = {0, v->n};
  if (!whole) share = tide__move_share(c, v->n, v->size, q, s->nrank);
  char *p = v->p + (size_t)share.at * v->size;
  return (tide__part){p, p, (size_t)share.n * v->size, (size_t)share.n * v->size};
}

/* Sends this rank's share, which is at `mine`, to everyone, or to root alone. */
static int spread_shares(tide__mpi_comm *s, tide__coll *c, const span *v, const char *mine,
                         bool to_root)
{
  tide__part own = share_of(s, c, v, s->rank, false), part[TIDE__MAX_RANK];
  for (int q = 0; q < s->nrank; q++) {
    part[q] = share_of(s, c, v, q, false);
    part[q].in = mine;
    part[q].nin = to_root && q != c->root ? 0 : own.nin;
    if (to_root && s->rank != c->root) part[q].nout = 0;
  }
  return trade(s, c, part);
}

/* Reduces a span. A small one goes whole to the ranks that get the result; of a large one, ranks
 * combine their shares and send them on. */
static int span_reduce(tide__mpi_comm *s, tide__coll *c, const span *v)
{
  tide__slice share[TIDE__MAX_RANK];
  bool whole = (size_t)v->n * v->size <= ONE_ROUND, result = c->root < 0 || c->root == s->rank;
  char *out = result ? v->p : NULL;
  for (int q = 0; q < s->nrank; q++)
    if (!whole) share[q] = tide__move_share(c, v->n, v->size, q, s->nrank);
    else share[q] = (tide__slice){0, c->root < 0 || c->root == q ? v->n : 0};
  if (out && !whole) out += (size_t)share[s->rank].at * v->size;
  int rc = reduce_round(s, c, v->p, share, v->dtype, &out);
  if (rc || whole) return rc;
  return spread_shares(s, c, v, out, c->root >= 0);
}

/* Broadcasts a span. Root sends a small one to each rank; of a large one it sends each rank its
 * share, which that rank sends to all. */
static int span_broadcast(tide__mpi_comm *s, tide__coll *c, const span *v)
{
  bool root = s->rank == c->root, whole = (size_t)v->n * v->size <= 16384 || s->nrank == 2;
  tide__part own = share_of(s, c, v, s->rank, whole), part[TIDE__MAX_RANK];
  for (int q = 0; q < s->nrank; q++) {
    part[q] = root ? share_of(s, c, v, q, whole) : own;
    if (!root) part[q].nin = 0;
    if (q != c->root) part[q].nout = 0;
  }
  int rc = trade(s, c, part);
  return rc || whole ? rc : spread_shares(s, c, v, own.in, false);
}

static span span_of(char *p, int64_t n, int dtype)
{
  return (span){p, n, dtype, (size_t)tide_dtype_size(dtype)};
}

static size_t mpi_move_seg_bytes(const tide__seg *g)
{
  return (size_t)g->nout * (size_t)tide_dtype_size(g->out_type);
}

/* Returns how many tensors from `from` on fit in one chunk with the same dtype. */
static int64_t run_of(const tide__coll *c, int64_t from, int64_t *count)
{
  size_t total = 0;
  int64_t i = from;
  *count = 0;
  for (; i < c->nseg && c->seg[i].out_type == c->seg[from].out_type; i++) {
    if (total + mpi_move_seg_bytes(&c->seg[i]) > TIDE__MPI_CHUNK) break;
    total += mpi_move_seg_bytes(&c->seg[i]);
    *count += c->seg[i].nout;
  }
  return i - from;
}

/* Runs fn on several tensors at once, packed into the second half of the scratch buffer. */
static int packed(tide__mpi_comm *s, tide__coll *c, int64_t from, int64_t n, int64_t count,
                  span_fn fn)
{
  char *bucket = s->scratch + TIDE__MPI_CHUNK + ((size_t)s->nrank + 1) * LINE, *at = bucket;
  span v = span_of(bucket, count, c->seg[from].out_type);
  if (count == 0) return TIDE_OK;
  for (int64_t i = from; i < from + n; at += mpi_move_seg_bytes(&c->seg[i++]))
    memcpy(at, c->seg[i].out, mpi_move_seg_bytes(&c->seg[i]));
  int rc = fn(s, c, &v);
  at = bucket;
  for (int64_t i = from; rc == TIDE_OK && i < from + n; at += mpi_move_seg_bytes(&c->seg[i++]))
    memcpy(c->seg[i].out, at, mpi_move_seg_bytes(&c->seg[i]));
  return rc;
}

static int in_chunks(tide__mpi_comm *s, tide__coll *c, const tide__seg *g, span_fn fn)
{
  int64_t size = tide_dtype_size(g->out_type), step = TIDE__MPI_CHUNK / size;
  int rc = TIDE_OK;
  for (int64_t at = 0; at < g->nout && !rc; at += step) {
    span v = span_of(g->out + at * size, g->nout - at < step ? g->nout - at : step, g->out_type);
    rc = fn(s, c, &v);
  }
  return rc;
}

static int each_span(tide__mpi_comm *s, tide__coll *c, span_fn fn)
{
  int rc = TIDE_OK;
  for (int64_t i = 0, n, count; i < c->nseg && !rc; i += n) {
    n = run_of(c, i, &count);
    if (n > 1) rc = packed(s, c, i, n, count, fn);
    else rc = in_chunks(s, c, &c->seg[i], fn), n = 1;
  }
  return rc;
}

/* ---- by op ----------------------------------------------------------------------------------- */

int tide__mpi_move(tide__mpi_comm *s, tide__coll *c)
{
  switch (c->op) {
  case TIDE__ALL_REDUCE: case TIDE__REDUCE: return each_span(s, c, span_reduce);
  case TIDE__BROADCAST: return each_span(s, c, span_broadcast);
  case TIDE__REDUCE_SCATTER: case TIDE__REDUCE_SCATTER_V: return move_reduce_scatter(s, c);
  default: return move_parts(s, c);
  }
}

int tide__mpi_swap(tide__mpi_comm *s, tide__coll *c, const void *mine, void *all, size_t size)
{
  tide__coll g = *c;
  g.op = TIDE__ALL_GATHER;
  g.in = mine;
  g.out = all;
  g.count = 1;
  g.size = size;
  int rc = move_parts(s, &g);
  if (rc) snprintf(c->message, sizeof c->message, "%s", g.message);
  return rc;
}
