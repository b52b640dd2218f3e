/* Sums into places that an index names: scatter_add index_add embedding_bwd.
 *
 * The indices are sorted with their positions, so that terms of one target follow each other, in
 * index order. Every PIECE sorted terms are summed by threads of their own; a target whose terms
 * lie in several pieces is put together from their sums afterwards. No atomics, and an order that
 * the indices alone decide.
 *
 * An index out of range is skipped and reported (tide_report). Meaning: kernels/ref/index.c.
 */
#include "kernels/cuda/elementwise_move.cuh"
#include "kernels/cuda/sort.cuh"

namespace {

enum { PIECE = 32, THREADS = 256 };

int64_t pieces_of(int64_t n) { return (n + PIECE - 1) / PIECE; }

/* Scratch of n terms of `width` numbers of type T: part [pieces][2][width], the sums of a piece's
 * terms that go on from the piece before, and of those that go on in the next; then the sort's. */
int64_t part_bytes(int64_t n, int64_t width, int size)
{
  return (pieces_of(n) * 2 * width * size + 63) / 64 * 64;
}

int size_of_sum(int dtype) { return 1 << dtype & (K_F32 | K_BF16 | K_F16) ? 4 : 8; }

tide_reporter reporter(const k_call *call, int64_t limit)
{
  return {tide_cuda_fault_of(call), TIDE_FAULT_INDEX, call->op, limit, 0};
}

/* Returns the last of the sorted terms from `at` on that has the key of term `at`. */
TIDE_DEVICE int64_t end_of_run(const tide_keyed *items, int64_t n, int64_t at)
{
  const uint64_t key = items[at].key;
  int64_t lo = at, hi = n - 1;
  while (lo < hi) {
    const int64_t mid = (lo + hi + 1) / 2;
    if (items[mid].key == key) lo = mid;
    else hi = mid - 1;
  }
  return lo;
}

/* Returns the sum of a target whose terms begin in piece c and end in a later one, in the order of
 * pieces. part: the column of [piece 0][0]; step: from a sum of a piece to the next. */
template <class T>
TIDE_DEVICE T sum_of_pieces(const T *part, int64_t step, int64_t c, int64_t last)
{
  T sum = part[(2 * c + 1) * step];
#pragma unroll 8
  for (int64_t k = c + 1; k <= last; k++) sum += part[2 * k * step];
  return sum;
}

/* ---- scatter_add ----------------------------------------------------------------------------- */

/* One dim is looked up; the others are walked. */
struct lookup {
  int ndim, dim;
  int64_t numel, shape[TIDE_MAX_DIM], xs[TIDE_MAX_DIM], ys[TIDE_MAX_DIM], is[TIDE_MAX_DIM];
};

struct spot { int64_t line, from, to, where; }; /* the line, and offsets of src, t and index */

TIDE_DEVICE spot spot_of(const lookup &l, int64_t i)
{
  spot s = {0, 0, 0, 0};
  int64_t lines = 1;
  for (int d = l.ndim - 1; d >= 0; d--) {
    const int64_t c = i % l.shape[d];
    i /= l.shape[d];
    s.from += c * l.xs[d];
    s.where += c * l.is[d];
    if (d == l.dim) continue;
    s.to += c * l.ys[d];
    s.line += c * lines;
    lines *= l.shape[d];
  }
  return s;
}

/* Writes the key of each term, its target: line * limit + index; `wrong`, beyond them all, if it
 * has none. */
__global__ void scatter_keys_kernel(lookup l, tide_array index, tide_keyed *items, uint64_t wrong,
                                    tide_reporter r)
{
  TIDE_GRID_LOOP(i, l.numel) {
    const spot s = spot_of(l, i);
    const int64_t v = tide_at<int64_t>(index, s.where);
    const bool good = v >= 0 && v < r.limit;
    if (!good) tide_report(r, v, i);
    items[i] = {good ? (uint64_t)(s.line * r.limit + v) : wrong, i};
  }
}

template <class T> TIDE_DEVICE void add_to(const tide_array &t, int64_t at, T v)
{
  tide_put<T>(t, at, tide_at<T>(t, at) + v);
}

/* Sums the terms of a target in a piece; the thread of the first of them does it. */
template <class T>
__global__ void scatter_kernel(lookup l, const tide_keyed *items, uint64_t wrong, int64_t limit,
                               tide_array t, tide_array src, T *part)
{
  TIDE_GRID_LOOP(i, l.numel) {
    const uint64_t key = items[i].key;
    const bool goes_on = i > 0 && items[i - 1].key == key;
    if (key == wrong || (goes_on && i % PIECE)) continue;
    const spot s = spot_of(l, items[i].at);
    T sum = tide_at<T>(src, s.from);
    int64_t k = i + 1;
    for (; k % PIECE && k < l.numel && items[k].key == key; k++)
      sum += tide_at<T>(src, spot_of(l, items[k].at).from);
    const bool more = k < l.numel && items[k].key == key;
    if (goes_on) part[2 * (i / PIECE)] = sum;
    else if (more) part[2 * (i / PIECE) + 1] = sum;
    else add_to(t, s.to + (int64_t)(key % (uint64_t)limit) * l.ys[l.dim], sum);
  }
}

template <class T>
__global__ void scatter_end_kernel(lookup l, const tide_keyed *items, uint64_t wrong, int64_t limit,
                                   tide_array t, const T *part)
{
  TIDE_GRID_LOOP(c, l.numel / PIECE) {
    const int64_t last = c * PIECE + PIECE - 1;
    const uint64_t key = items[last].key;
    if (key == wrong || last + 1 >= l.numel || items[last + 1].key != key) continue;
    if (c > 0 && items[c * PIECE - 1].key == key) continue; /* it began before */
    const T sum = sum_of_pieces(part, 1, c, end_of_run(items, l.numel, last) / PIECE);
    const int64_t to = spot_of(l, items[last].at).to;
    add_to(t, to + (int64_t)(key % (uint64_t)limit) * l.ys[l.dim], sum);
  }
}

/* Lines of one index each: no target has two terms. */
template <class T>
__global__ void scatter_once_kernel(lookup l, tide_array t, tide_array src, tide_array index,
                                    tide_reporter r)
{
  TIDE_GRID_LOOP(i, l.numel) {
    const spot s = spot_of(l, i);
    const int64_t v = tide_at<int64_t>(index, s.where);
    if (v < 0 || v >= r.limit) tide_report(r, v, i);
    else add_to(t, s.to + v * l.ys[l.dim], tide_at<T>(src, s.from));
  }
}

template <class T> int run_scatter(const k_call *call, const lookup &l)
{
  const tide_array index = tide_array_of(call->in[0]), src = tide_array_of(call->in[1]);
  const tide_array t = tide_array_of(call->out[0]);
  const int64_t limit = call->out[0].shape[l.dim], n = l.numel;
  const tide_reporter r = reporter(call, limit);
  if (l.shape[l.dim] == 1) {
    TIDE_LAUNCH(scatter_once_kernel<T>, n, call, l, t, src, index, r);
    return TIDE_CUDA_LAUNCHED(call);
  }
  T *part = static_cast<T *>(call->work);
  void *sort = static_cast<char *>(call->work) + part_bytes(n, 1, sizeof(T));
  const uint64_t wrong = (uint64_t)(n / l.shape[l.dim]) * (uint64_t)limit;
  TIDE_LAUNCH(scatter_keys_kernel, n, call, l, index, static_cast<tide_keyed *>(sort), wrong, r);
  const tide_keyed *items = tide_sort(call, sort, n, wrong);
  TIDE_LAUNCH(scatter_kernel<T>, n, call, l, items, wrong, limit, t, src, part);
  TIDE_LAUNCH(scatter_end_kernel<T>, n / PIECE, call, l, items, wrong, limit, t, part);
  return TIDE_CUDA_LAUNCHED(call);
}

/* ---- index_add, embedding_bwd: a block a piece, threads along everything else ---------------- */

struct rows_of {
  tide_layout row;  /* over the indices: offsets of index [0] and src [1] */
  tide_layout rest; /* over the other dims: offsets of t [0] and src [1] */
  int64_t t_stride; /* of t along the looked-up dim */
};

__global__ void row_keys_kernel(tide_layout row, tide_array index, tide_keyed *items,
                                tide_reporter r)
{
  TIDE_GRID_LOOP(i, row.numel) {
    int64_t at[2];
    tide_offsets<2>(row, i, at);
    const int64_t v = tide_at<int64_t>(index, at[0]);
    const bool good = v >= 0 && v < r.limit;
    if (!good) tide_report(r, v, i);
    items[i] = {(uint64_t)(good ? v : r.limit), at[1]};
  }
}

/* What a thread adds up of each row: a pack of E, or one element of any dtype and strides. */
template <class E> struct pack_columns {
  enum { size = tide_wide<E> };
  using T = tide_real<E>;
  using held = tide_pack<E, size>;
  E *t;
  const E *src;
  int64_t at;
  TIDE_DEVICE void place(const tide_layout &, int64_t column) { at = column * size; }
  TIDE_DEVICE held read(int64_t row) const { return tide_pack_from<size>(src + row + at); }
  TIDE_DEVICE static tide_values<T, size> value(const held &h) { return tide_up(h); }
  TIDE_DEVICE void add(int64_t row, const tide_values<T, size> &v) const
  {
    tide_values<T, size> w = tide_up(tide_pack_from<size>(t + row + at));
#pragma unroll
    for (int j = 0; j < size; j++) w.v[j] += v.v[j];
    tide_pack_to(t + row + at, tide_down<E>(w));
  }
};

template <class R> struct any_columns {
  enum { size = 1 };
  using T = R;
  using held = T;
  tide_array t, src;
  int64_t at[2];
  TIDE_DEVICE void place(const tide_layout &rest, int64_t column)
  {
    tide_offsets<2>(rest, column, at);
  }
  TIDE_DEVICE held read(int64_t row) const { return tide_at<T>(src, row + at[1]); }
  TIDE_DEVICE static tide_values<T, 1> value(const held &h) { return {{h}}; }
  TIDE_DEVICE void add(int64_t row, const tide_values<T, 1> &v) const
  {
    add_to(t, row + at[0], v.v[0]);
  }
};

enum { AHEAD = 4 };

/* Sums the terms of piece blockIdx.x. n: of terms; columns: C::size numbers each. */
template <class C>
__global__ void __launch_bounds__(THREADS)
pieces_kernel(C c, rows_of p, int64_t columns, const tide_keyed *items, int64_t limit,
              typename C::T *part)
{
  using T = typename C::T;
  __shared__ uint64_t key[PIECE + 2]; /* with the neighbours before and after */
  __shared__ int64_t from[PIECE];
  const int64_t n = p.row.numel, first = blockIdx.x * (int64_t)PIECE;
  for (int k = (int)threadIdx.x; k < PIECE + 2; k += (int)blockDim.x) {
    const int64_t i = first + k - 1;
    const tide_keyed item = i >= 0 && i < n ? items[i] : tide_keyed{(uint64_t)limit, 0};
    key[k] = item.key;
    if (k > 0 && k <= PIECE) from[k - 1] = item.at;
  }
  __syncthreads();
  const int64_t width = columns * C::size;
  for (int64_t column = blockIdx.y * (int64_t)blockDim.x + threadIdx.x; column < columns;
       column += (int64_t)gridDim.y * blockDim.x) {
    c.place(p.rest, column);
    tide_values<T, C::size> sum = {};
    bool goes_on = key[0] == key[1];
    for (int k0 = 0; k0 < PIECE; k0 += AHEAD) {
      typename C::held h[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; k++)
        if (key[k0 + k + 1] != (uint64_t)limit) h[k] = c.read(from[k0 + k]);
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        const uint64_t own = key[k0 + k + 1];
        if (own == (uint64_t)limit) continue;
        const tide_values<T, C::size> v = C::value(h[k]);
#pragma unroll
        for (int j = 0; j < C::size; j++) sum.v[j] += v.v[j];
        const bool more = key[k0 + k + 2] == own;
        if (more && k0 + k + 1 < PIECE) continue;
        if (goes_on || more) {
          tide_pack_to(part + (2 * (int64_t)blockIdx.x + !goes_on) * width + column * C::size,
                       tide_down<T>(sum));
        } else {
          c.add((int64_t)own * p.t_stride, sum);
        }
        goes_on = false;
        sum = {};
      }
    }
  }
}

