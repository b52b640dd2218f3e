/* swiglu, y = silu(gate) * up, and its backward, for f32, bf16 and f16. (f64: kernels/ref.)
 *
 * Works in pieces that fit the first-level cache. A piece of a 16-bit type is widened into a buffer
 * on the stack, computed in f32 and narrowed; f32 is read and written in place.
 *
 * Operands are row-major contiguous.
 */
#include "kernels/cpu/row.h"

enum { PIECE = 1024, GRAIN = 8 }; /* elements of a piece; pieces per thread at least */

/* 3 ulp, 0 below -87. */
TIDE_INLINE float sigmoid(float x) { return 1.0f / (1.0f + vec_exp(-x)); }

TIDE_LEVELS(void, swiglu,
            (float *y, const float *gate, const float *up, int64_t n), (y, gate, up, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) y[i] = gate[i] * sigmoid(gate[i]) * up[i];
}

TIDE_LEVELS(void, swiglu_bwd,
            (float *dgate, float *dup, const float *dy, const float *gate, const float *up,
             int64_t n), (dgate, dup, dy, gate, up, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float d = dy[i], g = gate[i], s = sigmoid(g);
    float silu = g * s, slope = s * (1.0f + g * (1.0f - s));
    dgate[i] = d * up[i] * slope;
    dup[i] = d * silu;
  }
}

static int64_t piece_size(int64_t numel, int64_t piece)
{
  int64_t left = numel - piece * PIECE;
  return left < PIECE ? left : PIECE;
}

static void fwd_pieces(void *arg, int64_t begin, int64_t end, int thread)
{
  const k_call *call = arg;
  const k_tensor *y = &call->out[0];
  float a[PIECE], b[PIECE];
  int64_t numel = k_numel(y);
  (void)thread;
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t i = piece * PIECE, n = piece_size(numel, piece);
    const float *gate = row_read(&call->in[0], i, a, n);
    const float *up = row_read(&call->in[1], i, b, n);
    float *out = row_begin(y, i, a);
    swiglu(out, gate, up, n);
    row_write(y, i, out, n);
  }
}

static void bwd_pieces(void *arg, int64_t begin, int64_t end, int thread)
{
  const k_call *call = arg;
  const k_tensor *in = call->in, *out = call->out;
  float a[PIECE], b[PIECE], c[PIECE];
  int64_t numel = k_numel(&in[0]);
  (void)thread;
  for (int64_t piece = begin; piece < end; piece++) {
    int64_t i = piece * PIECE, n = piece_size(numel, piece);
    const float *dy = row_read(&in[0], i, a, n);
    const float *gate = row_read(&in[1], i, b, n);
    const float *up = row_read(&in[2], i, c, n);
    float *dgate = row_begin(&out[0], i, a), *dup = row_begin(&out[1], i, b);
    swiglu_bwd(dgate, dup, dy, gate, up, n);
    row_write(&out[0], i, dgate, n);
    row_write(&out[1], i, dup, n);
  }
}

static int swiglu_run(const k_call *call, tide__pool_fn body)
{
  int64_t pieces = (k_numel(&call->in[0]) + PIECE - 1) / PIECE;
  tide__pool_for(call->nthread, pieces, GRAIN, body, (void *)call);
  return TIDE_OK;
}

int k_cpu_swiglu(const k_call *call) { return swiglu_run(call, fwd_pieces); }
int k_cpu_swiglu_bwd(const k_call *call) { return swiglu_run(call, bwd_pieces); }
