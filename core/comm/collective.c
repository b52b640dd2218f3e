/* The public collectives of tensors; send_recv has a file of its own. Tensors become pointers,
 * counts and dtypes: a tide__coll that every transport runs without further checks. A call that
 * fails here has not reached the other ranks. */
#include "core/comm/collective.h"
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

/* Adds the shape of t to what must agree. A message shows that of one tensor of
 * several dims. */
static void note_shape(tide__coll *c, const tide_tensor *t, bool alone)
{
  bool shown = alone && t->ndim > 1 && t->ndim <= TIDE__SHOWN;
  c->hash = tide__hash_step(c->hash, (uint64_t)t->ndim);
  for (int i = 0; i < t->ndim; i++) {
    c->hash = tide__hash_step(c->hash, (uint64_t)t->shape[i]);
    shown = shown && t->shape[i] < INT32_MAX;
  }
  for (int i = 0; shown && i < t->ndim; i++) c->shape[i] = (int32_t)t->shape[i] + 1;
}

static int fill_in_place(tide_comm *comm, tide__coll *c, tide_tensor *const *ts)
{
  c->dtype = c->nseg > 0 ? ts[0]->dtype : -1;
  for (int64_t i = 0; i < c->nseg; i++) {
    TIDE_TRY(tide__coll_check_written(comm, c->op, ts[i], c->nseg > 1 ? "ts[i]" : "t"));
    if (c->reduce >= 0) TIDE_TRY(tide__coll_check_reduce(comm, c->op, c->reduce, ts[i]->dtype));
    c->seg[i] = seg_in_place(ts[i]);
    if (ts[i]->dtype != c->dtype) c->dtype = -1;
    note_shape(c, ts[i], c->nseg == 1);
    c->hash = tide__hash_step(c->hash, (uint64_t)ts[i]->dtype);
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
  if (n > INT32_MAX)
    return tide__coll_bad(comm, coll, TIDE_E_ARG, "ts", "expected a list of tensors");
  if (coll != TIDE__BROADCAST) TIDE_TRY(tide__coll_check_reduce(comm, coll, op, TIDE_F32));
  if (coll != TIDE__ALL_REDUCE) TIDE_TRY(tide__coll_check_root(comm, coll, root));
  size_t size = (size_t)n * (sizeof *seg + sizeof *order);
  if (n > FEW) {
    seg = tide__alloc(comm->ctx, size);
    if (!seg)
      return tide__coll_bad(comm, coll, TIDE_E_NOMEM, "ts", "no memory for a list this long");
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
  TIDE_TRY(tide__coll_check_root(p->comm, p->c.op, root));
  if (p->comm->rank != root) *whole = NULL;
  else if (!*whole)
    return tide__coll_bad(p->comm, p->c.op, TIDE_E_ARG, arg,
                          "expected a tensor on the root, got null");
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
  if (p->out) TIDE_TRY(tide__coll_check_written(comm, coll, p->out, "out"));
  if (*in) TIDE_TRY(tide__coll_check_reach(comm, coll, *in, "in"));
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
  if (p->in && p->out && tide__coll_overlap(p->in, p->out)) {
    size_t shift = (size_t)at * p->c.size;
    bool fits = at >= 0 && (p->c.in == p->c.out + shift || p->c.out == p->c.in + shift);
    if (!fits)
      rc = tide__coll_bad(comm, p->c.op, TIDE_E_ARG, "out", "it shares memory with the input; use "
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
  note_shape(&p.c, in, true);
  return pair_parts(&p, in, in, out, "out");
}

int tide_comm_reduce_scatter(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in,
                             int op)
{
  pair p;
  TIDE_TRY(pair_begin(&p, __func__, work, comm, TIDE__REDUCE_SCATTER, -1, out, &in));
  TIDE_TRY(tide__coll_check_reduce(p.comm, TIDE__REDUCE_SCATTER, op, in->dtype));
  note_shape(&p.c, in, true);
  p.c.reduce = op;
  return pair_parts(&p, in, out, in, "in");
}

int tide_comm_all_to_all(tide_work **work, tide_comm *comm, tide_tensor *out, tide_tensor *in)
{
  pair p;
  TIDE_TRY(pair_begin(&p, __func__, work, comm, TIDE__ALL_TO_ALL, -1, out, &in));
  note_shape(&p.c, in, true);
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
  if (!counts)
    return tide__coll_bad(p->comm, p->c.op, TIDE_E_ARG, arg, "expected a count a rank, got null");
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
  TIDE_TRY(tide__coll_check_reduce(p.comm, TIDE__REDUCE_SCATTER_V, op, in->dtype));
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

/* ---- barrier -------------------------------------------------------------------------------- */

int tide_comm_barrier(tide_work **work, tide_comm *comm)
{
  if (work) *work = NULL;
  TIDE_DOOR(TIDE_OBJECT(COMM, comm));
  tide__coll c = {.op = TIDE__BARRIER, .reduce = -1, .dtype = -1, .root = -1};
  TIDE_TRY(tide__comm_check(comm, "barrier"));
  return tide__comm_run(comm, &c, work, 0, NULL);
}
