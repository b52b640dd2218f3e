/* Copies and reductions where a call's operands lie: in host memory, or on one device that several
 * contexts share. There they go to a stream of the communicator, and events order the ranks'
 * streams.
 *
 * The host never waits for the device. A call starts on its stream behind what compute had been
 * given when it was made (before). Ranks that meet show each other two events: a rank's operands
 * may be used (ready), and its own moves are complete (moved). A stream waits for `ready` of each
 * rank whose memory its moves use, and then for `moved` of each rank whose moves use its own.
 * Behind that the call is complete (event), and compute waits for it where its results are used.
 * ready and moved belong to the stream and are recorded again in each call; the barriers keep calls
 * apart (local/local.h). A failure is kept in the call, and the ranks meet all the same.
 */
#include "core/comm/comm.h"

static const tide__streams *streams_of(const tide__stream *s)
{
  return s->device->backend->streams;
}

/* ---- the stream ------------------------------------------------------------------------------ */

int tide__stream_open(tide__stream *s, const struct tide__device *d)
{
  const tide__streams *st = d->backend->streams;
  s->device = d;
  int rc = st->open(d->state, &s->stream);
  if (rc == TIDE_OK) rc = st->record_event(d->state, s->stream, &s->ready);
  if (rc == TIDE_OK) rc = st->record_event(d->state, s->stream, &s->moved);
  if (rc < 0) tide__stream_close(s);
  return rc;
}

void tide__stream_close(tide__stream *s)
{
  if (!s->device) return;
  const tide__streams *st = streams_of(s);
  void *state = s->device->state;
  if (s->ready) st->event_free(state, s->ready);
  if (s->moved) st->event_free(state, s->moved);
  if (s->stream) st->close(state, s->stream);
  *s = (tide__stream){0};
}

/* ---- one call -------------------------------------------------------------------------------- */

static void device_keep(tide__coll *c, int rc)
{
  if (rc < 0 && c->device_status == TIDE_OK) c->device_status = rc;
}

int tide__coll_bind(tide__coll *c, tide__stream *s)
{
  c->stream = s;
  c->device = s->device;
  return streams_of(s)->record_event(s->device->state, NULL, &c->before);
}

void tide__coll_unbind(tide__coll *c)
{
  if (c->before) streams_of(c->stream)->event_free(c->stream->device->state, c->before);
  c->before = NULL;
}

int tide__coll_device(const tide__coll *c)
{
  return c->stream ? streams_of(c->stream)->index(c->stream->device->state) : -1;
}

void tide__coll_begin(tide__coll *c)
{
  if (!c->stream) return;
  tide__coll_wait_event(c, c->before);
  tide__coll_unbind(c);
}

void tide__coll_wait_event(tide__coll *c, void *event)
{
  const tide__stream *s = c->stream;
  device_keep(c, streams_of(s)->wait_event(s->device->state, s->stream, event));
}

void tide__coll_record(tide__coll *c, void **event)
{
  const tide__stream *s = c->stream;
  device_keep(c, streams_of(s)->record_event(s->device->state, s->stream, event));
}

void tide__coll_set_error(const tide__coll *c, int status)
{
  streams_of(c->stream)->set_error(c->stream->device->state, status, c->message);
}

void tide__coll_copy(tide__coll *c, void *dst, const void *src, size_t n)
{
  const tide__stream *s = c->stream;
  if (!s) tide__backend_cpu.copy(NULL, NULL, dst, src, n);
  else device_keep(c, s->device->backend->copy(s->device->state, s->stream, dst, src, n));
}

void tide__coll_reduce(tide__coll *c, void *const *dst, int ndst, const void *const *src, int nsrc,
                       int64_t n, int dtype, int reduce)
{
  const tide__stream *s = c->stream;
  if (!s) tide__backend_cpu.reduce(NULL, NULL, dst, ndst, src, nsrc, n, dtype, reduce);
  else
    device_keep(c, s->device->backend->reduce(s->device->state, s->stream, dst, ndst, src, nsrc, n,
                                              dtype, reduce));
}

/* ---- the event of a call --------------------------------------------------------------------- */

int tide__coll_poll(const tide__coll *c)
{
  return c->device->backend->streams->event_done(c->device->state, c->event);
}

int tide__coll_order(const tide__coll *c)
{
  return c->device->backend->streams->event_order(c->device->state, c->event);
}

void tide__coll_forget(tide__coll *c)
{
  c->device->backend->streams->event_free(c->device->state, c->event);
  c->event = NULL;
}
