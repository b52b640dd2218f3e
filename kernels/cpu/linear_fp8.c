/* linear_fp8 on the CPU: operands rounded to FP8, stored as bf16, multiplied by gemm.c.
 *
 * CPUs do not multiply FP8, but every FP8 number is a bf16 number too, so the bf16 tiles compute
 * the products of an FP8 unit. Rounding is one addition: adding 1.5 * 2^23 times the FP8 spacing at
 * a number, then subtracting it, leaves a multiple of that spacing, to nearest even.
 *
 * An operand is walked in memory order, so that a transposed view costs no more than another;
 * gemm.c takes it in that layout. Scales: kernels/fp8.h.
 */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/loop.h"
#include "kernels/cpu/row.h"
#include "kernels/fp8.h"

enum { GRAIN = LOOP_GRAIN / LOOP_CHUNK }; /* chunks per thread at least */

/* x or w during rounding. row and col: strides of `to` by row (token or output) and by k. */
typedef struct operand {
  cpu_stream from;
  uint16_t  *to;
  float     *most; /* one number per thread */
  int64_t    numel, row, col;
  float      scale;
  int        e5m2;
} operand;

/* One product and the layout of its scratch; f32 results of other dtypes are stored there first. */
typedef struct job {
  operand  x, w;
  cpu_gemm g;
  int64_t  total;
  int64_t  at_x, at_w, at_most, at_sum, at_gemm;
  const k_call *call;
  cpu_stream bias;
} job;

static operand operand_of(const k_tensor *t, int e5m2)
{
  k_tensor lies = *t;
  int64_t cols = t->shape[t->ndim - 1];
  operand o = {.numel = k_numel(t), .row = cols, .col = 1, .e5m2 = e5m2};
  if (t->ndim == 2 && t->stride[0] == 1 && t->stride[1] != 1) {
    lies.shape[0] = t->shape[1], lies.stride[0] = t->stride[1];
    lies.shape[1] = t->shape[0], lies.stride[1] = t->stride[0];
    o.row = 1, o.col = t->shape[0];
  }
  tide__stream_init(&o.from, &lies);
  return o;
}

static int64_t linear_fp8_take(job *j, int64_t bytes)
{
  int64_t at = j->total;
  j->total += (bytes + 63) / 64 * 64;
  return at;
}

/* Uses sizes alone: data pointers may be null. */
static job linear_fp8_job_of(const k_call *call)
{
  const k_tensor *x = &call->in[0], *w = &call->in[1], *y = &call->out[0];
  job j = {.call = call, .x = operand_of(x, ((const k_fp8_attrs *)call->attrs)->x_e5m2),
           .w = operand_of(w, 0)};
  int64_t k = w->shape[1], n = w->shape[0], m = k_numel(y) / (n ? n : 1);
  int threads = call->nthread < 1 ? 1 : call->nthread;
  j.g = (cpu_gemm){.m = m, .n = n, .k = k, .a_rs = j.x.row, .a_cs = j.x.col, .b_rs = j.w.col,
                   .b_cs = j.w.row, .c_rs = n, .ab_dtype = TIDE_BF16, .c_dtype = TIDE_F32};
  j.at_x = linear_fp8_take(&j, 2 * j.x.numel);
  j.at_w = linear_fp8_take(&j, 2 * j.w.numel);
  j.at_most = linear_fp8_take(&j, 4 * threads);
  j.at_sum = linear_fp8_take(&j, y->dtype == TIDE_F32 ? 0 : 4 * m * n);
  j.at_gemm = linear_fp8_take(&j, tide__cpu_gemm_work(&j.g, threads));
  return j;
}

/* ---- rounding an operand ---- */

TIDE_LEVELS(float, largest, (const float *x, int64_t n, float most), (x, n, most))
{
  for (int64_t i = 0; i < n; i++) {
    float a = fabsf(x[i]);
    most = a > most ? a : most; /* NaN is ignored */
  }
  return most;
}

/* to = bf16 of x * scale as FP8 has it. lowest: bits of the smallest normal number; up: difference
 * of its bits from those of the power of two whose own spacing is that of FP8. */
TIDE_LEVELS(void, round_chunk,
            (uint16_t *to, const float *x, int64_t n, float scale, float top, float infinity,
             uint32_t lowest, uint32_t up), (to, x, n, scale, top, infinity, lowest, up))
{
  for (int64_t i = 0; i < n; i++) {
    float v = x[i] * scale, a = fabsf(v);
    float c = a > top ? top : a;
    c = a == INFINITY ? infinity : c;
    uint32_t e = tide__f32_bits(c) & 0x7f800000u;
    float grid = tide__bits_f32(((e < lowest ? lowest : e) + up) | 0x400000u);
    float r = (c + grid) - grid;
    to[i] = (uint16_t)(tide__f32_bits(copysignf(r, v)) >> 16);
  }
}

