/* linear_fp8 on the CPU: codes become bf16 or f32, multiplied by gemm.c.
 *
 * CPUs do not multiply FP8, but every FP8 number is a bf16 number too, so the bf16 tiles compute
 * the products of an FP8 unit. So is a code times a power of two: scales of blocks are applied as
 * codes are read. Other scales of blocks need f32 operands; a scale of a whole tensor waits for the
 * sum.
 */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/loop.h"
#include "kernels/cpu/row.h"
#include "kernels/fp8.h"

/* Codes [rows, k] and their scale, read as numbers [rows, k]. */
typedef struct operand {
  const uint8_t *codes;
  const float   *scale;
  void          *to;
  int64_t        rows, k;
  int            kind, e5m2, dtype;
} operand;

/* One product and the layout of its scratch, which holds sums before they become results. */
typedef struct job {
  const k_call *call;
  k_fp8_product_attrs at;
  const k_tensor *y, *bias; /* bias: null if absent */
  operand    a, b;
  cpu_gemm   g;
  bool       add, direct;   /* direct: gemm.c writes y */
  int64_t    total, at_a, at_b, at_sum, at_gemm;
  cpu_stream bias_from, y_to;
} job;

static int64_t fp8_take(job *j, int64_t bytes)
{
  int64_t at = j->total;
  j->total += (bytes + 63) / 64 * 64;
  return at;
}

/* Returns whether y is rows that do not overlap, in steps of one stride. */
static bool is_rows(const k_tensor *y)
{
  int last = y->ndim - 1;
  if (y->ndim == 2) return y->stride[1] == 1 && y->stride[0] >= y->shape[1];
  int64_t next = 1;
  for (int d = last; d >= 0; d--) {
    if (y->shape[d] != 1 && y->stride[d] != next) return false;
    next *= y->shape[d];
  }
  return true;
}

/* Uses sizes alone: data pointers may be null. */
static job job_of(const k_call *call)
{
  job j = {.call = call, .at = *(const k_fp8_product_attrs *)call->attrs, .y = &call->out[0],
           .add = call->nin == K_FP8_ADDED};
  const k_tensor *in = call->in + (j.add ? 0 : K_FP8_A);
  int64_t m = j.at.m, n = j.at.n, k = j.at.k;
  int threads = call->nthread < 1 ? 1 : call->nthread, y_dtype = j.y->dtype;
  bool whole = j.at.b_kind == K_FP8_TENSOR;
  int dtype = whole || !j.at.f32_scale ? TIDE_BF16 : TIDE_F32;
  if (!j.add) j.bias = k_or_null(&call->in[K_FP8_BIAS]);
  j.a = (operand){in[0].data, in[1].data, NULL, m, k,
                  j.at.b_kind == K_FP8_SQUARE ? K_FP8_ROWS : j.at.b_kind, j.at.a_e5m2, dtype};
  j.b = (operand){in[2].data, in[3].data, NULL, n, k, j.at.b_kind, 0, dtype};
  j.direct = !whole && (y_dtype == TIDE_F32 || y_dtype == dtype) && is_rows(j.y)
    && (!j.bias || j.bias->stride[0] == 1);
  j.g = (cpu_gemm){.m = m, .n = n, .k = k, .a_rs = k, .a_cs = 1, .b_rs = 1, .b_cs = k, .c_rs = n,
                   .ab_dtype = dtype, .c_dtype = j.direct ? y_dtype : TIDE_F32};
  if (j.direct && j.add) j.g.c_rs = j.y->stride[0], j.g.accumulate = 1;
  int64_t size = dtype == TIDE_BF16 ? 2 : 4;
  j.at_a = fp8_take(&j, size * m * k);
  j.at_b = fp8_take(&j, size * n * k);
  j.at_sum = fp8_take(&j, j.direct ? 0 : 4 * m * n);
  j.at_gemm = fp8_take(&j, tide__cpu_gemm_work(&j.g, threads));
  return j;
}

/* ---- reading codes --------------------------------------------------------------------------- */

TIDE_INLINE float number_of(uint32_t code, int e5m2)
{
  const int fraction = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  const float unit = e5m2 ? 0x1p-16f : 0x1p-9f;
  uint32_t size = code & 0x7f;
  float v = tide__bits_f32((size << (23 - fraction)) + ((uint32_t)(127 - bias) << 23));
  v = size < 1u << fraction ? (float)(int32_t)size * unit : v;
  if (e5m2) v = size < 0x7c ? v : size == 0x7c ? INFINITY : NAN;
  else v = size < 0x7f ? v : NAN;
  return tide__bits_f32(tide__f32_bits(v) | (code & 0x80) << 24);
}

