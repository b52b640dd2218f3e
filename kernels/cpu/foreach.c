/* Copies and sums over lists of tensors in one parallel region: foreach_copy_, foreach_add_.
 *
 * The elements of all pairs are one long range, cut among threads as one tensor would be. A hundred
 * small tensors cost one fork and join, and a large one is shared by all threads.
 *
 * Definition: kernels/ref/elementwise.c.
 */
#include "kernels/cpu/loop.h"

/* first[i] is the number of the first element of pair i; first[n] counts them all. */
typedef struct job {
  int n;
  int64_t *first;
  cpu_copy *pair;
  void (*range)(const cpu_copy *pair, int64_t begin, int64_t end);
} job;

static int64_t foreach_index_bytes(const k_call *call) { return (call->nout + 1 + 7) / 8 * 64; }

int64_t k_cpu_foreach_work(const k_call *call)
{
  return foreach_index_bytes(call) + call->nout * (int64_t)sizeof(cpu_copy);
}

static job foreach_job_of(const k_call *call)
{
  job j = { .n = call->nout, .first = call->work };
  j.pair = (cpu_copy *)((char *)call->work + foreach_index_bytes(call));
  j.first[0] = 0;
  return j;
}

static void pairs_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *j = arg;
  (void)thread;
  for (int64_t i = i64_find(j->first, j->n, begin); begin < end; i++) {
    int64_t stop = j->first[i + 1] < end ? j->first[i + 1] : end;
    if (begin < stop) j->range(&j->pair[i], begin - j->first[i], stop - j->first[i]);
    begin = stop;
  }
}

/* ---- copy ----------------------------------------------------------------------------------- */

int k_cpu_foreach_copy_(const k_call *call)
{
  job j = foreach_job_of(call);
  j.range = tide__copy_range;
  for (int i = 0; i < j.n; i++) {
    const k_tensor *y = &call->out[i], *x = &call->in[i];
    int64_t n = k_numel(y);
    if (n > 0 && tide__loop_transpose(y, x, call->nthread)) n = 0; /* done */
    if (n > 0) tide__copy_init(&j.pair[i], y, x);
    j.first[i + 1] = j.first[i] + n;
  }
  tide__pool_for(call->nthread, j.first[j.n], LOOP_GRAIN, pairs_range, &j);
  return TIDE_OK;
}

/* ---- add ------------------------------------------------------------------------------------ */

/* As axpy_: a floating target with a source that f32 cannot hold is computed in f64. */
static int sum_form(const k_tensor *y, const k_tensor *x)
{
  int form = tide__loop_form(y->dtype);
  return form == TIDE_F32 && tide__loop_form(x->dtype) != TIDE_F32 ? TIDE_F64 : form;
}

static void foreach_add_range(const cpu_copy *c, int64_t begin, int64_t end)
{
  _Alignas(64) cpu_chunk y_buf, x_buf;
  int flat = c->x.flat && c->y.flat && c->form == c->x.dtype && c->form == c->y.dtype;
  int64_t most = flat ? end - begin : LOOP_CHUNK;
  for (int64_t at = begin; at < end; at += most) {
    int64_t n = end - at < most ? end - at : most;
    void *to = tide__stream_target(&c->y, c->form, at, n, &y_buf);
    const void *y = tide__stream_read(&c->y, c->form, at, n, &y_buf);
    const void *x = tide__stream_read(&c->x, c->form, at, n, &x_buf);
    tide__loop_add(c->form, to, y, x, n);
    tide__stream_write(&c->y, c->form, at, n, to);
  }
}

int k_cpu_foreach_add_(const k_call *call)
{
  job j = foreach_job_of(call);
  j.range = foreach_add_range;
  for (int i = 0; i < j.n; i++) {
    tide__stream_init(&j.pair[i].x, &call->in[i]);
    tide__stream_init(&j.pair[i].y, &call->out[i]);
    j.pair[i].form = sum_form(&call->out[i], &call->in[i]);
    j.first[i + 1] = j.first[i] + k_numel(&call->out[i]);
  }
  tide__pool_for(call->nthread, j.first[j.n], LOOP_GRAIN, pairs_range, &j);
  return TIDE_OK;
}
