/* Collectives on one device that several contexts share: copies and reductions there, on a stream
 * of the communicator, and the waits that keep other ranks' streams in order. On the host: the
 * processor. A failure is kept in the call; the ranks meet all the same. Layer 4.
 */
#include "core/device/device.h"
#include "core/dist/comm.h"
#include "kernels/reduce_ranks.h"

static void keep(tide__coll *c, int rc)
{
  if (rc < 0 && c->far_status == TIDE_OK) c->far_status = rc;
}

static const tide__streams *streams_of(const tide__coll *c) { return c->far->backend->streams; }

void tide__coll_copy(tide__coll *c, void *dst, const void *src, size_t n)
{
  if (!c->far) k_cpu_copy_bytes(dst, src, n);
  else keep(c, streams_of(c)->near_copy(c->far->state, c->stream, dst, src, n));
}

void tide__coll_reduce(tide__coll *c, void *const *dst, int ndst, const void *const *src, int nsrc,
                       int64_t n, int dtype, int reduce)
{
  if (!c->far) k_cpu_reduce_ranks(dst, ndst, src, nsrc, n, dtype, reduce);
  else keep(c, streams_of(c)->near_reduce(c->far->state, c->stream, dst, ndst, src, nsrc, n, dtype,
                                          reduce));
}

void tide__coll_wait(tide__coll *c, bool first)
{
  if (!c->far) return;
  if (first) keep(c, streams_of(c)->behind(c->far->state, c->stream));
  keep(c, streams_of(c)->wait(c->far->state, c->stream));
}
