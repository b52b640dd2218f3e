/* send_recv: lists of tensors to one rank and from another, in one call. See collective.c. */
#include "core/comm/collective.h"
#include "core/op/op.h"
#include "core/op/operand.h"

static int check_peer(tide_comm *comm, const char *arg, int rank)
{
  if (rank >= -1 && rank < comm->nrank) return TIDE_OK;
  return tide__fail(comm->ctx, TIDE_E_ARG, "send_recv", "argument '%s': expected a rank of 0 to "
                    "%d, or -1 for none, got %d", arg, comm->nrank - 1, rank);
}

/* Fills the segments. held: space for 2 n tensors, of which *nheld are owned afterwards, also on
 * failure. */
static int fill_send_recv(tide_comm *comm, tide__coll *c, tide_tensor *const *outs,
                          tide_tensor *const *ins, tide_tensor **held, int64_t *nheld)
{
  for (int64_t i = 0; i < c->nseg; i++) {
    tide__seg *s = &c->seg[i];
    *s = (tide__seg){.in_type = -1, .out_type = -1};
    if (c->to >= 0) {
      tide_tensor *in;
      TIDE_TRY(tide__coll_check_reach(comm, c->op, ins[i], "ins"));
      TIDE_TRY(tide__dense(&in, ins[i], tide_coll_name(c->op)));
      held[(*nheld)++] = in;
      s->in = tide__tensor_ptr(in);
      s->nin = tide__tensor_numel(in);
      s->in_type = in->dtype;
    }
    if (c->from >= 0) {
      TIDE_TRY(tide__coll_check_written(comm, c->op, outs[i], "outs"));
      tide_tensor_retain(outs[i]);
      held[(*nheld)++] = outs[i];
      s->out = tide__tensor_ptr(outs[i]);
      s->nout = tide__tensor_numel(outs[i]);
      s->out_type = outs[i]->dtype;
    }
  }
  return TIDE_OK;
}

/* Checks that no output overlaps an input or another output. held holds each input, then its
 * output. */
static int check_segs(tide_comm *comm, const tide__coll *c, tide_tensor *const *held, int64_t n)
{
  int64_t step = (c->to >= 0) + (c->from >= 0);
  for (int64_t i = 0; c->from >= 0 && i < n; i++) {
    if (step == 2 && i % 2 == 0) continue;
    for (int64_t k = 0; k < n; k++)
      if (k != i && tide__coll_overlap(held[i], held[k]))
        return tide__coll_bad(comm, c->op, TIDE_E_ARG, "outs", "a tensor that is received shares "
                              "memory with another of the call");
  }
  for (int64_t i = 0; c->to == comm->rank && i < c->nseg; i++)
    if (c->seg[i].nin != c->seg[i].nout || c->seg[i].in_type != c->seg[i].out_type)
      return tide__coll_bad(comm, c->op, TIDE_E_SHAPE, "outs", "a rank that sends to itself "
                            "receives what it sends: same count and dtype");
  return TIDE_OK;
}

static int send_recv(tide_work **work, tide_comm *comm, tide__coll *c, tide_tensor *const *outs,
                     tide_tensor *const *ins, tide_tensor **held)
{
  int64_t n = 0;
  int rc = fill_send_recv(comm, c, outs, ins, held, &n);
  if (rc == TIDE_OK) rc = check_segs(comm, c, held, n);
  for (int64_t i = 0; rc == TIDE_OK && c->from >= 0 && i < c->nseg; i++)
    outs[i]->storage->version++;
  if (rc == TIDE_OK) rc = tide__comm_run(comm, c, work, n, held);
  for (int64_t i = 0; i < n; i++) tide_tensor_release(held[i]);
  return rc;
}

/* Chooses one communicator for the tensors of a send_recv, also for ranks without any: *comm, or
 * its host communicator, over which the ranks exchange where their tensors lie. While a step is
 * captured they are on the device. */
static int agree_place(tide_comm **comm, const tide_tensor *t)
{
  enum { NONE, HOST, DEVICE };
  tide_comm *host = (*comm)->host;
  if (!host) return TIDE_OK;
  int64_t all[TIDE__MAX_RANK], seen[3] = {0}, first[3] = {0};
  bool on_host = t && t->ctx->devices->device[t->storage->device].backend->host;
  int64_t mine = !t ? NONE : on_host ? HOST : DEVICE;
  if (host->ctx->capture && on_host) *comm = host; /* which cannot be captured */
  if (host->ctx->capture) return TIDE_OK;
  TIDE_TRY(tide__all_gather_number(host, mine, all));
  for (int q = 0; q < host->nrank; q++)
    if (seen[all[q]]++ == 0) first[all[q]] = q;
  if (seen[HOST]) *comm = host;
  if (!seen[HOST] || !seen[DEVICE]) return TIDE_OK;
  return tide__fail(host->ctx, TIDE_E_DEVICE, "send_recv", "%lld of %d ranks give tensors in host "
                    "memory (rank %lld first), %lld on a device (rank %lld first); move them to "
                    "one place; no data was moved", (long long)seen[HOST], host->nrank,
                    (long long)first[HOST], (long long)seen[DEVICE], (long long)first[DEVICE]);
}

int tide_comm_send_recv(tide_work **work, tide_comm *comm, int64_t n, tide_tensor *const *outs,
                        int from, tide_tensor *const *ins, int to)
{
  if (work) *work = NULL;
  TIDE_DOOR(TIDE_OBJECT(COMM, comm));
  TIDE_TRY(tide__comm_check(comm, "send_recv"));
  TIDE_TRY(check_peer(comm, "to", to));
  TIDE_TRY(check_peer(comm, "from", from));
  if (n < 0 || n > 4096)
    return tide__coll_bad(comm, TIDE__SEND_RECV, TIDE_E_ARG, "n",
                          "expected lists of 0 to 4096 tensors");
  if (from >= 0) TIDE_TRY(tide__check_tensors(comm->ctx, "send_recv", "outs", n, outs));
  if (to >= 0) TIDE_TRY(tide__check_tensors(comm->ctx, "send_recv", "ins", n, ins));
  if ((to == comm->rank) != (from == comm->rank))
    return tide__coll_bad(comm, TIDE__SEND_RECV, TIDE_E_ARG, "to", "a rank that sends to itself "
                          "must also receive from itself");
  TIDE_TRY(agree_place(&comm, n == 0 ? NULL : to >= 0 ? ins[0] : from >= 0 ? outs[0] : NULL));
  size_t size = (size_t)n * (sizeof(tide__seg) + 2 * sizeof(tide_tensor *));
  tide__seg *seg = n ? tide__alloc(comm->ctx, size) : NULL;
  if (n && !seg)
    return tide__coll_bad(comm, TIDE__SEND_RECV, TIDE_E_NOMEM, "n", "no memory for the lists");
  tide__coll c = {.op = TIDE__SEND_RECV, .reduce = -1, .dtype = -1, .root = -1, .to = to,
                  .from = from, .nseg = n, .seg = seg};
  int rc = send_recv(work, comm, &c, outs, ins, (tide_tensor **)(seg + n));
  tide__free(comm->ctx, seg, size);
  return rc;
}
