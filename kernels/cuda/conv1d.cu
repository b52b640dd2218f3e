/* The causal depthwise convolution on the GPU: a thread walks along a stretch of tokens with 16
 * bytes of neighbouring channels and keeps the rows that the taps reach in registers.
 *
 * Bound by memory: a channel has its own 2 to 4 weights, so nothing that tensor cores multiply is
 * shared between channels; as a matrix the weights are diagonal, and 15 of 16 products of a tile
 * would be with 0. Forward, a 16-bit element is read once (2 bytes) and written once (2); the 3
 * rows before a stretch of 16 tokens are read again by the same block, from the first-level cache
 * but for one stretch in four. Backward reads x and dy and writes dx (6 bytes) in one walk, which
 * also sums dw and dbias; of the rows beside its stretch of 64 tokens, 3 are read again before and
 * 3 after.
 * At 4.8 TB/s (H200) 8,192 tokens of 5,376 channels in bf16 take 37 us forward, 55 us backward at
 * best. Not measured.
 *
 * What lies before token 0 are the rows of initial. Where a sequence begins the rows at hand become
 * zero, and what is pending for earlier rows takes no more. Sums of dw and dbias: the four
 * stretches of a block, then blocks, in order.
 *
 * Meaning: kernels/ref/conv1d.c.
 */
#include "kernels/cuda/sequence.cuh"

