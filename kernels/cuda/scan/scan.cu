/* The SSD scan of Mamba-2 on the GPU: the recurrence itself, a block a (batch, head); f32,
 * f64, few tokens, and whatever tensor cores (scan_mma.cuh) do not take.
 *
 * The state of a head is P x N numbers in scratch, an element always in the hands of
 * the same thread; tokens follow each other. The backward takes the chunks last to first: from the
 * state that entered a chunk it makes those within again, then returns through them. What heads of
 * a group add to dB and dC goes to scratch and is summed in order.
 *
 * Meaning: kernels/ref/scan.c.
 */
#include "kernels/cuda/scan/scan.cuh"

namespace {

enum { THREADS = 256 };

/* A token: its step, its slope by dt, and the factor on the state before it. */
template <class T> struct token { T step, slope, keep; };
template <class T> TIDE_DEVICE token<T> token_at(const scan &s, int64_t b, int64_t t, int64_t h)
{
  step_pair<T> x = step_at<T>(s, b, t, h);
  T keep = goes_on(s, b, t) ? tide_exp(x.step * get<T>(s.A, h, 0, 0, 0)) : (T)0;
  return {x.step, x.slope, keep};
}

/* Returns element i of the state after token t, from that before. */
template <class T>
TIDE_DEVICE T advance(const scan &s, const token<T> &k, T before, int64_t b, int64_t t, int64_t h,
                      int64_t i)
{
  int64_t p = i / s.N, n = i % s.N;
  T add = k.step * get<T>(s.x, b, t, h, p) * get<T>(s.B, b, t, h / (s.H / s.G), n);
  return (k.keep == 0 ? (T)0 : k.keep * before) + add;
}

template <class T>
__global__ void forward_kernel(scan s, tide_array y, tide_array last, tide_array states, T *work)
{
  int64_t b = blockIdx.x / s.H, h = blockIdx.x % s.H, size = s.P * s.N, g = h / (s.H / s.G);
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  T *state = work + blockIdx.x * size;
  TIDE_LANE_LOOP(i, size)
    state[i] = s.initial.a.data ? get<T>(s.initial, b, h, i / s.N, i % s.N) : (T)0;
  for (int64_t t = 0; t < s.T; t++) {
    token<T> k = token_at<T>(s, b, t, h);
    bool keeps = states.data && t % s.chunk == 0;
    TIDE_LANE_LOOP(i, size) {
      if (keeps) tide_put<T>(states, ((b * s.nchunk + t / s.chunk) * s.H + h) * size + i, state[i]);
      state[i] = advance(s, k, state[i], b, t, h, i);
    }
    __syncthreads();
    for (int64_t p = warp; p < s.P; p += THREADS / 32) {
      T sum = 0;
      for (int64_t n = lane; n < s.N; n += 32) sum += state[p * s.N + n] * get<T>(s.C, b, t, g, n);
      sum = tide_warp_fold(sum, tide_plus());
      if (lane == 0)
        tide_put<T>(y, ((b * s.T + t) * s.H + h) * s.P + p,
                    sum + skip<T>(s, h, p) * get<T>(s.x, b, t, h, p));
    }
    __syncthreads();
  }
  if (last.data) TIDE_LANE_LOOP(i, size) tide_put<T>(last, blockIdx.x * size + i, state[i]);
}

/* ---- backward -------------------------------------------------------------------------------- */

template <class T> struct back {
  view dy, dlast;
  tide_array states, dx, ddt, dinitial; /* states may be absent: one chunk of all tokens */
  int64_t b, h0, heads, chunk, nchunk;  /* the heads of one group of one batch at a time */
  T *state, *dstate;                    /* [heads][chunk + 1][P N], [heads][P N] */
  T *dB, *dC;                           /* [heads][T][N] */
  T *dA, *dbias, *dD;                   /* [B][H], [B][H], [B][H][P] */
};

/* Computes the states within a chunk again: slot 0 is the one that enters. */
template <class T>
TIDE_DEVICE void refill(const scan &s, const back<T> &k, T *state, int64_t h, int64_t chunk)
{
  int64_t size = s.P * s.N, t0 = chunk * k.chunk, t1 = t0 + k.chunk < s.T ? t0 + k.chunk : s.T;
  TIDE_LANE_LOOP(i, size) {
    T v = s.initial.a.data ? get<T>(s.initial, k.b, h, i / s.N, i % s.N) : (T)0;
    if (k.states.data)
      v = tide_at<T>(k.states, ((k.b * k.nchunk + chunk) * s.H + h) * size + i);
    state[i] = v;
    for (int64_t t = t0; t < t1; t++) {
      v = advance(s, token_at<T>(s, k.b, t, h), v, k.b, t, h, i);
      state[(t - t0 + 1) * size + i] = v;
    }
  }
}

template <class T> __global__ void backward_kernel(scan s, back<T> k)
{
  int64_t h = k.h0 + blockIdx.x, size = s.P * s.N, g = h / (s.H / s.G), pair = k.b * s.H + h;
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  T *state = k.state + blockIdx.x * (k.chunk + 1) * size, *dstate = k.dstate + blockIdx.x * size;
  T later = 1, dA = 0, dbias = 0;
  TIDE_LANE_LOOP(i, size)
    dstate[i] = k.dlast.a.data ? get<T>(k.dlast, k.b, h, i / s.N, i % s.N) : (T)0;
  TIDE_LANE_LOOP(p, s.P) k.dD[pair * s.P + p] = 0;
  for (int64_t chunk = k.nchunk - 1; chunk >= 0; chunk--) {
    int64_t t0 = chunk * k.chunk, t1 = t0 + k.chunk < s.T ? t0 + k.chunk : s.T;
    refill(s, k, state, h, chunk);
    for (int64_t t = t1 - 1; t >= t0; t--) {
      token<T> x = token_at<T>(s, k.b, t, h);
      const T *after = state + (t - t0 + 1) * size, *before = after - size;
      TIDE_LANE_LOOP(i, size)
        dstate[i] = (later == 0 ? (T)0 : dstate[i] * later)
          + get<T>(k.dy, k.b, t, h, i / s.N) * get<T>(s.C, k.b, t, g, i % s.N);
      __syncthreads();
      T dkeep = 0, dstep = 0;
      TIDE_LANE_LOOP(n, s.N) {
        T dB = 0, dC = 0;
        for (int64_t p = 0; p < s.P; p++) {
          int64_t i = p * s.N + n;
          dC += get<T>(k.dy, k.b, t, h, p) * after[i];
          dB += x.step * get<T>(s.x, k.b, t, h, p) * dstate[i];
          if (x.keep != 0) dkeep += dstate[i] * before[i];
        }
        k.dB[(blockIdx.x * s.T + t) * s.N + n] = dB;
        k.dC[(blockIdx.x * s.T + t) * s.N + n] = dC;
      }
      for (int64_t p = warp; p < s.P; p += THREADS / 32) {
        T into = 0, xp = get<T>(s.x, k.b, t, h, p), dy = get<T>(k.dy, k.b, t, h, p);
        for (int64_t n = lane; n < s.N; n += 32)
          into += dstate[p * s.N + n] * get<T>(s.B, k.b, t, g, n);
        into = tide_warp_fold(into, tide_plus());
        if (lane != 0) continue;
        dstep += into * xp;
        k.dD[pair * s.P + p] += dy * xp;
        tide_put<T>(k.dx, ((k.b * s.T + t) * s.H + h) * s.P + p,
                    x.step * into + skip<T>(s, h, p) * dy);
      }
      __syncwarp();
      dkeep = tide_block_sum(dkeep);
      dstep = tide_block_sum(dstep);
      T da = dkeep * x.keep, draw = (dstep + da * get<T>(s.A, h, 0, 0, 0)) * x.slope;
      dA += da * x.step;
      dbias += draw;
      if (threadIdx.x == 0) tide_put<T>(k.ddt, (k.b * s.T + t) * s.H + h, draw);
      later = x.keep;
      __syncthreads();
    }
  }
  if (threadIdx.x == 0) k.dA[pair] = dA, k.dbias[pair] = dbias;
  if (k.dinitial.data)
    TIDE_LANE_LOOP(i, size)
      tide_put<T>(k.dinitial, pair * size + i, later == 0 ? (T)0 : dstate[i] * later);
}

/* out[b, t, g, n] = the sum over the heads of the group. */
template <class T>
__global__ void group_kernel(scan s, int64_t b, int64_t g, int64_t heads, const T *part,
                             tide_array out)
{
  TIDE_GRID_LOOP(i, s.T * s.N) {
    T sum = 0;
    for (int64_t h = 0; h < heads; h++) sum += part[h * s.T * s.N + i];
    tide_put<T>(out, ((b * s.T + i / s.N) * s.G + g) * s.N + i % s.N, sum);
  }
}

/* out[j] = sum over batches and `fold` neighbours of part[b, j, ...]. */
template <class T>
__global__ void batch_kernel(int64_t nb, int64_t n, int64_t fold, const T *part, tide_array out)
{
  TIDE_GRID_LOOP(j, n) {
    T sum = 0;
    for (int64_t b = 0; b < nb; b++)
      for (int64_t f = 0; f < fold; f++) sum += part[(b * n + j) * fold + f];
    tide_put<T>(out, j, sum);
  }
}

template <class T> back<T> lay_out(const k_call *call, const scan &s, T *work, int64_t *total)
{
  const k_tensor *in = call->in, *out = call->out;
  back<T> k = {view_of(in[IN_DY]), view_of(in[IN_DLAST]), tide_array_of(in[IN_STATES]),
               tide_array_of(out[OUT_X]), tide_array_of(out[OUT_DT]),
               tide_array_of(out[OUT_INITIAL]), 0, 0, s.G ? s.H / s.G : 0, s.chunk, s.nchunk,
               nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr};
  if (k_absent(&in[IN_STATES])) k.chunk = s.T, k.nchunk = s.T > 0;
  int64_t at = 0;
  auto take = [&](int64_t n) {
    T *p = work + at;
    at += n;
    return p;
  };
  k.state = take(k.heads * (k.chunk + 1) * s.P * s.N);
  k.dstate = take(k.heads * s.P * s.N);
  k.dB = take(k.heads * s.T * s.N);
  k.dC = take(k.heads * s.T * s.N);
  k.dA = take(s.nb * s.H);
  k.dbias = take(s.nb * s.H);
  k.dD = take(s.nb * s.H * s.P);
  *total = at;
  return k;
}

template <class T> int run_bwd(const k_call *call, const scan &s)
{
  const k_tensor *out = call->out;
  int64_t total;
  back<T> k = lay_out<T>(call, s, static_cast<T *>(call->work), &total);
  for (k.b = 0; k.b < s.nb; k.b++)
    for (int64_t g = 0; g < s.G; g++) {
      k.h0 = g * k.heads;
      TIDE_CUDA_LAUNCH(call, backward_kernel<T>, (unsigned)k.heads, THREADS, 0, s, k);
      if (s.T * s.N == 0) continue;
      TIDE_LAUNCH(group_kernel<T>, s.T * s.N, call, s, k.b, g, k.heads, k.dB,
                  tide_array_of(out[OUT_B]));
      TIDE_LAUNCH(group_kernel<T>, s.T * s.N, call, s, k.b, g, k.heads, k.dC,
                  tide_array_of(out[OUT_C]));
    }
  TIDE_LAUNCH(batch_kernel<T>, s.H, call, s.nb, s.H, (int64_t)1, k.dA, tide_array_of(out[OUT_A]));
  if (!k_absent(&out[OUT_BIAS]))
    TIDE_LAUNCH(batch_kernel<T>, s.H, call, s.nb, s.H, (int64_t)1, k.dbias,
                tide_array_of(out[OUT_BIAS]));
  if (!k_absent(&out[OUT_D])) {
    int64_t n = s.wide_d ? s.H * s.P : s.H, fold = s.wide_d ? 1 : s.P;
    TIDE_LAUNCH(batch_kernel<T>, n, call, s.nb, n, fold, k.dD, tide_array_of(out[OUT_D]));
  }
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

int64_t k_cuda_ssd_scan_work(const k_call *call)
{
  if (tide_scan_mma_fits(call, call->in)) return tide_scan_mma_work(call);
  scan s = scan_of(call, call->in);
  return s.nb * s.H * s.P * s.N * 8;
}

int k_cuda_ssd_scan(const k_call *call)
{
  scan s = scan_of(call, call->in);
  int rc = tide_sequence_check(call, call->in[8]);
  unsigned n = (unsigned)(s.nb * s.H);
  if (rc < 0 || n == 0) return rc;
  if (tide_scan_mma_fits(call, call->in)) return tide_scan_mma(call);
  TIDE_BY_REAL(call->in[0].dtype,
               TIDE_CUDA_LAUNCH(call, forward_kernel<T>, n, THREADS, 0, s,
                                tide_array_of(call->out[0]), tide_array_of(call->out[1]),
                                tide_array_of(call->out[2]), static_cast<T *>(call->work)));
  return TIDE_CUDA_LAUNCHED(call);
}

int64_t k_cuda_ssd_scan_bwd_work(const k_call *call)
{
  if (tide_scan_mma_fits(call, call->in + IN_X)) return tide_scan_mma_bwd_work(call);
  scan s = scan_of(call, call->in + IN_X);
  int64_t total;
  lay_out<double>(call, s, nullptr, &total);
  return total * 8;
}

int k_cuda_ssd_scan_bwd(const k_call *call)
{
  scan s = scan_of(call, call->in + IN_X);
  int rc = tide_sequence_check(call, call->in[9]);
  if (rc < 0) return rc;
  if (tide_scan_mma_fits(call, call->in + IN_X)) return tide_scan_mma_bwd(call);
  TIDE_BY_REAL(call->in[IN_X].dtype, return run_bwd<T>(call, s));
}
