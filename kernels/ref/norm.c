/* Defines layer_norm, rms_norm and add_rms_norm, forward and backward, over the last dim.
 *
 * Every value is read as a double, every sum runs in double in index order, and each result is
 * rounded once. Statistics are stored rounded to their own dtype, so the backward passes read what
 * a fast kernel would read.
 *
 * Operands are row-major contiguous. An absent weight is a gain of 1; weight_offset then has no
 * effect.
 */
#include "kernels/ref/load.h"

typedef struct rows { int64_t n, dim; } rows;

static double ref_norm_gain(const k_tensor *weight, double offset, int64_t d)
{
  return k_absent(weight) ? 1.0 : ref_get(weight, d) + offset;
}

static double row_mean(const k_tensor *x, int64_t base, int64_t dim)
{
  double sum = 0;
  for (int64_t d = 0; d < dim; d++) sum += ref_get(x, base + d);
  return dim > 0 ? sum / (double)dim : 0;
}

/* Returns 1 / sqrt(mean((x - mean)^2) + eps). */
static double row_rstd(const k_tensor *x, int64_t base, int64_t dim, double mean, double eps)
{
  double sum = 0;
  for (int64_t d = 0; d < dim; d++) {
    double c = ref_get(x, base + d) - mean;
    sum += c * c;
  }
  return 1.0 / sqrt((dim > 0 ? sum / (double)dim : 0) + eps);
}

int k_ref_layer_norm(const k_call *call)
{
  const k_row_norm_attrs *attrs = call->attrs;
  const k_tensor *x = &call->in[0], *weight = &call->in[1], *bias = &call->in[2];
  rows r = { k_row_count(x), k_row_size(x) };
  for (int64_t i = 0; i < r.n; i++) {
    int64_t base = i * r.dim;
    double mean = row_mean(x, base, r.dim);
    double rstd = row_rstd(x, base, r.dim, mean, attrs->eps);
    for (int64_t d = 0; d < r.dim; d++) {
      double y =
          (ref_get(x, base + d) - mean) * rstd * ref_norm_gain(weight, attrs->weight_offset, d);
      if (!k_absent(bias)) y += ref_get(bias, d);
      ref_put(&call->out[0], base + d, y);
    }
    ref_put(&call->out[1], i, mean);
    ref_put(&call->out[2], i, rstd);
  }
  return TIDE_OK;
}

/* Shared by the two backward passes. mean is null for rms_norm. */
typedef struct bwd {
  const k_tensor *dy, *x, *weight, *mean, *rstd, *dsum, *dx, *dweight, *dbias;
  double offset;
  rows r;
} bwd;

static double bwd_mean(const bwd *b, int64_t i) { return b->mean ? ref_get(b->mean, i) : 0; }

/* Computes dx = rstd * (g - mean(g) - xhat * mean(g * xhat)) with g = dy * gain; rms_norm lacks
 * mean(g). */
static void bwd_row(const bwd *b, int64_t i)
{
  int64_t base = i * b->r.dim;
  double mean = bwd_mean(b, i), rstd = ref_get(b->rstd, i), sum_g = 0, sum_gx = 0;
  for (int64_t d = 0; d < b->r.dim; d++) {
    double g = ref_get(b->dy, base + d) * ref_norm_gain(b->weight, b->offset, d);
    sum_g += g;
    sum_gx += g * (ref_get(b->x, base + d) - mean) * rstd;
  }
  double mean_g = b->mean ? sum_g / (double)b->r.dim : 0, mean_gx = sum_gx / (double)b->r.dim;
  for (int64_t d = 0; d < b->r.dim; d++) {
    double g = ref_get(b->dy, base + d) * ref_norm_gain(b->weight, b->offset, d);
    double xhat = (ref_get(b->x, base + d) - mean) * rstd;
    double dx = rstd * (g - mean_g - xhat * mean_gx);
    if (!k_absent(b->dsum)) dx += ref_get(b->dsum, base + d);
    ref_put(b->dx, base + d, dx);
  }
}

static void bwd_column(const bwd *b, int64_t d)
{
  double dweight = 0, dbias = 0;
  for (int64_t i = 0; i < b->r.n; i++) {
    double dy = ref_get(b->dy, i * b->r.dim + d);
    double x = ref_get(b->x, i * b->r.dim + d);
    dweight += dy * (x - bwd_mean(b, i)) * ref_get(b->rstd, i);
    dbias += dy;
  }
  ref_put_opt(b->dweight, d, dweight);
  ref_put_opt(b->dbias, d, dbias);
}

static int ref_bwd_run(bwd *b)
{
  b->r = (rows){ k_row_count(b->x), k_row_size(b->x) };
  for (int64_t i = 0; i < b->r.n; i++) bwd_row(b, i);
  if (k_absent(b->dweight) && k_absent(b->dbias)) return TIDE_OK;
  for (int64_t d = 0; d < b->r.dim; d++) bwd_column(b, d);
  return TIDE_OK;
}

int k_ref_layer_norm_bwd(const k_call *call)
{
  const k_row_norm_attrs *attrs = call->attrs;
  const k_tensor *in = call->in, *out = call->out;
  const k_tensor none = { .ndim = -1 };
  bwd b = { .dy = &in[0], .x = &in[1], .weight = &in[2], .mean = &in[3], .rstd = &in[4],
            .dsum = &none, .dx = &out[0], .dweight = &out[1], .dbias = &out[2],
            .offset = attrs->weight_offset };
  return ref_bwd_run(&b);
}

int k_ref_rms_norm_bwd(const k_call *call)
{
  const k_row_norm_attrs *attrs = call->attrs;
  const k_tensor *in = call->in, *out = call->out;
  const k_tensor none = { .ndim = -1 };
  bwd b = { .dy = &in[0], .x = &in[1], .weight = &in[2], .rstd = &in[3], .dsum = &in[4],
            .dx = &out[0], .dweight = &out[1], .dbias = &none, .offset = attrs->weight_offset };
  return ref_bwd_run(&b);
}

static void rms_rows(const k_tensor *x, const k_tensor *weight, const k_row_norm_attrs *attrs,
                     const k_tensor *y, const k_tensor *rstd_out)
{
  rows r = { k_row_count(x), k_row_size(x) };
  for (int64_t i = 0; i < r.n; i++) {
    int64_t base = i * r.dim;
    double rstd = row_rstd(x, base, r.dim, 0, attrs->eps);
    for (int64_t d = 0; d < r.dim; d++) {
      double value = ref_get(x, base + d) * rstd * ref_norm_gain(weight, attrs->weight_offset, d);
      ref_put(y, base + d, value);
    }
    ref_put(rstd_out, i, rstd);
  }
}

int k_ref_rms_norm(const k_call *call)
{
  rms_rows(&call->in[0], &call->in[1], call->attrs, &call->out[0], &call->out[1]);
  return TIDE_OK;
}

/* The norm is that of the stored sum, rounded to its dtype, since backward reads the stored sum. */
int k_ref_add_rms_norm(const k_call *call)
{
  const k_tensor *x = &call->in[0], *residual = &call->in[1], *sum = &call->out[1];
  int64_t n = k_numel(x);
  for (int64_t i = 0; i < n; i++) ref_put(sum, i, ref_get(x, i) + ref_get(residual, i));
  rms_rows(sum, &call->in[2], call->attrs, &call->out[0], &call->out[2]);
  return TIDE_OK;
}
