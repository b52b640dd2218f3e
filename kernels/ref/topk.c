/* Defines topk: positions of the first k elements of each row in an order.
 *
 * Largest first, or smallest first; NaN is larger than every number. Equal elements follow their
 * positions. Each position is found by a pass over the row for the first element after the one
 * before.
 */
#include "kernels/ref/order.h"

int k_ref_topk(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  const int last = x->ndim - 1, smallest = ((const k_topk_attrs *)call->attrs)->smallest;
  const int64_t n = x->shape[last], k = y->shape[last], step = x->stride[last];
  for (ref_walk w = ref_begin(x->shape, last); ref_more(&w); ref_step(&w)) {
    int64_t base = ref_offset(&w, x), before = -1;
    for (int64_t i = 0; i < k; i++) {
      int64_t best = -1;
      for (int64_t j = 0; j < n; j++) {
        if (before >= 0 && !ref_precedes(x, base, step, before, j, smallest)) continue;
        if (best < 0 || ref_precedes(x, base, step, j, best, smallest)) best = j;
      }
      ref_put_int(y, w.i * k + i, before = best);
    }
  }
  return TIDE_OK;
}
