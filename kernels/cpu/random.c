/* Fast random fills and dropout: uniform_ normal_ trunc_normal_ dropout.
 *
 * Words for a chunk of elements first (Philox blocks in a vector loop where the global indices are
 * consecutive), then values by the operations of kernels/ref/draw.h, which makes them equal to the
 * reference bit for bit.
 */
#include "kernels/cpu/loop.h"
#include "kernels/ref/draw.h"

typedef void (*draw_fn)(const ref_draw *d, const uint32_t *word, double *out, int64_t n);

typedef struct random_job {
  k_random_attrs a;
  cpu_stream index; /* row-major element number -> global index, less start */
  cpu_stream x, y;
  int64_t n, nchunk; /* elements, and chunks of them: the unit of work */
  ref_draw d;
  draw_fn draw;
  int form;
  uint64_t least; /* dropout keeps words of at least this */
  float scale_f32;
  double scale;
} random_job;

/* ---- words --------------------------------------------------------------------------------- */

TIDE_LEVELS(void, words_of_blocks,
            (uint32_t *out, uint64_t seed, uint64_t stream, uint64_t block, int64_t n),
            (out, seed, stream, block, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    uint32_t w[4];
    tide__philox_block(seed, stream, block + (uint64_t)i, w);
    out[4 * i] = w[0];
    out[4 * i + 1] = w[1];
    out[4 * i + 2] = w[2];
    out[4 * i + 3] = w[3];
  }
}

/* Writes words g, g + 1, ... g + n - 1; n <= LOOP_CHUNK. */
static void words_of_run(uint32_t *out, const k_random_attrs *a, uint64_t g, int64_t n)
{
  uint32_t edge[4];
  for (; n > 0 && g % 4; g++, n--) *out++ = tide__philox_word(a->seed, a->stream, g);
  words_of_blocks(out, a->seed, a->stream, g / 4, n / 4);
  if (n % 4) {
    tide__philox_block(a->seed, a->stream, (g + (uint64_t)n) / 4, edge);
    memcpy(out + n / 4 * 4, edge, (size_t)(n % 4) * 4);
  }
}

static void words_of_chunk(const random_job *job, uint32_t *out, int64_t at, int64_t n)
{
  const cpu_stream *s = &job->index;
  int64_t last = s->shape[s->ndim - 1], step = s->stride[s->ndim - 1];
  while (n > 0) {
    int64_t run = s->ndim == 1 ? n : last - at % last;
    uint64_t g = job->a.offset + (uint64_t)job->a.start + (uint64_t)tide__stream_offset(s, at);
    run = run < n ? run : n;
    if (step == 1) words_of_run(out, &job->a, g, run);
    else
      for (int64_t i = 0; i < run; i++)
        out[i] = tide__philox_word(job->a.seed, job->a.stream, g + (uint64_t)(i * step));
    at += run;
    out += run;
    n -= run;
  }
}

/* Prepares a job. place: the number of the input that holds the place of the generator. */
static void random_job_init(random_job *job, const k_call *call, int place)
{
  k_tensor index = call->out[0];
  int64_t step = 1;
  job->a = ref_placed(call, place);
  job->n = k_numel(&index);
  job->nchunk = (job->n + LOOP_CHUNK - 1) / LOOP_CHUNK;
  for (int d = index.ndim - 1; d >= 0; d--) {
    index.stride[d] = job->a.ndim ? job->a.gstride[d] : step;
    step *= index.shape[d];
  }
  tide__stream_init(&job->index, &index);
  tide__stream_init(&job->y, &call->out[0]);
}

/* ---- fills --------------------------------------------------------------------------------- */

#define DRAW(name, value) \
  TIDE_LEVELS(void, name, \
              (const ref_draw *d, const uint32_t *word, double *out, int64_t n), \
              (d, word, out, n)) \
  { \
    const ref_draw c = *d; \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) out[i] = value(&c, word[i]); \
  }
DRAW(draw_uniform, ref_uniform)
DRAW(draw_normal, ref_normal)
DRAW(draw_trunc_normal, ref_trunc_normal)

