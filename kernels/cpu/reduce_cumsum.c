/* cumsum: running totals in f64 or i64; a task is a row. Definition: kernels/ref/reduce.c. */
#include "kernels/cpu/loop.h"
#include "kernels/ref/load.h"

/* x and y, each as a stream of row starts and one row. */
typedef struct cumsum_job {
  cpu_stream x_keep, x_row, y_keep, y_row;
  int        form;
  int64_t    n; /* elements of a row */
} cumsum_job;

static cpu_stream cumsum_row_at(const cpu_stream *keep, cpu_stream row, int64_t i)
{
  row.data = keep->data + tide__stream_offset(keep, i) * row.size;
  return row;
}

static void cumsum_row(const cumsum_job *job, int64_t i)
{
  _Alignas(64) cpu_chunk buf, out;
  cpu_stream x = cumsum_row_at(&job->x_keep, job->x_row, i);
  cpu_stream y = cumsum_row_at(&job->y_keep, job->y_row, i);
  double sum = 0;
  uint64_t count = 0;
  for (int64_t at = 0; at < job->n; at += LOOP_CHUNK) {
    int64_t n = i64_min(job->n - at, LOOP_CHUNK);
    cpu_chunk *from = (cpu_chunk *)tide__stream_read(&x, job->form, at, n, &buf);
    if (job->form == TIDE_F64)
      for (int64_t j = 0; j < n; j++) out.f64[j] = sum += from->f64[j];
    else
      for (int64_t j = 0; j < n; j++) out.i64[j] = (int64_t)(count += (uint64_t)from->i64[j]);
    tide__stream_write(&y, job->form, at, n, &out);
  }
}

static void cumsum_range(void *arg, int64_t begin, int64_t end, int thread)
{
  (void)thread;
  for (int64_t i = begin; i < end; i++) cumsum_row(arg, i);
}

/* from_end: a row runs from its last element to its first. */
static void cumsum_streams(cpu_stream *keep, cpu_stream *row, const k_tensor *t, int split,
                           int from_end)
{
  k_tensor kept = k_dims(t, 0, split), summed = k_dims(t, split, t->ndim);
  tide__stream_init(keep, &kept);
  tide__stream_init(row, &summed);
  if (!from_end) return;
  keep->data += (row->shape[0] - 1) * row->stride[0] * row->size;
  row->stride[0] = -row->stride[0];
  row->flat = 0;
}

int k_cpu_cumsum(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  const k_reduce_attrs *a = call->attrs;
  const int split = a->nkeep;
  k_tensor kept = k_dims(x, 0, split), summed = k_dims(x, split, x->ndim);
  cumsum_job job = { .n = k_numel(&summed) };
  int integer = tide__loop_form(x->dtype) == TIDE_I64 && !ref_is_float(y);
  job.form = integer ? TIDE_I64 : TIDE_F64;
  cumsum_streams(&job.x_keep, &job.x_row, x, split, a->from_end);
  cumsum_streams(&job.y_keep, &job.y_row, y, split, a->from_end);
  tide__pool_for(call->nthread, k_numel(&kept), loop_grain(job.n), cumsum_range, &job);
  return TIDE_OK;
}
