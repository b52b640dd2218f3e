/* topk: the largest or smallest elements along a dim, and where they are.
 *
 * The kernel finds positions, which have no gradient. Values are then gathered, so that theirs is
 * the gradient of gather.
 */
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

int tide_topk(tide_tensor **values, tide_tensor **index, tide_tensor *x, int64_t k, int dim,
              bool smallest)
{
  tide__call c;
  tide__temps v = {0};
  tide_tensor *moved = NULL, *found = NULL;
  int64_t shape[TIDE_MAX_DIM];
  *values = *index = NULL;
  TIDE_TRY(tide__begin(&c, TIDE_OP_TOPK, NULL, 1, &x, 0));
  int d = tide__check_dim(x, dim, TIDE__NAME(&c)), last = x->ndim - 1;
  if (d < 0) return d;
  if (k < 0 || k > x->shape[d])
    return TIDE__FAIL(&c, TIDE_E_ARG, "k: expected 0 to %lld, the size of x along dim, got "
                      "%lld", (long long)x->shape[d], (long long)k);
  c.attrs.topk.smallest = smallest;
  TIDE__UNRECORDED(c.ctx, moved = TIDE__TEMP(&v, tide_transpose, x, d, -1));
  if (moved) {
    memcpy(shape, moved->shape, sizeof shape);
    shape[last] = k;
    c.in_[0] = moved;
  }
  TIDE__DO(&v, tide__dispatch_one(&c, &found, TIDE_I64, x->ndim, shape));
  TIDE__DO(&v, tide_transpose(index, found, d, -1));
  TIDE__DO(&v, tide_gather(values, x, d, *index));
  tide_tensor_release(found);
  int rc = tide__relabel(c.ctx, tide__temps_end(&v), TIDE__NAME(&c));
  if (rc != TIDE_OK) {
    tide_tensor_release(*index);
    *index = NULL;
  }
  return rc;
}
