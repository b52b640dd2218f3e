/* The public collectives of tensors. All checks that a rank can make alone are here. Tensors
 * become pointers, counts and dtypes: a tide__coll that every transport runs without further
 * checks. A call that fails here has not reached the other ranks. */
#include "core/comm/comm.h"
#include "core/op/op.h"
#include "core/op/operand.h"

enum { FEW = 16 };

/* Returns the communicator that reaches t. A transport on the device cannot reach host memory:
 * such tensors go over the communicator that this one was made of. */
static tide_comm *reach(tide_comm *comm, const tide_tensor *t)
{
  if (!comm->host || !t) return comm;
  return comm->ctx->devices->device[t->storage->device].backend->host ? comm->host : comm;
}

/* ---- checks ---------------------------------------------------------------------------------- */

static int bad_call(tide_comm *comm, int coll, int status, const char *arg, const char *what)
{
  return tide__fail(comm->ctx, status, tide_coll_name(coll), "argument '%s': %s", arg, what);
}

int tide__check_root(tide_comm *comm, int coll, int root)
{
  if (root >= 0 && root < comm->nrank) return TIDE_OK;
  return tide__fail(comm->ctx, TIDE_E_ARG, tide_coll_name(coll), "argument 'root': expected a rank "
                    "of 0 to %d, got %d", comm->nrank - 1, root);
}

static int check_reduce(tide_comm *comm, int coll, int op, int dtype)
{
  if (op < 0 || op >= TIDE_NREDUCE)
    return tide__fail(comm->ctx, TIDE_E_ARG, tide_coll_name(coll), "argument 'op': expected sum, "
                      "mean, min, max or prod (0 to %d), got %d", TIDE_NREDUCE - 1, op);
  if (op == TIDE_MEAN && dtype >= TIDE_I64)
    return tide__fail(comm->ctx, TIDE_E_DTYPE, tide_coll_name(coll), "the mean of %s is not a %s; "
                      "cast to a floating dtype first", tide_dtype_name(dtype),
                      tide_dtype_name(dtype));
  if (op == TIDE_SUM && dtype == TIDE_BOOL)
    return bad_call(comm, coll, TIDE_E_DTYPE, "op", "the sum of bool is not a bool; use max (any) "
                    "or min (all), or cast to i64");
  return TIDE_OK;
}

/* Checks that the tensor has bytes, and that the transport reaches them. */
static int check_reach(tide_comm *comm, int coll, const tide_tensor *t, const char *arg)
{
  if (t->storage->gone) return bad_call(comm, coll, TIDE_E_GONE, arg, "its bytes were dropped");
  if (t->storage->copy && tide__async_copy_wait(t->storage) < 0)
    return bad_call(comm, coll, TIDE_E_DEVICE, arg, "a copy of it that was under way failed");
  const tide__backend *b = t->ctx->devices->device[t->storage->device].backend;
  bool none = !b->has_bytes;
  bool here = comm->transport->on_device ? !b->host : b->host;
  if (comm->transport->shared_device && b->streams) return TIDE_OK;
  if (comm->transport->bytes ? here && !none : b->host || none) return TIDE_OK;
  return tide__fail(comm->ctx, TIDE_E_DEVICE, tide_coll_name(coll), "argument '%s': the '%s' "
                    "transport cannot reach the bytes of a tensor on device '%s'", arg,
                    comm->transport->name, tide_device_name(t->storage->device));
}

static int check_written(tide_comm *comm, int coll, const tide_tensor *t, const char *arg)
{
  TIDE_TRY(check_reach(comm, coll, t, arg));
  if (!tide__is_contiguous(t->ndim, t->shape, t->stride))
    return tide__fail(comm->ctx, TIDE_E_SHAPE, tide_coll_name(coll), "argument '%s': a tensor that "
                      "is written must be contiguous, %s is not; write to a contiguous one and "
                      "copy", arg, TIDE__SHAPE_OF(t));
  if (t->node && t->ctx->recording)
    return bad_call(comm, coll, TIDE_E_STATE, arg, "it is the result of a recorded op and would be "
                    "changed behind the tape; detach it, or call inside no_grad");
  return TIDE_OK;
}

