/* Indexing on the GPU: gather scatter_add index_select index_add embedding one_hot.
 *
 * Terms with the same target are summed by the thread of the first of them, in index order: no
 * atomics, and an order that never changes. Finding the first reads the indices before it, K^2 / 2
 * reads for K indices, which the cache makes cheap up to some ten thousand.
 *
 * An index out of range is skipped and reported (tide_report). The error is raised by a later call;
 * on the host it is raised before anything is written. Meaning: kernels/ref/index.c.
 */
#include "kernels/cuda/elementwise.cuh"

namespace {

enum { WIDTH = 256, PER_THREAD = 4 };

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

int run_gather(const k_call *call, bool whole)
{
  const k_tensor &x = call->in[0], &index = call->in[1], &y = call->out[0];
  lookup l = {y.ndim, (int)dim_of(call), k_numel(&y), {}, {}, {}, {}};
  for (int d = 0; d < y.ndim; d++) {
    l.shape[d] = y.shape[d], l.xs[d] = x.stride[d], l.ys[d] = y.stride[d];
    l.is[d] = whole ? index.stride[d] : d == l.dim ? index.stride[0] : 0;
  }
  TIDE_LAUNCH(gather_kernel, l.numel, call, l, tide_array_of(y), tide_array_of(x),
              tide_array_of(index), reporter(call, x.shape[l.dim]));
  return TIDE_CUDA_LAUNCHED(call);
}

/* ---- scatter_add: a thread a term ------------------------------------------------------------ */

template <class T>
__global__ void scatter_kernel(lookup l, tide_array t, tide_array src, tide_array index,
                               tide_reporter r)
{
  int64_t n = l.shape[l.dim], step = l.is[l.dim];
  TIDE_GRID_LOOP(i, l.numel) {
    int64_t rest = i, from = 0, to = 0, where = 0, mine = 0;
    for (int d = l.ndim - 1; d >= 0; d--) {
      int64_t c = rest % l.shape[d];
      rest /= l.shape[d];
      if (d == l.dim) {
        mine = c;
        continue;
      }
      from += c * l.xs[d];
      to += c * l.ys[d];
      where += c * l.is[d];
    }
    int64_t v = tide_at<int64_t>(index, where + mine * step);
    if (v < 0 || v >= r.limit) {
      tide_report(r, v, i);
      continue;
    }
    bool first = true;
    for (int64_t j = 0; first && j < mine; j++)
      first = tide_at<int64_t>(index, where + j * step) != v;
    if (!first) continue;
    int64_t at = to + v * l.ys[l.dim];
    T sum = tide_at<T>(t, at);
    for (int64_t j = mine; j < n; j++)
      if (tide_at<int64_t>(index, where + j * step) == v)
        sum += tide_at<T>(src, from + j * l.xs[l.dim]);
    tide_put<T>(t, at, sum);
  }
}

/* ---- index_add, embedding_bwd: a block an index, threads along everything else --------------- */

struct rows_of {
  tide_layout row;  /* over the indices: offsets of index [0] and src [1] */
  tide_layout rest; /* over the other dims: offsets of t [0] and src [1] */
  int64_t t_stride; /* of t along the looked-up dim */
};

/* Which of the indices [j0, j0 + WIDTH) equal v, as bits in shared memory. */
TIDE_DEVICE void match(const tide_layout &row, const tide_array &index, int64_t j0, int64_t v,
                       unsigned *bits)
{
  int64_t j = j0 + threadIdx.x, at[2];
  bool same = false;
  if (j < row.numel) {
    tide_offsets<2>(row, j, at);
    same = tide_at<int64_t>(index, at[0]) == v;
  }
  unsigned ballot = __ballot_sync(0xffffffffu, same);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) bits[threadIdx.x >> 5] = ballot;
  __syncthreads();
}

