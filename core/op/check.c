/* Check mode: every op is repeated by the reference kernel and the results are compared.
 *
 * Parameter check=1. The first difference beyond rounding is E_INTERNAL with op, index and both
 * values. Slow by design; it turns any training run into a test of the fast kernels.
 *
 * The reference keeps denormals and the fast kernels take them for zeros, so repetition and
 * comparison are done as they see them (kernels/flush.h).
 */
#include <math.h>

#include "core/base/dtype.h"
#include "core/base/shape.h"
#include "core/base/status.h"
#include "core/op/op.h"
#include "kernels/flush.h"

static double tolerance(int dtype)
{
  switch (dtype) {
  case TIDE_F64: return 1e-9;
  case TIDE_F32: return 2e-4;
  case TIDE_F16: return 4e-3;
  case TIDE_BF16: return 3e-2;
  default: return 0;
  }
}

static int compare(tide__call *c, int i, tide_tensor *got, tide_tensor *want)
{
  int64_t n = tide__tensor_numel(got);
  double scale = 0;
  tide_tensor *g = NULL, *w = NULL;
  int rc = tide_cast(&g, got, TIDE_F64);
  if (rc == TIDE_OK) rc = tide_cast(&w, want, TIDE_F64);
  const double *a = rc == TIDE_OK ? tide_tensor_data(g) : NULL;
  const double *b = rc == TIDE_OK ? tide_tensor_data(w) : NULL;
  for (int64_t k = 0; rc == TIDE_OK && k < n; k++)
    if (isfinite(b[k])) scale = fmax(scale, fabs(b[k]));
  for (int64_t k = 0; rc == TIDE_OK && k < n; k++) {
    bool same = a[k] == b[k] || (isnan(a[k]) && isnan(b[k])) ||
                fabs(a[k] - b[k]) <= tolerance(got->dtype) * (scale + fabs(b[k]));
    if (!same)
      rc = tide__fail(c->ctx, TIDE_E_INTERNAL, TIDE__NAME(c), "check: result %d, element %lld of "
                      "%s %s is %.9g on '%s' and %.9g by the reference", i + 1, (long long)k,
                      tide_dtype_name(got->dtype), TIDE__SHAPE(got->ndim, got->shape), a[k],
                      tide_device_name(c->device), b[k]);
  }
  tide_tensor_release(g);
  tide_tensor_release(w);
  return rc;
}

static int repeat(tide__call *c)
{
  tide__call again = *c;
  tide_tensor *twin[TIDE__MAX_OUT] = {NULL};
  bool recording = c->ctx->recording;
  if (c->in == c->in_) again.in = again.in_;
  again.device = TIDE_DEV_REF;
  again.out = twin;
  c->ctx->params.check = 0;
  c->ctx->recording = false;
  int rc = TIDE_OK;
  for (int i = 0; i < c->nout && rc == TIDE_OK; i++)
    if (c->out[i])
      rc = tide__tensor_new(&twin[i], c->ctx, TIDE_DEV_REF, c->out[i]->dtype, c->out[i]->ndim,
                            c->out[i]->shape, "check");
  if (rc == TIDE_OK) rc = tide__launch(&again);
  for (int i = 0; i < c->nout && rc == TIDE_OK; i++)
    if (twin[i] && c->out[i]->ndim >= 0) rc = compare(c, i, c->out[i], twin[i]);
  for (int i = 0; i < c->nout; i++) tide_tensor_release(twin[i]);
  c->ctx->recording = recording;
  c->ctx->params.check = 1;
  return rc;
}

typedef struct check_job {
  tide__call *call;
  int rc;
} check_job;

static void check_body(void *arg)
{
  check_job *job = arg;
  job->rc = repeat(job->call);
}

/* ref and cpu share host memory, so the reference kernel can read the same operands. In-place ops
 * and devices the host cannot read are not repeated. */
int tide__check_against_ref(tide__call *c)
{
  check_job job = {.call = c};
  if (c->device != TIDE_DEV_CPU || tide__op_get(c->op)->flags & TIDE_OPF_INPLACE) return TIDE_OK;
  k_cpu_flushed(check_body, &job);
  return job.rc;
}