static size_t tensor_bytes(const tide_tensor *t)
{
  return (size_t)(tide__tensor_numel(t) * tide_dtype_size(t->dtype));
}

/* Returns whether the bytes of two contiguous tensors overlap. */
static bool overlap(const tide_tensor *a, const tide_tensor *b)
{
  const char *p = tide__tensor_ptr(a), *q = tide__tensor_ptr(b);
  if (a->storage != b->storage || !p || !q) return false;
  return p < q + tensor_bytes(b) && q < p + tensor_bytes(a) && tensor_bytes(a) && tensor_bytes(b);
}

/* ---- collectives in place over a list -------------------------------------------------------- */

static bool lies_before(const void *arg, int32_t a, int32_t b)
{
  const tide__seg *seg = arg;
  return seg[a].out < seg[b].out;
}

/* Checks that the tensors of a list do not overlap. index: scratch for n numbers. */
static int check_apart(tide_comm *comm, int coll, const tide__seg *seg, int64_t n, int32_t *index)
{
  for (int32_t i = 0; i < n; i++) index[i] = i;
  tide__sort(index, n, lies_before, seg);
  for (int64_t i = 0, last = -1; i < n; i++) {
    const tide__seg *s = &seg[index[i]], *p = last >= 0 ? &seg[index[last]] : NULL;
    if (s->nout == 0 || !s->out) continue;
    if (p && s->out < p->out + p->nout * tide_dtype_size(p->out_type))
      return tide__fail(comm->ctx, TIDE_E_ARG, tide_coll_name(coll), "tensors %d and %d of the "
                        "list share memory; give each once", index[last] + 1, index[i] + 1);
    last = i;
  }
  return TIDE_OK;
}

static tide__seg seg_in_place(const tide_tensor *t)
{
  char *p = tide__tensor_ptr(t);
  int64_t n = tide__tensor_numel(t);
  return (tide__seg){p, p, n, n, t->dtype, t->dtype};
}

static int fill_in_place(tide_comm *comm, tide__coll *c, tide_tensor *const *ts)
{
  c->dtype = c->nseg > 0 ? ts[0]->dtype : -1;
  for (int64_t i = 0; i < c->nseg; i++) {
    TIDE_TRY(check_written(comm, c->op, ts[i], c->nseg > 1 ? "ts[i]" : "t"));
    if (c->reduce >= 0) TIDE_TRY(check_reduce(comm, c->op, c->reduce, ts[i]->dtype));
    c->seg[i] = seg_in_place(ts[i]);
    if (ts[i]->dtype != c->dtype) c->dtype = -1;
    if (c->nseg == 1) break;
    c->hash = tide__hash_step(c->hash, (uint64_t)c->seg[i].nout << 8 | (uint64_t)ts[i]->dtype);
  }
  return TIDE_OK;
}