TIDE_LEVELS(void, read_f32, (float *to, const uint8_t *code, int64_t n, float scale),
            (to, code, n, scale))
{
  for (int64_t i = 0; i < n; i++) to[i] = number_of(code[i], 0) * scale;
}

/* The upper half of f32 is exact: scale is a power of two. */
TIDE_LEVELS(void, read_bf16, (uint16_t *to, const uint8_t *code, int64_t n, float scale, int e5m2),
            (to, code, n, scale, e5m2))
{
  if (e5m2)
    for (int64_t i = 0; i < n; i++)
      to[i] = (uint16_t)(tide__f32_bits(number_of(code[i], 1) * scale) >> 16);
  else
    for (int64_t i = 0; i < n; i++)
      to[i] = (uint16_t)(tide__f32_bits(number_of(code[i], 0) * scale) >> 16);
}

static void read_codes(void *arg, int64_t begin, int64_t end, int thread)
{
  const operand *o = arg;
  (void)thread;
  for (int64_t r = begin; r < end; r++)
    for (int64_t p = 0; p < o->k; p += K_FP8_BLOCK) {
      int64_t n = o->k - p < K_FP8_BLOCK ? o->k - p : K_FP8_BLOCK, at = r * o->k + p;
      const uint8_t *code = o->codes + r * k_fp8_wide(o->k) + p;
      float scale = 1;
      if (o->kind != K_FP8_TENSOR)
        scale = o->scale[k_fp8_scale_at(o->kind, o->rows, o->k, r, p / K_FP8_BLOCK)];
      if (o->dtype == TIDE_F32) read_f32((float *)o->to + at, code, n, scale);
      else read_bf16((uint16_t *)o->to + at, code, n, scale, o->e5m2);
    }
}

/* ---- the product ----------------------------------------------------------------------------- */

/* Computes y = sum * both scales + bias, or y += that, for rows [begin, end). In f64, as a sum over
 * one scale alone may exceed f32. */
static void finish_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *j = arg;
  const float *sum = j->g.c;
  bool whole = j->at.b_kind == K_FP8_TENSOR;
  double by = whole ? (double)*j->a.scale * *j->b.scale : 1;
  float row[LOOP_CHUNK];
  cpu_chunk buf;
  (void)thread;
  for (int64_t r = begin; r < end; r++)
    for (int64_t c = 0; c < j->g.n; c += LOOP_CHUNK) {
      int64_t n = j->g.n - c < LOOP_CHUNK ? j->g.n - c : LOOP_CHUNK, at = r * j->g.n + c;
      const float *more = NULL;
      if (j->bias) more = tide__stream_read(&j->bias_from, TIDE_F32, c, n, &buf);
      if (j->add) more = tide__stream_read(&j->y_to, TIDE_F32, at, n, &buf);
      for (int64_t i = 0; i < n; i++) row[i] = (float)(sum[at + i] * by);
      if (more)
        for (int64_t i = 0; i < n; i++) row[i] += more[i];
      tide__stream_write(&j->y_to, TIDE_F32, at, n, row);
    }
}

int64_t k_cpu_linear_fp8_work(const k_call *call) { return job_of(call).total; }

/* Computes linear_fp8 and fp8_add_product_. */
int k_cpu_linear_fp8(const k_call *call)
{
  job j = job_of(call);
  int nthread = call->nthread < 1 ? 1 : call->nthread;
  char *work = call->work;
  int64_t grain = 1 + LOOP_GRAIN / (1 + j.g.k);
  j.a.to = work + j.at_a, j.b.to = work + j.at_b;
  tide__pool_for(nthread, j.g.m, grain, read_codes, &j.a);
  tide__pool_for(nthread, j.g.n, grain, read_codes, &j.b);
  j.g.a = j.a.to, j.g.b = j.b.to;
  j.g.c = j.direct ? j.y->data : (void *)(work + j.at_sum);
  if (j.direct && j.bias) j.g.bias = j.bias->data;
  tide__cpu_gemm(&j.g, nthread, work + j.at_gemm);
  if (j.direct) return TIDE_OK;
  if (j.bias) tide__stream_init(&j.bias_from, j.bias);
  tide__stream_init(&j.y_to, j.y);
  tide__pool_for(nthread, j.g.m, 1 + LOOP_GRAIN / (1 + j.g.n), finish_rows, &j);
  return TIDE_OK;
}
