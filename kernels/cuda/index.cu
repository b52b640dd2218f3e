/* Indexing on the GPU: gather index_select embedding one_hot.
 *
 * An index out of range is skipped and reported (tide_report). The error is raised by a later call;
 * on the host it is raised before anything is written. Meaning: kernels/ref/index.c.
 */
#include "kernels/cuda/elementwise_move.cuh"

namespace {

tide_reporter reporter(const k_call *call, int64_t limit)
{
  return {tide_cuda_fault_of(call), TIDE_FAULT_INDEX, call->op, limit, 0};
}

int64_t dim_of(const k_call *call) { return static_cast<const k_dim_attrs *>(call->attrs)->dim; }

/* One dim is looked up; the others are walked. along: the stride of the index over that dim. */
struct lookup {
  int ndim, dim;
  int64_t numel, shape[TIDE_MAX_DIM], xs[TIDE_MAX_DIM], ys[TIDE_MAX_DIM], is[TIDE_MAX_DIM];
};

__global__ void gather_kernel(lookup l, tide_array y, tide_array x, tide_array index,
                              tide_reporter r)
{
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t rest = i, from = 0, to = 0, where = 0;
    for (int d = l.ndim - 1; d >= 0; d--) {
      int64_t c = rest % l.shape[d];
      rest /= l.shape[d];
      if (d != l.dim) from += c * l.xs[d];
      to += c * l.ys[d];
      where += c * l.is[d];
    }
    int64_t v = tide_at<int64_t>(index, where);
    if (v < 0 || v >= r.limit) tide_report(r, v, i);
    else tide_move(y, to, x, from + v * l.xs[l.dim]);
  }
}

/* ---- whole rows that lie in packs ------------------------------------------------------------ */

/* Row i of y is row index[i] of x: `packs` packs of 16 bytes, at multiples of them. */
struct row_packs {
  tide_layout row; /* over the indices: offsets of index [0] and y [1] */
  uint32_t packs;
  int64_t x_stride;
};

enum { EACH = 4 };

__global__ void __launch_bounds__(TIDE_PACK_THREADS)
rows_kernel(row_packs p, uint4 *y, const uint4 *x, tide_array index, tide_reporter r)
{
  const int64_t n = p.row.numel * p.packs;
  const int64_t first = blockIdx.x * (int64_t)(TIDE_PACK_THREADS * EACH) + threadIdx.x;
  int64_t from[EACH], to[EACH];
  uint4 v[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    const int64_t i = first + k * TIDE_PACK_THREADS;
    from[k] = -1;
    if (i >= n) continue;
    const uint32_t row = (uint32_t)i / p.packs, pack = (uint32_t)i - row * p.packs;
    int64_t at[2];
    tide_offsets<2>(p.row, row, at);
    const int64_t id = tide_at<int64_t>(index, at[0]);
    if (id < 0 || id >= r.limit) {
      if (pack == 0) tide_report(r, id, row);
      continue;
    }
    from[k] = id * p.x_stride + pack;
    to[k] = at[1] + pack;
  }
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (from[k] >= 0) v[k] = x[from[k]];
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (from[k] >= 0) tide_store16(y + to[k], v[k]);
}

/* Returns whether rows are copied in packs: `width` elements that run by ones in x and y, x's
 * x_stride apart. p->row, with y's strides in elements, is turned into packs. */
bool in_packs(row_packs *p, const k_tensor &x, const k_tensor &y, int64_t width)
{
  const int n = 16 / tide_size_of(x.dtype);
  if (x.dtype != y.dtype || !tide_aligned(x.data) || !tide_aligned(y.data)) return false;
  if (width == 0 || width % n || p->x_stride % n || width / n * p->row.numel > INT32_MAX)
    return false;
  for (int d = 0; d < p->row.ndim; d++) {
    if (p->row.stride[1][d] % n) return false;
    p->row.stride[1][d] /= n;
  }
  p->packs = (uint32_t)(width / n);
  p->x_stride /= n;
  return true;
}

int run_rows(const k_call *call, const row_packs &p, const k_tensor &x, const k_tensor &index,
             const k_tensor &y)
{
  const int64_t n = p.row.numel * p.packs, block = TIDE_PACK_THREADS * EACH;
  if (n > 0)
    TIDE_CUDA_LAUNCH(call, rows_kernel, (unsigned)((n + block - 1) / block), TIDE_PACK_THREADS, 0,
                     p, tide_data<uint4>(y), tide_data<const uint4>(x), tide_array_of(index),
                     reporter(call, x.shape[0]));
  return TIDE_CUDA_LAUNCHED(call);
}

