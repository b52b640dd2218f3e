/* layer_norm, rms_norm and add_rms_norm over the last dim, forward and backward, for f32, bf16 and
 * f16. (f64: kernels/ref.)
 *
 * One row at a time, in f32, while it is in the first-level cache. Rows of a 16-bit type are
 * widened into a scratch row first and narrowed at the end, so there is one set of loops.
 *
 * dweight and dbias: rows are cut into blocks that depend on the shape alone, each block sums into
 * its own scratch row, and the blocks are added in order.
 *
 * Operands are row-major contiguous. Statistics are f32.
 */
#include "kernels/cpu/row.h"

enum {
  GRAIN = 16384,   /* elements per thread at least */
  MAX_BLOCK = 128, /* row blocks of a backward pass */
  MIN_ROWS = 16    /* rows of a block at least */
};

/* ---- the loops over one row --------------------------------------------------------------- */

/* Four sums at a time hide the latency of the additions. */
TIDE_LEVELS(float, sum_of, (const float *x, int64_t n), (x, n))
{
  float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  int64_t q = n / 4;
  const float *x1 = x + q, *x2 = x + 2 * q, *x3 = x + 3 * q;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
  for (int64_t i = 0; i < q; i++) {
    s0 += x[i];
    s1 += x1[i];
    s2 += x2[i];
    s3 += x3[i];
  }
  for (int64_t i = 4 * q; i < n; i++) s0 += x[i];
  return (s0 + s1) + (s2 + s3);
}

TIDE_LEVELS(float, sum_of_squares, (const float *x, float mean, int64_t n), (x, mean, n))
{
  float s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  int64_t q = n / 4;
  const float *x1 = x + q, *x2 = x + 2 * q, *x3 = x + 3 * q;
#pragma omp simd reduction(+ : s0, s1, s2, s3)
  for (int64_t i = 0; i < q; i++) {
    s0 += (x[i] - mean) * (x[i] - mean);
    s1 += (x1[i] - mean) * (x1[i] - mean);
    s2 += (x2[i] - mean) * (x2[i] - mean);
    s3 += (x3[i] - mean) * (x3[i] - mean);
  }
  for (int64_t i = 4 * q; i < n; i++) s0 += (x[i] - mean) * (x[i] - mean);
  return (s0 + s1) + (s2 + s3);
}

TIDE_LEVELS(void, centre_row,
            (float *y, const float *x, const float *gain, const float *bias, float mean, float rstd,
             int64_t n), (y, x, gain, bias, mean, rstd, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = (x[i] - mean) * rstd * gain[i] + bias[i];
}

/* sums[0] = sum of g, sums[1] = sum of g * (x - mean), with g = dy * gain */
TIDE_LEVELS(void, bwd_sums,
            (float *sums, const float *dy, const float *x, const float *gain, float mean,
             int64_t n), (sums, dy, x, gain, mean, n))
{
  float a0 = 0, a1 = 0, b0 = 0, b1 = 0;
  int64_t q = n / 2;
  const float *dy1 = dy + q, *x1 = x + q, *gain1 = gain + q;
#pragma omp simd reduction(+ : a0, a1, b0, b1)
  for (int64_t i = 0; i < q; i++) {
    float g0 = dy[i] * gain[i], g1 = dy1[i] * gain1[i];
    a0 += g0;
    a1 += g1;
    b0 += g0 * (x[i] - mean);
    b1 += g1 * (x1[i] - mean);
  }
  for (int64_t i = 2 * q; i < n; i++) {
    a0 += dy[i] * gain[i];
    b0 += dy[i] * gain[i] * (x[i] - mean);
  }
  sums[0] = a0 + a1;
  sums[1] = b0 + b1;
}

/* dx = rstd * (g - mean_g - xhat * mean_gx) and dgain += dy * xhat; dx may be dy or x. */
TIDE_LEVELS(void, bwd_row,
            (float *dx, float *dgain, const float *dy, const float *x, const float *gain,
             const float *c, int64_t n), (dx, dgain, dy, x, gain, c, n))
{
  float mean = c[0], rstd = c[1], mean_g = c[2], mean_gx = c[3];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float g = dy[i] * gain[i], xhat = (x[i] - mean) * rstd;
    dgain[i] += dy[i] * xhat;
    dx[i] = rstd * (g - mean_g - xhat * mean_gx);
  }
}

/* ---- forward ------------------------------------------------------------------------------ */

typedef struct fwd {
  const k_tensor *x, *residual, *y, *sum; /* residual, sum: null without an addition */
  float *mean, *rstd;                     /* [n]; mean null for rms_norm */
  const float *gain, *bias;               /* [dim] */
  float *rows;                            /* two rows for each thread */
  float eps;
  int64_t n, dim;
} fwd;