static int in_place(tide_work **work, const char *func, tide_comm *comm, int64_t n,
                    tide_tensor *const *ts, int coll, int op, int root)
{
  const tide__arg arg = TIDE_OBJECT(COMM, comm);
  tide__seg few[FEW], *seg = few;
  int32_t index[FEW], *order = index;
  if (work) *work = NULL;
  if (!tide__admits(&arg, 1)) return tide__refuse(func, &arg, 1);
  TIDE_TRY(tide__check_tensors(comm->ctx, tide_coll_name(coll), "ts", n, ts));
  if (n > 0) comm = reach(comm, ts[0]);
  TIDE_TRY(tide__comm_check(comm, tide_coll_name(coll)));
  if (n > INT32_MAX) return bad_call(comm, coll, TIDE_E_ARG, "ts", "expected a list of tensors");
  if (coll != TIDE__BROADCAST) TIDE_TRY(check_reduce(comm, coll, op, TIDE_F32));
  if (coll != TIDE__ALL_REDUCE) TIDE_TRY(tide__check_root(comm, coll, root));
  size_t size = (size_t)n * (sizeof *seg + sizeof *order);
  if (n > FEW) {
    seg = tide__alloc(comm->ctx, size);
    if (!seg) return bad_call(comm, coll, TIDE_E_NOMEM, "ts", "no memory for a list this long");
    order = (int32_t *)(seg + n);
  }
  tide__coll c = {.op = coll, .reduce = op, .dtype = -1, .root = root, .nseg = n, .seg = seg};
  int rc = fill_in_place(comm, &c, ts);
  if (rc == TIDE_OK && n > 1) rc = check_apart(comm, coll, seg, n, order);
  bool changes = coll == TIDE__ALL_REDUCE || (coll == TIDE__REDUCE) == (comm->rank == root);
  for (int64_t i = 0; rc == TIDE_OK && changes && i < n; i++) ts[i]->storage->version++;
  if (rc == TIDE_OK) rc = tide__comm_run(comm, &c, work, n, ts);
  if (n > FEW) tide__free(comm->ctx, seg, size);
  return rc;
}

int tide_comm_all_reduce(tide_work **work, tide_comm *comm, int64_t n, tide_tensor *const *ts,
                         int op)
{
  return in_place(work, __func__, comm, n, ts, TIDE__ALL_REDUCE, op, -1);
}

int tide_comm_reduce(tide_work **work, tide_comm *comm, int64_t n, tide_tensor *const *ts, int op,
                     int root)
{
  return in_place(work, __func__, comm, n, ts, TIDE__REDUCE, op, root);
}

int tide_comm_broadcast(tide_work **work, tide_comm *comm, int64_t n, tide_tensor *const *ts,
                        int root)
{
  return in_place(work, __func__, comm, n, ts, TIDE__BROADCAST, -1, root);
}

/* ---- collectives from in to out -------------------------------------------------------------- */

/* A collective with an input and an output. */
typedef struct pair {
  tide_comm *comm;             /* which reaches the tensors */
  tide__coll c;
  tide_tensor *in, *out;       /* in is owned: a contiguous form; either may be null */
  tide_work **work;
} pair;

/* Checks the root of a gather or scatter and its list of parts, which only the root passes on. */
static int check_whole(const pair *p, const char *arg, int root, tide_tensor **whole)
{
  TIDE_TRY(tide__check_root(p->comm, p->c.op, root));
  if (p->comm->rank != root) *whole = NULL;
  else if (!*whole)
    return bad_call(p->comm, p->c.op, TIDE_E_ARG, arg, "expected a tensor on the root, got null");
  return TIDE_OK;
}

/* Makes the checks that all of these functions share, first those of the objects (func: __func__).
 * Afterwards *in is null if this rank sends nothing, p->out if it receives nothing. */
static int pair_begin(pair *p, const char *func, tide_work **work, tide_comm *comm, int coll,
                      int root, tide_tensor *out, tide_tensor **in)
{
  bool gather = coll == TIDE__GATHER, scatter = coll == TIDE__SCATTER;
  const tide__arg args[] = {TIDE_OBJECT(COMM, comm), {out, "out", TIDE__KIND_TENSOR, gather},
                            {*in, "in", TIDE__KIND_TENSOR, scatter}};
  if (work) *work = NULL;
  if (!tide__admits(args, 3)) return tide__refuse(func, args, 3);
  comm = reach(comm, *in ? *in : out);
  *p = (pair){.comm = comm, .work = work, .out = out};
  p->c = (tide__coll){.op = coll, .reduce = -1, .dtype = -1, .root = root, .to = -1, .from = -1};
  if (gather) TIDE_TRY(check_whole(p, "out", root, &p->out));
  if (scatter) TIDE_TRY(check_whole(p, "in", root, in));
  TIDE_TRY(tide__comm_check(comm, tide_coll_name(coll)));
  if (p->out) TIDE_TRY(check_written(comm, coll, p->out, "out"));
  if (*in) TIDE_TRY(check_reach(comm, coll, *in, "in"));
  if (*in && p->out && (*in)->dtype != p->out->dtype)
    return tide__fail(comm->ctx, TIDE_E_DTYPE, tide_coll_name(coll), "argument 'out': expected %s "
                      "as the input, got %s", tide_dtype_name((*in)->dtype),
                      tide_dtype_name(p->out->dtype));
  p->c.dtype = (*in ? *in : p->out)->dtype;
  p->c.size = (size_t)tide_dtype_size(p->c.dtype);
  return TIDE_OK;
}

