/* The rows of a loss that count. See counted.h. */
#include "kernels/cpu/counted.h"

#include <string.h>

#include "kernels/cpu/row.h"
#include "kernels/ref/loss.h"

enum { GRAIN_BYTES = 1 << 16 }; /* per thread at least */

int64_t tide__counted_find(int64_t *index, const k_cross_entropy_attrs *attrs,
                           const k_tensor *targets)
{
  int64_t counted = 0;
  for (int64_t i = 0; i < targets->shape[0]; i++)
    if (loss_counted(attrs, targets, i) >= 0) index[counted++] = i;
  return counted;
}

typedef struct copy {
  const counted_rows *rows;
  const k_tensor *x;
  char *to;
  int64_t row_bytes;
} copy;

static void counted_copy(void *arg, int64_t begin, int64_t end, int thread)
{
  const copy *c = arg;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    char *to = c->to + i * c->row_bytes;
    if (i >= c->rows->counted) memset(to, 0, (size_t)c->row_bytes);
    else memcpy(to, row_at(c->x, c->rows->index[i] * c->x->stride[0]), (size_t)c->row_bytes);
  }
}

void tide__counted_gather(const counted_rows *rows, const k_call *call, const k_tensor *x,
                          void *x_to, const k_tensor *targets, int64_t *targets_to)
{
  const k_cross_entropy_attrs *attrs = call->attrs;
  copy c = { rows, x, x_to, x->shape[1] * vec_size(x->dtype) };
  tide__pool_for(call->nthread, rows->n, GRAIN_BYTES / (c.row_bytes + 1) + 1, counted_copy, &c);
  for (int64_t i = 0; i < rows->n; i++)
    targets_to[i] = i < rows->counted ? loss_target(targets, rows->index[i]) : attrs->ignore_index;
}

void tide__counted_spread(const counted_rows *rows, void *dx, int64_t all, int64_t row_bytes)
{
  char *base = dx;
  int64_t left = rows->counted;
  for (int64_t i = all - 1; i >= 0; i--) {
    char *to = base + i * row_bytes;
    if (left == 0 || rows->index[left - 1] != i) memset(to, 0, (size_t)row_bytes);
    else if (--left != i) memcpy(to, base + left * row_bytes, (size_t)row_bytes);
  }
}
