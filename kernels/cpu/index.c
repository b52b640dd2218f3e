/* Fast indexing ops: gather scatter_add index_select index_add embedding embedding_bwd one_hot.
 *
 * Taking rows is a loop of row copies. Adding rows first sorts the index (a stable counting sort),
 * so that each target row is computed once, by one thread, from its sources in index order, in f32
 * (f64, i64) with one rounding.
 *
 * Definition: kernels/ref/index.c. Every index is checked before anything is written.
 */
#include "kernels/cpu/loop.h"
#include "kernels/ref/load.h"

/* ---- shared -------------------------------------------------------------------------------- */

TIDE_LEVELS(int, any_outside, (const int64_t *v, int64_t n, uint64_t limit), (v, n, limit))
{
  int found = 0;
#pragma omp simd reduction(| : found)
  for (int64_t i = 0; i < n; i++) found |= (uint64_t)v[i] >= limit;
  return found;
}

/* Checks an index. On a failure the reference writes the message. */
static int index_check(const k_call *call, const k_tensor *index, int64_t limit)
{
  _Alignas(64) cpu_chunk buf;
  cpu_stream s;
  int64_t total = k_numel(index);
  tide__stream_init(&s, index);
  for (int64_t at = 0; at < total; at += LOOP_CHUNK) {
    int64_t n = total - at < LOOP_CHUNK ? total - at : LOOP_CHUNK;
    if (any_outside(tide__stream_read(&s, TIDE_I64, at, n, &buf), n, (uint64_t)limit))
      return ref_check_index(call, index, limit);
  }
  return TIDE_OK;
}

/* Returns t without dim. */
static k_tensor without(const k_tensor *t, int dim)
{
  k_tensor v = *t;
  v.ndim = t->ndim - 1;
  for (int d = dim; d < v.ndim; d++) {
    v.shape[d] = t->shape[d + 1];
    v.stride[d] = t->stride[d + 1];
  }
  return v;
}

static int64_t index_at(const k_tensor *index, const cpu_stream *s, int64_t i)
{
  return ref_get_int(index, tide__stream_offset(s, i));
}

static cpu_stream index_moved(const cpu_stream *s, int64_t offset)
{
  cpu_stream m = *s;
  m.data += offset * s->size;
  return m;
}

/* ---- rows: x[outer, n, inner] by index -> y[outer, m, inner], y contiguous ----------------- */

typedef struct rows_job {
  const k_tensor *index;
  cpu_stream outer, row, ids;
  char *y;
  int64_t stride, nindex, width; /* of x's dim; indices; elements of a row */
} rows_job;

static void copy_row(void *to, const cpu_stream *row, int64_t n)
{
  if (row->flat) {
    memcpy(to, row->data, (size_t)(n * row->size));
    return;
  }
  for (int64_t at = 0; at < n; at += LOOP_CHUNK) {
    int64_t m = n - at < LOOP_CHUNK ? n - at : LOOP_CHUNK;
    char *place = (char *)to + at * row->size;
    const void *from = tide__stream_read(row, row->dtype, at, m, place);
    if (from != place) memcpy(place, from, (size_t)(m * row->size));
  }
}

static void index_rows_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const rows_job *job = arg;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    int64_t base = tide__stream_offset(&job->outer, i / job->nindex);
    int64_t id = index_at(job->index, &job->ids, i % job->nindex);
    cpu_stream row = index_moved(&job->row, base + id * job->stride);
    copy_row(job->y + i * job->width * row.size, &row, job->width);
  }
}

static int take_rows(const k_call *call, int dim)
{
  const k_tensor *x = &call->in[0], *index = &call->in[1], *y = &call->out[0];
  k_tensor outer = k_dims(x, 0, dim), row = k_dims(x, dim + 1, x->ndim);
  rows_job job = { .index = index, .y = y->data, .stride = x->stride[dim] };
  int rc = index_check(call, index, x->shape[dim]);
  if (rc != TIDE_OK || k_numel(y) == 0) return rc;
  tide__stream_init(&job.outer, &outer);
  tide__stream_init(&job.row, &row);
  tide__stream_init(&job.ids, index);
  job.nindex = k_numel(index);
  job.width = k_numel(&row);
  tide__pool_for(call->nthread, k_numel(&outer) * job.nindex, loop_grain(job.width),
                 index_rows_range, &job);
  return TIDE_OK;
}

