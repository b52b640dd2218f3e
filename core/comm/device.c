/* Collectives on one device that several contexts share: copies and reductions there, on a stream
 * of the communicator, and the events that keep the ranks' streams in order. On the host: the
 * processor.
 *
 * The one idea: the host never waits. A call starts after what compute had been given when it was
 * made (before). Ranks that meet tell each other two events: a rank's operands may be used (ready),
 * and its own moves are done (moved). Its stream waits for the first of those whose memory it is
 * about to use, and for the second of those who use its own; then the call is done there (event),
 * and whoever uses its results makes compute wait for that. Ready and moved belong to the lane and
 * are marked anew in each call, which the meetings keep apart (local.c).
 *
 * A failure is kept in the call; the ranks meet all the same. Layer 4.
 */
#include "core/device/device.h"
#include "core/comm/comm.h"
#include "kernels/reduce_ranks.h"

static const tide__streams *streams_of(const tide__lane *lane)
{
  return lane->device->backend->streams;
}

/* ---- the lane -------------------------------------------------------------------------------- */

int tide__lane_open(tide__lane *lane, const struct tide__device *d)
{
  const tide__streams *st = d->backend->streams;
  lane->device = d;
  int rc = st->open(d->state, &lane->stream);
  if (rc == TIDE_OK) rc = st->mark(d->state, lane->stream, &lane->ready);
  if (rc == TIDE_OK) rc = st->mark(d->state, lane->stream, &lane->moved);
  if (rc < 0) tide__lane_close(lane);
  return rc;
}

void tide__lane_close(tide__lane *lane)
{
  if (!lane->device) return;
  const tide__streams *st = streams_of(lane);
  void *state = lane->device->state;
  if (lane->ready) st->event_free(state, lane->ready);
  if (lane->moved) st->event_free(state, lane->moved);
  if (lane->stream) st->close(state, lane->stream);
  *lane = (tide__lane){0};
}

/* ---- one call -------------------------------------------------------------------------------- */

static void keep(tide__coll *c, int rc)
{
  if (rc < 0 && c->far_status == TIDE_OK) c->far_status = rc;
}

int tide__coll_aim(tide__coll *c, tide__lane *lane)
{
  c->far = lane;
  return streams_of(lane)->mark(lane->device->state, NULL, &c->before);
}

void tide__coll_unaim(tide__coll *c)
{
  if (c->before) streams_of(c->far)->event_free(c->far->device->state, c->before);
  c->before = NULL;
}

void tide__coll_enter(tide__coll *c)
{
  if (!c->far) return;
  tide__coll_after(c, c->before);
  tide__coll_unaim(c);
}

void tide__coll_after(tide__coll *c, void *event)
{
  keep(c, streams_of(c->far)->order(c->far->device->state, c->far->stream, event));
}

void tide__coll_mark(tide__coll *c, void **event)
{
  keep(c, streams_of(c->far)->mark(c->far->device->state, c->far->stream, event));
}

void tide__coll_copy(tide__coll *c, void *dst, const void *src, size_t n)
{
  if (!c->far) k_cpu_copy_bytes(dst, src, n);
  else keep(c, streams_of(c->far)->near_copy(c->far->device->state, c->far->stream, dst, src, n));
}

void tide__coll_reduce(tide__coll *c, void *const *dst, int ndst, const void *const *src, int nsrc,
                       int64_t n, int dtype, int reduce)
{
  if (!c->far) k_cpu_reduce_ranks(dst, ndst, src, nsrc, n, dtype, reduce);
  else keep(c, streams_of(c->far)->near_reduce(c->far->device->state, c->far->stream, dst, ndst,
                                               src, nsrc, n, dtype, reduce));
}

void tide__coll_spoil(const tide__coll *c, int status)
{
  streams_of(c->far)->spoil(c->far->device->state, status, c->message);
}

/* ---- of the transports that are near --------------------------------------------------------- */

int tide__near_look(void *state, int rank, tide__coll *c)
{
  (void)state, (void)rank;
  return streams_of(c->far)->event_done(c->far->device->state, c->event);
}

int tide__near_order(void *state, int rank, tide__coll *c)
{
  (void)state, (void)rank;
  return streams_of(c->far)->event_order(c->far->device->state, c->event);
}

void tide__near_forget(void *state, int rank, tide__coll *c)
{
  (void)state, (void)rank;
  streams_of(c->far)->event_free(c->far->device->state, c->event);
  c->event = NULL;
}
