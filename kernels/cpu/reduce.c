/* Fast reductions: sum mean prod amax amin any all argmax argmin.
 *
 * The reduced elements are cut into blocks whose borders depend on the shape alone. One thread
 * folds a block into one accumulator (f32 in lanes inside a chunk, f64 between chunks), and the
 * blocks of a result are joined in order. So results do not depend on the number of threads. Here
 * a block lies along the reduced dims; reduce_columns.c folds rows that lie side by side. The folds
 * are in reduce_fold.c.
 *
 * Definition: kernels/ref/reduce.c.
 */
#include "kernels/cpu/reduce.h"

enum {
  BLOCK = 65536,     /* elements of one partial result of a long row */
  CHUNK = 4096       /* elements folded in lanes before they are added to the f64 accumulator */
};

/* ---- the job ------------------------------------------------------------------------------- */

static void reduce_job_init(reduce_job *job, const k_call *call)
{
  const k_tensor *x = &call->in[0];
  int split = ((const k_reduce_attrs *)call->attrs)->nkeep;
  k_tensor keep = k_dims(x, 0, split), row = k_dims(x, split, x->ndim);
  tide__stream_init(&job->keep, &keep);
  tide__stream_init(&job->row, &row);
  job->y = call->out[0];
  job->form = tide__loop_form(x->dtype);
  job->nkeep = k_numel(&keep);
  job->nreduce = k_numel(&row);
  job->nblock = job->nreduce > BLOCK ? (job->nreduce + BLOCK - 1) / BLOCK : 1;
  job->part = call->work;
  job->mean = 0;
}

static cpu_stream reduce_row_at(const reduce_job *job, int64_t i)
{
  cpu_stream row = job->row;
  row.data = job->keep.data + tide__stream_offset(&job->keep, i) * row.size;
  return row;
}

static void put_total(const reduce_job *job, int64_t i, reduce_total t)
{
  if (job->form != TIDE_I64) ref_put(&job->y, i, job->mean ? t.d / (double)job->nreduce : t.d);
  else if (job->mean) ref_put(&job->y, i, (double)t.i / (double)job->nreduce);
  else ref_put_int(&job->y, i, t.i);
}

static reduce_total fold_range(const reduce_job *job, const cpu_stream *row, int64_t begin,
                               int64_t end)
{
  _Alignas(64) cpu_chunk buf;
  reduce_total acc = reduce_start(job);
  int direct = row->flat && row->dtype == job->form;
  int64_t most = direct ? CHUNK : LOOP_CHUNK;
  for (int64_t at = begin; at < end; at += most) {
    int64_t n = end - at < most ? end - at : most;
    job->body(&acc, tide__stream_read(row, job->form, at, n, &buf), n);
  }
  return acc;
}

/* ---- rows: items are (result, block) ------------------------------------------------------- */

static void reduce_rows_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const reduce_job *job = arg;
  (void)thread;
  for (int64_t item = begin; item < end; item++) {
    int64_t i = item / job->nblock, from = item % job->nblock * BLOCK;
    int64_t to = job->nblock == 1 || from + BLOCK > job->nreduce ? job->nreduce : from + BLOCK;
    cpu_stream row = reduce_row_at(job, i);
    reduce_total acc = fold_range(job, &row, from, to);
    if (job->nblock == 1) put_total(job, i, acc);
    else job->part[item] = acc;
  }
}

void tide__reduce_join(const reduce_job *job, int64_t i, int64_t stride, int64_t step, int64_t n)
{
  reduce_join_fn join = job->form == TIDE_I64 ? job->f->join_int : job->f->join_real;
  reduce_total acc = reduce_start(job);
  for (int64_t b = 0; b < n; b++) join(&acc, &job->part[i * stride + b * step]);
  put_total(job, i, acc);
}

static void reduce_rows(reduce_job *job, int nthread)
{
  int64_t item = job->nblock > 1 ? BLOCK : job->nreduce;
  tide__pool_for(nthread, job->nkeep * job->nblock, loop_grain(item), reduce_rows_range, job);
  if (job->nblock > 1)
    for (int64_t i = 0; i < job->nkeep; i++) tide__reduce_join(job, i, job->nblock, 1, job->nblock);
}

/* ---- the kernels --------------------------------------------------------------------------- */

/* Returns bytes of scratch that are enough for both methods: blocks of rows, and blocks of a long
 * row. */
int64_t k_cpu_reduce_work(const k_call *call)
{
  reduce_job job;
  reduce_job_init(&job, call);
  int64_t most = i64_max(tide__reduce_row_blocks(job.nreduce), job.nblock);
  return job.nkeep * most * (int64_t)sizeof(reduce_total);
}