/* Block blockIdx.x finishes the target whose terms begin in this piece and go on in the next. */
template <class C>
__global__ void __launch_bounds__(THREADS)
pieces_end_kernel(C c, rows_of p, int64_t columns, const tide_keyed *items, int64_t limit,
                  const typename C::T *part)
{
  using T = typename C::T;
  const int64_t n = p.row.numel, piece = blockIdx.x, last = piece * PIECE + PIECE - 1;
  const uint64_t key = items[last].key;
  if (key == (uint64_t)limit || last + 1 >= n || items[last + 1].key != key) return;
  if (piece > 0 && items[piece * PIECE - 1].key == key) return; /* it began before */
  const int64_t end = end_of_run(items, n, last) / PIECE, width = columns * C::size;
  for (int64_t column = blockIdx.y * (int64_t)blockDim.x + threadIdx.x; column < columns;
       column += (int64_t)gridDim.y * blockDim.x) {
    c.place(p.rest, column);
    tide_values<T, C::size> sum;
#pragma unroll
    for (int j = 0; j < C::size; j++)
      sum.v[j] = sum_of_pieces(part + column * C::size + j, width, piece, end);
    c.add((int64_t)key * p.t_stride, sum);
  }
}

template <class C>
int run_rows(const k_call *call, C c, const rows_of &p, const k_tensor &index, int64_t limit)
{
  const int64_t n = p.row.numel, columns = p.rest.numel / C::size;
  if (n == 0 || columns == 0) return TIDE_OK;
  typename C::T *part = static_cast<typename C::T *>(call->work);
  void *sort = static_cast<char *>(call->work) +
               part_bytes(n, p.rest.numel, sizeof(typename C::T));
  TIDE_LAUNCH(row_keys_kernel, n, call, p.row, tide_array_of(index),
              static_cast<tide_keyed *>(sort), reporter(call, limit));
  const tide_keyed *items = tide_sort(call, sort, n, (uint64_t)limit);
  const int threads = columns < THREADS ? (int)((columns + 31) / 32 * 32) : (int)THREADS;
  const int64_t spans = (columns + threads - 1) / threads;
  dim3 grid((unsigned)pieces_of(n), (unsigned)(spans < 4096 ? spans : 4096));
  TIDE_CUDA_LAUNCH(call, pieces_kernel<C>, grid, threads, 0, c, p, columns, items, limit, part);
  if (n > PIECE) {
    grid.x = (unsigned)(n / PIECE);
    TIDE_CUDA_LAUNCH(call, pieces_end_kernel<C>, grid, threads, 0, c, p, columns, items, limit,
                     part);
  }
  return TIDE_CUDA_LAUNCHED(call);
}

