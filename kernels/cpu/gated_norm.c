/* The gated root mean square norm of Mamba-2 on the CPU, for f32, bf16 and f16.
 *
 * A row at a time in f32 while it is in the first-level cache: the gated values first, then group
 * by group their sum of squares and the result. The weight's gradient is summed in blocks of rows
 * that depend on the shape alone and added in order.
 *
 * See kernel.h. x, z and dy may have any leading strides: z is often a slice of a wider row.
 */
#include "kernels/cpu/row.h"

enum { GRAIN = 16384, MAX_BLOCK = 64, MIN_ROWS = 16, FWD_ROWS = 3, BWD_ROWS = 5 };

typedef struct gated {
  const k_tensor *x, *z, *y, *dy, *dx, *dz;
  float *rstd, *gain, *rows, *part; /* part: backward, [block][dim] */
  int64_t n, dim, group, nblock;
  float eps;
  int gate_last;
} gated;

static void gated_norm_open(gated *g, const k_call *call, const k_tensor *x)
{
  const k_gated_norm_attrs *attrs = call->attrs;
  g->x = x, g->z = x + 1;
  g->dim = x->shape[x->ndim - 1];
  g->n = g->dim > 0 ? k_numel(x) / g->dim : 0;
  g->group = attrs->group, g->eps = (float)attrs->eps, g->gate_last = attrs->gate_last;
  int64_t nblock = (g->n + MIN_ROWS - 1) / MIN_ROWS;
  g->nblock = nblock < MAX_BLOCK ? nblock : MAX_BLOCK;
}

/* ---- loops --------------------------------------------------------------------------------- */

/* u = x silu(z) */
TIDE_LEVELS(void, gate_row, (float *u, const float *x, const float *z, int64_t n), (u, x, z, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) u[i] = x[i] * (z[i] * tide__sigmoidf(z[i]));
}

/* sum of dy gain v, v the gated row */
TIDE_LEVELS(float, dot,
            (const float *dy, const float *gain, const float *v, int64_t n), (dy, gain, v, n))
{
  float s0 = 0, s1 = 0;
  int64_t q = n / 2;
#pragma omp simd reduction(+ : s0, s1)
  for (int64_t i = 0; i < q; i++) {
    s0 += dy[i] * gain[i] * v[i];
    s1 += dy[i + q] * gain[i + q] * v[i + q];
  }
  for (int64_t i = 2 * q; i < n; i++) s0 += dy[i] * gain[i] * v[i];
  return s0 + s1;
}

/* One group's gradients; c = {rstd, mean}; adds to dgain. Outputs may be the inputs' scratch. */
TIDE_LEVELS(void, back_first,
            (float *dx, float *dz, float *dgain, const float *dy, const float *x, const float *z,
             const float *gain, const float *c, int64_t n), (dx, dz, dgain, dy, x, z, gain, c, n))
{
  float rstd = c[0], mean = c[1];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float s = tide__sigmoidf(z[i]), g = z[i] * s, slope = s * (1.0f + z[i] * (1.0f - s));
    float u = x[i] * g;
    float du = rstd * (dy[i] * gain[i] - u * mean), a = x[i];
    dgain[i] += dy[i] * u * rstd;
    dx[i] = du * g;
    dz[i] = du * a * slope;
  }
}

TIDE_LEVELS(void, back_last,
            (float *dx, float *dz, float *dgain, const float *dy, const float *x, const float *z,
             const float *gain, const float *c, int64_t n), (dx, dz, dgain, dy, x, z, gain, c, n))
{
  float rstd = c[0], mean = c[1];
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float s = tide__sigmoidf(z[i]), g = z[i] * s, slope = s * (1.0f + z[i] * (1.0f - s));
    float d = dy[i] * gain[i], a = x[i];
    dgain[i] += dy[i] * a * g * rstd;
    dx[i] = rstd * (d * g - a * mean);
    dz[i] = d * a * rstd * slope;
  }
}

/* ---- forward ------------------------------------------------------------------------------- */

static void gated_norm_fwd_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const gated *g = arg;
  int64_t step = i64_round_up(g->dim, 16), ngroup = g->dim / g->group;
  float *tmp = g->rows + thread * FWD_ROWS * step, *u = tmp + 2 * step;
  for (int64_t i = begin; i < end; i++) {
    const float *x = row_read(g->x, k_row_offset(g->x, i), tmp, g->dim);
    const float *z = row_read(g->z, k_row_offset(g->z, i), tmp + step, g->dim);
    float *y = row_begin(g->y, i * g->dim, tmp);
    gate_row(u, x, z, g->dim);
    const float *normed = g->gate_last ? x : u;
    for (int64_t k = 0; k < ngroup; k++) {
      const float *v = normed + k * g->group;
      float mean = row_dot(v, v, g->group) / (float)g->group;
      g->rstd[i * ngroup + k] = 1.0f / sqrtf(mean + g->eps);
    }
    for (int64_t k = 0, at = 0; k < ngroup; k++, at += g->group)
      row_scale(y + at, u + at, g->gain + at, g->rstd[i * ngroup + k], g->group);
    row_write(g->y, i * g->dim, y, g->dim);
  }
}

