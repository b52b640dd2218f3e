/* What the kernels of the SSD scan share: operands, steps.
 *
 * scan.cu follows the tokens one by one; scan_mma.cu and scan_mma_bwd.cu take chunks on tensor
 * cores (scan_mma.cuh has the idea). Meaning: kernels/ref/scan.c.
 */
#pragma once

#include "kernels/cuda/sequence.cuh"

/* scan_mma.cu, scan_mma_bwd.cu. fits: of the forward's operands (x first); the others of a call
 * whose operands fit. Scratch is in bytes. */
bool tide_scan_mma_fits(const k_call *call, const k_tensor *in);
int64_t tide_scan_mma_work(const k_call *call);
int tide_scan_mma(const k_call *call);
int64_t tide_scan_mma_bwd_work(const k_call *call);
int tide_scan_mma_bwd(const k_call *call);

namespace {

/* Operands and results of ssd_scan_bwd; its in[IN_X] on are those of ssd_scan. */
enum { IN_DY, IN_X, IN_STATES = 10, IN_DLAST };
enum { OUT_X, OUT_DT, OUT_A, OUT_B, OUT_C, OUT_D, OUT_BIAS, OUT_INITIAL };

struct view { tide_array a; int64_t s[4]; };
view view_of(const k_tensor &t)
{
  view v = {tide_array_of(t), {}};
  for (int d = 0; d < t.ndim && v.a.data; d++) v.s[d] = t.stride[d];
  return v;
}
template <class T>
TIDE_DEVICE T get(const view &v, int64_t a, int64_t b, int64_t c, int64_t d)
{
  return tide_at<T>(v.a, a * v.s[0] + b * v.s[1] + c * v.s[2] + d * v.s[3]);
}

struct scan {
  view x, dt, A, B, C, D, bias, initial;
  tide_sequence seq;
  int64_t nb, T, H, P, G, N, chunk, nchunk;
  double dt_min, dt_max;
  int softplus, wide_d; /* D is [H, P] */
};

scan scan_of(const k_call *call, const k_tensor *in)
{
  const k_ssd_attrs *a = static_cast<const k_ssd_attrs *>(call->attrs);
  scan s = {view_of(in[0]), view_of(in[1]), view_of(in[2]), view_of(in[3]), view_of(in[4]),
            view_of(in[5]), view_of(in[6]), view_of(in[7]), tide_sequence_of(in[8]),
            in[0].shape[0], in[0].shape[1], in[0].shape[2], in[0].shape[3], in[3].shape[2],
            in[3].shape[3], a->chunk, 0, a->dt_min, a->dt_max, a->softplus,
            !k_absent(&in[5]) && in[5].ndim == 2};
  s.nchunk = (s.T + s.chunk - 1) / s.chunk;
  return s;
}

TIDE_DEVICE float log1p_of(float x) { return log1pf(x); }
TIDE_DEVICE double log1p_of(double x) { return log1p(x); }

/* The step of a token, and its slope by dt. */
template <class T> struct step_pair { T step, slope; };
template <class T>
TIDE_DEVICE step_pair<T> step_at(const scan &s, int64_t b, int64_t t, int64_t h)
{
  T sum = get<T>(s.dt, b, t, h, 0) + (s.bias.a.data ? get<T>(s.bias, h, 0, 0, 0) : (T)0);
  T v = sum, lo = (T)s.dt_min, hi = (T)s.dt_max;
  if (s.softplus) v = (sum > 0 ? sum : (T)0) + log1p_of(tide_exp(sum > 0 ? -sum : sum));
  step_pair<T> r = {v < lo ? lo : v > hi ? hi : v, (T)0};
  if (v >= lo && v <= hi) r.slope = s.softplus ? tide_sigmoid(sum) : (T)1;
  return r;
}

/* Does token t see the state before it? The initial state is of the sequence of token 0. */
TIDE_DEVICE bool goes_on(const scan &s, int64_t b, int64_t t)
{
  return t == 0 || tide_sequence_at(s.seq, b, t) == tide_sequence_at(s.seq, b, t - 1);
}

template <class T> TIDE_DEVICE T skip(const scan &s, int64_t h, int64_t p)
{
  return s.D.a.data ? get<T>(s.D, h, s.wide_d ? p : 0, 0, 0) : (T)0;
}

}  // namespace
