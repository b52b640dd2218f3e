/* adamw8_, quantize8, dequantize8: moments as dynamic 8-bit numbers (kernels/ref/dynamic8.h).
 *
 * A unit holds whole blocks, so its result does not depend on its thread. It reads the moments into
 * f32 on the stack, updates them as adamw_ does, and codes them.
 *
 * The nearest code is found by a table: the upper 16 bits of a share of f32 choose one of 2945
 * cells, each so small that at most one midpoint of two codes lies in it.
 */
#include "kernels/cpu/update.h"
#include "kernels/ref/dynamic8.h"

enum {
  CELL_SHIFT = 16, CELL_FIRST = (127 - 23) << 7,  /* the cell of 2^-23: all below it is code 0 */
  CELL_COUNT = (127 << 7) - CELL_FIRST + 1        /* the last one is 1 alone */
};

/* Codes of 0 to 1 and the cells that find them. */
typedef struct coder {
  dyn8 map;
  int32_t near[CELL_COUNT]; /* the magnitude nearest to the least number of a cell */
} coder;

static float float_from(uint32_t bits)
{
  float f;
  memcpy(&f, &bits, sizeof f);
  return f;
}

static void coder_init(coder *c, int is_signed)
{
  int q = 0;
  dyn8_init(&c->map, is_signed);
  for (int i = 0; i < CELL_COUNT; i++) {
    float least = float_from((uint32_t)(CELL_FIRST + i) << CELL_SHIFT);
    while (least > c->map.mid[q]) q++;
    c->near[i] = q;
  }
}

/* ---- a run of elements: whole blocks but for the last --------------------------------------- */

/* Bits of floats are in order as i32 above 0 and, by magnitude, as u32 below 0; NaN is beyond
 * infinity on either side. */
TIDE_LEVELS(float, block_scale, (const float *x, int64_t n, int is_signed), (x, n, is_signed))
{
  int32_t high = 0;
  uint32_t low = 0x80000000;
#pragma omp simd reduction(max : high, low)
  for (int64_t i = 0; i < n; i++) {
    uint32_t bits;
    memcpy(&bits, &x[i], sizeof bits);
    high = (int32_t)bits > high ? (int32_t)bits : high;
    low = bits > low ? bits : low;
  }
  return dyn8_scale(float_from((uint32_t)high), is_signed ? float_from(low) : 0,
                    high < 0x7f800000 && low < 0xff800000);
}

/* Returns the magnitude nearest to the share t, one beyond 1 included: below 0 the unsigned map has
 * shares of any size. */
static inline int32_t magnitude_of(const coder *c, float t)
{
  int32_t bits;
  memcpy(&bits, &t, sizeof bits);
  bits = ((bits & 0x7fffffff) >> CELL_SHIFT) - CELL_FIRST;
  bits = bits < CELL_COUNT - 1 ? bits : CELL_COUNT - 1;
  int32_t q = c->near[bits > 0 ? bits : 0];
  return q + (fabsf(t) > c->map.mid[q]);
}

/* The codes of dyn8_code. */
TIDE_LEVELS(void, signed_codes,
            (uint8_t *codes, const float *x, float scale, const coder *c, int64_t n),
            (codes, x, scale, c, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float t = x[i] / scale;
    int32_t q = magnitude_of(c, t), low = q < 127 ? 127 - q : 0;
    codes[i] = (uint8_t)(t < 0 ? low : 127 + q);
  }
}

TIDE_LEVELS(void, unsigned_codes,
            (uint8_t *codes, const float *x, float scale, const coder *c, int64_t n),
            (codes, x, scale, c, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float t = x[i] / scale;
    int32_t q = magnitude_of(c, t);
    q = q > 0 ? q : 1;
    codes[i] = (uint8_t)(t > 0 ? q : 0);
  }
}

static void code_block(const coder *c, uint8_t *codes, float *scale, const float *x, int64_t n)
{
  int is_signed = c->map.zero != 0;
  *scale = block_scale(x, n, is_signed);
  if (*scale == 0 || isnan(*scale)) memset(codes, c->map.zero, (size_t)n);
  else if (is_signed) signed_codes(codes, x, *scale, c, n);
  else unsigned_codes(codes, x, *scale, c, n);
}

static void code_run(const coder *c, uint8_t *codes, float *scale, const float *x, int64_t n)
{
  for (int64_t i = 0; i < n; i += DYN8_BLOCK)
    code_block(c, codes + i, scale + i / DYN8_BLOCK, x + i,
               n - i < DYN8_BLOCK ? n - i : DYN8_BLOCK);
}

TIDE_LEVELS(void, read_block,
            (float *x, const uint8_t *codes, float scale, const dyn8 *d, int64_t n),
            (x, codes, scale, d, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) x[i] = d->of[codes[i]] * scale;
}

static void read_run(const dyn8 *d, float *x, const uint8_t *codes, const float *scale, int64_t n)
{
  for (int64_t i = 0; i < n; i += DYN8_BLOCK)
    read_block(x + i, codes + i, scale[i / DYN8_BLOCK], d,
               n - i < DYN8_BLOCK ? n - i : DYN8_BLOCK);
}

