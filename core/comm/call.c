/* Describes a call for other ranks, and as text. */
#include "core/comm/call.h"

#include "core/comm/comm.h"

static const char *const coll_names[TIDE__NCOLL] = {
  [TIDE__ALL_REDUCE] = "all_reduce", [TIDE__REDUCE] = "reduce", [TIDE__BROADCAST] = "broadcast",
  [TIDE__ALL_GATHER] = "all_gather", [TIDE__ALL_GATHER_V] = "all_gather_v",
  [TIDE__REDUCE_SCATTER] = "reduce_scatter", [TIDE__REDUCE_SCATTER_V] = "reduce_scatter_v",
  [TIDE__ALL_TO_ALL] = "all_to_all", [TIDE__ALL_TO_ALL_V] = "all_to_all_v",
  [TIDE__GATHER] = "gather", [TIDE__SCATTER] = "scatter", [TIDE__SEND_RECV] = "send_recv",
  [TIDE__BARRIER] = "barrier", [TIDE__SPLIT] = "split", [TIDE__REPLAY] = "replay",
};
static const char *const reduce_names[TIDE_NREDUCE] = {"sum", "mean", "min", "max", "prod"};

const char *tide_coll_name(int op) { return op >= 0 && op < TIDE__NCOLL ? coll_names[op] : NULL; }

const char *tide_reduce_name(int reduce)
{
  return reduce >= 0 && reduce < TIDE_NREDUCE ? reduce_names[reduce] : NULL;
}

uint64_t tide__hash_step(uint64_t h, uint64_t v)
{
  h = (h ^ v) * 0x9e3779b97f4a7c15u;
  return h ^ h >> 29;
}

/* ---- the description ------------------------------------------------------------------------- */

/* Hashes the tensors that are sent, or received, and lists the first `room` of them. */
static uint64_t fold_segs(const tide__coll *c, int device, bool sent, int64_t *list, int room)
{
  uint64_t h = c->nseg ? (uint64_t)c->nseg << 16 | (uint16_t)device : 0;
  for (int64_t i = 0; i < c->nseg; i++) {
    const tide__seg *g = &c->seg[i];
    int64_t word = (sent ? g->nin : g->nout) << 8 | (uint8_t)(sent ? g->in_type : g->out_type);
    h = tide__hash_step(h, (uint64_t)word);
    if (list && i < room) list[i] = word;
  }
  return h;
}

bool tide__call_of(const tide__coll *c, int nrank, tide__comm_call *call, int64_t *list)
{
  bool pairs = c->op == TIDE__SEND_RECV, several = c->nseg > 1 && !pairs;
  int device = tide__coll_device(c), half = tide__call_nlist(nrank) / 2;
  *call = (tide__comm_call){.seq = c->seq, .to = -1, .from = -1, .device = device};
  call->same = (tide__call_same){
    .op = (int8_t)c->op, .reduce = (int8_t)c->reduce, .dtype = (int8_t)(pairs ? -1 : c->dtype),
    .device = (int8_t)(pairs ? -1 : device), .root = c->root, .hash = c->hash,
    .count = pairs || c->op == TIDE__ALL_TO_ALL_V ? -1 : tide__coll_count(c),
    .ntensor = several ? c->nseg : 0};
  memcpy(call->same.shape, c->shape, sizeof c->shape);
  memcpy(call->site, c->site, sizeof call->site);
  if (pairs) {
    call->to = c->to;
    call->from = c->from;
    call->ntensor = (int32_t)c->nseg;
    if (c->to >= 0) call->sent = fold_segs(c, device, true, list, half);
    if (c->from >= 0) call->expected = fold_segs(c, device, false, list ? list + half : NULL, half);
  } else if (list && c->op == TIDE__ALL_TO_ALL_V) {
    memcpy(list, c->in_counts, (size_t)nrank * sizeof *list);
    memcpy(list + half, c->out_counts, (size_t)nrank * sizeof *list);
  }
  return pairs || c->op == TIDE__ALL_TO_ALL_V;
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Adds " of [2, 3]". */
static void add_shape(tide__text *t, const int32_t *shape)
{
  for (int i = 0; i < TIDE__SHOWN && shape[i]; i++)
    tide__add(t, "%s%d", i ? ", " : " of [", shape[i] - 1);
  tide__add(t, "]");
}

void tide__add_call(tide__text *t, const tide__comm_call *call)
{
  const tide__call_same *s = &call->same;
  const char *name = tide_coll_name(s->op), *reduce = tide_reduce_name(s->reduce);
  const char *dtype = tide_dtype_name(s->dtype), *comma = "";
  tide__add(t, "%s(", name ? name : "?");
  if (reduce) tide__add(t, "%s", reduce), comma = ", ";
  if (dtype) tide__add(t, "%s%s", comma, dtype), comma = ", ";
  if (s->ntensor) tide__add(t, "%s%lld tensors", comma, (long long)s->ntensor), comma = ", ";
  if (dtype && s->count >= 0) tide__add(t, "%s%lld elements", comma, (long long)s->count);
  if (s->shape[0]) add_shape(t, s->shape);
  if (s->device >= 0) tide__add(t, "%son a device", *comma ? ", " : "");
  if (s->root >= 0) tide__add(t, ", root %d", s->root);
  tide__add(t, ")");
}

void tide__add_where(tide__text *t, const tide__comm_call *call, const char *name)
{
  tide__add(t, "#%lld ", (long long)call->seq);
  tide__add_call(t, call);
  if (name) tide__add(t, " on '%s'", name);
  tide__add(t, " at %s", call->site[0] ? call->site : "?");
}

void tide__add_missing(tide__text *t, int rank, const tide__comm_call *last)
{
  tide__add(t, "\n  rank %d has not arrived", rank);
  if (last->seq <= 0) {
    tide__add(t, "; it has made no call here yet");
    return;
  }
  tide__add(t, "; its last call here was ");
  tide__add_where(t, last, NULL);
}

void tide__add_ended(tide__text *t, int status, int rank, const tide__coll *c, const char *name)
{
  tide__comm_call call;
  tide__call_of(c, 0, &call, NULL);
  if (status == TIDE_E_INTERRUPT) tide__add(t, "rank %d was interrupted in ", rank);
  else tide__add(t, "rank %d waited %g s in ", rank, c->timeout);
  tide__add_where(t, &call, name);
}

void tide__add_left(tide__text *t, int rank, const char *name, const tide__comm_call *last)
{
  tide__add(t, "rank %d has left '%s'", rank, name);
  if (last->seq <= 0) return;
  tide__add(t, " after ");
  tide__add_where(t, last, NULL);
}

void tide__add_absent(tide__text *t, const tide__coll *c, const char *name, const int *rank, int n)
{
  enum { NAMED = 64 };
  tide__comm_call call;
  tide__call_of(c, 0, &call, NULL);
  tide__add_where(t, &call, name);
  tide__add(t, ": not all ranks have made this call; missing: rank%s", n == 1 ? "" : "s");
  for (int i = 0; i < n && i < NAMED; i++) tide__add(t, "%s %d", i ? "," : "", rank[i]);
  if (n > NAMED) tide__add(t, " and %d more", n - NAMED);
}