/* Makes the input contiguous and runs. in may lie inside out, or out inside in, only at element
 * `at`, where the data belong anyway; at -1: nowhere. */
static int pair_run(pair *p, tide_tensor *in, int64_t at)
{
  tide_comm *comm = p->comm;
  if (in) TIDE_TRY(tide__dense(&p->in, in, tide_coll_name(p->c.op)));
  int rc = TIDE_OK;
  if (p->in) p->c.in = tide__tensor_ptr(p->in);
  if (p->out) p->c.out = tide__tensor_ptr(p->out);
  if (p->in && p->out && overlap(p->in, p->out)) {
    size_t shift = (size_t)at * p->c.size;
    bool fits = at >= 0 && (p->c.in == p->c.out + shift || p->c.out == p->c.in + shift);
    if (!fits)
      rc = bad_call(comm, p->c.op, TIDE_E_ARG, "out", "it shares memory with the input; use "
                    "another tensor, or this rank's own part");
  }
  if (rc == TIDE_OK && p->out) p->out->storage->version++;
  tide_tensor *list[2];
  int64_t n = 0;
  if (p->in) list[n++] = p->in;
  if (p->out) list[n++] = p->out;
  if (rc == TIDE_OK) rc = tide__comm_run(comm, &p->c, p->work, n, list);
  tide_tensor_release(p->in);
  return rc;
}

static int check_numel(pair *p, const tide_tensor *t, const char *arg, int64_t n)
{
  int64_t got = tide__tensor_numel(t);
  if (got == n) return TIDE_OK;
  return tide__fail(p->comm->ctx, TIDE_E_SHAPE, tide_coll_name(p->c.op), "argument '%s': expected "
                    "%lld elements (%d ranks, this is rank %d), got %lld", arg, (long long)n,
                    p->comm->nrank, p->comm->rank, (long long)got);
}

/* Runs a collective of equal parts. `whole` holds one part of each rank in rank order; null on the
 * other ranks of a gather or scatter. */
static int pair_parts(pair *p, tide_tensor *in, const tide_tensor *part, const tide_tensor *whole,
                      const char *arg)
{
  p->c.count = tide__tensor_numel(part);
  if (whole) TIDE_TRY(check_numel(p, whole, arg, tide__mul_size(p->c.count, p->comm->nrank)));
  return pair_run(p, in, p->comm->rank * p->c.count);
}

int tide_comm_all_gather(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in)
{
  pair p;
  TIDE_TRY(pair_begin(&p, __func__, work, comm, TIDE__ALL_GATHER, -1, out, &in));
  return pair_parts(&p, in, in, out, "out");
}

int tide_comm_reduce_scatter(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in,
                             int op)
{
  pair p;
  TIDE_TRY(pair_begin(&p, __func__, work, comm, TIDE__REDUCE_SCATTER, -1, out, &in));
  TIDE_TRY(check_reduce(p.comm, TIDE__REDUCE_SCATTER, op, in->dtype));
  p.c.reduce = op;
  return pair_parts(&p, in, out, in, "in");
}

