/* Shape algebra: broadcasting, strides, dim resolution. Pure functions of integers. */
#include "core/base/shape.h"
#include "core/base/base.h"

int64_t tide__numel(int ndim, const int64_t *shape)
{
  int64_t n = 1;
  bool empty = false, over = false;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] < 0) return -1;
    if (shape[d] == 0) empty = true;
    else if (__builtin_mul_overflow(n, shape[d], &n)) over = true;
    if (over) n = 1;
  }
  return empty ? 0 : over ? -1 : n;
}

bool tide__same_shape(int na, const int64_t *a, int nb, const int64_t *b)
{
  return na == nb && memcmp(a, b, (size_t)na * sizeof *a) == 0;
}

/* Writes the strides of a contiguous tensor. Those of a shape without elements are unused: its
 * sizes may overflow. */
void tide__strides_contiguous(int ndim, const int64_t *shape, int64_t *stride)
{
  uint64_t s = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    stride[d] = (int64_t)s;
    s *= shape[d] > 0 ? (uint64_t)shape[d] : 1;
  }
}

bool tide__is_contiguous(int ndim, const int64_t *shape, const int64_t *stride)
{
  uint64_t s = 1;
  for (int d = ndim - 1; d >= 0; d--) {
    if (shape[d] == 0) return true;
    if (shape[d] != 1 && stride[d] != (int64_t)s) return false;
    s *= (uint64_t)shape[d];
  }
  return true;
}

bool tide__broadcast(int na, const int64_t *a, int nb, const int64_t *b, int *nout, int64_t *out)
{
  int n = na > nb ? na : nb;
  for (int i = 1; i <= n; i++) {
    int64_t x = i <= na ? a[na - i] : 1, y = i <= nb ? b[nb - i] : 1;
    if (x != y && x != 1 && y != 1) return false;
    out[n - i] = x == 1 ? y : x;
  }
  *nout = n;
  return true;
}

bool tide__expand(int ndim, const int64_t *shape, const int64_t *stride, int nout,
                  const int64_t *out, int64_t *ostride)
{
  if (ndim > nout) return false;
  for (int i = 1; i <= nout; i++) {
    int64_t size = i <= ndim ? shape[ndim - i] : 1;
    if (size != out[nout - i] && size != 1) return false;
    ostride[nout - i] = i > ndim || size != out[nout - i] ? 0 : stride[ndim - i];
  }
  return true;
}

/* Walks both shapes from the right in groups of equal element count; a group of old dims can be
 * split differently only if its strides are those of one contiguous run. */
bool tide__reshape_view(int ndim, const int64_t *shape, const int64_t *stride, int nout,
                        const int64_t *out, int64_t *ostride)
{
  int64_t s[TIDE_MAX_DIM], t[TIDE_MAX_DIM];
  int n = 0;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] == 0) {
      tide__strides_contiguous(nout, out, ostride);
      return true;
    }
    if (shape[d] != 1) {
      s[n] = shape[d];
      t[n++] = stride[d];
    }
  }
  int i = n - 1, j = nout - 1;
  while (i >= 0) {
    int64_t have = s[i], run = t[i], want = 1, step = t[i];
    while (want != have || (j >= 0 && out[j] == 1)) {
      if (want < have || (want == have && out[j] == 1)) {
        if (j < 0) return false;
        ostride[j] = step * want;
        want *= out[j--];
      } else {
        if (--i < 0 || t[i] != run * s[i + 1]) return false;
        run = t[i];
        have *= s[i];
      }
    }
    i--;
  }
  for (; j >= 0; j--) ostride[j] = 1;
  return true;
}

int tide__resolve_dim(int dim, int ndim)
{
  if (dim < 0) dim += ndim;
  return dim >= 0 && dim < ndim ? dim : -1;
}

const char *tide__shape_text(int ndim, const int64_t *shape, char *buf, size_t n)
{
  size_t k = (size_t)snprintf(buf, n, "[");
  for (int d = 0; d < ndim && k < n; d++)
    k += (size_t)snprintf(buf + k, n - k, d ? ", %lld" : "%lld", (long long)shape[d]);
  if (k < n) snprintf(buf + k, n - k, "]");
  return buf;
}

const char *tide__typed_text(int dtype, int ndim, const int64_t *shape, char *buf, size_t n)
{
  snprintf(buf, n, "%s %s", tide_dtype_name(dtype), TIDE__SHAPE(ndim, shape));
  return buf;
}