/* Returns whether the rows lie in packs on both sides. */
bool in_packs(const rows_of &p, const k_tensor &t, const k_tensor &src)
{
  const int n = 16 / tide_size_of(t.dtype);
  if (t.dtype != src.dtype || !tide_layout_flat(p.rest, 2) || p.rest.numel % n) return false;
  if (!tide_aligned(t.data) || !tide_aligned(src.data) || p.t_stride % n) return false;
  for (int d = 0; d < p.row.ndim; d++)
    if (p.row.stride[1][d] % n) return false;
  return true;
}

int add_rows(const k_call *call, const rows_of &p, const k_tensor &index, const k_tensor &src,
             int64_t limit)
{
  const k_tensor &t = call->out[0];
  if (tide_is_short(t.dtype) && in_packs(p, t, src))
    TIDE_BY_SHORT(t.dtype,
                  pack_columns<E> c = {tide_data<E>(t), tide_data<const E>(src), 0};
                  return run_rows(call, c, p, index, limit));
  const tide_array to = tide_array_of(t), from = tide_array_of(src);
  if (t.dtype == TIDE_F64)
    return run_rows(call, any_columns<double>{to, from, {}}, p, index, limit);
  if (1 << t.dtype & K_FLOAT)
    return run_rows(call, any_columns<float>{to, from, {}}, p, index, limit);
  return run_rows(call, any_columns<int64_t>{to, from, {}}, p, index, limit);
}