int tide_comm_all_to_all(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in)
{
  pair p;
  TIDE_TRY(pair_begin(&p, __func__, work, comm, TIDE__ALL_TO_ALL, -1, out, &in));
  int64_t n = tide__tensor_numel(in);
  TIDE_TRY(check_numel(&p, out, "out", n));
  if (n % comm->nrank)
    return tide__fail(comm->ctx, TIDE_E_SHAPE, "all_to_all", "argument 'in': %lld elements do not "
                      "divide among %d ranks; use all_to_all_v", (long long)n, comm->nrank);
  p.c.count = n / comm->nrank;
  return pair_run(&p, in, -1);
}

int tide_comm_gather(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in, int root)
{
  pair p;
  TIDE_TRY(pair_begin(&p, __func__, work, comm, TIDE__GATHER, root, out, &in));
  return pair_parts(&p, in, in, p.out, "out");
}

int tide_comm_scatter(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in,
                      int root)
{
  pair p;
  TIDE_TRY(pair_begin(&p, __func__, work, comm, TIDE__SCATTER, root, out, &in));
  return pair_parts(&p, in, out, in, "in");
}

/* ---- unequal parts --------------------------------------------------------------------------- */

/* Returns the sum of counts in *sum; folds them into the hash if they must be equal on all
 * ranks. */
static int check_counts(pair *p, const int64_t *counts, const char *arg, bool alike, int64_t *sum)
{
  *sum = 0;
  if (!counts) return bad_call(p->comm, p->c.op, TIDE_E_ARG, arg,
                               "expected a count a rank, got null");
  for (int i = 0; i < p->comm->nrank; i++) {
    if (counts[i] < 0 || __builtin_add_overflow(*sum, counts[i], sum))
      return tide__fail(p->comm->ctx, TIDE_E_ARG, tide_coll_name(p->c.op), "argument '%s': "
                        "expected counts of 0 or more that add up, got %lld for rank %d", arg,
                        (long long)counts[i], i);
    if (alike) p->c.hash = tide__hash_step(p->c.hash, (uint64_t)counts[i]);
  }
  return TIDE_OK;
}

static int64_t sum_before(const int64_t *counts, int rank)
{
  int64_t at = 0;
  for (int i = 0; i < rank; i++) at += counts[i];
  return at;
}

int tide_comm_all_gather_v(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in,
                           const int64_t *counts)
{
  pair p;
  TIDE_TRY(pair_begin(&p, __func__, work, comm, TIDE__ALL_GATHER_V, -1, out, &in));
  TIDE_TRY(check_counts(&p, counts, "counts", true, &p.c.count));
  TIDE_TRY(check_numel(&p, in, "in", counts[comm->rank]));
  TIDE_TRY(check_numel(&p, out, "out", p.c.count));
  p.c.out_counts = counts;
  return pair_run(&p, in, sum_before(counts, comm->rank));
}

int tide_comm_reduce_scatter_v(tide_work **work, tide_comm *comm, tide_tensor *out,
                               tide_tensor *in, const int64_t *counts, int op)
{
  pair p;
  TIDE_TRY(pair_begin(&p, __func__, work, comm, TIDE__REDUCE_SCATTER_V, -1, out, &in));
  TIDE_TRY(check_reduce(p.comm, TIDE__REDUCE_SCATTER_V, op, in->dtype));
  TIDE_TRY(check_counts(&p, counts, "counts", true, &p.c.count));
  TIDE_TRY(check_numel(&p, in, "in", p.c.count));
  TIDE_TRY(check_numel(&p, out, "out", counts[comm->rank]));
  p.c.reduce = op;
  p.c.in_counts = counts;
  return pair_run(&p, in, sum_before(counts, comm->rank));
}

