/* Data of collectives over MPI, as point-to-point messages.
 *
 * The one idea: a reduction is cut into one slice a rank, as among threads: each rank gets its
 * slice from everyone, combines them in rank order with the same loop as comm_local, and hands the
 * result out. MPI's own reductions, whose order depends on algorithm and size, are not used, so N
 * processes and N threads give the same bits. All messages are nonblocking and polled: no rank
 * waits longer than the timeout, and a waiting rank soon yields its processor.
 *
 * Large reductions go in chunks through a scratch buffer of fixed size; many small tensors are
 * packed into one chunk. Messages are at most TIDE__MPI_PIECE bytes.
 *
 * Layer 4. See mpi.h.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "core/comm/mpi/mpi.h"
#include "kernels/reduce_ranks.h"

/* Seconds of yielding in a transfer before naps: MPI moves bytes only when it is called. */
static const double move_seconds = 0.2;
/* Reductions up to this many bytes go in one round: everyone sends all to everyone. */
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
  s->req[s->nreq] = r;
  s->who[s->nreq] = q;
  s->over[s->nreq] = false;
  s->incoming[s->nreq++] = incoming;
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

/* The call has failed with requests under way. Receives that nothing has matched can be taken
 * back. Whatever else is left could touch memory that the caller is about to free, so MPI gets no
 * more calls in this process. */
static void abandon(tide__mpi_comm *s)
{
  bool idle = true;
  for (int i = 0; i < s->nreq; i++)
    if (!s->over[i] && s->incoming[i]) tide__mpi_cancel(s->mpi, &s->req[i]);
  for (int i = 0; i < s->nreq; i++) {
    for (int k = 0; k < MANY_LOOKS && !s->over[i]; k++) {
      tide__mpi_test(s->mpi, &s->req[i], &s->over[i]);
      if (!s->over[i]) sched_yield();
    }
    idle = idle && s->over[i];
  }
  s->nreq = 0;
  if (!idle) tide__mpi_give_up(s->mpi);
}

static int too_late(tide__mpi_comm *s, tide__coll *c)
{
  bool missing[TIDE__MAX_RANK] = {false};
  for (int i = 0; i < s->nreq; i++)
    if (!s->over[i]) missing[s->who[i]] = true;
  return tide__mpi_late(s, c, missing);
}

/* Waits for the requests that were added; rc: the error of one that could not be. */
static int finish(tide__mpi_comm *s, tide__coll *c, int rc)
{
  tide__mpi_patience wait;
  tide__mpi_be_patient(s, &wait, MOVE_SPINS, move_seconds);
  int status = rc ? failed_call(s, c, rc) : TIDE_OK;
  for (int i = 0; i < s->nreq && !status; i++) {
    while (!status) {
      rc = tide__mpi_test(s->mpi, &s->req[i], &s->over[i]);
      if (rc) status = failed_call(s, c, rc);
      if (s->over[i]) break;
      if (!tide__mpi_pause(s, &wait)) continue;
      status = tide__mpi_trouble(s, c);
      if (!status && tide_trace_clock() - wait.start > c->timeout) status = too_late(s, c);
    }
    if (wait.polls > MANY_LOOKS) tide__mpi_be_patient(s, &wait, MOVE_SPINS, move_seconds);
  }
  if (status) abandon(s);
  s->nreq = 0;
  return status;
}

/* ---- exchange: one part to and one from every rank ------------------------------------------- */

/* Bytes to and from rank q. */
typedef struct part { const char *in; char *out; size_t nin, nout; } part;
typedef part (*part_fn)(const tide__mpi_comm *s, const tide__coll *c, int q);

static size_t piece_of(size_t n, size_t at)
{
  size_t left = n > at ? n - at : 0;
  return left < TIDE__MPI_PIECE ? left : TIDE__MPI_PIECE;
}

/* Pairs agree about the sizes of their messages, so rounds match. */
static int exchange(tide__mpi_comm *s, tide__coll *c, part_fn of)
{
  size_t at = 0, most;
  do {
    int rc = 0;
    most = 0;
    for (int i = 1; i < s->nrank && !rc; i++) {
      int q = (s->rank + s->nrank - i) % s->nrank;
      part p = of(s, c, q);
      rc = add_recv(s, q, p.out + at, piece_of(p.nout, at));
      most = p.nout > most ? p.nout : most;
    }
    for (int i = 1; i < s->nrank && !rc; i++) {
      int q = (s->rank + i) % s->nrank;
      part p = of(s, c, q);
      rc = add_send(s, q, p.in + at, piece_of(p.nin, at));
      most = p.nin > most ? p.nin : most;
    }
    rc = finish(s, c, rc);
    if (rc) return rc;
    at += TIDE__MPI_PIECE;
  } while (at < most);
  return TIDE_OK;
}