int k_cpu_index_select(const k_call *call)
{
  return take_rows(call, ((const k_dim_attrs *)call->attrs)->dim);
}

int k_cpu_embedding(const k_call *call) { return take_rows(call, 0); }

/* ---- gather -------------------------------------------------------------------------------- */

typedef struct gather_job {
  cpu_stream index, x, y; /* x: strides of x over y's shape, stride 0 on dim */
  int64_t stride;
} gather_job;

#define GATHER(name, T) \
  static void name(void *to, const char *from, const int64_t *id, int64_t stride, int64_t step, \
                   int64_t n) \
  { \
    T *y = to; \
    const T *x = (const T *)from; \
    for (int64_t i = 0; i < n; i++) y[i] = x[i * step + id[i] * stride]; \
  }
CPU_SIZES(GATHER, gather)

static void gather_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const gather_job *job = arg;
  _Alignas(64) cpu_chunk ids;
  int size = job->x.size, dim = job->x.ndim - 1;
  int64_t last = job->x.shape[dim], step = job->x.stride[dim];
  (void)thread;
  for (int64_t at = begin, n; at < end; at += n) {
    int64_t run = job->x.ndim == 1 ? end - at : last - at % last;
    n = end - at < LOOP_CHUNK ? end - at : LOOP_CHUNK;
    n = run < n ? run : n;
    const int64_t *id = tide__stream_read(&job->index, TIDE_I64, at, n, &ids);
    const char *from = job->x.data + tide__stream_offset(&job->x, at) * size;
    CPU_OF_SIZE(size, gather)(job->y.data + at * size, from, id, job->stride, step, n);
  }
}

int k_cpu_gather(const k_call *call)
{
  const k_tensor *x = &call->in[0], *index = &call->in[1], *y = &call->out[0];
  int dim = ((const k_dim_attrs *)call->attrs)->dim;
  k_tensor base = *y;
  gather_job job = { .stride = x->stride[dim] };
  int rc = index_check(call, index, x->shape[dim]);
  if (rc != TIDE_OK || k_numel(y) == 0) return rc;
  base.data = x->data;
  for (int d = 0; d < y->ndim; d++) base.stride[d] = d == dim ? 0 : x->stride[d];
  tide__stream_init(&job.index, index);
  tide__stream_init(&job.x, &base);
  tide__stream_init(&job.y, y);
  tide__pool_for(call->nthread, k_numel(y), LOOP_GRAIN, gather_range, &job);
  return TIDE_OK;
}

/* ---- adding rows: src[outer, n, inner] -> t[outer, m, inner], or over nothing ---- */

typedef struct add_job {
  cpu_stream t_outer, t_row, src_outer, src_row, src_lead;
  int64_t t_stride, src_stride; /* along the dim; src_lead replaces src_stride if set */
  int64_t nrow, width;          /* target rows of one outer setting, elements of a row */
  const int64_t *start, *order; /* sources of row j: order[start[j]] ... order[start[j + 1] - 1] */
  int form, overwrite, lead;
} add_job;

static int64_t source_offset(const add_job *job, int64_t i)
{
  return job->lead ? tide__stream_offset(&job->src_lead, i) : i * job->src_stride;
}

/* Computes one target row: its old value, or zero, plus its sources in order. */
static void add_to_row(const add_job *job, int64_t outer, int64_t j)
{
  _Alignas(64) cpu_chunk acc, buf;
  int64_t t_base = tide__stream_offset(&job->t_outer, outer) + j * job->t_stride;
  int64_t src_base = tide__stream_offset(&job->src_outer, outer);
  cpu_stream t = index_moved(&job->t_row, t_base);
  int width = job->form == TIDE_F32 ? 4 : 8;
  if (job->start[j] == job->start[j + 1] && !job->overwrite) return;
  for (int64_t at = 0; at < job->width; at += LOOP_CHUNK) {
    int64_t n = job->width - at < LOOP_CHUNK ? job->width - at : LOOP_CHUNK;
    if (job->overwrite) memset(&acc, 0, (size_t)(n * width));
    else {
      const void *old = tide__stream_read(&t, job->form, at, n, &acc);
      if (old != &acc) memcpy(&acc, old, (size_t)(n * width));
    }
    for (int64_t k = job->start[j]; k < job->start[j + 1]; k++) {
      cpu_stream src = index_moved(&job->src_row, src_base + source_offset(job, job->order[k]));
      tide__loop_add(job->form, &acc, &acc, tide__stream_read(&src, job->form, at, n, &buf), n);
    }
    tide__stream_write(&t, job->form, at, n, &acc);
  }
}

