/* What derivative rules share: intermediate tensors, fused kernels, the adjoint of broadcasting. */
#include "core/op/derivative.h"
#include "core/op/op.h"

tide_tensor **tide__temp_slot(tide__temps *v)
{
  v->t[v->n] = NULL;
  return &v->t[v->n];
}

tide_tensor *tide__temp_done(tide__temps *v, int rc)
{
  if (rc >= 0) return v->t[v->n++];
  v->rc = rc;
  return NULL;
}

tide_tensor *tide__temp_number(tide__temps *v, const tide__grad_call *g, int dtype, double x)
{
  return TIDE__TEMP(v, tide_full, g->ctx, g->meta[0].device, dtype, 0, NULL, x);
}

int tide__temps_end(tide__temps *v)
{
  while (v->n > 0) tide_tensor_release(v->t[--v->n]);
  return v->rc;
}

int tide__grad_launch_into(const tide__grad_call *g, int op, int n, tide_tensor *const *x,
                           uint32_t optional, int nresult, int always, tide_tensor **into)
{
  tide__call c;
  tide__temps v = {0};
  tide_tensor *y[TIDE__MAX_IN];
  memcpy(y, x, (size_t)n * sizeof *y);
  if (!y[0])
    y[0] = TIDE__TEMP(&v, tide_full, g->ctx, x[1]->storage->device, x[1]->dtype, x[1]->ndim,
                      x[1]->shape, 0);
  if (TIDE__DO(&v, tide__begin(&c, op, NULL, n, y, optional)) == TIDE_OK) {
    c.attrs = *g->attrs;
    c.into = into;
    for (int i = 0; i < nresult; i++) {
      const tide__meta *m = &g->meta[i];
      tide__result(&c, i, m->dtype, i < always || g->need[i] ? m->ndim : -1, m->shape);
    }
    v.rc = tide__dispatch(&c, g->gin, nresult);
  }
  return tide__temps_end(&v);
}

int tide__grad_launch(const tide__grad_call *g, int op, int n, tide_tensor *const *x,
                      uint32_t optional, int nresult, int always)
{
  return tide__grad_launch_into(g, op, n, x, optional, nresult, always, NULL);
}

int tide__sum_to(tide_tensor **out, tide_tensor *x, const tide__meta *m)
{
  int32_t dims[TIDE_MAX_DIM];
  int n = 0, lead = x->ndim - m->ndim;
  for (int d = 0; d < x->ndim; d++)
    if (d < lead || (m->shape[d - lead] == 1 && x->shape[d] != 1)) dims[n++] = d;
  if (n == 0 && x->dtype == m->dtype) return tide_tensor_retain(*out = x);
  tide__temps v = {0};
  if (n) x = TIDE__TEMP(&v, tide_sum, x, n, dims, true);
  x = TIDE__TEMP(&v, tide_reshape, x, m->ndim, m->shape);
  TIDE__DO(&v, tide_cast(out, x, m->dtype));
  return tide__temps_end(&v);
}

/* Computes x * factor. Adding -0 changes no number; adding 0 would make -0 a 0. */
int tide__times(tide_tensor **out, tide_tensor *x, double factor)
{
  return tide_affine(out, x, factor, -0.0);
}