static void fill_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const random_job *job = arg;
  _Alignas(64) uint32_t word[LOOP_CHUNK];
  _Alignas(64) double value[LOOP_CHUNK];
  (void)thread;
  begin *= LOOP_CHUNK;
  end = end * LOOP_CHUNK < job->n ? end * LOOP_CHUNK : job->n;
  for (int64_t at = begin; at < end; at += LOOP_CHUNK) {
    int64_t n = end - at < LOOP_CHUNK ? end - at : LOOP_CHUNK;
    words_of_chunk(job, word, at, n);
    job->draw(&job->d, word, value, n);
    tide__stream_write(&job->y, TIDE_F64, at, n, value);
  }
}

static int cpu_random_fill(const k_call *call, draw_fn draw,
                           int (*prepare)(ref_draw *, const k_call *))
{
  random_job job;
  TIDE_TRY(prepare(&job.d, call));
  random_job_init(&job, call, 0);
  job.draw = draw;
  tide__pool_for(call->nthread, job.nchunk, LOOP_GRAIN / 4 / LOOP_CHUNK, fill_range, &job);
  return TIDE_OK;
}

int k_cpu_uniform_(const k_call *call)
{
  return cpu_random_fill(call, draw_uniform, ref_draw_uniform);
}
int k_cpu_normal_(const k_call *call)
{
  return cpu_random_fill(call, draw_normal, ref_draw_normal);
}
int k_cpu_trunc_normal_(const k_call *call)
{
  return cpu_random_fill(call, draw_trunc_normal, ref_draw_trunc_normal);
}

/* ---- dropout ------------------------------------------------------------------------------- */

#define DROP(name, T) \
  TIDE_LEVELS(void, name, \
              (T *y, const T *x, const uint32_t *word, uint32_t least, T scale, int64_t n), \
              (y, x, word, least, scale, n)) \
  { \
    _Pragma("omp simd") \
    for (int64_t i = 0; i < n; i++) y[i] = word[i] >= least ? x[i] * scale : 0; \
  }
DROP(drop_f32, float)
DROP(drop_f64, double)

static void dropout_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const random_job *job = arg;
  _Alignas(64) uint32_t word[LOOP_CHUNK];
  _Alignas(64) cpu_chunk in, out;
  uint32_t least = (uint32_t)job->least;
  (void)thread;
  begin *= LOOP_CHUNK;
  end = end * LOOP_CHUNK < job->n ? end * LOOP_CHUNK : job->n;
  for (int64_t at = begin; at < end; at += LOOP_CHUNK) {
    int64_t n = end - at < LOOP_CHUNK ? end - at : LOOP_CHUNK;
    const void *x = tide__stream_read(&job->x, job->form, at, n, &in);
    void *y = tide__stream_target(&job->y, job->form, at, n, &out);
    words_of_chunk(job, word, at, n);
    if (job->form == TIDE_F32) drop_f32(y, x, word, least, job->scale_f32, n);
    else drop_f64(y, x, word, least, job->scale, n);
    tide__stream_write(&job->y, job->form, at, n, y);
  }
}

/* unit >= p is word >= p 2^32; with p = 1 no word is kept. */
int k_cpu_dropout(const k_call *call)
{
  random_job job;
  double p = ((const k_random_attrs *)call->attrs)->a;
  const k_scalar_attrs zero = { 0, 0 };
  TIDE_TRY(ref_check_dropout(call));
  random_job_init(&job, call, 1);
  tide__stream_init(&job.x, &call->in[0]);
  job.form = tide__loop_form(call->out[0].dtype);
  job.least = (uint64_t)ceil(p * 0x1p32);
  job.scale = 1 / (1 - p);
  job.scale_f32 = (float)job.scale;
  if (job.least > UINT32_MAX) {
    k_call fill_zero = *call;
    fill_zero.attrs = &zero;
    return k_cpu_fill_(&fill_zero);
  }
  tide__pool_for(call->nthread, job.nchunk, LOOP_GRAIN / 2 / LOOP_CHUNK, dropout_range, &job);
  return TIDE_OK;
}