TIDE_DEVICE bool comes_first(const tide_layout &row, const tide_array &index, int64_t mine,
                             int64_t v, unsigned *bits)
{
  for (int64_t j0 = 0; j0 < mine; j0 += WIDTH) {
    match(row, index, j0, v, bits);
    for (int w = 0; w < WIDTH / 32; w++) {
      int64_t left = mine - (j0 + w * 32); /* only those before mine */
      unsigned below = left <= 0 ? 0 : left >= 32 ? 0xffffffffu : (1u << left) - 1;
      if (bits[w] & below) return false;
    }
  }
  return true;
}

/* acc += the rows of src that belong to v, from `mine` on, in order. */
template <class T>
TIDE_DEVICE void add_rows(const rows_of &p, const tide_array &src, const tide_array &index,
                          int64_t mine, int64_t v, const int64_t *off, int count, unsigned *bits,
                          T *acc)
{
  for (int64_t j0 = mine / WIDTH * WIDTH; j0 < p.row.numel; j0 += WIDTH) {
    match(p.row, index, j0, v, bits);
    for (int w = 0; w < WIDTH / 32; w++)
      for (unsigned left = bits[w]; left; left &= left - 1) {
        int64_t j = j0 + w * 32 + __ffs(left) - 1, at[2];
        tide_offsets<2>(p.row, j, at);
        for (int k = 0; k < count; k++) acc[k] += tide_at<T>(src, at[1] + off[k]);
      }
  }
}

template <class T>
__global__ void index_add_kernel(rows_of p, tide_array t, tide_array src, tide_array index,
                                 tide_reporter r)
{
  __shared__ unsigned bits[WIDTH / 32];
  int64_t mine = blockIdx.x, at[2];
  tide_offsets<2>(p.row, mine, at);
  int64_t v = tide_at<int64_t>(index, at[0]);
  if (v < 0 || v >= r.limit) {
    if (threadIdx.x == 0 && blockIdx.y == 0) tide_report(r, v, mine);
    return;
  }
  if (!comes_first(p.row, index, mine, v, bits)) return;
  const int64_t span = WIDTH * PER_THREAD;
  for (int64_t e0 = blockIdx.y * span; e0 < p.rest.numel; e0 += gridDim.y * span) {
    int64_t to[PER_THREAD], from[PER_THREAD];
    T acc[PER_THREAD];
    int count = 0;
    for (int k = 0; k < PER_THREAD; k++) {
      int64_t e = e0 + k * WIDTH + threadIdx.x;
      if (e >= p.rest.numel) break;
      tide_offsets<2>(p.rest, e, at);
      to[k] = at[0] + v * p.t_stride, from[k] = at[1];
      acc[k] = tide_at<T>(t, to[k]);
      count++;
    }
    add_rows(p, src, index, mine, v, from, count, bits, acc);
    for (int k = 0; k < count; k++) tide_put<T>(t, to[k], acc[k]);
  }
}

template <class T>
int run_index_add(const k_call *call, const rows_of &p, const k_tensor &index, const k_tensor &src,
                  int64_t limit)
{
  if (p.row.numel == 0 || p.rest.numel == 0) return TIDE_OK;
  int64_t spans = (p.rest.numel + WIDTH * PER_THREAD - 1) / (WIDTH * PER_THREAD);
  dim3 grid((unsigned)p.row.numel, (unsigned)(spans < 4096 ? spans : 4096));
  TIDE_CUDA_LAUNCH(call, index_add_kernel<T>, grid, WIDTH, 0, p, tide_array_of(call->out[0]),
                   tide_array_of(src), tide_array_of(index), reporter(call, limit));
  return TIDE_CUDA_LAUNCHED(call);
}

int index_add(const k_call *call, const rows_of &p, const k_tensor &index, const k_tensor &src,
              int64_t limit)
{
  int dtype = call->out[0].dtype;
  if (dtype == TIDE_F64) return run_index_add<double>(call, p, index, src, limit);
  return 1 << dtype & K_FLOAT ? run_index_add<float>(call, p, index, src, limit)
                              : run_index_add<int64_t>(call, p, index, src, limit);
}