/* ---- operands -------------------------------------------------------------------------------- */

/* t without dim d. */
k_tensor without(const k_tensor &t, int dim)
{
  k_tensor r = t;
  r.ndim = 0;
  for (int d = 0; d < t.ndim; d++)
    if (d != dim) r.shape[r.ndim] = t.shape[d], r.stride[r.ndim++] = t.stride[d];
  return r;
}

tide_layout layout2(const k_tensor &a, const k_tensor &b)
{
  const k_tensor *both[2] = {&a, &b};
  return tide_layout_of(2, both);
}

int dim_of(const k_call *call) { return static_cast<const k_dim_attrs *>(call->attrs)->dim; }

/* Returns the bytes of scratch for n rows of `width` numbers. */
int64_t work_of(int64_t n, int64_t width, int dtype)
{
  return n == 0 ? 0 : part_bytes(n, width, size_of_sum(dtype)) + tide_sort_work(n);
}

}  // namespace

int64_t k_cuda_scatter_add_work(const k_call *call)
{
  const k_tensor &index = call->in[0];
  if (index.ndim > 0 && index.shape[dim_of(call)] == 1) return 0;
  return work_of(k_numel(&index), 1, call->out[0].dtype);
}

int k_cuda_scatter_add(const k_call *call)
{
  const k_tensor &index = call->in[0], &src = call->in[1], &t = call->out[0];
  lookup l = {t.ndim, dim_of(call), k_numel(&index), {}, {}, {}, {}};
  for (int d = 0; d < t.ndim; d++) {
    l.shape[d] = index.shape[d], l.is[d] = index.stride[d];
    l.xs[d] = src.stride[d], l.ys[d] = t.stride[d];
  }
  if (l.numel == 0) return TIDE_OK;
  if (t.dtype == TIDE_F64) return run_scatter<double>(call, l);
  return 1 << t.dtype & K_FLOAT ? run_scatter<float>(call, l) : run_scatter<int64_t>(call, l);
}