static void index_add_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const add_job *job = arg;
  (void)thread;
  for (int64_t i = begin; i < end; i++) add_to_row(job, i / job->nrow, i % job->nrow);
}

/* Sorts the index into work by a stable counting sort: start[nrow + 1], order[n]. */
static void sort_index(add_job *job, const k_tensor *index, int64_t *work)
{
  cpu_stream ids;
  int64_t n = k_numel(index), *start = work, *order = work + job->nrow + 1;
  tide__stream_init(&ids, index);
  memset(start, 0, (size_t)(job->nrow + 1) * sizeof *start);
  for (int64_t i = 0; i < n; i++) start[index_at(index, &ids, i) + 1]++;
  for (int64_t j = 0; j < job->nrow; j++) start[j + 1] += start[j];
  for (int64_t i = 0; i < n; i++) order[start[index_at(index, &ids, i)]++] = i;
  for (int64_t j = job->nrow; j > 0; j--) start[j] = start[j - 1];
  start[0] = 0;
  job->start = start;
  job->order = order;
}

static void add_rows(const k_call *call, add_job *job, int64_t nouter)
{
  int64_t chunk = loop_grain(job->width * 4);
  tide__pool_tasks(call->nthread, nouter * job->nrow, chunk, index_add_range, job);
}

int64_t k_cpu_index_add_work(const k_call *call)
{
  int dim = ((const k_dim_attrs *)call->attrs)->dim;
  return (call->out[0].shape[dim] + 1 + k_numel(&call->in[0])) * (int64_t)sizeof(int64_t);
}

int k_cpu_index_add(const k_call *call)
{
  const k_tensor *index = &call->in[0], *src = &call->in[1], *t = &call->out[0];
  int dim = ((const k_dim_attrs *)call->attrs)->dim;
  k_tensor t_outer = k_dims(t, 0, dim), t_row = k_dims(t, dim + 1, t->ndim);
  k_tensor src_outer = k_dims(src, 0, dim), src_row = k_dims(src, dim + 1, src->ndim);
  add_job job = { .t_stride = t->stride[dim], .src_stride = src->stride[dim],
                  .nrow = t->shape[dim], .width = k_numel(&t_row),
                  .form = tide__loop_form(t->dtype) };
  int rc = index_check(call, index, t->shape[dim]);
  if (rc != TIDE_OK || k_numel(src) == 0) return rc;
  tide__stream_init(&job.t_outer, &t_outer);
  tide__stream_init(&job.t_row, &t_row);
  tide__stream_init(&job.src_outer, &src_outer);
  tide__stream_init(&job.src_row, &src_row);
  sort_index(&job, index, call->work);
  add_rows(call, &job, k_numel(&t_outer));
  return TIDE_OK;
}

int64_t k_cpu_embedding_bwd_work(const k_call *call)
{
  return (call->out[0].shape[0] + 1 + k_numel(&call->in[1])) * (int64_t)sizeof(int64_t);
}

int k_cpu_embedding_bwd(const k_call *call)
{
  const k_tensor *dy = &call->in[0], *ids = &call->in[1], *dw = &call->out[0];
  k_tensor none = k_dims(dw, 0, 0), dw_row = k_dims(dw, 1, 2), none_src = k_dims(dy, 0, 0);
  k_tensor lead = k_dims(dy, 0, dy->ndim - 1), dy_row = k_dims(dy, dy->ndim - 1, dy->ndim);
  add_job job = { .t_stride = dw->stride[0], .nrow = dw->shape[0], .width = dw->shape[1],
                  .form = tide__loop_form(dw->dtype), .overwrite = 1, .lead = 1 };
  int rc = index_check(call, ids, dw->shape[0]);
  if (rc != TIDE_OK || k_numel(dw) == 0) return rc;
  tide__stream_init(&job.t_outer, &none);
  tide__stream_init(&job.t_row, &dw_row);
  tide__stream_init(&job.src_outer, &none_src);
  tide__stream_init(&job.src_row, &dy_row);
  tide__stream_init(&job.src_lead, &lead);
  sort_index(&job, ids, call->work);
  add_rows(call, &job, 1);
  return TIDE_OK;
}