/* t without dim d. */
k_tensor without(const k_tensor &t, int dim)
{
  k_tensor r = t;
  r.ndim = 0;
  for (int d = 0; d < t.ndim; d++)
    if (d != dim) r.shape[r.ndim] = t.shape[d], r.stride[r.ndim++] = t.stride[d];
  return r;
}

k_tensor only(const k_tensor &t, int from, int to)
{
  k_tensor r = t;
  r.ndim = 0;
  for (int d = from; d < to; d++) r.shape[r.ndim] = t.shape[d], r.stride[r.ndim++] = t.stride[d];
  return r;
}

tide_layout layout2(const k_tensor &a, const k_tensor &b)
{
  const k_tensor *both[2] = {&a, &b};
  return tide_layout_of(2, both);
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

int k_cuda_scatter_add(const k_call *call)
{
  const k_tensor &index = call->in[0], &src = call->in[1], &t = call->out[0];
  lookup l = {t.ndim, (int)dim_of(call), k_numel(&index), {}, {}, {}, {}};
  for (int d = 0; d < t.ndim; d++) {
    l.shape[d] = index.shape[d], l.is[d] = index.stride[d];
    l.xs[d] = src.stride[d], l.ys[d] = t.stride[d];
  }
  if (l.numel == 0) return TIDE_OK;
  tide_array to = tide_array_of(t), from = tide_array_of(src), at = tide_array_of(index);
  tide_reporter r = reporter(call, t.shape[l.dim]);
  if (t.dtype == TIDE_F64)
    TIDE_LAUNCH(scatter_kernel<double>, l.numel, call, l, to, from, at, r);
  else if (1 << t.dtype & K_FLOAT)
    TIDE_LAUNCH(scatter_kernel<float>, l.numel, call, l, to, from, at, r);
  else TIDE_LAUNCH(scatter_kernel<int64_t>, l.numel, call, l, to, from, at, r);
  return TIDE_CUDA_LAUNCHED(call);
}

int k_cuda_index_add(const k_call *call)
{
  const k_tensor &index = call->in[0], &src = call->in[1], &t = call->out[0];
  int dim = (int)dim_of(call);
  rows_of p = {layout2(index, only(src, dim, dim + 1)), layout2(without(t, dim), without(src, dim)),
               t.stride[dim]};
  return index_add(call, p, index, src, t.shape[dim]);
}

int k_cuda_embedding_bwd(const k_call *call)
{
  const k_tensor &dy = call->in[0], &ids = call->in[1], &t = call->out[0];
  int last = dy.ndim - 1;
  size_t size = t.dtype == TIDE_F64 ? 8 : t.dtype == TIDE_F32 ? 4 : 2;
  int rc = tide_cuda_check(call, cudaMemsetAsync(t.data, 0, (size_t)k_numel(&t) * size,
                                                 tide_cuda_stream(call)));
  if (rc < 0) return rc;
  rows_of p = {layout2(ids, only(dy, 0, last)), layout2(only(t, 1, 2), only(dy, last, last + 1)),
               t.stride[0]};
  return index_add(call, p, ids, dy, t.shape[0]);
}

int k_cuda_embedding(const k_call *call)
{
  const k_tensor &weight = call->in[0], &ids = call->in[1], &y = call->out[0];
  int last = y.ndim - 1;
  tide_layout row = layout2(ids, only(y, 0, last));
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
  tide_layout row = layout2(ids, only(y, 0, last));
  TIDE_LAUNCH(one_hot_kernel, row.numel * y.shape[last], call, row, y.shape[last], y.stride[last],
              tide_array_of(y), tide_array_of(ids), reporter(call, y.shape[last]));
  return TIDE_CUDA_LAUNCHED(call);
}
