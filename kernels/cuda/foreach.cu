/* Copies and sums over lists of tensors on the GPU: foreach_copy_, foreach_add_.
 *
 * One launch takes up to LIST pairs, whose addresses and strides travel as arguments
 * of the kernel. A pair is a sequence of items: 16 bytes where both sides are dense and aligned so
 * far, else as many as they are, at least an element. A block takes CHUNK items, each of its
 * threads EACH of them, read before any is written, neighbours by neighbouring threads.
 *
 * A pair of more than DIMS dims (after merging) has a launch of its own.
 *
 * Meaning: kernels/ref/elementwise.c.
 */
#include "kernels/cuda/elementwise_move.cuh"

namespace {

enum { LIST = 38, DIMS = 4, THREADS = 256, EACH = 4, CHUNK = THREADS * EACH };

/* What an item is: bits of 1, 2, 4, 8 or 16 bytes; four elements of f32 or bf16; an element. */
enum kind { BITS_1, BITS_2, BITS_4, BITS_8, BITS_16, FOUR, ONE };

/* Sizes and strides count items; shape[d - 1] is the size of dim d, that of dim 0 is not needed. */
struct entry {
  void *y, *x;
  int64_t ys[DIMS], xs[DIMS];
  uint32_t shape[DIMS - 1], n;
  int32_t first_chunk;
  int8_t ndim, kind, y_dtype, x_dtype;
};
struct list {
  entry e[LIST];
  int n;
  int64_t chunks;
};
static_assert(sizeof(list) <= 4096, "the arguments of a kernel");

TIDE_DEVICE tide_array y_of(const entry &e) { return {e.y, e.y_dtype}; }
TIDE_DEVICE tide_array x_of(const entry &e) { return {e.x, e.x_dtype}; }

struct place { int64_t y, x; };

TIDE_DEVICE place place_of(const entry &e, uint32_t i)
{
  place p = {0, 0};
#pragma unroll
  for (int d = DIMS - 1; d > 0; d--) {
    if (d >= e.ndim) continue;
    uint32_t rest = i / e.shape[d - 1], c = i - rest * e.shape[d - 1];
    p.y += c * e.ys[d];
    p.x += c * e.xs[d];
    i = rest;
  }
  p.y += i * e.ys[0];
  p.x += i * e.xs[0];
  return p;
}

/* Calls read(k, place) for this thread's items, then write(k, place). */
template <class R, class W> TIDE_DEVICE void each_item(const entry &e, R read, W write)
{
  uint32_t first = (uint32_t)(blockIdx.x - e.first_chunk) * CHUNK + threadIdx.x;
  place p[EACH];
#pragma unroll
  for (int k = 0; k < EACH; k++) {
    uint32_t i = first + k * THREADS;
    if (i >= e.n) continue;
    p[k] = place_of(e, i);
    read(k, p[k]);
  }
#pragma unroll
  for (int k = 0; k < EACH; k++)
    if (first + k * THREADS < e.n) write(k, p[k]);
}

/* Four neighbouring elements of f32 or bf16. */
using four = tide_values<float, 4>;

TIDE_DEVICE four load4(const void *p, int64_t i, int dtype)
{
  if (dtype == TIDE_F32) return tide_up(tide_pack_from<4>(static_cast<const float *>(p) + 4 * i));
  return tide_up(tide_pack_from<4>(static_cast<const __nv_bfloat16 *>(p) + 4 * i));
}
TIDE_DEVICE void store4(void *p, int64_t i, int dtype, const four &v)
{
  if (dtype == TIDE_F32) tide_pack_to(static_cast<float *>(p) + 4 * i, tide_down<float>(v));
  else tide_pack_to(static_cast<__nv_bfloat16 *>(p) + 4 * i, tide_down<__nv_bfloat16>(v));
}

template <class V> TIDE_DEVICE void copy_bits(const entry &e)
{
  V v[EACH];
  each_item(e, [&](int k, place p) { v[k] = static_cast<const V *>(e.x)[p.x]; },
            [&](int k, place p) { static_cast<V *>(e.y)[p.y] = v[k]; });
}

__global__ void copy_kernel(list l)
{
  const entry &e = l.e[tide_entry_of(l.e, l.n, blockIdx.x)];
  four v[EACH];
  switch (e.kind) {
    case BITS_1: copy_bits<uint8_t>(e); break;
    case BITS_2: copy_bits<uint16_t>(e); break;
    case BITS_4: copy_bits<uint32_t>(e); break;
    case BITS_8: copy_bits<uint2>(e); break;
    case BITS_16: copy_bits<uint4>(e); break;
    case FOUR:
      each_item(e, [&](int k, place p) { v[k] = load4(e.x, p.x, e.x_dtype); },
                [&](int k, place p) { store4(e.y, p.y, e.y_dtype, v[k]); });
      break;
    default:
      each_item(e, [](int, place) {},
                [&](int, place p) { tide_move(y_of(e), p.y, x_of(e), p.x); });
  }
}

template <class T> TIDE_DEVICE void add_elements(const entry &e)
{
  T v[EACH];
  each_item(e, [&](int k, place p) { v[k] = tide_at<T>(y_of(e), p.y) + tide_at<T>(x_of(e), p.x); },
            [&](int k, place p) { tide_put<T>(y_of(e), p.y, v[k]); });
}

TIDE_DEVICE void add_fours(const entry &e)
{
  four v[EACH];
  each_item(e,
            [&](int k, place p) {
              four a = load4(e.y, p.y, e.y_dtype);
              four b = load4(e.x, p.x, e.x_dtype);
#pragma unroll
              for (int j = 0; j < 4; j++) v[k].v[j] = a.v[j] + b.v[j];
            },
            [&](int k, place p) { store4(e.y, p.y, e.y_dtype, v[k]); });
}

__global__ void add_kernel(list l)
{
  const entry &e = l.e[tide_entry_of(l.e, l.n, blockIdx.x)];
  if (e.kind == FOUR) add_fours(e);
  else if (e.y_dtype == TIDE_F64) add_elements<double>(e);
  else if (1 << e.y_dtype & K_FLOAT) add_elements<float>(e);
  else add_elements<int64_t>(e);
}

/* ---- on the host ----------------------------------------------------------------------------- */

/* Returns whether items of m neighbouring elements exist: `bytes` of them at aligned places. */
bool takes(const tide_layout &l, int m, const k_tensor *const *t)
{
  int last = l.ndim - 1;
  if (l.ndim == 0 || l.shape[last] % m != 0) return false;
  for (int k = 0; k < 2; k++) {
    const int bytes = m * tide_size_of(t[k]->dtype);
    if (l.stride[k][last] != 1 || (uintptr_t)t[k]->data % bytes) return false;
    for (int d = 0; d < last; d++)
      if (l.stride[k][d] % m != 0) return false;
  }
  return true;
}

bool is_short(int dtype) { return dtype == TIDE_F32 || dtype == TIDE_BF16; }

/* Returns the kind of a pair's items, and sets *m to the elements of one. */
kind kind_of(const tide_layout &l, const k_tensor *const *t, bool add, int *m)
{
  int size = tide_size_of(t[0]->dtype), log = size == 8 ? 3 : size == 4 ? 2 : size == 2 ? 1 : 0;
  *m = 4;
  bool bits = t[0]->dtype == t[1]->dtype && !add;
  if (!bits && is_short(t[0]->dtype) && is_short(t[1]->dtype) && takes(l, 4, t)) return FOUR;
  if (bits)
    for (int wide = BITS_16; wide > log; wide--)
      if (takes(l, *m = 1 << (wide - log), t)) return (kind)wide;
  *m = 1;
  return bits ? (kind)log : ONE;
}

/* Writes the pair as an entry. Returns false if it does not fit in one. */
bool entry_of(entry *e, const tide_layout &l, const k_tensor *const *t, bool add)
{
  if (l.ndim > DIMS || l.numel >= INT32_MAX) return false;
  int m, last = l.ndim - 1;
  *e = {};
  e->kind = (int8_t)kind_of(l, t, add, &m);
  e->y = t[0]->data;
  e->x = t[1]->data;
  e->y_dtype = (int8_t)t[0]->dtype;
  e->x_dtype = (int8_t)t[1]->dtype;
  e->ndim = (int8_t)l.ndim;
  e->n = (uint32_t)(l.numel / m);
  for (int d = 0; d < l.ndim; d++) {
    if (d > 0) e->shape[d - 1] = (uint32_t)(d == last ? l.shape[d] / m : l.shape[d]);
    e->ys[d] = d == last ? l.stride[0][d] : l.stride[0][d] / m;
    e->xs[d] = d == last ? l.stride[1][d] : l.stride[1][d] / m;
  }
  return true;
}

int alone(const k_call *call, int i, bool add)
{
  k_call one = *call;
  one.in = &call->in[i];
  one.out = &call->out[i];
  return add ? tide_axpy(&one, 1) : tide_convert(&one);
}

int foreach(const k_call *call, bool add)
{
  list l = {};
  for (int i = 0; i < call->nout; i++) {
    const k_tensor *t[2] = {&call->out[i], &call->in[i]};
    tide_layout layout = tide_layout_of(2, t);
    if (layout.numel > 0) {
      if (entry_of(&l.e[l.n], layout, t, add)) {
        l.e[l.n].first_chunk = (int32_t)l.chunks;
        l.chunks += (l.e[l.n++].n + CHUNK - 1) / CHUNK;
      } else {
        int rc = alone(call, i, add);
        if (rc < 0) return rc;
      }
    }
    bool full = l.n == LIST || l.chunks > 1 << 28;
    if (l.n == 0 || (!full && i + 1 < call->nout)) continue;
    if (add) TIDE_CUDA_LAUNCH(call, add_kernel, (unsigned)l.chunks, THREADS, 0, l);
    else TIDE_CUDA_LAUNCH(call, copy_kernel, (unsigned)l.chunks, THREADS, 0, l);
    l.n = 0;
    l.chunks = 0;
  }
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

int k_cuda_foreach_copy_(const k_call *call) { return foreach(call, false); }
int k_cuda_foreach_add_(const k_call *call) { return foreach(call, true); }
