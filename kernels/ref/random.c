/* Defines the random ops: uniform_ normal_ trunc_normal_ dropout.
 *
 * An element's value is a pure function of (seed, stream, offset + global index), so a shard of a
 * tensor holds exactly the numbers that the whole tensor would hold there.
 */
#include "kernels/ref/draw.h"

static uint32_t word_at(const k_random_attrs *a, const ref_walk *w, int64_t i)
{
  int64_t g = a->start;
  if (a->ndim == 0) g += i;
  for (int d = 0; d < a->ndim; d++) g += w->at[d] * a->gstride[d];
  return tide__philox_word(a->seed, a->stream, a->offset + (uint64_t)g);
}

static int ref_fill(const k_call *call, double (*value)(const ref_draw *, uint32_t),
                    int (*prepare)(ref_draw *, const k_call *))
{
  const k_tensor *t = &call->out[0];
  ref_draw d = { 0 };
  k_random_attrs a = ref_placed(call, 0);
  int rc = prepare(&d, call);
  for (ref_walk w = ref_begin(t->shape, t->ndim); ref_more(&w) && rc == TIDE_OK; ref_step(&w))
    ref_put(t, ref_offset(&w, t), value(&d, word_at(&a, &w, w.i)));
  return rc;
}

int k_ref_uniform_(const k_call *call) { return ref_fill(call, ref_uniform, ref_draw_uniform); }
int k_ref_normal_(const k_call *call) { return ref_fill(call, ref_normal, ref_draw_normal); }
int k_ref_trunc_normal_(const k_call *call)
{
  return ref_fill(call, ref_trunc_normal, ref_draw_trunc_normal);
}

/* With p = 1 no element is kept, so the infinite scale is never used. */
int k_ref_dropout(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  k_random_attrs a = ref_placed(call, 1);
  double scale = 1 / (1 - a.a);
  int rc = ref_check_dropout(call);
  for (ref_walk w = ref_begin(y->shape, y->ndim); ref_more(&w) && rc == TIDE_OK; ref_step(&w)) {
    int kept = tide__philox_unit(word_at(&a, &w, w.i)) >= a.a;
    ref_put(y, ref_offset(&w, y), kept ? ref_get(x, ref_offset(&w, x)) * scale : 0);
  }
  return rc;
}