static size_t sum_bytes(const int64_t *counts, int n, size_t size)
{
  int64_t sum = 0;
  for (int i = 0; i < n; i++) sum += counts[i];
  return (size_t)sum * size;
}

static void copy_part(char *to, const char *from, size_t n)
{
  if (to && from && to != from && n) k_cpu_copy_bytes(to, from, n);
}

/* Everyone's parts, then this rank's own. */
static int exchange_all(tide__mpi_comm *s, tide__coll *c, part_fn of)
{
  part own = of(s, c, s->rank);
  copy_part(own.out, own.in, own.nout < own.nin ? own.nout : own.nin);
  return exchange(s, c, of);
}

static part part_all_gather(const tide__mpi_comm *s, const tide__coll *c, int q)
{
  (void)s;
  size_t n = (size_t)c->count * c->size;
  return (part){c->in, c->out + (size_t)q * n, n, n};
}

static part part_all_gather_v(const tide__mpi_comm *s, const tide__coll *c, int q)
{
  return (part){c->in, c->out + sum_bytes(c->out_counts, q, c->size),
                (size_t)c->out_counts[s->rank] * c->size, (size_t)c->out_counts[q] * c->size};
}

static part part_all_to_all(const tide__mpi_comm *s, const tide__coll *c, int q)
{
  (void)s;
  size_t n = (size_t)c->count * c->size;
  return (part){c->in + (size_t)q * n, c->out + (size_t)q * n, n, n};
}

static part part_all_to_all_v(const tide__mpi_comm *s, const tide__coll *c, int q)
{
  (void)s;
  return (part){c->in + sum_bytes(c->in_counts, q, c->size),
                c->out + sum_bytes(c->out_counts, q, c->size),
                (size_t)c->in_counts[q] * c->size, (size_t)c->out_counts[q] * c->size};
}

static part part_gather(const tide__mpi_comm *s, const tide__coll *c, int q)
{
  size_t n = (size_t)c->count * c->size;
  bool root = s->rank == c->root;
  return (part){c->in, root ? c->out + (size_t)q * n : NULL, q == c->root ? n : 0, root ? n : 0};
}

static part part_scatter(const tide__mpi_comm *s, const tide__coll *c, int q)
{
  size_t n = (size_t)c->count * c->size;
  bool root = s->rank == c->root;
  return (part){root ? c->in + (size_t)q * n : NULL, c->out, root ? n : 0, q == c->root ? n : 0};
}

static int move_all_gather(tide__mpi_comm *s, tide__coll *c)
{
  return exchange_all(s, c, part_all_gather);
}

static int move_all_gather_v(tide__mpi_comm *s, tide__coll *c)
{
  return exchange_all(s, c, part_all_gather_v);
}

static int move_all_to_all(tide__mpi_comm *s, tide__coll *c)
{
  return exchange_all(s, c, part_all_to_all);
}

static int move_all_to_all_v(tide__mpi_comm *s, tide__coll *c)
{
  return exchange_all(s, c, part_all_to_all_v);
}

static int move_gather(tide__mpi_comm *s, tide__coll *c) { return exchange_all(s, c, part_gather); }

static int move_scatter(tide__mpi_comm *s, tide__coll *c)
{
  return exchange_all(s, c, part_scatter);
}

static int move_nothing(tide__mpi_comm *s, tide__coll *c)
{
  (void)s, (void)c;
  return TIDE_OK;
}

/* ---- send and receive ------------------------------------------------------------------------ */

static int move_send_recv(tide__mpi_comm *s, tide__coll *c)
{
  for (int64_t i = 0; i < c->nseg; i++) {
    const tide__seg *g = &c->seg[i];
    size_t nin = c->to >= 0 ? (size_t)g->nin * (size_t)tide_dtype_size(g->in_type) : 0;
    size_t nout = c->from >= 0 ? (size_t)g->nout * (size_t)tide_dtype_size(g->out_type) : 0;
    if (c->to == s->rank) {
      copy_part(g->out, g->in, nout);
      continue;
    }
    for (size_t at = 0; at < nin || at < nout; at += TIDE__MPI_PIECE) {
      int rc = add_recv(s, c->from, g->out + at, piece_of(nout, at));
      if (!rc) rc = add_send(s, c->to, g->in + at, piece_of(nin, at));
      rc = finish(s, c, rc);
      if (rc) return rc;
    }
  }
  return TIDE_OK;
}