int64_t k_cuda_index_add_work(const k_call *call)
{
  const k_tensor &index = call->in[0], rest = without(call->in[1], dim_of(call));
  return work_of(k_numel(&index), k_numel(&rest), call->out[0].dtype);
}

int k_cuda_index_add(const k_call *call)
{
  const k_tensor &index = call->in[0], &src = call->in[1], &t = call->out[0];
  const int dim = dim_of(call);
  const k_tensor along = k_dims(&src, dim, dim + 1);
  rows_of p = {layout2(index, along), layout2(without(t, dim), without(src, dim)), t.stride[dim]};
  return add_rows(call, p, index, src, t.shape[dim]);
}

int64_t k_cuda_embedding_bwd_work(const k_call *call)
{
  return work_of(k_numel(&call->in[1]), k_row_size(&call->in[0]), call->out[0].dtype);
}

int k_cuda_embedding_bwd(const k_call *call)
{
  const k_tensor &dy = call->in[0], &ids = call->in[1], &t = call->out[0];
  const int last = dy.ndim - 1;
  int rc = tide_cuda_check(call, cudaMemsetAsync(t.data, 0, (size_t)(k_numel(&t)
                                                 * tide_size_of(t.dtype)), tide_cuda_stream(call)));
  if (rc < 0) return rc;
  const k_tensor lead = k_dims(&dy, 0, last), row = k_dims(&dy, last, last + 1);
  rows_of p = {layout2(ids, lead), layout2(k_dims(&t, 1, 2), row), t.stride[0]};
  return add_rows(call, p, ids, dy, t.shape[0]);
}