static const float *fwd_input(const fwd *f, int64_t i, float *tmp)
{
  int64_t base = i * f->dim;
  if (!f->sum) return row_read(f->x, base, tmp, f->dim);
  const float *a = row_read(f->x, base, tmp, f->dim);
  const float *b = row_read(f->residual, base, tmp + i64_round_up(f->dim, 16), f->dim);
  float *sum = row_begin(f->sum, base, tmp);
  row_add(sum, a, b, f->dim);
  row_write(f->sum, base, sum, f->dim);
  return row_read(f->sum, base, tmp, f->dim); /* the sum as stored, rounded to its dtype */
}

static void norm_fwd_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const fwd *f = arg;
  float *tmp = f->rows + thread * 2 * i64_round_up(f->dim, 16);
  float inv = 1.0f / (float)i64_max(1, f->dim);
  for (int64_t i = begin; i < end; i++) {
    const float *x = fwd_input(f, i, tmp);
    float *y = row_begin(f->y, i * f->dim, tmp);
    float mean = f->mean ? sum_of(x, f->dim) * inv : 0.0f;
    float rstd = 1.0f / sqrtf(sum_of_squares(x, mean, f->dim) * inv + f->eps);
    if (f->mean) centre_row(y, x, f->gain, f->bias, mean, rstd, f->dim);
    else row_scale(y, x, f->gain, rstd, f->dim);
    row_write(f->y, i * f->dim, y, f->dim);
    if (f->mean) f->mean[i] = mean;
    f->rstd[i] = rstd;
  }
}

/* Returns the bytes of scratch: gain, bias, then two rows per thread. */
int64_t k_cpu_norm_work(const k_call *call)
{
  int64_t rows = 2 + 2 * (int64_t)call->nthread;
  return rows * i64_round_up(k_row_size(&call->in[0]), 16) * (int64_t)sizeof(float);
}

static int fwd_run(const k_call *call, fwd *f, const k_tensor *weight, const k_tensor *bias)
{
  const k_row_norm_attrs *attrs = call->attrs;
  f->n = k_row_count(f->x);
  f->dim = k_row_size(f->x);
  float *gain = call->work, *shift = gain + i64_round_up(f->dim, 16);
  f->gain = row_gain(gain, weight, attrs->weight_offset, f->dim);
  f->bias = shift;
  f->rows = shift + i64_round_up(f->dim, 16);
  f->eps = (float)attrs->eps;
  if (bias && !k_absent(bias)) row_widen(shift, bias->data, bias->dtype, f->dim);
  else memset(shift, 0, (size_t)f->dim * sizeof(float));
  tide__pool_for(call->nthread, f->n, GRAIN / i64_max(1, f->dim) + 1, norm_fwd_rows, f);
  return TIDE_OK;
}

int k_cpu_layer_norm(const k_call *call)
{
  fwd f = { .x = &call->in[0], .y = &call->out[0], .mean = call->out[1].data,
            .rstd = call->out[2].data };
  return fwd_run(call, &f, &call->in[1], &call->in[2]);
}

int k_cpu_rms_norm(const k_call *call)
{
  fwd f = { .x = &call->in[0], .y = &call->out[0], .rstd = call->out[1].data };
  return fwd_run(call, &f, &call->in[1], 0);
}

int k_cpu_add_rms_norm(const k_call *call)
{
  fwd f = { .x = &call->in[0], .residual = &call->in[1], .y = &call->out[0],
            .sum = &call->out[1], .rstd = call->out[2].data };
  return fwd_run(call, &f, &call->in[2], 0);
}

/* ---- backward ----------------------------------------------------------------------------- */

typedef struct bwd {
  const k_tensor *dy, *x, *dsum, *dx, *dweight, *dbias; /* dsum, dbias: may be null */
  const float *mean, *rstd;                             /* [n]; mean null for rms_norm */
  const float *gain;                                    /* [dim] */
  float *rows;                                          /* three rows for each thread */
  float *dgain_part, *dbias_part;                       /* [nblock, padded(dim)] */
  int64_t n, dim, nblock;
} bwd;

/* Returns the number of row blocks, from the shape alone. */
static int64_t block_count(int64_t n)
{
  int64_t nblock = (n + MIN_ROWS - 1) / MIN_ROWS;
  return nblock < MAX_BLOCK ? nblock : MAX_BLOCK;
}