/* ---- reductions of parts --------------------------------------------------------------------- */

/* Elements of a chunk when one comes from each of n ranks. */
static int64_t chunk_count(const tide__mpi_comm *s, size_t size)
{
  return TIDE__MPI_CHUNK / s->nrank / (int64_t)size;
}

/* Part q of in goes to rank q in chunks; out gets this rank's part, combined. */
static int reduce_parts(tide__mpi_comm *s, tide__coll *c, const size_t *first,
                        const int64_t *counts)
{
  int64_t step = chunk_count(s, c->size), most = 0, mine = counts[s->rank];
  const void *src[TIDE__MAX_RANK];
  for (int q = 0; q < s->nrank; q++) most = counts[q] > most ? counts[q] : most;
  for (int64_t at = 0; at < most; at += step) {
    int rc = 0;
    int64_t n = mine - at < step ? mine - at : step;
    for (int q = 0; q < s->nrank; q++) {
      char *room = s->scratch + (size_t)q * (size_t)step * c->size;
      src[q] = q == s->rank ? c->in + first[q] + (size_t)at * c->size : room;
      if (q != s->rank && n > 0 && !rc) rc = add_recv(s, q, room, (size_t)n * c->size);
    }
    for (int i = 1; i < s->nrank && !rc; i++) {
      int q = (s->rank + i) % s->nrank;
      int64_t k = counts[q] - at < step ? counts[q] - at : step;
      if (k > 0) rc = add_send(s, q, c->in + first[q] + (size_t)at * c->size, (size_t)k * c->size);
    }
    rc = finish(s, c, rc);
    if (rc) return rc;
    void *dst[1] = {c->out + (size_t)at * c->size};
    if (n > 0) k_cpu_reduce_ranks(dst, 1, src, s->nrank, n, c->dtype, c->reduce);
  }
  return TIDE_OK;
}

static int move_reduce_scatter(tide__mpi_comm *s, tide__coll *c)
{
  size_t first[TIDE__MAX_RANK];
  int64_t counts[TIDE__MAX_RANK];
  for (int q = 0; q < s->nrank; q++) {
    counts[q] = c->count;
    first[q] = (size_t)q * (size_t)c->count * c->size;
  }
  return reduce_parts(s, c, first, counts);
}

static int move_reduce_scatter_v(tide__mpi_comm *s, tide__coll *c)
{
  size_t first[TIDE__MAX_RANK];
  for (int q = 0; q < s->nrank; q++) first[q] = sum_bytes(c->in_counts, q, c->size);
  return reduce_parts(s, c, first, c->in_counts);
}

/* ---- collectives in place: spans of one dtype ------------------------------------------------ */

/* At most TIDE__MPI_CHUNK bytes at p. */
typedef int (*span_fn)(tide__mpi_comm *s, tide__coll *c, char *p, int64_t n, int dtype);

/* Everyone's n elements into scratch and together, in one round; root -1: for everyone. */
static int reduce_small(tide__mpi_comm *s, tide__coll *c, char *p, int64_t n, int dtype, int root)
{
  size_t bytes = (size_t)n * (size_t)tide_dtype_size(dtype);
  const void *src[TIDE__MAX_RANK];
  void *dst[1] = {p};
  int rc = 0;
  bool mine = root < 0 || root == s->rank;
  for (int q = 0; q < s->nrank; q++) {
    src[q] = q == s->rank ? p : s->scratch + (size_t)q * bytes;
    if (q != s->rank && mine && !rc) rc = add_recv(s, q, s->scratch + (size_t)q * bytes, bytes);
  }
  for (int i = 1; i < s->nrank && !rc; i++) {
    int q = (s->rank + i) % s->nrank;
    if (root < 0 || q == root) rc = add_send(s, q, p, bytes);
  }
  rc = finish(s, c, rc);
  if (rc == TIDE_OK && mine) k_cpu_reduce_ranks(dst, 1, src, s->nrank, n, dtype, c->reduce);
  return rc;
}

