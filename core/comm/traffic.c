/* What a collective costs a rank: messages and bytes, by the algorithms people use at scale.
 *
 * The one idea: what a rank sends follows from the call alone, so a simulated communicator needs no
 * peers, and a real one is counted by the same rule. Reductions and gathers go round a ring,
 * all-to-all is a direct exchange.
 *
 * Layer 4.
 */
#include "core/comm/comm.h"

static void send(tide_comm_stats *s, int rank, int to, int host_size, int64_t message,
                 int64_t nbyte)
{
  int link = rank / host_size != to / host_size;
  s->nmessage[link] += message;
  s->nbyte[link] += nbyte;
}

static int64_t seg_bytes(const tide__coll *c, bool sent)
{
  int64_t n = 0;
  for (int64_t i = 0; i < c->nseg; i++) {
    const tide__seg *g = &c->seg[i];
    n += sent ? g->nin * tide_dtype_size(g->in_type) : g->nout * tide_dtype_size(g->out_type);
  }
  return n;
}

/* The ring's link goes to the next rank; in the collectives below a rank hears of all parts but one
 * (all_gather: its own, which the next has; reduce_scatter: the one it keeps). */
static void add_ring(tide_comm_stats *s, const tide__coll *c, int rank, int n, int host_size)
{
  int next = (rank + 1) % n;
  int64_t part = c->count * (int64_t)c->size;
  switch (c->op) {
  case TIDE__ALL_REDUCE:
    send(s, rank, next, host_size, 2 * (n - 1), 2 * (n - 1) * seg_bytes(c, false) / n);
    break;
  case TIDE__REDUCE: /* a chain that ends at root */
    if (rank != c->root) send(s, rank, next, host_size, 1, seg_bytes(c, false));
    break;
  case TIDE__BROADCAST: /* a chain that begins at root */
    if (next != c->root) send(s, rank, next, host_size, 1, seg_bytes(c, false));
    break;
  case TIDE__ALL_GATHER: case TIDE__REDUCE_SCATTER:
    send(s, rank, next, host_size, n - 1, (n - 1) * part);
    break;
  case TIDE__ALL_GATHER_V:
    send(s, rank, next, host_size, n - 1,
         (c->count - c->out_counts[next]) * (int64_t)c->size);
    break;
  case TIDE__REDUCE_SCATTER_V:
    send(s, rank, next, host_size, n - 1, (c->count - c->in_counts[rank]) * (int64_t)c->size);
    break;
  case TIDE__BARRIER: case TIDE__SPLIT:
    for (int step = 1; step < n; step *= 2) send(s, rank, (rank + step) % n, host_size, 1, 0);
    break;
  }
}

static void add_direct(tide_comm_stats *s, const tide__coll *c, int rank, int n, int host_size)
{
  int64_t part = c->count * (int64_t)c->size;
  for (int q = 0; q < n; q++) {
    if (q == rank) continue;
    if (c->op == TIDE__ALL_TO_ALL) send(s, rank, q, host_size, 1, part);
    if (c->op == TIDE__ALL_TO_ALL_V && c->in_counts[q])
      send(s, rank, q, host_size, 1, c->in_counts[q] * (int64_t)c->size);
    if (c->op == TIDE__GATHER && q == c->root) send(s, rank, q, host_size, 1, part);
    if (c->op == TIDE__SCATTER && rank == c->root) send(s, rank, q, host_size, 1, part);
    if (c->op == TIDE__SEND_RECV && q == c->to)
      send(s, rank, q, host_size, c->nseg, seg_bytes(c, true));
  }
}

void tide__traffic_add(tide_comm_stats *s, const tide__coll *c, int rank, int nrank, int host_size)
{
  s->ncall++;
  if (nrank == 1) return;
  add_ring(s, c, rank, nrank, host_size);
  if (c->op >= TIDE__ALL_TO_ALL && c->op <= TIDE__SEND_RECV)
    add_direct(s, c, rank, nrank, host_size);
}
