/* Defines groups of rows and their products: group_rows, which finds them, grouped_linear, its
 * gradient of w, and that gradient added. Sums are accumulated in f64 and rounded once. See
 * kernel.h for operands. */
#include "kernels/ref/grouped.h"

/* Puts sum_p a[ai + p * as] b[bi + p * bs] at y[yi], on top of what is there if `add`. */
typedef struct grouped_dot {
  const k_tensor *a, *b, *y;
  int64_t ai, as, bi, bs, yi, n;
  int add;
} grouped_dot;

static void grouped_put(const grouped_dot *d)
{
  double s = 0;
  for (int64_t p = 0; p < d->n; p++)
    s += ref_get(d->a, d->ai + p * d->as) * ref_get(d->b, d->bi + p * d->bs);
  if (d->add) s += ref_get(d->y, d->yi);
  ref_put(d->y, d->yi, s);
}

int k_ref_grouped_linear(const k_call *call)
{
  const k_tensor *x = &call->in[0], *w = &call->in[1], *offsets = &call->in[2], *y = &call->out[0];
  int64_t groups = w->shape[0], last = groups - 1;
  TIDE_TRY(ref_check_offsets(call, offsets, x->shape[0]));
  for (int64_t r = 0, g = -1; r < x->shape[0]; r++) {
    while (g < last && r >= ref_offset_of(offsets, g + 1)) g++;
    int in = g >= 0 && r < ref_offset_of(offsets, g + 1); /* else in no group: zeros */
    for (int64_t c = 0; c < w->shape[1]; c++) {
      grouped_dot d = {.a = x, .b = w, .y = y, .n = in ? x->shape[1] : 0};
      d.ai = r * x->stride[0], d.as = x->stride[1];
      d.bi = (in ? g : 0) * w->stride[0] + c * w->stride[1], d.bs = w->stride[2];
      d.yi = r * y->stride[0] + c * y->stride[1];
      grouped_put(&d);
    }
  }
  return TIDE_OK;
}

/* Writes the product of each group's rows of a, transposed, and b to y[g]. */
static int ref_grouped_outer(const k_call *call, int add)
{
  const k_tensor *a = &call->in[0], *b = &call->in[1], *offsets = &call->in[2], *y = &call->out[0];
  TIDE_TRY(ref_check_offsets(call, offsets, a->shape[0]));
  for (int64_t g = 0; g < y->shape[0]; g++) {
    int64_t first = ref_offset_of(offsets, g), n = ref_offset_of(offsets, g + 1) - first;
    for (int64_t r = 0; r < y->shape[1]; r++)
      for (int64_t c = 0; c < y->shape[2]; c++) {
        grouped_dot d = {.a = a, .b = b, .y = y, .n = n, .add = add};
        d.ai = first * a->stride[0] + r * a->stride[1], d.as = a->stride[0];
        d.bi = first * b->stride[0] + c * b->stride[1], d.bs = b->stride[0];
        d.yi = g * y->stride[0] + r * y->stride[1] + c * y->stride[2];
        grouped_put(&d);
      }
  }
  return TIDE_OK;
}

int k_ref_grouped_linear_bwd(const k_call *call) { return ref_grouped_outer(call, 0); }
int k_ref_grouped_addmm_(const k_call *call) { return ref_grouped_outer(call, 1); }

/* ---- group_rows ------------------------------------------------------------------------------ */

/* Returns the group of a choice, or -1 if it is in no group. */
static int64_t group_of(const k_tensor *ids, const ref_walk *w, int64_t groups)
{
  int64_t g = ref_get_int(ids, ref_offset(w, ids));
  return g >= 0 && g < groups ? g : -1;
}

int k_ref_group_rows(const k_call *call)
{
  const k_tensor *ids = &call->in[0];
  const int64_t groups = call->out[2].shape[0] - 1, each = ids->ndim == 2 ? ids->shape[1] : 1;
  int64_t *rows = call->out[0].data, *place = call->out[1].data, *next = call->out[2].data;
  memset(next, 0, (size_t)(groups + 1) * sizeof *next);
  for (ref_walk w = ref_begin(ids->shape, ids->ndim); ref_more(&w); ref_step(&w)) {
    int64_t g = group_of(ids, &w, groups);
    if (g >= 0) next[g + 1]++;
  }
  for (int64_t g = 0; g < groups; g++) next[g + 1] += next[g];
  int64_t rest = next[groups]; /* the next slot of no group; next[g] is that of group g */
  for (ref_walk w = ref_begin(ids->shape, ids->ndim); ref_more(&w); ref_step(&w)) {
    int64_t g = group_of(ids, &w, groups), slot = g >= 0 ? next[g]++ : rest++;
    place[w.i] = slot;
    rows[slot] = w.i / each;
  }
  for (int64_t g = groups; g > 0; g--) next[g] = next[g - 1]; /* each had reached the group after */
  next[0] = 0;
  return TIDE_OK;
}