/* This rank's slice from everyone, combined into *mine: in place, or in scratch. */
static int gather_slices(tide__mpi_comm *s, tide__coll *c, char *p, int64_t n, int dtype,
                         bool in_place, char **mine)
{
  size_t size = (size_t)tide_dtype_size(dtype);
  tide__slice own = tide__slice_of(n, s->rank, s->nrank, size);
  size_t bytes = (size_t)own.n * size, stride = (bytes + LINE - 1) / LINE * LINE;
  const void *src[TIDE__MAX_RANK];
  int rc = 0;
  for (int q = 0; q < s->nrank; q++) {
    char *room = s->scratch + (size_t)q * stride;
    src[q] = q == s->rank ? p + (size_t)own.at * size : room;
    if (q != s->rank && !rc) rc = add_recv(s, q, room, bytes);
  }
  for (int i = 1; i < s->nrank && !rc; i++) {
    int q = (s->rank + i) % s->nrank;
    tide__slice to = tide__slice_of(n, q, s->nrank, size);
    rc = add_send(s, q, p + (size_t)to.at * size, (size_t)to.n * size);
  }
  rc = finish(s, c, rc);
  *mine = in_place ? p + (size_t)own.at * size : s->scratch + (size_t)s->rank * stride;
  void *dst[1] = {*mine};
  if (rc == TIDE_OK && own.n > 0)
    k_cpu_reduce_ranks(dst, 1, src, s->nrank, own.n, dtype, c->reduce);
  return rc;
}

/* Each rank's slice at p to everyone. */
static int spread_slices(tide__mpi_comm *s, tide__coll *c, char *p, int64_t n, size_t size)
{
  tide__slice own = tide__slice_of(n, s->rank, s->nrank, size);
  int rc = 0;
  for (int i = 1; i < s->nrank && !rc; i++) {
    int q = (s->rank + s->nrank - i) % s->nrank;
    tide__slice from = tide__slice_of(n, q, s->nrank, size);
    rc = add_recv(s, q, p + (size_t)from.at * size, (size_t)from.n * size);
  }
  for (int i = 1; i < s->nrank && !rc; i++)
    rc = add_send(s, (s->rank + i) % s->nrank, p + (size_t)own.at * size, (size_t)own.n * size);
  return finish(s, c, rc);
}

static int span_all_reduce(tide__mpi_comm *s, tide__coll *c, char *p, int64_t n, int dtype)
{
  char *mine;
  size_t size = (size_t)tide_dtype_size(dtype);
  if ((size_t)n * size <= ONE_ROUND) return reduce_small(s, c, p, n, dtype, -1);
  int rc = gather_slices(s, c, p, n, dtype, true, &mine);
  return rc ? rc : spread_slices(s, c, p, n, size);
}

static int span_reduce(tide__mpi_comm *s, tide__coll *c, char *p, int64_t n, int dtype)
{
  char *mine;
  size_t size = (size_t)tide_dtype_size(dtype);
  bool root = s->rank == c->root;
  if ((size_t)n * size <= ONE_ROUND) return reduce_small(s, c, p, n, dtype, c->root);
  int rc = gather_slices(s, c, p, n, dtype, root, &mine);
  if (rc) return rc;
  tide__slice own = tide__slice_of(n, s->rank, s->nrank, size);
  if (!root) rc = add_send(s, c->root, mine, (size_t)own.n * size);
  for (int q = 0; root && q < s->nrank && !rc; q++) {
    tide__slice from = tide__slice_of(n, q, s->nrank, size);
    if (q != s->rank) rc = add_recv(s, q, p + (size_t)from.at * size, (size_t)from.n * size);
  }
  return finish(s, c, rc);
}

/* Small: root to each. Large: a slice to each, and from each to all. */
static int span_broadcast(tide__mpi_comm *s, tide__coll *c, char *p, int64_t n, int dtype)
{
  size_t size = (size_t)tide_dtype_size(dtype), bytes = (size_t)n * size;
  bool root = s->rank == c->root, whole = bytes <= 16384 || s->nrank == 2;
  int rc = 0;
  for (int q = 0; root && q < s->nrank && !rc; q++) {
    tide__slice to = whole ? (tide__slice){0, n} : tide__slice_of(n, q, s->nrank, size);
    if (q != s->rank) rc = add_send(s, q, p + (size_t)to.at * size, (size_t)to.n * size);
  }
  tide__slice own = whole ? (tide__slice){0, n} : tide__slice_of(n, s->rank, s->nrank, size);
  if (!root) rc = add_recv(s, c->root, p + (size_t)own.at * size, (size_t)own.n * size);
  rc = finish(s, c, rc);
  return rc || whole ? rc : spread_slices(s, c, p, n, size);
}