int64_t k_cpu_gated_norm_work(const k_call *call)
{
  const k_tensor *x = &call->in[0];
  return (1 + FWD_ROWS * (int64_t)call->nthread) * i64_round_up(k_row_size(x), 16) * 4;
}

int k_cpu_gated_rms_norm(const k_call *call)
{
  gated g = {.y = &call->out[0], .rstd = call->out[1].data, .gain = call->work};
  gated_norm_open(&g, call, &call->in[0]);
  g.rows = g.gain + i64_round_up(g.dim, 16);
  row_gain(g.gain, &call->in[2], 0, g.dim);
  tide__pool_for(call->nthread, g.n, GRAIN / (g.dim + 1) + 1, gated_norm_fwd_rows, &g);
  return TIDE_OK;
}

/* ---- backward ------------------------------------------------------------------------------ */

static void gated_norm_bwd_one(const gated *g, int64_t i, float *tmp, float *dgain)
{
  int64_t step = i64_round_up(g->dim, 16), ngroup = g->dim / g->group;
  const float *dy = row_read(g->dy, k_row_offset(g->dy, i), tmp, g->dim);
  const float *x = row_read(g->x, k_row_offset(g->x, i), tmp + step, g->dim);
  const float *z = row_read(g->z, k_row_offset(g->z, i), tmp + 2 * step, g->dim);
  float *u = tmp + 3 * step, *dx = row_begin(g->dx, i * g->dim, u);
  float *dz = row_begin(g->dz, i * g->dim, tmp + 4 * step);
  gate_row(u, x, z, g->dim);
  for (int64_t k = 0, at = 0; k < ngroup; k++, at += g->group) {
    float rstd = g->rstd[i * ngroup + k];
    float sum = dot(dy + at, g->gain + at, u + at, g->group);
    float c[2] = {rstd, sum * rstd * rstd / (float)g->group};
    (g->gate_last ? back_last : back_first)(dx + at, dz + at, dgain + at, dy + at, x + at, z + at,
                                            g->gain + at, c, g->group);
  }
  row_write(g->dx, i * g->dim, dx, g->dim);
  row_write(g->dz, i * g->dim, dz, g->dim);
}

static void gated_norm_bwd_blocks(void *arg, int64_t begin, int64_t end, int thread)
{
  const gated *g = arg;
  int64_t step = i64_round_up(g->dim, 16);
  for (int64_t k = begin; k < end; k++) {
    float *dgain = g->part + k * step;
    memset(dgain, 0, (size_t)step * sizeof(float));
    for (int64_t i = g->n * k / g->nblock; i < g->n * (k + 1) / g->nblock; i++)
      gated_norm_bwd_one(g, i, g->rows + thread * BWD_ROWS * step, dgain);
  }
}

int64_t k_cpu_gated_norm_bwd_work(const k_call *call)
{
  const k_tensor *x = &call->in[1];
  int64_t rows = 1 + BWD_ROWS * (int64_t)call->nthread + MAX_BLOCK;
  return rows * i64_round_up(k_row_size(x), 16) * 4;
}

int k_cpu_gated_rms_norm_bwd(const k_call *call)
{
  gated g = {.dy = &call->in[0], .rstd = call->in[4].data, .dx = &call->out[0],
             .dz = &call->out[1], .gain = call->work};
  gated_norm_open(&g, call, &call->in[1]);
  int64_t step = i64_round_up(g.dim, 16);
  g.rows = g.gain + step;
  g.part = g.rows + BWD_ROWS * (int64_t)call->nthread * step;
  row_gain(g.gain, &call->in[3], 0, g.dim);
  memset(g.part, 0, (size_t)step * sizeof(float));
  int64_t grain = g.nblock > 0 ? GRAIN / (g.n / g.nblock * g.dim + 1) + 1 : 1;
  tide__pool_for(call->nthread, g.nblock, grain, gated_norm_bwd_blocks, &g);
  if (k_absent(&call->out[2])) return TIDE_OK;
  for (int64_t k = 1; k < g.nblock; k++) row_add(g.part, g.part, g.part + k * step, g.dim);
  row_narrow(call->out[2].data, g.part, call->out[2].dtype, g.dim);
  return TIDE_OK;
}