tide_layout layout2(const k_tensor &a, const k_tensor &b)
{
  const k_tensor *both[2] = {&a, &b};
  return tide_layout_of(2, both);
}

int run_gather(const k_call *call, bool whole)
{
  const k_tensor &x = call->in[0], &index = call->in[1], &y = call->out[0];
  if (!whole && dim_of(call) == 0) {
    const tide_layout rest = layout2(k_dims(&x, 1, x.ndim), k_dims(&y, 1, y.ndim));
    row_packs p = {layout2(index, k_dims(&y, 0, 1)), 0, x.stride[0]};
    if (tide_layout_flat(rest, 2) && in_packs(&p, x, y, rest.numel))
      return run_rows(call, p, x, index, y);
  }
  lookup l = {y.ndim, (int)dim_of(call), k_numel(&y), {}, {}, {}, {}};
  for (int d = 0; d < y.ndim; d++) {
    l.shape[d] = y.shape[d], l.xs[d] = x.stride[d], l.ys[d] = y.stride[d];
    l.is[d] = whole ? index.stride[d] : d == l.dim ? index.stride[0] : 0;
  }
  TIDE_LAUNCH(gather_kernel, l.numel, call, l, tide_array_of(y), tide_array_of(x),
              tide_array_of(index), reporter(call, x.shape[l.dim]));
  return TIDE_CUDA_LAUNCHED(call);
}

/* ---- embedding, one_hot: the index belongs to a row of y ------------------------------------- */

__global__ void embedding_kernel(tide_layout row, int64_t width, int64_t ys, int64_t ws,
                                 int64_t vs, tide_array y, tide_array weight, tide_array ids,
                                 tide_reporter r)
{
  TIDE_ROW_LOOP(i, row.numel) {
    int64_t at[2];
    tide_offsets<2>(row, i, at);
    int64_t v = tide_at<int64_t>(ids, at[0]);
    if (v < 0 || v >= r.limit) {
      if (threadIdx.x == 0) tide_report(r, v, i);
      continue;
    }
    TIDE_LANE_LOOP(d, width) tide_move(y, at[1] + d * ys, weight, v * vs + d * ws);
  }
}

__global__ void one_hot_kernel(tide_layout row, int64_t width, int64_t ys, tide_array y,
                               tide_array ids, tide_reporter r)
{
  TIDE_GRID_LOOP(i, row.numel * width) {
    int64_t at[2], d = i % width;
    tide_offsets<2>(row, i / width, at);
    int64_t v = tide_at<int64_t>(ids, at[0]);
    if (v < 0 || v >= r.limit) tide_report(r, v, i / width);
    else tide_put<int64_t>(y, at[1] + d * ys, v == d);
  }
}

}  // namespace

int k_cuda_gather(const k_call *call) { return run_gather(call, true); }
int k_cuda_index_select(const k_call *call) { return run_gather(call, false); }

int k_cuda_embedding(const k_call *call)
{
  const k_tensor &weight = call->in[0], &ids = call->in[1], &y = call->out[0];
  int last = y.ndim - 1;
  tide_layout row = layout2(ids, k_dims(&y, 0, last));
  row_packs p = {row, 0, weight.stride[0]};
  if (y.stride[last] == 1 && weight.stride[1] == 1 && in_packs(&p, weight, y, y.shape[last]))
    return run_rows(call, p, weight, ids, y);
  TIDE_CUDA_LAUNCH(call, embedding_kernel, tide_row_blocks(row.numel),
                   tide_row_threads(y.shape[last]), 0, row, y.shape[last], y.stride[last],
                   weight.stride[1], weight.stride[0], tide_array_of(y), tide_array_of(weight),
                   tide_array_of(ids), reporter(call, weight.shape[0]));
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_one_hot(const k_call *call)
{
  const k_tensor &ids = call->in[0], &y = call->out[0];
  int last = y.ndim - 1;
  tide_layout row = layout2(ids, k_dims(&y, 0, last));
  TIDE_LAUNCH(one_hot_kernel, row.numel * y.shape[last], call, row, y.shape[last], y.stride[last],
              tide_array_of(y), tide_array_of(ids), reporter(call, y.shape[last]));
  return TIDE_CUDA_LAUNCHED(call);
}