/* ---- adamw8_ -------------------------------------------------------------------------------- */

typedef struct adamw8 {
  const k_tensor *g, *p, *m, *v, *m_scale, *v_scale, *master; /* [n] each */
  adamw_rates rates;
  coder m_coder, v_coder;
  units u;
} adamw8;

static void adamw8_piece(const adamw8 *a, piece p)
{
  float gb[UNIT], wb[UNIT], m[UNIT], v[UNIT];
  const k_tensor *pt = &a->p[p.tensor], *wt = weight_of(pt, &a->master[p.tensor]);
  uint8_t *mc = (uint8_t *)a->m[p.tensor].data + p.begin;
  uint8_t *vc = (uint8_t *)a->v[p.tensor].data + p.begin;
  float *ms = (float *)a->m_scale[p.tensor].data + p.begin / DYN8_BLOCK;
  float *vs = (float *)a->v_scale[p.tensor].data + p.begin / DYN8_BLOCK;
  const float *g = row_read(&a->g[p.tensor], p.begin, gb, p.n);
  float *w = row_read(wt, p.begin, wb, p.n);
  read_run(&a->m_coder.map, m, mc, ms, p.n);
  read_run(&a->v_coder.map, v, vc, vs, p.n);
  adamw_f32(w, m, v, g, &a->rates, p.n);
  code_run(&a->m_coder, mc, ms, m, p.n);
  code_run(&a->v_coder, vc, vs, v, p.n);
  row_write(wt, p.begin, w, p.n);
  if (wt != pt) row_write(pt, p.begin, w, p.n);
}

static void adamw8_units(void *arg, int64_t begin, int64_t end, int thread)
{
  const adamw8 *a = arg;
  piece p = { 0, 0, 0 };
  (void)thread;
  for (int64_t k = begin; k < end; k++) {
    p = piece_at(&a->u, a->p, k, p);
    adamw8_piece(a, p);
  }
}

int k_cpu_adamw8_(const k_call *call)
{
  k_adamw_attrs now;
  const k_adamw_attrs *a = ref_adamw_now(call, &now);
  int rc = a ? tide__ref_adamw_check(call, a) : TIDE_OK;
  if (!a || rc != TIDE_OK) return rc;
  const k_tensor *out = call->out;
  adamw8 job = { .g = call->in, .p = out, .m = out + a->n, .v = out + 2 * a->n,
                 .m_scale = out + 3 * a->n, .v_scale = out + 4 * a->n, .master = out + 5 * a->n,
                 .rates = adamw_rates_of(a, &call->in[a->n]) };
  coder_init(&job.m_coder, 1);
  coder_init(&job.v_coder, 0);
  job.u = units_of(job.p, job.g, a->n, call->work);
  tide__pool_for(call->nthread, job.u.first[a->n], GRAIN, adamw8_units, &job);
  return TIDE_OK;
}

/* ---- quantize8, dequantize8 ----------------------------------------------------------------- */

typedef struct dyn8_job {
  float *x, *scale;
  uint8_t *codes;
  int64_t n;
  coder c;
} dyn8_job;

static int64_t unit_size(const dyn8_job *j, int64_t unit)
{
  return j->n - unit * UNIT < UNIT ? j->n - unit * UNIT : UNIT;
}

static void quantize8_units(void *arg, int64_t begin, int64_t end, int thread)
{
  const dyn8_job *j = arg;
  (void)thread;
  for (int64_t k = begin; k < end; k++)
    code_run(&j->c, j->codes + k * UNIT, j->scale + k * (UNIT / DYN8_BLOCK), j->x + k * UNIT,
             unit_size(j, k));
}

static void dequantize8_units(void *arg, int64_t begin, int64_t end, int thread)
{
  const dyn8_job *j = arg;
  (void)thread;
  for (int64_t k = begin; k < end; k++)
    read_run(&j->c.map, j->x + k * UNIT, j->codes + k * UNIT,
             j->scale + k * (UNIT / DYN8_BLOCK), unit_size(j, k));
}

/* codes: the first operand of the one, the first result of the other. */
static void run_dyn8(const k_call *call, const k_tensor *x, const k_tensor *codes,
                     const k_tensor *scale, void (*units)(void *, int64_t, int64_t, int))
{
  dyn8_job job = { .x = x->data, .scale = scale->data, .codes = codes->data, .n = k_numel(x) };
  coder_init(&job.c, ((const k_dyn8_attrs *)call->attrs)->is_signed);
  tide__pool_for(call->nthread, (job.n + UNIT - 1) / UNIT, GRAIN, units, &job);
}

int k_cpu_quantize8(const k_call *call)
{
  run_dyn8(call, &call->in[0], &call->out[0], &call->out[1], quantize8_units);
  return TIDE_OK;
}

int k_cpu_dequantize8(const k_call *call)
{
  run_dyn8(call, &call->out[0], &call->in[0], &call->in[1], dequantize8_units);
  return TIDE_OK;
}
