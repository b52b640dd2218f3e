/* The transport of one rank: every collective is a copy or nothing. */
#include "core/comm/comm.h"

static void self_split(tide__coll *c, void *state)
{
  c->sub = state;
  c->sub_rank = 0;
  c->sub_size = c->color >= 0;
}

static void copy(tide__coll *c, char *to, const char *from, size_t n)
{
  if (to && from && to != from && n > 0) tide__coll_copy(c, to, from, n);
}

/* Runs any collective of one rank. On a device the copies are enqueued on return, behind the
 * events that the operands wait for. */
static int self_run(void *state, int rank, tide__coll *c)
{
  if (c->op == TIDE__SPLIT) self_split(c, state);
  if (c->op == TIDE__REDUCE_SCATTER || c->op == TIDE__REDUCE_SCATTER_V)
    copy(c, c->out, c->in, (size_t)c->count * c->size);
  for (int64_t i = 0; i < tide__move_count(c); i++) {
    tide__part p = tide__move_part(c, rank, rank, i);
    copy(c, p.out, p.in, p.nout);
  }
  if (c->stream) tide__coll_record(c, &c->event);
  if (c->device_status == TIDE_OK) return TIDE_OK;
  snprintf(c->message, sizeof c->message, "the device has failed");
  return TIDE_E_PEER;
}

const tide__transport tide__transport_self = {
  .name = "self",
  .instant = true,
  .shared_device = true,
  .run = self_run,
};