int tide_comm_all_to_all_v(tide_work **work, tide_comm *comm, tide_tensor *out,
                           const int64_t *out_counts, tide_tensor *in, const int64_t *in_counts)
{
  pair p;
  int64_t nout;
  TIDE_TRY(pair_begin(&p, __func__, work, comm, TIDE__ALL_TO_ALL_V, -1, out, &in));
  TIDE_TRY(check_counts(&p, in_counts, "in_counts", false, &p.c.count));
  TIDE_TRY(check_counts(&p, out_counts, "out_counts", false, &nout));
  TIDE_TRY(check_numel(&p, in, "in", p.c.count));
  TIDE_TRY(check_numel(&p, out, "out", nout));
  int64_t mine = in_counts[comm->rank], expected = out_counts[comm->rank];
  if (mine != expected)
    return tide__fail(comm->ctx, TIDE_E_ARG, "all_to_all_v", "in_counts and out_counts: rank %d "
                      "sends itself %lld elements and expects %lld", comm->rank, (long long)mine,
                      (long long)expected);
  p.c.in_counts = in_counts;
  p.c.out_counts = out_counts;
  return pair_run(&p, in, -1);
}

/* ---- send and receive ------------------------------------------------------------------------ */

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
      TIDE_TRY(check_reach(comm, c->op, ins[i], "ins"));
      TIDE_TRY(tide__dense(&in, ins[i], tide_coll_name(c->op)));
      held[(*nheld)++] = in;
      s->in = tide__tensor_ptr(in);
      s->nin = tide__tensor_numel(in);
      s->in_type = in->dtype;
    }
    if (c->from >= 0) {
      TIDE_TRY(check_written(comm, c->op, outs[i], "outs"));
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
      if (k != i && overlap(held[i], held[k]))
        return bad_call(comm, c->op, TIDE_E_ARG, "outs", "a tensor that is received shares memory "
                        "with another of the call");
  }
  for (int64_t i = 0; c->to == comm->rank && i < c->nseg; i++)
    if (c->seg[i].nin != c->seg[i].nout || c->seg[i].in_type != c->seg[i].out_type)
      return bad_call(comm, c->op, TIDE_E_SHAPE, "outs", "a rank that sends to itself receives "
                      "what it sends: same count and dtype");
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
    return bad_call(comm, TIDE__SEND_RECV, TIDE_E_ARG, "n", "expected lists of 0 to 4096 tensors");
  if (from >= 0) TIDE_TRY(tide__check_tensors(comm->ctx, "send_recv", "outs", n, outs));
  if (to >= 0) TIDE_TRY(tide__check_tensors(comm->ctx, "send_recv", "ins", n, ins));
  if ((to == comm->rank) != (from == comm->rank))
    return bad_call(comm, TIDE__SEND_RECV, TIDE_E_ARG, "to", "a rank that sends to itself must "
                    "also receive from itself");
  TIDE_TRY(agree_place(&comm, n == 0 ? NULL : to >= 0 ? ins[0] : from >= 0 ? outs[0] : NULL));
  size_t size = (size_t)n * (sizeof(tide__seg) + 2 * sizeof(tide_tensor *));
  tide__seg *seg = n ? tide__alloc(comm->ctx, size) : NULL;
  if (n && !seg) return bad_call(comm, TIDE__SEND_RECV, TIDE_E_NOMEM, "n",
                                 "no memory for the lists");
  tide__coll c = {.op = TIDE__SEND_RECV, .reduce = -1, .dtype = -1, .root = -1, .to = to,
                  .from = from, .nseg = n, .seg = seg};
  int rc = send_recv(work, comm, &c, outs, ins, (tide_tensor **)(seg + n));
  tide__free(comm->ctx, seg, size);
  return rc;
}

int tide_comm_barrier(tide_work **work, tide_comm *comm)
{
  if (work) *work = NULL;
  TIDE_DOOR(TIDE_OBJECT(COMM, comm));
  tide__coll c = {.op = TIDE__BARRIER, .reduce = -1, .dtype = -1, .root = -1};
  TIDE_TRY(tide__comm_check(comm, "barrier"));
  return tide__comm_run(comm, &c, work, 0, NULL);
}
