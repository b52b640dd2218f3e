/* comm_self: one rank. Every collective is a copy or nothing. Layer 4. */
#include <stdio.h>
#include <string.h>

#include "core/comm/comm.h"

static int nothing(void *state, int rank, tide__coll *c)
{
  (void)state, (void)rank, (void)c;
  return TIDE_OK;
}

/* On a device: under way on return, behind what the operands wait for. */
static int end(tide__coll *c)
{
  if (c->far) tide__coll_mark(c, &c->event);
  if (c->far_status == TIDE_OK) return TIDE_OK;
  snprintf(c->message, sizeof c->message, "the device has failed");
  return TIDE_E_PEER;
}

/* in and out may be the same memory. */
static int copy(void *state, int rank, tide__coll *c)
{
  (void)state, (void)rank;
  int64_t n = c->out_counts ? c->out_counts[0] : c->in_counts ? c->in_counts[0] : c->count;
  if (!c->in || !c->out || c->in == c->out || n <= 0) return TIDE_OK;
  if (!c->far) memmove(c->out, c->in, (size_t)n * c->size);
  else tide__coll_copy(c, c->out, c->in, (size_t)n * c->size);
  return end(c);
}

/* To itself: collective.c has checked that to and from are both 0 or both -1. */
static int copy_segs(void *state, int rank, tide__coll *c)
{
  (void)state, (void)rank;
  for (int64_t s = 0; c->from >= 0 && s < c->nseg; s++) {
    const tide__seg *g = &c->seg[s];
    if (g->in && g->out && g->nout > 0)
      tide__coll_copy(c, g->out, g->in,
                      (size_t)g->nout * (size_t)tide_dtype_size(g->out_type));
  }
  return end(c);
}

static int split(void *state, int rank, tide__coll *c)
{
  (void)rank;
  c->sub = state;
  c->sub_rank = 0;
  c->sub_size = c->color >= 0;
  return TIDE_OK;
}

const tide__transport tide__transport_self = {
  .name = "self",
  .instant = true,
  .near = true,
  .run = {
    [TIDE__ALL_REDUCE] = nothing, [TIDE__REDUCE] = nothing, [TIDE__BROADCAST] = nothing,
    [TIDE__ALL_GATHER] = copy, [TIDE__ALL_GATHER_V] = copy, [TIDE__REDUCE_SCATTER] = copy,
    [TIDE__REDUCE_SCATTER_V] = copy, [TIDE__ALL_TO_ALL] = copy, [TIDE__ALL_TO_ALL_V] = copy,
    [TIDE__GATHER] = copy, [TIDE__SCATTER] = copy, [TIDE__SEND_RECV] = copy_segs,
    [TIDE__BARRIER] = nothing, [TIDE__SPLIT] = split,
  },
  .look = tide__near_look,
  .order = tide__near_order,
  .forget = tide__near_forget,
};
