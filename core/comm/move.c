/* What each collective moves to which rank. */
#include "core/comm/comm.h"

enum { LINE = 64 }; /* bytes of a cache line */

static size_t sum_bytes(const int64_t *counts, int n, size_t size)
{
  int64_t sum = 0;
  for (int i = 0; i < n; i++) sum += counts[i];
  return (size_t)sum * size;
}

static size_t type_bytes(int64_t n, int dtype)
{
  return (size_t)n * (size_t)tide_dtype_size(dtype);
}

/* ---- copies ---------------------------------------------------------------------------------- */

int64_t tide__move_count(const tide__coll *c)
{
  switch (c->op) {
  case TIDE__ALL_GATHER: case TIDE__ALL_GATHER_V: case TIDE__ALL_TO_ALL: case TIDE__ALL_TO_ALL_V:
  case TIDE__GATHER: case TIDE__SCATTER: return 1;
  case TIDE__BROADCAST: case TIDE__SEND_RECV: return c->nseg;
  default: return 0;
  }
}

static tide__part part_of_seg(const tide__coll *c, int rank, int q, const tide__seg *g)
{
  bool send = c->op == TIDE__SEND_RECV;
  bool gives = send ? q == c->to : rank == c->root && q != rank;
  bool takes = send ? q == c->from : q == c->root && q != rank;
  return (tide__part){send ? g->in : g->out, g->out, gives ? type_bytes(g->nin, g->in_type) : 0,
                      takes ? type_bytes(g->nout, g->out_type) : 0};
}

tide__part tide__move_part(const tide__coll *c, int rank, int q, int64_t i)
{
  size_t n = (size_t)c->count * c->size, at = (size_t)q * n;
  bool root = rank == c->root, q_root = q == c->root;
  switch (c->op) {
  case TIDE__ALL_GATHER: return (tide__part){c->in, c->out + at, n, n};
  case TIDE__ALL_GATHER_V:
    return (tide__part){c->in, c->out + sum_bytes(c->out_counts, q, c->size),
                        (size_t)c->out_counts[rank] * c->size,
                        (size_t)c->out_counts[q] * c->size};
  case TIDE__ALL_TO_ALL: return (tide__part){c->in + at, c->out + at, n, n};
  case TIDE__ALL_TO_ALL_V:
    return (tide__part){c->in + sum_bytes(c->in_counts, q, c->size),
                        c->out + sum_bytes(c->out_counts, q, c->size),
                        (size_t)c->in_counts[q] * c->size, (size_t)c->out_counts[q] * c->size};
  case TIDE__GATHER:
    return (tide__part){c->in, root ? c->out + at : NULL, q_root ? n : 0, root ? n : 0};
  case TIDE__SCATTER:
    return (tide__part){root ? c->in + at : NULL, c->out, root ? n : 0, q_root ? n : 0};
  default: return part_of_seg(c, rank, q, &c->seg[i]);
  }
}

bool tide__move_touches(const tide__coll *c, int q)
{
  switch (c->op) {
  case TIDE__BROADCAST: case TIDE__GATHER: case TIDE__SCATTER: return q == c->root;
  case TIDE__SEND_RECV: return q == c->from;
  default: return true;
  }
}

/* ---- reductions ------------------------------------------------------------------------------ */

static tide__slice slice_of(int64_t count, int r, int nrank, size_t size)
{
  int64_t unit = LINE / (int64_t)size, nunit = (count + unit - 1) / unit;
  int64_t each = nunit / nrank, more = nunit % nrank;
  int64_t first = (r * each + (r < more ? r : more)) * unit;
  int64_t last = first + (each + (r < more)) * unit;
  if (first > count) first = count;
  if (last > count) last = count;
  return (tide__slice){first, last - first};
}

tide__slice tide__move_share(const tide__coll *c, int64_t count, size_t size, int r, int nrank)
{
  switch (c->op) {
  case TIDE__REDUCE_SCATTER: return (tide__slice){r * c->count, c->count};
  case TIDE__REDUCE_SCATTER_V:
    return (tide__slice){(int64_t)sum_bytes(c->in_counts, r, 1), c->in_counts[r]};
  default: return slice_of(count, r, nrank, size);
  }
}

/* ---- split ----------------------------------------------------------------------------------- */

int tide__split_members(const int *color, const int *key, int nrank, int me, int *list, int *mine)
{
  int n = 0;
  for (int q = 0; color[me] >= 0 && q < nrank; q++) {
    if (color[q] != color[me]) continue;
    int i = n++;
    for (; i > 0 && key[list[i - 1]] > key[q]; i--) list[i] = list[i - 1];
    list[i] = q;
  }
  for (int i = 0; i < n; i++)
    if (list[i] == me) *mine = i;
  return n;
}

/* ---- what a call costs ----------------------------------------------------------------------- */

static void send(tide_comm_stats *s, int rank, int to, int host_size, int64_t message,
                 int64_t nbyte)
{
  int link = rank / host_size != to / host_size;
  s->nmessage[link] += message;
  s->nbyte[link] += nbyte;
}

static int64_t move_seg_bytes(const tide__coll *c)
{
  int64_t n = 0;
  for (int64_t i = 0; i < c->nseg; i++)
    n += (int64_t)type_bytes(c->seg[i].nout, c->seg[i].out_type);
  return n;
}

/* Adds what a rank sends along the ring's link, which leads to the next rank. Every part but one
 * crosses it: in all_gather the part that the next rank has, in reduce_scatter the part that this
 * rank keeps. */
static void add_ring(tide_comm_stats *s, const tide__coll *c, int rank, int n, int host_size)
{
  int next = (rank + 1) % n;
  int64_t size = (int64_t)c->size, part = c->count * size;
  switch (c->op) {
  case TIDE__ALL_REDUCE:
    send(s, rank, next, host_size, 2 * (n - 1), 2 * (n - 1) * move_seg_bytes(c) / n);
    break;
  case TIDE__REDUCE: /* a chain that ends at root */
    if (rank != c->root) send(s, rank, next, host_size, 1, move_seg_bytes(c));
    break;
  case TIDE__BROADCAST: /* a chain that begins at root */
    if (next != c->root) send(s, rank, next, host_size, 1, move_seg_bytes(c));
    break;
  case TIDE__ALL_GATHER: case TIDE__REDUCE_SCATTER:
    send(s, rank, next, host_size, n - 1, (n - 1) * part);
    break;
  case TIDE__ALL_GATHER_V:
    send(s, rank, next, host_size, n - 1, (c->count - c->out_counts[next]) * size);
    break;
  case TIDE__REDUCE_SCATTER_V:
    send(s, rank, next, host_size, n - 1, (c->count - c->in_counts[rank]) * size);
    break;
  case TIDE__BARRIER: case TIDE__SPLIT:
    for (int step = 1; step < n; step *= 2) send(s, rank, (rank + step) % n, host_size, 1, 0);
    break;
  }
}

void tide__traffic_add(tide_comm_stats *s, const tide__coll *c, int rank, int nrank, int host_size)
{
  s->ncall++;
  if (nrank == 1) return;
  add_ring(s, c, rank, nrank, host_size);
  if (c->op < TIDE__ALL_TO_ALL || c->op > TIDE__SEND_RECV) return;
  for (int64_t i = 0; i < tide__move_count(c); i++) /* each pair of ranks on its own */
    for (int q = 0; q < nrank; q++) {
      tide__part p = tide__move_part(c, rank, q, i);
      if (q != rank && p.nin) send(s, rank, q, host_size, 1, (int64_t)p.nin);
    }
}