static int reduce_run(const k_call *call, const reduce_fold *f, int mean)
{
  reduce_job job;
  reduce_job_init(&job, call);
  job.f = f;
  job.mean = mean;
  job.body = job.form == TIDE_F32 ? f->f32 : job.form == TIDE_F64 ? f->f64 : f->i64;
  if (job.nkeep == 0) return TIDE_OK;
  if (tide__reduce_suits_columns(&job)) tide__reduce_columns(&job, call->nthread);
  else reduce_rows(&job, call->nthread);
  return TIDE_OK;
}

static int reduce_check_not_empty(const k_call *call)
{
  reduce_job job;
  reduce_job_init(&job, call);
  if (job.nreduce > 0 || job.nkeep == 0) return TIDE_OK;
  return ref_fail(call, TIDE_E_SHAPE, "the reduced dims hold no elements, so there is no largest "
                  "or smallest one");
}

int k_cpu_sum(const k_call *call) { return reduce_run(call, &tide__fold_sum, 0); }
int k_cpu_mean(const k_call *call) { return reduce_run(call, &tide__fold_sum, 1); }
int k_cpu_prod(const k_call *call) { return reduce_run(call, &tide__fold_prod, 0); }
int k_cpu_any(const k_call *call) { return reduce_run(call, &tide__fold_any, 0); }
int k_cpu_all(const k_call *call) { return reduce_run(call, &tide__fold_all, 0); }

int k_cpu_amax(const k_call *call)
{
  int rc = reduce_check_not_empty(call);
  return rc == TIDE_OK ? reduce_run(call, &tide__fold_max, 0) : rc;
}

int k_cpu_amin(const k_call *call)
{
  int rc = reduce_check_not_empty(call);
  return rc == TIDE_OK ? reduce_run(call, &tide__fold_min, 0) : rc;
}

/* ---- argmax, argmin: the extreme of a chunk first, then its position ----------------------- */

#define FIND(name, T) \
  static int64_t name(const void *xv, int64_t n, T v) \
  { \
    const T *x = xv; \
    int64_t i = 0; \
    while (i < n && !(x[i] == v || (v != v && x[i] != x[i]))) i++; \
    return i; \
  }
FIND(find_f32, float)
FIND(find_f64, double)
FIND(find_i64, int64_t)

static int64_t reduce_find(int form, const void *x, int64_t n, reduce_total v)
{
  if (form == TIDE_F32) return find_f32(x, n, (float)v.d);
  return form == TIDE_F64 ? find_f64(x, n, v.d) : find_i64(x, n, v.i);
}

/* Returns whether v is strictly beyond best. NaN is beyond every number. */
static int reduce_beyond(const reduce_job *job, reduce_total v, reduce_total best)
{
  int up = job->f == &tide__fold_max;
  if (job->form == TIDE_I64) return up ? v.i > best.i : v.i < best.i;
  if (v.d != v.d || best.d != best.d) return v.d != v.d && best.d == best.d;
  return up ? v.d > best.d : v.d < best.d;
}

static void arg_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const reduce_job *job = arg;
  _Alignas(64) cpu_chunk buf;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    cpu_stream row = reduce_row_at(job, i);
    int64_t most = row.flat && row.dtype == job->form ? CHUNK : LOOP_CHUNK, where = 0;
    reduce_total best = reduce_start(job);
    for (int64_t at = 0; at < job->nreduce; at += most) {
      int64_t n = job->nreduce - at < most ? job->nreduce - at : most;
      const void *x = tide__stream_read(&row, job->form, at, n, &buf);
      reduce_total here = reduce_start(job);
      job->body(&here, x, n);
      if (at > 0 && !reduce_beyond(job, here, best)) continue;
      best = here;
      where = at + reduce_find(job->form, x, n, here);
    }
    ref_put_int(&job->y, i, where);
  }
}

static int reduce_arg_extreme(const k_call *call, const reduce_fold *f)
{
  reduce_job job;
  TIDE_TRY(reduce_check_not_empty(call));
  reduce_job_init(&job, call);
  job.f = f;
  job.body = job.form == TIDE_F32 ? f->f32 : job.form == TIDE_F64 ? f->f64 : f->i64;
  tide__pool_for(call->nthread, job.nkeep, loop_grain(job.nreduce), arg_range, &job);
  return TIDE_OK;
}

int k_cpu_argmax(const k_call *call) { return reduce_arg_extreme(call, &tide__fold_max); }
int k_cpu_argmin(const k_call *call) { return reduce_arg_extreme(call, &tide__fold_min); }