namespace {

/* WALKS: stretches of a block, one a warp. AHEAD: tokens read before the first is needed. */
enum { TAPS = 4, WALKS = 4, THREADS = 32 * WALKS, STRETCH = 16, STRETCH_BACK = 64, AHEAD = 4 };

struct conv {
  tide_array x, w, bias, initial, y, last, dy, dlast, dx, dw, dbias, dinitial;
  int64_t xs[3], ws[2], bs, is[3], ds[3], ls[3];
  tide_sequence seq;
  int64_t B, T, C, K;
  int silu;
};

void strides(int64_t *to, const k_tensor &t, int n)
{
  for (int d = 0; d < n; d++) to[d] = k_absent(&t) ? 0 : t.stride[d];
}

conv conv_of(const k_call *call, const k_tensor *in)
{
  conv v = {};
  v.x = tide_array_of(in[0]), v.w = tide_array_of(in[1]), v.bias = tide_array_of(in[2]);
  v.initial = tide_array_of(in[3]), v.seq = tide_sequence_of(in[4]);
  strides(v.xs, in[0], 3);
  strides(v.ws, in[1], 2);
  strides(&v.bs, in[2], 1);
  strides(v.is, in[3], 3);
  v.B = in[0].shape[0], v.T = in[0].shape[1], v.C = in[0].shape[2], v.K = in[1].shape[1];
  v.silu = static_cast<const k_conv1d_attrs *>(call->attrs)->silu;
  return v;
}

TIDE_DEVICE bool same(const conv &v, int64_t b, int64_t i, int64_t j)
{
  return tide_sequence_at(v.seq, b, i) == tide_sequence_at(v.seq, b, j);
}

/* ---- 16 bytes of channels -------------------------------------------------------------------- */

/* V numbers as they lie in memory, of one dtype; ANY: one number of whatever dtype. */
enum { ANY = -1 };
template <class T, int DT> struct lanes {
  enum { V = DT == ANY ? 1 : DT == TIDE_F32 ? 4 : 8, BYTES = DT == TIDE_F32 ? 4 : 2 };
  uint4 q;
  T one;

  TIDE_DEVICE void read(const tide_array &a, int64_t i)
  {
    if (V == 1) one = tide_at<T>(a, i);
    else q = *reinterpret_cast<const uint4 *>(static_cast<const char *>(a.data) + i * BYTES);
  }
  TIDE_DEVICE void write(const tide_array &a, int64_t i) const
  {
    if (V == 1) tide_put<T>(a, i, one);
    else *reinterpret_cast<uint4 *>(static_cast<char *>(a.data) + i * BYTES) = q;
  }
  TIDE_DEVICE void get(T *to) const
  {
    alignas(16) unsigned char raw[16];
    memcpy(raw, &q, 16);
#pragma unroll
    for (int e = 0; e < V; e++) to[e] = V == 1 ? one : (T)tide_load<float>(raw, e, DT);
  }
  TIDE_DEVICE void put(const T *from)
  {
    alignas(16) unsigned char raw[16];
    one = from[0];
#pragma unroll
    for (int e = 0; e < V && V > 1; e++) tide_store<float>(raw, e, DT, (float)from[e]);
    if (V > 1) memcpy(&q, raw, 16);
  }
};

/* Channels c.. at row t of batch b; s are the strides. */
template <class L>
TIDE_DEVICE void read_row(L *to, const tide_array &a, const int64_t *s, int64_t b, int64_t t,
                          int64_t c)
{
  to->read(a, b * s[0] + t * s[1] + c * s[2]);
}

/* ---- a walk along the tokens ----------------------------------------------------------------- */

/* Where a thread walks: tokens [t0, t1) of batch b, channels from c on. A block has 32 V channels
 * and WALKS stretches; blocks of the same tokens follow each other. */
struct walk { int64_t b, t0, t1, c, group; };
template <int V> TIDE_DEVICE walk walk_of(const conv &v, int64_t stretch, int64_t groups)
{
  int64_t across = (v.C + 32 * V - 1) / (32 * V), rest = blockIdx.x / across;
  walk k = {rest / groups, 0, 0, 0, rest % groups};
  k.t0 = (k.group * WALKS + (threadIdx.x >> 5)) * stretch;
  k.t1 = k.t0 + stretch < v.T ? k.t0 + stretch : v.T;
  k.c = (blockIdx.x % across * 32 + (threadIdx.x & 31)) * V;
  return k;
}
/* Blocks along the tokens of a batch; at least one, which has what lies before token 0. */
int64_t groups_of(int64_t tokens, int64_t stretch)
{
  int64_t n = (tokens + stretch * WALKS - 1) / (stretch * WALKS);
  return n ? n : 1;
}

/* Of V channels: weights (tap k of K at TAPS - K + k) and the rows of tokens t - (TAPS - 1) .. t,
 * zero where they are of another sequence than t. `run` of them before t are not. */
template <class T, int DT> struct taps {
  typedef lanes<T, DT> L;
  enum { V = L::V };
  T w[TAPS][V], bias[V], row[TAPS][V];
  int first, run;

  TIDE_DEVICE void begin(const conv &v, const walk &k)
  {
    first = TAPS - (int)v.K, run = 0;
#pragma unroll
    for (int e = 0; e < V; e++) {
      bias[e] = v.bias.data ? tide_at<T>(v.bias, (k.c + e) * v.bs) : (T)0;
#pragma unroll
      for (int i = 0; i < TAPS; i++) {
        row[i][e] = 0;
        w[i][e] = i < first ? (T)0 : tide_at<T>(v.w, (k.c + e) * v.ws[0] + (i - first) * v.ws[1]);
      }
    }
    for (int64_t t = k.t0 - (v.K - 1); t < k.t0; t++) {
      L next;
      if (t >= 0) read_row(&next, v.x, v.xs, k.b, t, k.c);
      step(v, k.b, t, &next, k.c);
    }
  }
  /* To token t, whose row lies in next; before token 0 it is one of initial. */
  TIDE_DEVICE void step(const conv &v, int64_t b, int64_t t, const L *next, int64_t c)
  {
    bool on = t <= 0 || same(v, b, t, t - 1);
    run = !on ? 0 : run < TAPS - 1 ? run + 1 : run;
#pragma unroll
    for (int i = 0; i < TAPS - 1; i++)
#pragma unroll
      for (int e = 0; e < V; e++) row[i][e] = on ? row[i + 1][e] : (T)0;
    if (t >= 0) return next->get(row[TAPS - 1]);
#pragma unroll
    for (int e = 0; e < V; e++)
      row[TAPS - 1][e] = v.initial.data
        ? tide_at<T>(v.initial, b * v.is[0] + (t + v.K - 1) * v.is[1] + (c + e) * v.is[2]) : (T)0;
  }
  TIDE_DEVICE void before_act(T *y) const
  {
#pragma unroll
    for (int e = 0; e < V; e++) {
      y[e] = bias[e];
#pragma unroll
      for (int i = 0; i < TAPS; i++)
        if (i >= first) y[e] += w[i][e] * row[i][e];
    }
  }
};

template <class T, int DT>
__global__ void __launch_bounds__(THREADS) forward_kernel(conv v, int64_t groups)
{
  typedef taps<T, DT> K;
  walk k = walk_of<K::V>(v, STRETCH, groups);
  if (k.c >= v.C || k.t0 >= k.t1) return;
  K at;
  at.begin(v, k);
  for (int64_t t = k.t0; t < k.t1; t += AHEAD) {
    typename K::L next[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (t + a < k.t1) read_row(&next[a], v.x, v.xs, k.b, t + a, k.c);
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      if (t + a >= k.t1) continue;
      T y[K::V];
      at.step(v, k.b, t + a, &next[a], k.c);
      at.before_act(y);
#pragma unroll
      for (int e = 0; e < K::V && v.silu; e++) y[e] *= tide_sigmoid(y[e]);
      next[a].put(y);
      next[a].write(v.y, (k.b * v.T + t + a) * v.C + k.c);
    }
  }
}

/* Writes the last K - 1 rows of initial and x, zero where of another sequence than token T - 1. */
template <class T> __global__ void last_kernel(conv v)
{
  TIDE_GRID_LOOP(n, v.B * (v.K - 1) * v.C) {
    int64_t c = n % v.C, j = n / v.C % (v.K - 1), b = n / v.C / (v.K - 1), i = v.T - (v.K - 1) + j;
    T x = 0;
    if (v.T > 0 && !same(v, b, i, v.T - 1)) x = 0;
    else if (i >= 0) x = tide_at<T>(v.x, b * v.xs[0] + i * v.xs[1] + c * v.xs[2]);
    else if (v.initial.data)
      x = tide_at<T>(v.initial, b * v.is[0] + (i + v.K - 1) * v.is[1] + c * v.is[2]);
    tide_put<T>(v.last, n, x);
  }
}

/* ---- backward -------------------------------------------------------------------------------- */

/* d <- d act'(a) */
template <class T, int V> TIDE_DEVICE void times_slope(T *d, const T *a, bool silu)
{
#pragma unroll
  for (int e = 0; e < V && silu; e++) {
    T s = tide_sigmoid(a[e]);
    d[e] *= s * ((T)1 + a[e] * ((T)1 - s));
  }
}

/* Gradient of row i, complete but for the last rows. */
template <class T, int DT>
TIDE_DEVICE void put_row(const conv &v, int64_t b, int64_t i, int64_t c, T *d)
{
  typedef lanes<T, DT> L;
  int64_t j = i - (v.T - (v.K - 1));
  bool last = v.dlast.data && j >= 0 && (v.T == 0 || same(v, b, i, v.T - 1));
#pragma unroll
  for (int e = 0; e < L::V; e++) {
    if (last) d[e] += tide_at<T>(v.dlast, b * v.ls[0] + j * v.ls[1] + (c + e) * v.ls[2]);
    if (i < 0 && v.dinitial.data)
      tide_put<T>(v.dinitial, (b * (v.K - 1) + i + v.K - 1) * v.C + c + e, d[e]);
  }
  if (i < 0) return;
  L out;
  out.put(d);
  out.write(v.dx, (b * v.T + i) * v.C + c);
}

/* part[block along the tokens][TAPS + 1][C]: dw as it lies in taps, then dbias; of the block's
 * stretches in order. */
template <class T, int V>
TIDE_DEVICE void put_params(const conv &v, const walk &k, const T (*sum)[V], T *part,
                            int64_t groups)
{
  __shared__ T all[WALKS][TAPS + 1][32 * V];
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
#pragma unroll
  for (int i = 0; i <= TAPS; i++)
#pragma unroll
    for (int e = 0; e < V; e++) all[warp][i][lane * V + e] = sum[i][e];
  __syncthreads();
  int64_t c0 = k.c - lane * V, to = (k.b * groups + k.group) * (TAPS + 1) * v.C;
  for (int n = (int)threadIdx.x; n < (TAPS + 1) * 32 * V; n += THREADS) {
    int i = n / (32 * V), e = n % (32 * V);
    T s = 0;
    for (int w = 0; w < WALKS; w++) s += all[w][i][e];
    if (c0 + e < v.C) part[to + i * v.C + c0 + e] = s;
  }
}

/* dx and dinitial of a stretch's rows, dw and dbias of its tokens. Row t - (TAPS - 1) + i has
 * gathered pend[i] when token t has been; the K - 1 tokens after the stretch give to its rows. */
template <class T, int DT>
__global__ void __launch_bounds__(THREADS) backward_kernel(conv v, int64_t groups, T *part)
{
  typedef taps<T, DT> K;
  enum { V = K::V };
  walk k = walk_of<V>(v, STRETCH_BACK, groups);
  T sum[TAPS + 1][V] = {}, pend[TAPS][V] = {};
  K at;
  bool mine = k.c < v.C && (k.t0 < k.t1 || k.t0 == 0);
  if (mine) at.begin(v, k);
  int64_t least = k.t0 == 0 ? -(v.K - 1) : k.t0, end = mine ? k.t1 + v.K - 1 : k.t0;
  for (int64_t base = k.t0; base < end; base += AHEAD) {
    typename K::L x[AHEAD], dy[AHEAD];
#pragma unroll
    for (int a = 0; a < AHEAD; a++)
      if (base + a < end && base + a < v.T) {
        read_row(&x[a], v.x, v.xs, k.b, base + a, k.c);
        read_row(&dy[a], v.dy, v.ds, k.b, base + a, k.c);
      }
#pragma unroll
    for (int a = 0; a < AHEAD; a++) {
      int64_t t = base + a;
      if (t >= end) continue;
#pragma unroll
      for (int e = 0; e < V; e++) {
#pragma unroll
        for (int i = 0; i < TAPS - 1; i++) pend[i][e] = pend[i + 1][e];
        pend[TAPS - 1][e] = 0;
      }
      if (t < v.T) {
        T d[V], seen[V];
        at.step(v, k.b, t, &x[a], k.c);
        at.before_act(seen);
        dy[a].get(d);
        times_slope<T, V>(d, seen, v.silu != 0);
#pragma unroll
        for (int e = 0; e < V; e++) {
#pragma unroll
          for (int i = 0; i < TAPS; i++) {
            if (i < at.first) continue;
            if (TAPS - 1 - i <= at.run) pend[i][e] += at.w[i][e] * d[e];
            if (t < k.t1) sum[i][e] += d[e] * at.row[i][e];
          }
          if (t < k.t1) sum[TAPS][e] += d[e];
        }
      }
      int64_t i = t - (v.K - 1);
      if (i < least) continue;
      T ready[V];
#pragma unroll
      for (int e = 0; e < V; e++)
        ready[e] = v.K == 4 ? pend[0][e] : v.K == 3 ? pend[1][e] : pend[2][e];
      put_row<T, DT>(v, k.b, i, k.c, ready);
    }
  }
  put_params<T, V>(v, k, sum, part, groups);
}

template <class T> __global__ void params_end(conv v, int64_t parts, const T *part)
{
  TIDE_GRID_LOOP(i, v.C * (TAPS + 1)) {
    int64_t c = i % v.C, k = i / v.C - (TAPS - v.K);
    T sum = 0;
#pragma unroll 8
    for (int64_t n = 0; n < parts; n++) sum += part[n * (TAPS + 1) * v.C + i];
    if (k >= 0 && k < v.K) tide_put<T>(v.dw, c * v.K + k, sum);
    if (k == v.K && v.dbias.data) tide_put<T>(v.dbias, c, sum);
  }
}

/* ---- from a call ----------------------------------------------------------------------------- */

bool by_vectors(const conv &v, const tide_array &a, const int64_t *s)
{
  int n = v.x.dtype == TIDE_F32 ? 4 : 8;
  return s[0] % n == 0 && s[1] % n == 0 && s[2] == 1 && (uintptr_t)a.data % 16 == 0;
}

/* Returns the dtype of vectors, or ANY where rows do not begin on 16 bytes. y or dx, contiguous, is
 * out. */
int lanes_of(const conv &v, const tide_array &out)
{
  int n = v.x.dtype == TIDE_F32 ? 4 : 8;
  bool fit = v.x.dtype != TIDE_F64 && v.C % n == 0 && by_vectors(v, v.x, v.xs)
    && (uintptr_t)out.data % 16 == 0 && (!v.dy.data || by_vectors(v, v.dy, v.ds));
  return fit ? v.x.dtype : ANY;
}

template <class T, int DT> int run(const k_call *call, const conv &v)
{
  int64_t groups = groups_of(v.T, STRETCH), wide = 32 * taps<T, DT>::V;
  unsigned n = (unsigned)(v.B * groups * ((v.C + wide - 1) / wide));
  if (v.T > 0) TIDE_CUDA_LAUNCH(call, (forward_kernel<T, DT>), n, THREADS, 0, v, groups);
  if (v.last.data) TIDE_LAUNCH(last_kernel<T>, v.B * (v.K - 1) * v.C, call, v);
  return TIDE_CUDA_LAUNCHED(call);
}

template <class T, int DT> int run_bwd(const k_call *call, const conv &v)
{
  int64_t groups = groups_of(v.T, STRETCH_BACK), wide = 32 * taps<T, DT>::V;
  unsigned n = (unsigned)(v.B * groups * ((v.C + wide - 1) / wide));
  T *part = static_cast<T *>(call->work);
  if (n > 0) TIDE_CUDA_LAUNCH(call, (backward_kernel<T, DT>), n, THREADS, 0, v, groups, part);
  TIDE_LAUNCH(params_end<T>, v.C * (TAPS + 1), call, v, v.B * groups, part);
  return TIDE_CUDA_LAUNCHED(call);
}

/* what<T, DT>(call, v) */
#define BY_LANES(what, out)                                     \
  switch (lanes_of(v, out)) {                                   \
    case TIDE_BF16: return what<float, TIDE_BF16>(call, v);     \
    case TIDE_F16: return what<float, TIDE_F16>(call, v);       \
    case TIDE_F32: return what<float, TIDE_F32>(call, v);       \
    default: TIDE_BY_REAL(v.x.dtype, return (what<T, ANY>(call, v))); \
  }

}  // namespace

int k_cuda_conv1d(const k_call *call)
{
  conv v = conv_of(call, call->in);
  int rc = tide_sequence_check(call, call->in[4]);
  v.y = tide_array_of(call->out[0]), v.last = tide_array_of(call->out[1]);
  if (rc < 0 || v.B * v.C == 0) return rc;
  BY_LANES(run, v.y)
}

int64_t k_cuda_conv1d_bwd_work(const k_call *call)
{
  const k_tensor &x = call->in[1];
  return x.shape[0] * groups_of(x.shape[1], STRETCH_BACK) * (TAPS + 1) * x.shape[2] * 8;
}

int k_cuda_conv1d_bwd(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  conv v = conv_of(call, in + 1);
  int rc = tide_sequence_check(call, in[5]);
  v.dy = tide_array_of(in[0]), v.dlast = tide_array_of(in[6]);
  strides(v.ds, in[0], 3);
  strides(v.ls, in[6], 3);
  v.dx = tide_array_of(out[0]), v.dw = tide_array_of(out[1]), v.dbias = tide_array_of(out[2]);
  v.dinitial = tide_array_of(out[3]);
  if (rc < 0 || v.C == 0) return rc;
  BY_LANES(run_bwd, v.dx)
}