/* ---- scatter_add: a line is one setting of all dims but one -------------------------------- */

typedef struct scatter_job {
  const k_tensor *index, *src, *t;
  cpu_stream index_line, src_line, t_line;
  int64_t nline, n, limit;        /* indices in a line, target elements in a line */
  int64_t index_step, src_step, t_step;
  double *sum;                    /* [thread][limit], set only where a line writes */
  int real;
} scatter_job;

static void scatter_line(const scatter_job *job, int64_t line, double *sum)
{
  int64_t it = tide__stream_offset(&job->index_line, line);
  int64_t st = tide__stream_offset(&job->src_line, line);
  int64_t tt = tide__stream_offset(&job->t_line, line), *count = (int64_t *)sum;
  for (int64_t i = 0; i < job->n; i++) {
    int64_t v = ref_get_int(job->index, it + i * job->index_step), at = tt + v * job->t_step;
    if (job->real) sum[v] = ref_get(job->t, at);
    else count[v] = ref_get_int(job->t, at);
  }
  for (int64_t i = 0; i < job->n; i++) {
    int64_t v = ref_get_int(job->index, it + i * job->index_step), at = st + i * job->src_step;
    if (job->real) sum[v] += ref_get(job->src, at);
    else count[v] = (int64_t)((uint64_t)count[v] + (uint64_t)ref_get_int(job->src, at));
  }
  for (int64_t i = 0; i < job->n; i++) {
    int64_t v = ref_get_int(job->index, it + i * job->index_step), at = tt + v * job->t_step;
    if (job->real) ref_put(job->t, at, sum[v]);
    else ref_put_int(job->t, at, count[v]);
  }
}

static void scatter_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const scatter_job *job = arg;
  double *sum = job->sum + thread * job->limit;
  for (int64_t line = begin; line < end; line++) scatter_line(job, line, sum);
}

int64_t k_cpu_scatter_add_work(const k_call *call)
{
  int dim = ((const k_dim_attrs *)call->attrs)->dim;
  return call->out[0].shape[dim] * 8 * (call->nthread < 1 ? 1 : call->nthread);
}

int k_cpu_scatter_add(const k_call *call)
{
  const k_tensor *index = &call->in[0], *src = &call->in[1], *t = &call->out[0];
  int dim = ((const k_dim_attrs *)call->attrs)->dim;
  k_tensor index_line = without(index, dim), src_line = without(src, dim), t_line = without(t, dim);
  scatter_job job = { .index = index, .src = src, .t = t, .n = index->shape[dim],
                      .limit = t->shape[dim], .index_step = index->stride[dim],
                      .src_step = src->stride[dim], .t_step = t->stride[dim],
                      .sum = call->work, .real = ref_is_float(t) };
  int rc = index_check(call, index, job.limit);
  if (rc != TIDE_OK || k_numel(index) == 0) return rc;
  /* Lines are those of the index; src and t may be longer along other dims. */
  for (int d = 0; d < index_line.ndim; d++)
    src_line.shape[d] = t_line.shape[d] = index_line.shape[d];
  tide__stream_init(&job.index_line, &index_line);
  tide__stream_init(&job.src_line, &src_line);
  tide__stream_init(&job.t_line, &t_line);
  job.nline = k_numel(&index_line);
  tide__pool_for(call->nthread, job.nline, loop_grain(job.n * 4), scatter_range, &job);
  return TIDE_OK;
}

/* ---- one_hot ------------------------------------------------------------------------------- */

int k_cpu_one_hot(const k_call *call)
{
  const k_tensor *ids = &call->in[0], *y = &call->out[0];
  int64_t n = k_numel(ids), nclass = y->shape[y->ndim - 1];
  cpu_stream s;
  TIDE_TRY(index_check(call, ids, nclass));
  if (k_numel(y) > 0) memset(y->data, 0, (size_t)(k_numel(y) * tide_dtype_size(y->dtype)));
  tide__stream_init(&s, ids);
  for (int64_t i = 0; i < n; i++) ref_put_int(y, i * nclass + index_at(ids, &s, i), 1);
  return TIDE_OK;
}
