/* The causal depthwise convolution on the GPU: a thread a (token, channel).
 *
 * What lies before token 0 are the rows of initial; what the activation saw is worked out again in
 * the backward. Sums of dw and dbias: stretches of tokens into scratch, then those in order.
 *
 * Meaning: kernels/ref/conv1d.c. Layer 2k.
 */
#include "kernels/cuda/sequence.cuh"

namespace {

enum { TAPS = 4, COLUMNS = 128, MAX_PARTS = 128, TOKENS_A_PART = 128 };

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

/* Channel c of row i, for token t. */
template <class T>
TIDE_DEVICE T row_at(const conv &v, int64_t b, int64_t t, int64_t i, int64_t c)
{
  if (v.T > 0 && !same(v, b, i, t)) return 0;
  if (i >= 0) return tide_at<T>(v.x, b * v.xs[0] + i * v.xs[1] + c * v.xs[2]);
  if (!v.initial.data) return 0;
  return tide_at<T>(v.initial, b * v.is[0] + (i + v.K - 1) * v.is[1] + c * v.is[2]);
}

template <class T> TIDE_DEVICE T before_act(const conv &v, int64_t b, int64_t t, int64_t c)
{
  T y = v.bias.data ? tide_at<T>(v.bias, c * v.bs) : (T)0;
  for (int64_t k = 0; k < v.K; k++)
    y += tide_at<T>(v.w, c * v.ws[0] + k * v.ws[1]) * row_at<T>(v, b, t, t - (v.K - 1) + k, c);
  return y;
}

/* Items: the tokens, then the last rows. */
template <class T> __global__ void forward_kernel(conv v, int64_t per)
{
  TIDE_GRID_LOOP(i, v.B * per * v.C) {
    int64_t c = i % v.C, t = i / v.C % per, b = i / v.C / per;
    if (t < v.T) {
      T a = before_act<T>(v, b, t, c);
      tide_put<T>(v.y, (b * v.T + t) * v.C + c, v.silu ? a * tide_sigmoid(a) : a);
      continue;
    }
    int64_t j = t - v.T;
    tide_put<T>(v.last, (b * (v.K - 1) + j) * v.C + c,
                row_at<T>(v, b, v.T - 1, v.T - (v.K - 1) + j, c));
  }
}

/* Gradient of what token t has before the activation; 0 outside. */
template <class T> TIDE_DEVICE T grad_before(const conv &v, int64_t b, int64_t t, int64_t c)
{
  if (t < 0 || t >= v.T) return 0;
  T d = tide_at<T>(v.dy, b * v.ds[0] + t * v.ds[1] + c * v.ds[2]);
  if (!v.silu) return d;
  T a = before_act<T>(v, b, t, c), s = tide_sigmoid(a);
  return d * s * ((T)1 + a * ((T)1 - s));
}

/* Items: rows -(K - 1) .. T - 1. */
template <class T> __global__ void rows_kernel(conv v)
{
  int64_t per = v.T + v.K - 1;
  TIDE_GRID_LOOP(n, v.B * per * v.C) {
    int64_t c = n % v.C, i = n / v.C % per - (v.K - 1), b = n / v.C / per;
    if (i < 0 && !v.dinitial.data) continue;
    T sum = 0;
    for (int64_t k = 0; k < v.K; k++) {
      int64_t t = i + (v.K - 1) - k;
      if (t >= 0 && t < v.T && same(v, b, i, t))
        sum += tide_at<T>(v.w, c * v.ws[0] + k * v.ws[1]) * grad_before<T>(v, b, t, c);
    }
    int64_t j = i - (v.T - (v.K - 1));
    if (v.dlast.data && j >= 0 && (v.T == 0 || same(v, b, i, v.T - 1)))
      sum += tide_at<T>(v.dlast, b * v.ls[0] + j * v.ls[1] + c * v.ls[2]);
    if (i >= 0) tide_put<T>(v.dx, (b * v.T + i) * v.C + c, sum);
    else tide_put<T>(v.dinitial, (b * (v.K - 1) + i + v.K - 1) * v.C + c, sum);
  }
}

/* part: [parts][TAPS + 1][C]; the last is dbias. */
template <class T> __global__ void params_kernel(conv v, int64_t stretch, T *part)
{
  int64_t c = blockIdx.x * (int64_t)COLUMNS + threadIdx.x, first = blockIdx.y * stretch;
  int64_t end = first + stretch < v.B * v.T ? first + stretch : v.B * v.T;
  if (c >= v.C) return;
  T sum[TAPS + 1] = {};
  for (int64_t n = first; n < end; n++) {
    int64_t b = n / v.T, t = n % v.T;
    T d = grad_before<T>(v, b, t, c);
    sum[TAPS] += d;
#pragma unroll
    for (int k = 0; k < TAPS; k++)
      if (k < v.K) sum[k] += d * row_at<T>(v, b, t, t - (v.K - 1) + k, c);
  }
#pragma unroll
  for (int k = 0; k <= TAPS; k++) part[(blockIdx.y * (TAPS + 1) + k) * v.C + c] = sum[k];
}

template <class T> __global__ void params_end(conv v, int64_t parts, const T *part)
{
  TIDE_GRID_LOOP(i, v.C * (TAPS + 1)) {
    int64_t c = i % v.C, k = i / v.C;
    T sum = 0;
    for (int64_t n = 0; n < parts; n++) sum += part[(n * (TAPS + 1) + k) * v.C + c];
    if (k < v.K) tide_put<T>(v.dw, c * v.K + k, sum);
    if (k == TAPS && v.dbias.data) tide_put<T>(v.dbias, c, sum);
  }
}

int64_t parts_of(int64_t tokens)
{
  int64_t parts = (tokens + TOKENS_A_PART - 1) / TOKENS_A_PART;
  if (parts > MAX_PARTS) parts = MAX_PARTS;
  return parts ? parts : 1;
}

template <class T> int run_bwd(const k_call *call, const conv &v)
{
  int64_t items = v.B * (v.T + v.K - 1) * v.C, parts = parts_of(v.B * v.T);
  if (items > 0) TIDE_LAUNCH(rows_kernel<T>, items, call, v);
  if (v.C == 0) return TIDE_CUDA_LAUNCHED(call);
  T *part = static_cast<T *>(call->work);
  dim3 grid((unsigned)((v.C + COLUMNS - 1) / COLUMNS), (unsigned)parts);
  TIDE_CUDA_LAUNCH(call, params_kernel<T>, grid, COLUMNS, 0, v, (v.B * v.T + parts - 1) / parts,
                   part);
  TIDE_LAUNCH(params_end<T>, v.C * (TAPS + 1), call, v, parts, part);
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace

int k_cuda_conv1d(const k_call *call)
{
  conv v = conv_of(call, call->in);
  int rc = tide_sequence_check(call, call->in[4]);
  v.y = tide_array_of(call->out[0]), v.last = tide_array_of(call->out[1]);
  int64_t per = v.T + (v.last.data ? v.K - 1 : 0), items = v.B * per * v.C;
  if (rc < 0 || items == 0) return rc;
  TIDE_BY_REAL(v.x.dtype, TIDE_LAUNCH(forward_kernel<T>, items, call, v, per));
  return TIDE_CUDA_LAUNCHED(call);
}

int64_t k_cuda_conv1d_bwd_work(const k_call *call)
{
  const k_tensor &x = call->in[1];
  return parts_of(x.shape[0] * x.shape[1]) * (TAPS + 1) * x.shape[2] * 8;
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
  if (rc < 0) return rc;
  TIDE_BY_REAL(v.x.dtype, return run_bwd<T>(call, v));
}
