/* Ops that move elements, on the GPU: cat pad roll arange.
 *
 * A thread computes the source of its output element. Meaning: kernels/ref/movement.c.
 */
#include "kernels/cuda/elementwise_move.cuh"

namespace {

/* The shape of the output and the strides of both sides, not collapsed: dims keep their meaning. */
struct grid_of {
  int ndim;
  int64_t numel, shape[TIDE_MAX_DIM], xs[TIDE_MAX_DIM], ys[TIDE_MAX_DIM];
};

grid_of grid(const k_tensor &y, const k_tensor &x)
{
  grid_of g = {y.ndim, k_numel(&y), {}, {}, {}};
  for (int d = 0; d < y.ndim; d++) {
    g.shape[d] = y.shape[d];
    g.xs[d] = x.stride[d];
    g.ys[d] = y.stride[d];
  }
  return g;
}

struct box { int64_t before[TIDE_MAX_DIM], size[TIDE_MAX_DIM]; };

__global__ void pad_kernel(grid_of g, box b, tide_array y, tide_array x, double value)
{
  TIDE_GRID_LOOP(i, g.numel) {
    int64_t rest = i, from = 0, to = 0;
    bool inside = true;
    for (int d = g.ndim - 1; d >= 0; d--) {
      int64_t c = rest % g.shape[d], s = c - b.before[d];
      rest /= g.shape[d];
      inside = inside && s >= 0 && s < b.size[d];
      from += s * g.xs[d];
      to += c * g.ys[d];
    }
    if (inside) tide_move(y, to, x, from);
    else tide_put<double>(y, to, value);
  }
}

__global__ void roll_kernel(grid_of g, int dim, int64_t shift, tide_array y, tide_array x)
{
  TIDE_GRID_LOOP(i, g.numel) {
    int64_t rest = i, from = 0, to = 0;
    for (int d = g.ndim - 1; d >= 0; d--) {
      int64_t c = rest % g.shape[d], s = c;
      rest /= g.shape[d];
      if (d == dim) s = c >= shift ? c - shift : c - shift + g.shape[d];
      from += s * g.xs[d];
      to += c * g.ys[d];
    }
    tide_move(y, to, x, from);
  }
}

__global__ void arange_kernel(int64_t n, int64_t stride, double start, double step, bool exact,
                              tide_array y)
{
  TIDE_GRID_LOOP(i, n) {
    if (exact) {
      uint64_t v = (uint64_t)(int64_t)start + (uint64_t)i * (uint64_t)(int64_t)step;
      tide_put<int64_t>(y, i * stride, (int64_t)v);
    } else tide_put<double>(y, i * stride, start + (double)i * step);
  }
}

bool is_whole(double v) { return v == floor(v) && fabs(v) < 0x1p62; }

}  // namespace

int k_cuda_cat(const k_call *call)
{
  const k_tensor &y = call->out[0];
  int dim = static_cast<const k_dim_attrs *>(call->attrs)->dim, rc = TIDE_OK;
  int64_t begin = 0, size = y.dtype == TIDE_F64 || y.dtype == TIDE_I64 ? 8
    : y.dtype == TIDE_F32 || y.dtype == TIDE_I32 ? 4 : y.dtype == TIDE_U8 || y.dtype == TIDE_BOOL
    ? 1 : 2;
  for (int p = 0; p < call->nin && rc == TIDE_OK; p++) {
    const k_tensor &x = call->in[p];
    k_tensor part = y;
    part.data = static_cast<char *>(y.data) + begin * y.stride[dim] * size;
    part.shape[dim] = x.shape[dim];
    k_call copy = *call;
    copy.in = &x;
    copy.out = &part;
    if (k_numel(&x) > 0) rc = tide_convert(&copy);
    begin += x.shape[dim];
  }
  return rc;
}

int k_cuda_pad(const k_call *call)
{
  const k_tensor &x = call->in[0], &y = call->out[0];
  const k_pad_attrs *a = static_cast<const k_pad_attrs *>(call->attrs);
  box b = {};
  for (int d = 0; d < x.ndim; d++) b.before[d] = a->before[d], b.size[d] = x.shape[d];
  grid_of g = grid(y, x);
  TIDE_LAUNCH(pad_kernel, g.numel, call, g, b, tide_array_of(y), tide_array_of(x), a->value);
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_roll(const k_call *call)
{
  const k_tensor &x = call->in[0], &y = call->out[0];
  const k_roll_attrs *a = static_cast<const k_roll_attrs *>(call->attrs);
  int64_t size = y.ndim ? y.shape[a->dim] : 1;
  int64_t shift = a->shift % size + (a->shift % size < 0 ? size : 0);
  grid_of g = grid(y, x);
  TIDE_LAUNCH(roll_kernel, g.numel, call, g, a->dim, shift, tide_array_of(y), tide_array_of(x));
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_arange(const k_call *call)
{
  const k_tensor &y = call->out[0];
  const k_arange_attrs *a = static_cast<const k_arange_attrs *>(call->attrs);
  bool exact = !(1 << y.dtype & K_FLOAT) && is_whole(a->start) && is_whole(a->step);
  int64_t n = k_numel(&y);
  TIDE_LAUNCH(arange_kernel, n, call, n, y.ndim ? y.stride[0] : 0, a->start, a->step, exact,
              tide_array_of(y));
  return TIDE_CUDA_LAUNCHED(call);
}
