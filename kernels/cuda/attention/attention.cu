/* Attention on the GPU: which kernel serves a call, and the one of plain products: f32, f64, and
 * whatever tensor cores cannot take.
 *
 * A warp has a few rows; a lane judges one column of a tile of 32, and a value it has
 * read serves all rows of its warp. Forward and backward have the same loop: rows are queries (out,
 * dq) or keys (dk, dv), columns the other side. Channels beyond CHANNELS take another pass.
 *
 * Every sum is taken by one warp in one order: no atomics.
 */
#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/backend.cuh"

namespace {

enum { WARPS = 4, ROWS = 4, BLOCK_ROWS = WARPS * ROWS, TILE = 32, SLICE = 32, CHANNELS = 128,
       KEEP = CHANNELS / 32 };

/* Reads a tile's [rows][SLICE] of channels from d0 on into shared memory, padded by one element. */
template <class T>
TIDE_DEVICE void fetch(T (*to)[SLICE + 1], int rows, const tide_heads &x, int64_t b, int64_t t0,
                       int64_t nt, int64_t h, int64_t d0, int64_t d)
{
  for (int i = (int)threadIdx.x; i < rows * SLICE; i += WARPS * 32) {
    int r = i / SLICE, c = i % SLICE;
    bool in = t0 + r < nt && d0 + c < d;
    to[r][c] = in ? tide_load<T>(x.data, tide_head_at(x, b, t0 + r, h) + d0 + c, x.dtype) : (T)0;
  }
}

/* acc[r] += row r of a . row `lane` of b over channels [0, d), for the rows of this warp. */
template <class T>
TIDE_DEVICE void dots(T *acc, T (*rows)[SLICE + 1], T (*cols)[SLICE + 1], const tide_heads &x,
                      int64_t xt, int64_t nx, int64_t xh, const tide_heads &y, int64_t yt,
                      int64_t ny, int64_t yh, int64_t b, int64_t d)
{
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  for (int64_t d0 = 0; d0 < d; d0 += SLICE) {
    __syncthreads();
    fetch(rows, BLOCK_ROWS, x, b, xt, nx, xh, d0, d);
    fetch(cols, TILE, y, b, yt, ny, yh, d0, d);
    __syncthreads();
    for (int c = 0; c < SLICE; c++) {
      T v = cols[lane][c];
#pragma unroll
      for (int r = 0; r < ROWS; r++) acc[r] += rows[warp * ROWS + r][c] * v;
    }
  }
}

/* acc[r][k] += sum over the tile's columns of w[r] (of that lane) * y[column][d0 + 32 k + lane]. */
template <class T>
TIDE_DEVICE void weigh(T (*acc)[KEEP], const T *w, const tide_heads &y, int64_t b, int64_t t0,
                       int64_t nt, int64_t h, int64_t d0, int64_t d)
{
  int lane = (int)threadIdx.x & 31;
  for (int c = 0; c < TILE; c++) {
    T each[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) each[r] = __shfl_sync(0xffffffffu, w[r], c);
    if (t0 + c >= nt) break;
    int64_t at = tide_head_at(y, b, t0 + c, h);
#pragma unroll
    for (int k = 0; k < KEEP; k++) {
      int64_t ch = d0 + 32 * k + lane;
      T v = ch < d ? tide_load<T>(y.data, at + ch, y.dtype) : (T)0;
      /* a weight of 0 takes no part whatever the value */
#pragma unroll
      for (int r = 0; r < ROWS; r++) acc[r][k] += each[r] == (T)0 ? (T)0 : each[r] * v;
    }
  }
}

template <class T>
TIDE_DEVICE void write(const T (*acc)[KEEP], const T *factor, const tide_heads &y, int64_t b,
                       int64_t t0, int64_t nt, int64_t h, int64_t d0, int64_t d)
{
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  for (int r = 0; r < ROWS; r++) {
    int64_t t = t0 + warp * ROWS + r;
    if (t >= nt) continue;
    for (int k = 0; k < KEEP; k++) {
      int64_t ch = d0 + 32 * k + lane;
      if (ch < d)
        tide_store<T>(y.data, tide_head_at(y, b, t, h) + ch, y.dtype, acc[r][k] * factor[r]);
    }
  }
}

struct row_block { int64_t b, h, t0; };
TIDE_DEVICE row_block block_of(int64_t head, int64_t t)
{
  int64_t per = (t + BLOCK_ROWS - 1) / BLOCK_ROWS, rest = blockIdx.x / per;
  return {rest / head, rest % head, (int64_t)(blockIdx.x % per) * BLOCK_ROWS};
}

template <class T>
__global__ void forward_kernel(tide_attend p, tide_heads out, tide_array lse, int64_t ls0,
                               int64_t ls1, int64_t ls2)
{
  __shared__ T rows[BLOCK_ROWS][SLICE + 1], cols[TILE][SLICE + 1];
  row_block at = block_of(p.head, p.tq);
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  int64_t b = at.b, h = at.h, hk = h / p.group, i0 = at.t0 + warp * ROWS;
  for (int64_t d0 = 0; d0 == 0 || d0 < p.dv; d0 += CHANNELS) {
    T acc[ROWS][KEEP] = {}, top[ROWS], sum[ROWS] = {}, factor[ROWS];
    tide_token query[ROWS];
    for (int r = 0; r < ROWS; r++) top[r] = -INFINITY, query[r] = tide_query(p, b, i0 + r);
    for (int64_t j0 = 0; j0 < p.tk; j0 += TILE) {
      if (!tide_tile_seen(p, at.t0, at.t0 + BLOCK_ROWS, j0, j0 + TILE)) continue;
      T s[ROWS] = {}, w[ROWS], slope;
      dots(s, rows, cols, p.q, at.t0, p.tq, h, p.k, j0, p.tk, hk, b, p.d);
      tide_token key = tide_key(p, b, j0 + lane);
      for (int r = 0; r < ROWS; r++) {
        bool sees = tide_sees(p, query[r], key);
        s[r] = sees ? tide_score(p, b, h, i0 + r, j0 + lane, s[r], &slope) : (T)-INFINITY;
        T high = tide_top()(top[r], tide_warp_fold(s[r], tide_top()));
        T base = high == (T)-INFINITY ? (T)0 : high, old = tide_exp(top[r] - base);
        w[r] = sees ? tide_exp(s[r] - base) : (T)0;
        sum[r] = sum[r] * old + tide_warp_fold(w[r], tide_plus());
        for (int k = 0; k < KEEP; k++) acc[r][k] *= old;
        top[r] = high;
      }
      weigh(acc, w, p.v, b, j0, p.tk, hk, d0, p.dv);
    }
    for (int r = 0; r < ROWS; r++) {
      factor[r] = sum[r] == (T)0 ? (T)0 : (T)1 / sum[r];
      T value = top[r] == (T)-INFINITY && !(sum[r] != sum[r]) ? (T)-INFINITY
                                                              : top[r] + tide_log(sum[r]);
      if (lane == 0 && d0 == 0 && i0 + r < p.tq)
        tide_put<T>(lse, b * ls0 + h * ls1 + (i0 + r) * ls2, value);
    }
    write(acc, factor, out, b, at.t0, p.tq, h, d0, p.dv);
  }
}

/* ---- backward -------------------------------------------------------------------------------- */

template <class T> struct pair_of { T w, ds, dqk; };

/* What query i and key j are to the mask: the weight, and the gradients of the score and of q.k. */
template <class T>
TIDE_DEVICE pair_of<T> pair_at(const tide_attend &p, int64_t b, int64_t h, int64_t i, int64_t j,
                               const tide_token &query, const tide_token &key,
                               const tide_mark<T> &mark, T qk, T dov)
{
  pair_of<T> r = {(T)0, (T)0, (T)0};
  if (!tide_sees(p, query, key)) return r;
  T slope, s = tide_score(p, b, h, i, j, qk, &slope);
  r.w = tide_exp(s - mark.lse);
  if (r.w == (T)0) return r;
  r.ds = r.w * (dov - mark.delta);
  r.dqk = r.ds * slope;
  return r;
}
template <class T>
TIDE_DEVICE tide_mark<T> mark_of(const tide_attend &p, const tide_attention_back &g, int64_t b,
                                 int64_t h, int64_t i)
{
  if (i >= p.tq) return {(T)INFINITY, (T)0};
  return static_cast<const tide_mark<T> *>(g.marks)[tide_mark_at(p, b, h, i)];
}

template <class T> __global__ void dq_kernel(tide_attend p, tide_attention_back g)
{
  __shared__ T rows[BLOCK_ROWS][SLICE + 1], cols[TILE][SLICE + 1];
  row_block at = block_of(p.head, p.tq);
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  int64_t b = at.b, h = at.h, hk = h / p.group, i0 = at.t0 + warp * ROWS;
  for (int64_t d0 = 0; d0 == 0 || d0 < p.d; d0 += CHANNELS) {
    T acc[ROWS][KEEP] = {}, one[ROWS];
    tide_token query[ROWS];
    tide_mark<T> mark[ROWS];
    for (int r = 0; r < ROWS; r++) {
      query[r] = tide_query(p, b, i0 + r);
      mark[r] = mark_of<T>(p, g, b, h, i0 + r);
    }
    for (int64_t j0 = 0; j0 < p.tk; j0 += TILE) {
      if (!g.dbias.data && !tide_tile_seen(p, at.t0, at.t0 + BLOCK_ROWS, j0, j0 + TILE)) continue;
      T qk[ROWS] = {}, dov[ROWS] = {}, w[ROWS];
      dots(qk, rows, cols, p.q, at.t0, p.tq, h, p.k, j0, p.tk, hk, b, p.d);
      dots(dov, rows, cols, g.dout, at.t0, p.tq, h, p.v, j0, p.tk, hk, b, p.dv);
      tide_token key = tide_key(p, b, j0 + lane);
      for (int r = 0; r < ROWS; r++) {
        int64_t i = i0 + r, j = j0 + lane;
        pair_of<T> x = pair_at(p, b, h, i, j, query[r], key, mark[r], qk[r], dov[r]);
        w[r] = x.dqk;
        if (g.dbias.data && d0 == 0 && i < p.tq && j < p.tk)
          tide_put<T>(g.dbias, ((b * p.head + h) * p.tq + i) * p.tk + j, x.ds);
      }
      weigh(acc, w, p.k, b, j0, p.tk, hk, d0, p.d);
    }
    for (int r = 0; r < ROWS; r++) one[r] = 1;
    write(acc, one, g.dq, b, at.t0, p.tq, h, d0, p.d);
  }
}

/* Rows are keys. value: dv = sum w dout; else dk = sum dqk q. */
template <class T> __global__ void dkv_kernel(tide_attend p, tide_attention_back g, bool value)
{
  __shared__ T rows[BLOCK_ROWS][SLICE + 1], cols[TILE][SLICE + 1];
  row_block at = block_of(p.head / p.group, p.tk);
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  int64_t b = at.b, hk = at.h, j0 = at.t0 + warp * ROWS, size = value ? p.dv : p.d;
  for (int64_t d0 = 0; d0 == 0 || d0 < size; d0 += CHANNELS) {
    T acc[ROWS][KEEP] = {}, one[ROWS];
    tide_token key[ROWS];
    for (int r = 0; r < ROWS; r++) key[r] = tide_key(p, b, j0 + r);
    for (int64_t h = hk * p.group; h < (hk + 1) * p.group; h++)
      for (int64_t i0 = 0; i0 < p.tq; i0 += TILE) {
        if (!tide_tile_seen(p, i0, i0 + TILE, at.t0, at.t0 + BLOCK_ROWS)) continue;
        T qk[ROWS] = {}, dov[ROWS] = {}, w[ROWS];
        dots(qk, rows, cols, p.k, at.t0, p.tk, hk, p.q, i0, p.tq, h, b, p.d);
        dots(dov, rows, cols, p.v, at.t0, p.tk, hk, g.dout, i0, p.tq, h, b, p.dv);
        tide_token query = tide_query(p, b, i0 + lane);
        tide_mark<T> mark = mark_of<T>(p, g, b, h, i0 + lane);
        for (int r = 0; r < ROWS; r++) {
          pair_of<T> x = pair_at(p, b, h, i0 + lane, j0 + r, query, key[r], mark, qk[r],
                                 dov[r]);
          w[r] = value ? x.w : x.dqk;
        }
        weigh(acc, w, value ? g.dout : p.q, b, i0, p.tq, h, d0, size);
      }
    for (int r = 0; r < ROWS; r++) one[r] = 1;
    write(acc, one, value ? g.dv : g.dk, b, at.t0, p.tk, hk, d0, size);
  }
}

/* ---- from a call ----------------------------------------------------------------------------- */

tide_attend operands(const k_call *call, const k_tensor *q, const k_tensor &bias,
                     const k_tensor *index)
{
  const k_attention_attrs *a = static_cast<const k_attention_attrs *>(call->attrs);
  const k_tensor &k = q[1], &v = q[2];
  tide_attend p = {tide_heads_of(q[0]), tide_heads_of(k), tide_heads_of(v), nullptr, nullptr, {},
                   {}, false, false, tide_array_of(bias), {}, q->shape[0], q->shape[2], 1,
                   q->shape[1], k.shape[1], q->shape[3], v.shape[3], a->window_left,
                   a->window_right, a->q_start, a->causal,
                   tide_cap_of<float>(a->scale, a->softcap),
                   tide_cap_of<double>(a->scale, a->softcap), {}};
  if (k.shape[2] > 0) p.group = p.head / k.shape[2];
  for (int d = 0; d < 4 && p.bias.data; d++) p.bias_stride[d] = bias.stride[d];
  if (k_absent(&index[0])) return p;
  p.q_index = static_cast<const int32_t *>(index[0].data);
  p.k_index = static_cast<const int32_t *>(index[1].data);
  p.q_until = index[0].shape[2] > 2, p.k_until = index[1].shape[2] > 2;
  for (int d = 0; d < 3; d++) {
    p.qi[d] = d == 0 && index[0].shape[0] == 1 ? 0 : index[0].stride[d];
    p.ki[d] = d == 0 && index[1].shape[0] == 1 ? 0 : index[1].stride[d];
  }
  return p;
}

/* Which kernel serves a call. Nothing else decides; a kernel that was chosen serves or refuses.
 *
 *   operands                                              attention      attention_bwd
 *   f32, f64; heads above 256                             PLAIN          PLAIN
 *   f16, bf16, heads to 256, any mask                     MMA            MMA; with dbias PLAIN
 *   of these, with parameter attention_kernel = 1:        WGMMA          WGMMA to heads of 128;
 *     no bias; at least one key; rows and strides of                     above that as above
 *     q, k, v (and dout) at multiples of 16 bytes, so
 *     heads that are multiples of 8
 *
 * WGMMA is for compute capability 9.0 and refuses elsewhere (E_UNSUPPORTED); MMA is the default
 * until a chip has verified the other (kernels/cuda/STATUS.md). */
enum kernel_t { PLAIN, MMA, WGMMA };
kernel_t kernel_of(const k_call *call, const tide_attend &p, const tide_attention_back *g)
{
  if (!(g ? tide_attention_mma_bwd_fits(p, *g) : tide_attention_mma_fits(p))) return PLAIN;
  if (tide_cuda_state_of(call->stream)->params->attention_kernel != 1) return MMA;
  bool fits = g ? tide_attention_wgmma_bwd_fits(p, *g) : tide_attention_wgmma_fits(p);
  return fits ? WGMMA : MMA;
}

unsigned blocks(int64_t batch, int64_t head, int64_t t)
{
  return (unsigned)(batch * head * ((t + BLOCK_ROWS - 1) / BLOCK_ROWS));
}

/* Returns the bytes of a call's marks, behind which its tiles follow. */
int64_t marks_bytes(const k_tensor &q)
{
  int64_t each = q.dtype == TIDE_F64 ? sizeof(tide_mark<double>) : sizeof(tide_mark<float>);
  return (q.shape[0] * q.shape[1] * q.shape[2] * each + 63) / 64 * 64;
}
/* Returns the bytes of the tiles of an index where tensor cores may compute, else 0. */
int64_t tiles_bytes(const k_tensor &q, const k_tensor &index, const k_tensor &made)
{
  return q.dtype == TIDE_F32 || q.dtype == TIDE_F64 ? 0 : tide_tiles_bytes(index, made);
}

/* Runs the backward on tensor cores, after the marks. */
int run_bwd_tiled(const k_call *call, const tide_attend &p, tide_attention_back g, bool wgmma)
{
  const k_tensor *in = call->in;
  char *at = static_cast<char *>(call->work) + marks_bytes(in[1]);
  g.q_tiles = tide_tiles_of(call, in[7], in[10], at);
  g.k_tiles = tide_tiles_of(call, in[8], in[11], at + tide_tiles_bytes(in[7], in[10]));
  return (wgmma ? tide_attention_wgmma_bwd : tide_attention_mma_bwd)(call, p, g);
}

template <class T>
int run_bwd(const k_call *call, const tide_attend &p, const tide_attention_back &g)
{
  bool some = p.batch * p.head * p.tq > 0;
  kernel_t kernel = kernel_of(call, p, &g);
  if (some) tide_attention_marks<T>(call, p, g, kernel == PLAIN ? (T)1 : (T)LOG2E);
  if (some && kernel != PLAIN) return run_bwd_tiled(call, p, g, kernel == WGMMA);
  if (some)
    TIDE_CUDA_LAUNCH(call, dq_kernel<T>, blocks(p.batch, p.head, p.tq), WARPS * 32, 0, p, g);
  unsigned n = blocks(p.batch, p.head / p.group, p.tk);
  if (n > 0) {
    TIDE_CUDA_LAUNCH(call, dkv_kernel<T>, n, WARPS * 32, 0, p, g, false);
    TIDE_CUDA_LAUNCH(call, dkv_kernel<T>, n, WARPS * 32, 0, p, g, true);
  }
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

int64_t k_cuda_attention_work(const k_call *call)
{
  return tiles_bytes(call->in[0], call->in[5], call->in[7]);
}

int k_cuda_attention(const k_call *call)
{
  const k_tensor &out = call->out[0], &lse = call->out[1];
  tide_attend p = operands(call, &call->in[0], call->in[3], &call->in[4]);
  unsigned n = blocks(p.batch, p.head, p.tq);
  if (n == 0) return TIDE_OK;
  kernel_t kernel = kernel_of(call, p, nullptr);
  if (kernel != PLAIN) {
    p.tiles = tide_tiles_of(call, call->in[5], call->in[7], call->work);
    return (kernel == WGMMA ? tide_attention_wgmma : tide_attention_mma)(
      call, p, tide_heads_of(out), tide_array_of(lse), lse.stride);
  }
  TIDE_BY_REAL(out.dtype,
               TIDE_CUDA_LAUNCH(call, forward_kernel<T>, n, WARPS * 32, 0, p, tide_heads_of(out),
                                tide_array_of(lse), lse.stride[0], lse.stride[1], lse.stride[2]));
  return TIDE_CUDA_LAUNCHED(call);
}

int64_t k_cuda_attention_bwd_work(const k_call *call)
{
  const k_tensor *in = call->in;
  return marks_bytes(in[1]) + tiles_bytes(in[1], in[7], in[10]) + tiles_bytes(in[1], in[8], in[11]);
}

int k_cuda_attention_bwd(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  tide_attend p = operands(call, &in[1], in[6], &in[7]);
  tide_attention_back g = {tide_heads_of(in[0]), tide_heads_of(in[4]), tide_heads_of(out[0]),
                           tide_heads_of(out[1]), tide_heads_of(out[2]), tide_array_of(in[5]),
                           tide_array_of(in[9]), tide_array_of(out[3]), {}, {}, call->work, {},
                           {}};
  for (int d = 0; d < 3; d++) {
    g.lse_stride[d] = in[5].stride[d];
    g.dlse_stride[d] = g.dlse.data ? in[9].stride[d] : 0;
  }
  TIDE_BY_REAL(in[1].dtype, return run_bwd<T>(call, p, g));
}
