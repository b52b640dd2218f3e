/* Rotary positions on the GPU.
 *
 * A thread a (token, pair): its angle is reduced in double once and serves all heads.
 * Meaning: kernels/ref/rope.c.
 */
#include "kernels/cuda/block.cuh"

namespace {

struct rope_args {
  tide_array x, y, positions, frequency;
  int64_t batch, time, head, dim, half;
  int64_t xs[4], ys[4], ps[2], fs;
  int interleaved, inverse;
};

TIDE_DEVICE void turn(double angle, float *co, float *si)
{
  /* exact enough to 2^24: the multiple of 2 pi is taken off in double */
  double r = angle - rint(angle * 0.15915494309189533577) * 6.28318530717958647693;
  *co = cosf((float)r);
  *si = sinf((float)r);
}
TIDE_DEVICE void turn(double angle, double *co, double *si)
{
  *co = cos(angle);
  *si = sin(angle);
}

template <class T> TIDE_DEVICE void rope_pair(const rope_args &a, int64_t b, int64_t t, int64_t i)
{
  int64_t first = a.interleaved ? 2 * i : i, second = a.interleaved ? 2 * i + 1 : i + a.half;
  double position = (double)tide_at<int64_t>(a.positions, b * a.ps[0] + t * a.ps[1]);
  T co, si;
  turn(position * tide_at<double>(a.frequency, i * a.fs), &co, &si);
  if (a.inverse) si = -si;
  for (int64_t h = 0; h < a.head; h++) {
    int64_t xo = b * a.xs[0] + t * a.xs[1] + h * a.xs[2];
    int64_t yo = b * a.ys[0] + t * a.ys[1] + h * a.ys[2];
    T x1 = tide_at<T>(a.x, xo + first * a.xs[3]), x2 = tide_at<T>(a.x, xo + second * a.xs[3]);
    tide_put<T>(a.y, yo + first * a.ys[3], x1 * co - x2 * si);
    tide_put<T>(a.y, yo + second * a.ys[3], x2 * co + x1 * si);
  }
}

/* Items of a token: its pairs, then the channels that pass. */
template <class T> __global__ void rope_kernel(rope_args a)
{
  int64_t item = a.half + (a.dim - 2 * a.half);
  TIDE_GRID_LOOP(k, a.batch * a.time * item) {
    int64_t i = k % item, t = k / item % a.time, b = k / item / a.time;
    if (i < a.half) {
      rope_pair<T>(a, b, t, i);
      continue;
    }
    int64_t d = i + a.half;
    for (int64_t h = 0; h < a.head; h++) {
      int64_t xo = b * a.xs[0] + t * a.xs[1] + h * a.xs[2] + d * a.xs[3];
      tide_put<T>(a.y, b * a.ys[0] + t * a.ys[1] + h * a.ys[2] + d * a.ys[3],
                  tide_at<T>(a.x, xo));
    }
  }
}

}  // namespace

int k_cuda_rope(const k_call *call)
{
  const k_rope_attrs *attrs = static_cast<const k_rope_attrs *>(call->attrs);
  const k_tensor &x = call->in[0], &p = call->in[1], &f = call->in[2], &y = call->out[0];
  rope_args a = {tide_array_of(x), tide_array_of(y), tide_array_of(p), tide_array_of(f),
                 x.shape[0], x.shape[1], x.shape[2], x.shape[3], f.shape[0], {}, {}, {},
                 f.stride[0],
                 attrs->interleaved, attrs->inverse};
  for (int d = 0; d < 4; d++) a.xs[d] = x.stride[d], a.ys[d] = y.stride[d];
  a.ps[0] = p.shape[0] == 1 ? 0 : p.stride[0], a.ps[1] = p.stride[1];
  int64_t n = a.batch * a.time * (a.dim - a.half);
  TIDE_BY_REAL(x.dtype, TIDE_LAUNCH(rope_kernel<T>, n, call, a));
  return TIDE_CUDA_LAUNCHED(call);
}
