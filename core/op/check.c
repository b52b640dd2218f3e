/* Check mode (parameter check=1): the reference kernel repeats every op on device 'cpu', in-place
 * ones too, and the results are compared.
 *
 * The first difference beyond rounding is E_INTERNAL with op, index and both values. Slow by
 * design; it turns any training run into a test of the fast kernels. Views have no kernel, and ops
 * on other devices are not repeated: the host cannot read a GPU's operands.
 *
 * The reference keeps denormals and the fast kernels flush them to zero, so repetition and
 * comparison run with denormals flushed (kernels/flush.h).
 */
#include <math.h>

#include "core/op/derivative.h"
#include "core/op/op.h"

/* Codes of u8 are numbers that were rounded: neighbours are equal but for rounding. */
static double most_off(const tide__call *c, int dtype)
{
  return dtype == TIDE_U8 && tide__op_get(c->op)->flags & TIDE__OPF_CODES ? 1 : 0;
}

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

static int check_compare(tide__call *c, int i, tide_tensor *got, tide_tensor *want)
{
  int64_t n = tide__tensor_numel(got);
  double scale = 0, off = most_off(c, got->dtype);
  tide__temps v = {0};
  tide_tensor *g = TIDE__TEMP(&v, tide_contiguous, got);
  g = TIDE__TEMP(&v, tide_cast, g, TIDE_F64);
  tide_tensor *w = TIDE__TEMP(&v, tide_cast, want, TIDE_F64);
  const double *a = w ? tide_tensor_data(g) : NULL, *b = w ? tide_tensor_data(w) : NULL;
  for (int64_t k = 0; v.rc == TIDE_OK && k < n; k++)
    if (isfinite(b[k])) scale = fmax(scale, fabs(b[k]));
  for (int64_t k = 0; v.rc == TIDE_OK && k < n; k++) {
    bool same = a[k] == b[k] || (isnan(a[k]) && isnan(b[k])) ||
                fabs(a[k] - b[k]) <= tolerance(got->dtype) * (scale + fabs(b[k])) + off;
    if (!same)
      v.rc = TIDE__FAIL(c, TIDE_E_INTERNAL, "check: result %d, element %lld of %s is %.9g on '%s' "
                        "and %.9g by the reference", i + 1, (long long)k, TIDE__TEXT(got), a[k],
                        tide_device_name(c->device), b[k]);
  }
  return tide__temps_end(&v);
}

/* Makes the reference's own targets, copies of the targets if the op writes in place. A target that
 * is listed twice has one twin: both writes go there. */
static int make_twins(tide__call *c, tide_tensor **twin)
{
  bool in_place = tide__op_get(c->op)->flags & TIDE_OPF_INPLACE;
  for (int i = 0; i < c->nout; i++) {
    tide_tensor *t = c->out[i];
    for (int j = 0; t && j < i && !twin[i]; j++)
      if (c->out[j] == t) tide_tensor_retain(twin[i] = twin[j]);
    if (!t || twin[i]) continue;
    TIDE_TRY(tide__tensor_new(&twin[i], c->ctx, TIDE_DEV_REF, t->dtype, t->ndim, t->shape,
                              "check"));
    tide__call copy = {.ctx = c->ctx, .op = TIDE_OP_COPY_, .device = TIDE_DEV_REF, .nin = 1,
                       .nout = 1, .in = &t, .out = &twin[i]};
    if (in_place) TIDE_TRY(tide__launch(&copy));
  }
  return TIDE_OK;
}

typedef struct check_job {
  tide__call *call;
  tide_tensor **twin;
  int rc;
} check_job;

static void repeat_body(void *arg)
{
  check_job *job = arg;
  tide__call again = *job->call;
  if (job->call->in == job->call->in_) again.in = again.in_;
  again.device = TIDE_DEV_REF;
  again.out = job->twin;
  job->rc = make_twins(job->call, job->twin);
  if (job->rc == TIDE_OK) job->rc = tide__launch(&again);
}

static void compare_body(void *arg)
{
  check_job *job = arg;
  tide__call *c = job->call;
  for (int i = 0; i < c->nout && job->rc == TIDE_OK; i++)
    if (job->twin[i]) job->rc = check_compare(c, i, c->out[i], job->twin[i]);
}

/* Runs the reference first, as an in-place op may read what it writes. */
static int launch_both(tide__call *c, tide_tensor **twin)
{
  check_job job = {.call = c, .twin = twin};
  const tide__backend *b = c->ctx->devices->device[c->device].backend;
  b->with_modes(repeat_body, &job);
  if (job.rc == TIDE_OK) job.rc = tide__launch(c);
  if (job.rc == TIDE_OK) b->with_modes(compare_body, &job);
  return job.rc;
}

/* Launches both; the ops of the comparison are not checked themselves. */
static int launch_unchecked(tide__call *c, tide_tensor **twin)
{
  int rc;
  c->ctx->params.check = 0;
  TIDE__UNRECORDED(c->ctx, rc = launch_both(c, twin));
  c->ctx->params.check = 1;
  return rc;
}

/* Runs the kernel and, if parameter check is set, the reference beside it. ref and cpu share host
 * memory, so the reference kernel can read the same operands. */
int tide__launch_checked(tide__call *c)
{
  if (!c->ctx->params.check || c->device != TIDE_DEV_CPU) return tide__launch(c);
  size_t bytes = (size_t)c->nout * sizeof(tide_tensor *);
  tide_tensor **twin = tide__alloc(c->ctx, bytes);
  if (!twin) return TIDE__FAIL(c, TIDE_E_NOMEM, "no host memory for the check");
  int rc = launch_unchecked(c, twin);
  for (int i = 0; i < c->nout; i++) tide_tensor_release(twin[i]);
  tide__free(c->ctx, twin, bytes);
  return rc;
}
