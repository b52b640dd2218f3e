/* Communicators in captured steps: their side of core/device/device.h.
 *
 * A call in a captured step is made as any other, by the helper thread in its turn, but is
 * recorded; its caller returns once it is recorded. A replay is one call of the communicator, with
 * a number and a place among the others, and is watched as they are: the next use of the device
 * reports a failure or a timeout.
 */
#include "core/comm/comm.h"

static tide_comm *comm_of(tide__participant *p)
{
  return (tide_comm *)((char *)p - offsetof(tide_comm, participant));
}

tide_comm *tide__comm_of(tide__participant *p)
{
  return p->calls == &tide__comm_participant ? comm_of(p) : NULL;
}

static int capture_settle(tide__participant *p)
{
  tide_comm *comm = comm_of(p);
  if (comm->engine) tide__work_drain(comm);
  return TIDE_OK;
}

/* Records why a member of captures failed: the communicator's failure, or the device. */
static int capture_failed(tide_comm *comm, int rc)
{
  if (rc >= 0) return TIDE_OK;
  TIDE_TRY(tide__comm_check(comm, "graph"));
  return tide__fail(comm->ctx, rc, "graph", "the device failed");
}

static int capture_enter(tide__participant *p, tide_graph *g)
{
  tide_comm *comm = comm_of(p);
  struct tide__recorded *r = tide__alloc(comm->ctx, sizeof *r);
  if (!r) return tide__fail(comm->ctx, TIDE_E_NOMEM, "graph", "no host memory");
  *r = (struct tide__recorded){.held.graph = g, .next = comm->recorded};
  int rc = comm->transport->captures->enter(comm->state, &r->held);
  if (rc < 0) {
    tide__free(comm->ctx, r, sizeof *r);
    return capture_failed(comm, rc);
  }
  comm->recorded = r;
  comm->refs++;
  return TIDE_OK;
}

static int capture_join(tide__participant *p)
{
  tide_comm *comm = comm_of(p);
  int rc = comm->transport->captures->join(comm->state);
  tide__work_joined(comm);
  return capture_failed(comm, rc);
}

static int capture_begin(tide__participant *p)
{
  tide_comm *comm = comm_of(p);
  if (comm->engine) tide__work_issue(comm); /* every rank's calls are in one order */
  TIDE_TRY(tide__comm_check(comm, "graph_replay"));
  return capture_failed(comm, comm->transport->captures->begin(comm->state));
}

static struct tide__recorded **capture_find(tide_comm *comm, const tide_graph *g)
{
  struct tide__recorded **at = &comm->recorded;
  while (*at && (*at)->held.graph != g) at = &(*at)->next;
  return at;
}

static int capture_launched(tide__participant *p, tide_graph *g)
{
  tide_comm *comm = comm_of(p);
  const tide_comm_stats *more = &(*capture_find(comm, g))->traffic;
  tide__coll c = {.op = TIDE__REPLAY, .reduce = -1, .dtype = -1, .root = -1};
  tide__comm_number(comm, &c);
  c.begin = tide_trace_clock();
  TIDE_TRY(capture_failed(comm, comm->transport->captures->launched(comm->state, &c)));
  for (int link = 0; link < 2; link++) {
    comm->stats.nmessage[link] += more->nmessage[link];
    comm->stats.nbyte[link] += more->nbyte[link];
  }
  comm->stats.ncall += more->ncall;
  return tide__work_watch(comm, &c);
}

static void capture_leave(tide__participant *p)
{
  comm_of(p)->transport->captures->leave(comm_of(p)->state);
}

static void capture_drop(tide__participant *p, tide_graph *g)
{
  tide_comm *comm = comm_of(p);
  struct tide__recorded **at = capture_find(comm, g), *r = *at;
  comm->transport->captures->drop(comm->state, &r->held);
  *at = r->next;
  tide__free(comm->ctx, r, sizeof *r);
  tide__comm_unref(comm, 1);
}

const tide__participant_calls tide__comm_participant = {
  capture_settle, capture_enter, capture_join, capture_begin, capture_launched, capture_leave,
  capture_drop,
};