static size_t seg_bytes(const tide__seg *g)
{
  return (size_t)g->nout * (size_t)tide_dtype_size(g->out_type);
}

/* Segments from `from` on that fit in one chunk with the same dtype. */
static int64_t run_of(const tide__coll *c, int64_t from, int64_t *count)
{
  size_t total = 0;
  int64_t i = from;
  *count = 0;
  for (; i < c->nseg && c->seg[i].out_type == c->seg[from].out_type; i++) {
    if (total + seg_bytes(&c->seg[i]) > TIDE__MPI_CHUNK) break;
    total += seg_bytes(&c->seg[i]);
    *count += c->seg[i].nout;
  }
  return i - from;
}

/* Several segments through the second half of the scratch buffer. */
static int packed(tide__mpi_comm *s, tide__coll *c, int64_t from, int64_t n, int64_t count,
                  span_fn fn)
{
  char *bucket = s->scratch + TIDE__MPI_CHUNK + ((size_t)s->nrank + 1) * LINE, *at = bucket;
  for (int64_t i = from; i < from + n; at += seg_bytes(&c->seg[i++]))
    memcpy(at, c->seg[i].out, seg_bytes(&c->seg[i]));
  int rc = fn(s, c, bucket, count, c->seg[from].out_type);
  at = bucket;
  for (int64_t i = from; rc == TIDE_OK && i < from + n; at += seg_bytes(&c->seg[i++]))
    memcpy(c->seg[i].out, at, seg_bytes(&c->seg[i]));
  return rc;
}

static int in_chunks(tide__mpi_comm *s, tide__coll *c, const tide__seg *g, span_fn fn)
{
  int64_t size = tide_dtype_size(g->out_type), step = TIDE__MPI_CHUNK / size;
  for (int64_t at = 0; at < g->nout; at += step) {
    int64_t n = g->nout - at < step ? g->nout - at : step;
    int rc = fn(s, c, g->out + at * size, n, g->out_type);
    if (rc) return rc;
  }
  return TIDE_OK;
}

static int each_span(tide__mpi_comm *s, tide__coll *c, span_fn fn)
{
  for (int64_t i = 0; i < c->nseg;) {
    int64_t count, n = run_of(c, i, &count);
    int rc = TIDE_OK;
    if (n > 1) {
      if (count > 0) rc = packed(s, c, i, n, count, fn);
      i += n;
    } else {
      rc = in_chunks(s, c, &c->seg[i++], fn);
    }
    if (rc) return rc;
  }
  return TIDE_OK;
}

static int move_all_reduce(tide__mpi_comm *s, tide__coll *c)
{
  return each_span(s, c, span_all_reduce);
}

static int move_reduce(tide__mpi_comm *s, tide__coll *c) { return each_span(s, c, span_reduce); }

static int move_broadcast(tide__mpi_comm *s, tide__coll *c)
{
  return each_span(s, c, span_broadcast);
}

/* ---- by op ----------------------------------------------------------------------------------- */

int tide__mpi_move(tide__mpi_comm *s, tide__coll *c)
{
  static int (*const move[TIDE__NCOLL])(tide__mpi_comm *s, tide__coll *c) = {
    [TIDE__ALL_REDUCE] = move_all_reduce, [TIDE__REDUCE] = move_reduce,
    [TIDE__BROADCAST] = move_broadcast, [TIDE__ALL_GATHER] = move_all_gather,
    [TIDE__ALL_GATHER_V] = move_all_gather_v, [TIDE__REDUCE_SCATTER] = move_reduce_scatter,
    [TIDE__REDUCE_SCATTER_V] = move_reduce_scatter_v, [TIDE__ALL_TO_ALL] = move_all_to_all,
    [TIDE__ALL_TO_ALL_V] = move_all_to_all_v, [TIDE__GATHER] = move_gather,
    [TIDE__SCATTER] = move_scatter, [TIDE__SEND_RECV] = move_send_recv,
    [TIDE__BARRIER] = move_nothing,
  };
  return move[c->op](s, c);
}

int tide__mpi_swap(tide__mpi_comm *s, tide__coll *c, const void *mine, void *all, size_t size)
{
  tide__coll g = *c;
  g.in = mine;
  g.out = all;
  g.count = 1;
  g.size = size;
  int rc = move_all_gather(s, &g);
  if (rc) snprintf(c->message, sizeof c->message, "%s", g.message);
  return rc;
}