static int64_t chunk_size(const operand *o, int64_t chunk)
{
  int64_t left = o->numel - chunk * LOOP_CHUNK;
  return left < LOOP_CHUNK ? left : LOOP_CHUNK;
}

static void find_largest(void *arg, int64_t begin, int64_t end, int thread)
{
  operand *o = arg;
  cpu_chunk buf;
  float most = o->most[thread];
  for (int64_t c = begin; c < end; c++) {
    int64_t n = chunk_size(o, c);
    most = largest(tide__stream_read(&o->from, TIDE_F32, c * LOOP_CHUNK, n, &buf), n, most);
  }
  o->most[thread] = most;
}

static void round_chunks(void *arg, int64_t begin, int64_t end, int thread)
{
  operand *o = arg;
  cpu_chunk buf;
  int drop = o->e5m2 ? 21 : 20, bias = o->e5m2 ? 15 : 7;
  (void)thread;
  for (int64_t c = begin; c < end; c++) {
    int64_t n = chunk_size(o, c), at = c * LOOP_CHUNK;
    round_chunk(o->to + at, tide__stream_read(&o->from, TIDE_F32, at, n, &buf), n, o->scale,
                k_fp8_top(o->e5m2), o->e5m2 ? INFINITY : NAN, (uint32_t)(128 - bias) << 23,
                (uint32_t)drop << 23);
  }
}

static void linear_fp8_round_operand(operand *o, uint16_t *to, float *most, int nthread)
{
  int64_t chunks = (o->numel + LOOP_CHUNK - 1) / LOOP_CHUNK;
  float amax = 0;
  o->to = to, o->most = most;
  for (int i = 0; i < nthread; i++) most[i] = 0;
  tide__pool_for(nthread, chunks, GRAIN, find_largest, o);
  for (int i = 0; i < nthread; i++) amax = most[i] > amax ? most[i] : amax;
  o->scale = k_fp8_scale(amax, o->e5m2);
  tide__pool_for(nthread, chunks, GRAIN, round_chunks, o);
}

/* ---- the product ---- */

/* y = sum / both scales + bias for rows [begin, end). In f64, as a sum over one scale alone may
 * exceed f32. */
static void finish_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *j = arg;
  const k_tensor *y = &j->call->out[0];
  const float *sum = j->g.c;
  double back = 1 / ((double)j->x.scale * j->w.scale);
  float row[LOOP_CHUNK];
  cpu_chunk buf;
  (void)thread;
  for (int64_t r = begin; r < end; r++)
    for (int64_t c = 0; c < j->g.n; c += LOOP_CHUNK) {
      int64_t n = j->g.n - c < LOOP_CHUNK ? j->g.n - c : LOOP_CHUNK, at = r * j->g.n + c;
      const float *bias = NULL;
      if (!k_absent(&j->call->in[2])) bias = tide__stream_read(&j->bias, TIDE_F32, c, n, &buf);
      float *to = row_begin(y, at, row);
      for (int64_t i = 0; i < n; i++) to[i] = (float)(sum[at + i] * back);
      if (bias)
        for (int64_t i = 0; i < n; i++) to[i] += bias[i];
      row_write(y, at, to, n);
    }
}

int64_t k_cpu_linear_fp8_work(const k_call *call) { return linear_fp8_job_of(call).total; }

int k_cpu_linear_fp8(const k_call *call)
{
  job j = linear_fp8_job_of(call);
  const k_tensor *y = &call->out[0];
  int nthread = call->nthread < 1 ? 1 : call->nthread;
  char *work = call->work;
  float *most = (float *)(work + j.at_most);
  linear_fp8_round_operand(&j.x, (uint16_t *)(work + j.at_x), most, nthread);
  linear_fp8_round_operand(&j.w, (uint16_t *)(work + j.at_w), most, nthread);
  j.g.a = j.x.to, j.g.b = j.w.to;
  j.g.c = y->dtype == TIDE_F32 ? y->data : (void *)(work + j.at_sum);
  tide__cpu_gemm(&j.g, nthread, work + j.at_gemm);
  if (!k_absent(&call->in[2])) tide__stream_init(&j.bias, &call->in[2]);
  tide__pool_for(nthread, j.g.m, 1 + LOOP_GRAIN / (1 + j.g.n), finish_rows, &j);
  return TIDE_OK;
}