static void norm_bwd_one(const bwd *b, int64_t i, float *tmp, float *dgain, float *dbias)
{
  int64_t base = i * b->dim, step = i64_round_up(b->dim, 16);
  const float *dy = row_read(b->dy, base, tmp, b->dim);
  const float *x = row_read(b->x, base, tmp + step, b->dim);
  float *dx = row_begin(b->dx, base, tmp + step), sums[2];
  float mean = b->mean ? b->mean[i] : 0.0f, rstd = b->rstd[i];
  float inv = 1.0f / (float)i64_max(1, b->dim);
  bwd_sums(sums, dy, x, b->gain, mean, b->dim);
  float c[4] = { mean, rstd, b->mean ? sums[0] * inv : 0.0f, sums[1] * rstd * inv };
  if (b->dbias) row_add(dbias, dbias, dy, b->dim);
  bwd_row(dx, dgain, dy, x, b->gain, c, b->dim);
  if (b->dsum) row_add(dx, dx, row_read(b->dsum, base, tmp + 2 * step, b->dim), b->dim);
  row_write(b->dx, base, dx, b->dim);
}

static void norm_bwd_blocks(void *arg, int64_t begin, int64_t end, int thread)
{
  const bwd *b = arg;
  int64_t step = i64_round_up(b->dim, 16);
  for (int64_t k = begin; k < end; k++) {
    float *dgain = b->dgain_part + k * step, *dbias = b->dbias_part + k * step;
    memset(dgain, 0, (size_t)step * sizeof(float));
    if (b->dbias) memset(dbias, 0, (size_t)step * sizeof(float));
    int64_t first = b->n * k / b->nblock, last = b->n * (k + 1) / b->nblock;
    for (int64_t i = first; i < last; i++)
      norm_bwd_one(b, i, b->rows + thread * 3 * step, dgain, dbias);
  }
}

/* Adds the blocks in order, in the first one, and stores the columns [begin, end). */
static void combine(const bwd *b, const k_tensor *out, float *part, int64_t begin, int64_t end)
{
  int64_t step = i64_round_up(b->dim, 16);
  for (int64_t k = 1; k < b->nblock; k++)
    row_add(part + begin, part + begin, part + k * step + begin, end - begin);
  row_narrow(row_at(out, begin), part + begin, out->dtype, end - begin);
}

static void combine_columns(void *arg, int64_t begin, int64_t end, int thread)
{
  const bwd *b = arg;
  (void)thread;
  if (b->dweight) combine(b, b->dweight, b->dgain_part, begin, end);
  if (b->dbias) combine(b, b->dbias, b->dbias_part, begin, end);
}

/* Returns the bytes of scratch: gain, three rows per thread, two rows per block (one at least). */
int64_t k_cpu_norm_bwd_work(const k_call *call)
{
  int64_t nblock = i64_max(1, block_count(k_row_count(&call->in[1])));
  int64_t rows = 1 + 3 * (int64_t)call->nthread + 2 * nblock;
  return rows * i64_round_up(k_row_size(&call->in[1]), 16) * (int64_t)sizeof(float);
}

static int norm_bwd_run(const k_call *call, bwd *b)
{
  const k_row_norm_attrs *attrs = call->attrs;
  b->n = k_row_count(b->x);
  b->dim = k_row_size(b->x);
  b->nblock = block_count(b->n);
  int64_t step = i64_round_up(b->dim, 16), nblock = i64_max(1, b->nblock);
  float *work = call->work;
  b->gain = row_gain(work, &call->in[2], attrs->weight_offset, b->dim);
  b->rows = work + step;
  b->dgain_part = b->rows + 3 * (int64_t)call->nthread * step;
  b->dbias_part = b->dgain_part + nblock * step;
  if (b->nblock == 0) memset(b->dgain_part, 0, (size_t)(2 * step) * sizeof(float));
  int64_t elements = b->n / nblock * b->dim;
  tide__pool_for(call->nthread, b->nblock, GRAIN / i64_max(1, elements) + 1, norm_bwd_blocks, b);
  if (!b->dweight && !b->dbias) return TIDE_OK;
  tide__pool_for(call->nthread, b->dim, GRAIN / nblock + 1, combine_columns, b);
  return TIDE_OK;
}

int k_cpu_layer_norm_bwd(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  bwd b = { .dy = &in[0], .x = &in[1], .mean = in[3].data, .rstd = in[4].data, .dx = &out[0],
            .dweight = k_or_null(&out[1]), .dbias = k_or_null(&out[2]) };
  return norm_bwd_run(call, &b);
}

int k_cpu_rms_norm_bwd(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  bwd b = { .dy = &in[0], .x = &in[1], .rstd = in[3].data, .dsum = k_or_null(&in[4]),
            .dx = &out[0], .dweight = k_or_null(&out[1]) };
  return norm_bwd_run(call, &b);
}
