/* swiglu, y = silu(gate) * up, its clamped form and their backward, for f32, bf16 and f16. (f64:
 * kernels/ref.)
 *
 * Works in pieces that fit the first-level cache. A piece of a 16-bit type is widened into a buffer
 * on the stack, computed in f32 and narrowed; f32 is read and written in place.
 *
 * A piece is a part of a row; operands that are contiguous are one row. Rows have stride 1.
 */
#include "kernels/cpu/row.h"

enum { PIECE = 1024, GRAIN = 8 }; /* elements of a piece; pieces per thread at least */

/* Returns 1 / (1 + exp(-x)), to 3 ulp, 0 below -87. */
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

TIDE_LEVELS(void, swiglu_clamped,
            (float *y, const float *gate, const float *up, float limit, float alpha, int64_t n),
            (y, gate, up, limit, alpha, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float g = gate[i] > limit ? limit : gate[i], u = up[i] > limit ? limit : up[i];
    u = u < -limit ? -limit : u;
    y[i] = (u + 1.0f) * g * sigmoid(alpha * g);
  }
}

TIDE_LEVELS(void, swiglu_clamped_bwd,
            (float *dgate, float *dup, const float *dy, const float *gate, const float *up,
             float limit, float alpha, int64_t n), (dgate, dup, dy, gate, up, limit, alpha, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float d = dy[i], x = gate[i], z = up[i], g = x > limit ? limit : x, u = z > limit ? limit : z;
    u = u < -limit ? -limit : u;
    float s = sigmoid(alpha * g), slope = s * (1.0f + alpha * g * (1.0f - s));
    dgate[i] = x >= limit ? 0.0f : d * (u + 1.0f) * slope;
    dup[i] = z >= limit || z <= -limit ? 0.0f : d * (g * s);
  }
}

typedef struct swiglu_job {
  const k_call *call;
  const k_swiglu_attrs *clamped; /* or null */
  int64_t width, per_row;        /* elements and pieces of a row */
  bool one_row;
} swiglu_job;

/* A piece: its row, where it begins there, and its elements. */
typedef struct swiglu_piece { int64_t row, first, n; } swiglu_piece;

static swiglu_piece swiglu_piece_at(const swiglu_job *w, int64_t i)
{
  const int64_t row = i / w->per_row, first = i % w->per_row * PIECE, left = w->width - first;
  return (swiglu_piece){ row, first, left < PIECE ? left : PIECE };
}

static int64_t swiglu_place(const swiglu_job *w, const k_tensor *t, const swiglu_piece *p)
{
  return (w->one_row ? 0 : k_row_offset(t, p->row)) + p->first;
}

static void fwd_pieces(void *arg, int64_t begin, int64_t end, int thread)
{
  const swiglu_job *w = arg;
  const k_tensor *in = w->call->in, *y = &w->call->out[0];
  float a[PIECE], b[PIECE];
  (void)thread;
  for (int64_t piece = begin; piece < end; piece++) {
    const swiglu_piece p = swiglu_piece_at(w, piece);
    const float *gate = row_read(&in[0], swiglu_place(w, &in[0], &p), a, p.n);
    const float *up = row_read(&in[1], swiglu_place(w, &in[1], &p), b, p.n);
    const int64_t to = swiglu_place(w, y, &p);
    float *out = row_begin(y, to, a);
    const k_swiglu_attrs *c = w->clamped;
    if (c) swiglu_clamped(out, gate, up, (float)c->limit, (float)c->alpha, p.n);
    else swiglu(out, gate, up, p.n);
    row_write(y, to, out, p.n);
  }
}

static void bwd_pieces(void *arg, int64_t begin, int64_t end, int thread)
{
  const swiglu_job *w = arg;
  const k_tensor *in = w->call->in, *out = w->call->out;
  float a[PIECE], b[PIECE], c[PIECE];
  (void)thread;
  for (int64_t piece = begin; piece < end; piece++) {
    const swiglu_piece p = swiglu_piece_at(w, piece);
    const float *dy = row_read(&in[0], swiglu_place(w, &in[0], &p), a, p.n);
    const float *gate = row_read(&in[1], swiglu_place(w, &in[1], &p), b, p.n);
    const float *up = row_read(&in[2], swiglu_place(w, &in[2], &p), c, p.n);
    const int64_t gate_to = swiglu_place(w, &out[0], &p), up_to = swiglu_place(w, &out[1], &p);
    float *dgate = row_begin(&out[0], gate_to, a), *dup = row_begin(&out[1], up_to, b);
    const k_swiglu_attrs *k = w->clamped;
    if (k)
      swiglu_clamped_bwd(dgate, dup, dy, gate, up, (float)k->limit, (float)k->alpha, p.n);
    else swiglu_bwd(dgate, dup, dy, gate, up, p.n);
    row_write(&out[0], gate_to, dgate, p.n);
    row_write(&out[1], up_to, dup, p.n);
  }
}

static bool swiglu_dense(const k_tensor *t)
{
  int64_t want = 1;
  for (int d = t->ndim - 1; d >= 0; d--) {
    if (t->shape[d] > 1 && t->stride[d] != want) return false;
    want *= t->shape[d];
  }
  return true;
}

static int swiglu_run(const k_call *call, const k_swiglu_attrs *clamped, tide__pool_fn body)
{
  const k_tensor *x = &call->in[0];
  bool dense = true;
  for (int i = 0; i < call->nin; i++) dense = dense && swiglu_dense(&call->in[i]);
  for (int i = 0; i < call->nout; i++) dense = dense && swiglu_dense(&call->out[i]);
  const int64_t width = dense ? k_numel(x) : k_row_size(x), rows = dense ? 1 : k_row_count(x);
  swiglu_job w = { call, clamped, width, (width + PIECE - 1) / PIECE, dense };
  tide__pool_for(call->nthread, rows * w.per_row, GRAIN, body, &w);
  return TIDE_OK;
}

int k_cpu_swiglu(const k_call *call) { return swiglu_run(call, NULL, fwd_pieces); }
int k_cpu_swiglu_bwd(const k_call *call) { return swiglu_run(call, NULL, bwd_pieces); }
int k_cpu_swiglu_clamped(const k_call *call) { return swiglu_run(call, call->attrs, fwd_pieces); }

int k_cpu_swiglu_clamped_bwd(const k_call *call)
{
  return swiglu_run(call, call->attrs, bwd_pieces);
}
