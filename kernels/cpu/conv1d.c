/* The causal depthwise convolution on the CPU, forward and backward, for f32, bf16 and f16.
 *
 * A token's output is a sum over K rows of channels, so the loops run along channels and a hidden
 * tap is a pointer to a row of zeros. Blocks of tokens are the tasks; within one, channels are cut
 * into pieces whose rows and weights stay in the first-level cache.
 *
 * The backward is one walk: gradients before the activation are kept in a ring of K rows until the
 * input row they belong to is complete. A block recomputes those of the K-1 tokens after it. The
 * weights' gradient is summed per block (blocks depend on the shape alone) and the blocks are added
 * in order.
 *
 * See kernel.h. 16-bit rows are widened once, into a ring.
 */
#include "kernels/cpu/row.h"
#include "kernels/sequence.h"

enum { TAPS = 4, PIECE = 1024, MIN_TOKENS = 32, MAX_BLOCK = 64 };

typedef struct conv {
  const k_tensor *x, *w, *bias, *initial, *seq;
  const k_tensor *y, *dy, *dlast, *dx, *dinitial;
  int64_t nb, T, C, K, tokens, per_batch; /* tokens of a block, blocks of a batch */
  int silu;
  float *wide;                            /* [K + 1, C]: the taps, then the bias */
  float *part;                            /* backward: [block][K + 1, C] */
  float *scratch;                         /* of all threads */
} conv;

/* A thread's rows of one piece of channels. */
typedef struct conv_piece {
  const conv *v;
  int64_t b, c0, n;
  float *zero, *in[TAPS], *grad[TAPS], *tmp, *tmp2;
  int64_t have;                           /* rows below this one are in the ring */
} conv_piece;

enum { LANE_ROWS = 3 + 2 * TAPS };

static void conv1d_plan(conv *v, const k_call *call, const k_tensor *in)
{
  const k_conv1d_attrs *attrs = call->attrs;
  v->x = in, v->w = in + 1, v->bias = in + 2, v->initial = in + 3, v->seq = in + 4;
  v->nb = in->shape[0], v->T = in->shape[1], v->C = in->shape[2], v->K = in[1].shape[1];
  v->silu = attrs->silu;
  int64_t fair = (v->nb * v->T + MAX_BLOCK - 1) / MAX_BLOCK;
  v->tokens = fair > MIN_TOKENS ? fair : MIN_TOKENS;
  v->per_batch = v->T > 0 ? (v->T + v->tokens - 1) / v->tokens : 1;
}

static void widen_weights(conv *v)
{
  for (int64_t c = 0; c < v->C; c++)
    for (int64_t k = 0; k < v->K; k++)
      row_widen(v->wide + k * v->C + c, row_at(v->w, c * v->w->stride[0] + k * v->w->stride[1]),
                v->w->dtype, 1);
  float *bias = v->wide + v->K * v->C;
  if (k_absent(v->bias)) memset(bias, 0, (size_t)v->C * sizeof(float));
  else row_widen(bias, v->bias->data, v->bias->dtype, v->C);
}

static void conv_piece_open(conv_piece *l, const conv *v, int thread)
{
  float *at = v->scratch + (int64_t)thread * LANE_ROWS * PIECE;
  l->v = v;
  l->zero = at;
  l->tmp = at + PIECE;
  l->tmp2 = at + 2 * PIECE;
  for (int k = 0; k < TAPS; k++) {
    l->in[k] = at + (3 + k) * PIECE;
    l->grad[k] = at + (3 + TAPS + k) * PIECE;
  }
  memset(l->zero, 0, PIECE * sizeof(float));
}

/* ---- rows ---------------------------------------------------------------------------------- */

static int64_t conv1d_get(const conv *v, int64_t b, int64_t i)
{
  return sequence_at(v->seq, b, i < 0 ? 0 : i);
}

static int conv1d_same(const conv *v, int64_t b, int64_t i, int64_t j)
{
  return k_absent(v->seq) || conv1d_get(v, b, i) == conv1d_get(v, b, j);
}

static int64_t conv1d_offset(const k_tensor *t, int64_t b, int64_t i, int64_t c)
{
  return b * t->stride[0] + i * t->stride[1] + c;
}

/* Returns row i as f32: in place, or widened into its ring row. */
static const float *load_row(const conv_piece *l, int64_t i)
{
  const conv *v = l->v;
  if (i < 0 && k_absent(v->initial)) return l->zero;
  const k_tensor *t = i < 0 ? v->initial : v->x;
  int64_t at = conv1d_offset(t, l->b, i < 0 ? i + v->K - 1 : i, l->c0);
  return row_read(t, at, l->in[(i + TAPS) % TAPS], l->n);
}

/* Sets the K rows that token t reads. Tokens are visited in ascending order: earlier rows are in
 * the ring. */
static void taps_of(conv_piece *l, int64_t t, const float **row)
{
  const conv *v = l->v;
  for (int64_t k = 0; k < v->K; k++) {
    int64_t i = t - (v->K - 1) + k;
    if (i >= l->have || v->x->dtype == TIDE_F32) row[k] = load_row(l, i);
    else row[k] = i < 0 && k_absent(v->initial) ? l->zero : l->in[(i + TAPS) % TAPS];
    if (!conv1d_same(v, l->b, i, t)) row[k] = l->zero;
  }
  l->have = t + 1;
}

/* ---- loops over channels ------------------------------------------------------------------- */

typedef struct taps {
  const float *x[TAPS], *w[TAPS], *bias;
} taps;

TIDE_INLINE float tap_sum(const taps *p, int64_t i, const int k)
{
  float a = p->bias[i] + p->w[0][i] * p->x[0][i];
  a += p->w[1][i] * p->x[1][i];
  if (k > 2) a += p->w[2][i] * p->x[2][i];
  if (k > 3) a += p->w[3][i] * p->x[3][i];
  return a;
}

TIDE_INLINE void forward_row(float *restrict y, const taps *p, int64_t n, const int k,
                             const int silu)
{
  taps q = *p;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float a = tap_sum(&q, i, k);
    y[i] = silu ? a * tide__sigmoidf(a) : a;
  }
}

/* Computes d = dy * act'(a); d may be dy. */
TIDE_INLINE void slope_row(float *d, const float *dy, const taps *p, int64_t n, const int k)
{
  taps q = *p;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    float a = tap_sum(&q, i, k), s = tide__sigmoidf(a);
    d[i] = dy[i] * s * (1.0f + a * (1.0f - s));
  }
}

/* Adds one token's terms, of gradient d, to the gradients of taps and bias. sum: [k + 1] rows. */
TIDE_INLINE void weight_row(float *const *sum, const float *d, const taps *p, int64_t n,
                            const int k)
{
  float *restrict s0 = sum[0], *restrict s1 = sum[1], *restrict s2 = sum[2], *restrict s3 = sum[3];
  float *restrict sb = sum[4];
  taps q = *p;
#pragma omp simd
  for (int64_t i = 0; i < n; i++) {
    s0[i] += d[i] * q.x[0][i];
    s1[i] += d[i] * q.x[1][i];
    if (k > 2) s2[i] += d[i] * q.x[2][i];
    if (k > 3) s3[i] += d[i] * q.x[3][i];
    sb[i] += d[i];
  }
}

#define ROWS(k)                                                                                \
  TIDE_LEVELS(void, silu_##k, (float *y, const taps *p, int64_t n), (y, p, n)) \
  {                                                                                            \
    forward_row(y, p, n, k, 1);                                                                \
  }                                                                                            \
  TIDE_LEVELS(void, plain_##k, (float *y, const taps *p, int64_t n), (y, p, n)) \
  {                                                                                            \
    forward_row(y, p, n, k, 0);                                                                \
  }                                                                                            \
  TIDE_LEVELS(void, slope_##k, \
              (float *d, const float *dy, const taps *p, int64_t n), (d, dy, p, n)) \
  {                                                                                            \
    slope_row(d, dy, p, n, k);                                                                 \
  }                                                                                            \
  TIDE_LEVELS(void, weight_##k, \
              (float *const *sum, const float *d, const taps *p, int64_t n), (sum, d, p, n)) \
  {                                                                                            \
    weight_row(sum, d, p, n, k);                                                               \
  }
ROWS(2)
ROWS(3)
ROWS(4)

static void run_forward(float *y, const taps *p, int64_t n, int64_t k, int silu)
{
  static void (*const fn[2][3])(float *, const taps *, int64_t) = {{plain_2, plain_3, plain_4},
                                                                   {silu_2, silu_3, silu_4}};
  fn[silu != 0][k - 2](y, p, n);
}

static void run_slope(float *d, const float *dy, const taps *p, int64_t n, int64_t k)
{
  static void (*const fn[3])(float *, const float *, const taps *, int64_t) = {slope_2, slope_3,
                                                                               slope_4};
  fn[k - 2](d, dy, p, n);
}

static void run_weight(float *const *sum, const float *d, const taps *p, int64_t n, int64_t k)
{
  static void (*const fn[3])(float *const *, const float *, const taps *, int64_t) = {
    weight_2, weight_3, weight_4};
  fn[k - 2](sum, d, p, n);
}

/* dx = sum of w[k] * d[k] over the taps that reach the row; the others point at zeros. */
TIDE_LEVELS(void, gather_row, (float *dx, const taps *p, int64_t n), (dx, p, n))
{
  taps q = *p;
#pragma omp simd
  for (int64_t i = 0; i < n; i++)
    dx[i] = (q.w[0][i] * q.x[0][i] + q.w[1][i] * q.x[1][i]) +
            (q.w[2][i] * q.x[2][i] + q.w[3][i] * q.x[3][i]);
}

static void set_weights(const conv *v, taps *p, int64_t c0)
{
  for (int64_t k = 0; k < TAPS; k++) p->w[k] = v->wide + (k < v->K ? k : 0) * v->C + c0;
  p->bias = v->wide + v->K * v->C + c0;
}

static void conv1d_block_of(const conv *v, int64_t task, int64_t *b, int64_t *t0, int64_t *t1)
{
  *b = task / v->per_batch;
  *t0 = task % v->per_batch * v->tokens;
  *t1 = *t0 + v->tokens < v->T ? *t0 + v->tokens : v->T;
}

/* ---- forward ------------------------------------------------------------------------------- */

static void forward_piece(conv_piece *l, int64_t t0, int64_t t1)
{
  const conv *v = l->v;
  taps p = {.bias = 0};
  set_weights(v, &p, l->c0);
  l->have = INT64_MIN;
  for (int64_t t = t0; t < t1; t++) {
    taps_of(l, t, p.x);
    float *y = row_begin(v->y, conv1d_offset(v->y, l->b, t, l->c0), l->tmp);
    run_forward(y, &p, l->n, v->K, v->silu);
    row_write(v->y, conv1d_offset(v->y, l->b, t, l->c0), y, l->n);
  }
}

static void conv1d_forward_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const conv *v = arg;
  conv_piece l;
  conv_piece_open(&l, v, thread);
  for (int64_t i = begin; i < end; i++) {
    int64_t t0, t1;
    conv1d_block_of(v, i, &l.b, &t0, &t1);
    for (l.c0 = 0; l.c0 < v->C; l.c0 += PIECE) {
      l.n = v->C - l.c0 < PIECE ? v->C - l.c0 : PIECE;
      forward_piece(&l, t0, t1);
    }
  }
}

/* Stores the last K-1 rows, the initial rows of the next call. */
static void keep_last(const conv *v, const k_tensor *last)
{
  int64_t R = v->K - 1, size = vec_size(v->x->dtype);
  for (int64_t b = 0; b < v->nb; b++)
    for (int64_t j = 0; j < R; j++) {
      int64_t i = v->T - R + j;
      char *to = row_at(last, (b * R + j) * v->C);
      const k_tensor *from = i < 0 ? v->initial : v->x;
      if (k_absent(from) || (v->T > 0 && !conv1d_same(v, b, i, v->T - 1)))
        memset(to, 0, (size_t)(v->C * size));
      else
        memcpy(to, row_at(from, conv1d_offset(from, b, i < 0 ? i + R : i, 0)),
               (size_t)(v->C * size));
    }
}

static int64_t conv_piece_bytes(const k_call *call)
{
  return (int64_t)call->nthread * LANE_ROWS * PIECE * (int64_t)sizeof(float);
}

int64_t k_cpu_conv1d_work(const k_call *call)
{
  int64_t C = call->in[0].shape[2], K = call->in[1].shape[1];
  return conv_piece_bytes(call) + (K + 1) * C * (int64_t)sizeof(float);
}

int k_cpu_conv1d(const k_call *call)
{
  conv v = {.y = &call->out[0], .scratch = call->work};
  conv1d_plan(&v, call, call->in);
  TIDE_TRY(sequence_check(call, v.seq));
  v.wide = (float *)((char *)call->work + conv_piece_bytes(call));
  widen_weights(&v);
  if (v.T > 0 && v.C > 0)
    tide__pool_for(call->nthread, v.nb * v.per_batch, 1, conv1d_forward_tasks, &v);
  if (!k_absent(&call->out[1])) keep_last(&v, &call->out[1]);
  return TIDE_OK;
}

/* ---- backward ------------------------------------------------------------------------------ */

/* Puts the gradient before the activation of token t into the ring. sum: rows of dweight and dbias,
 * or null for a token of the next block. */
static void back_token(conv_piece *l, taps *p, int64_t t, float *const *sum)
{
  const conv *v = l->v;
  float *d = l->grad[t % TAPS];
  const float *dy = row_read(v->dy, conv1d_offset(v->dy, l->b, t, l->c0), d, l->n);
  if (v->silu || sum) taps_of(l, t, p->x);
  if (v->silu) run_slope(d, dy, p, l->n, v->K);
  else if (dy != d) memcpy(d, dy, (size_t)l->n * sizeof(float));
  if (sum) run_weight(sum, d, p, l->n, v->K);
}

/* Writes the gradient of row s, all of whose tokens are in the ring. */
static void back_row(conv_piece *l, taps *p, int64_t s)
{
  const conv *v = l->v;
  const k_tensor *to = s < 0 ? v->dinitial : v->dx;
  if (k_absent(to)) return;
  for (int64_t k = 0; k < TAPS; k++) {
    int64_t t = s + v->K - 1 - k;
    int reached = k < v->K && t >= 0 && t < v->T && conv1d_same(v, l->b, s, t);
    p->x[k] = reached ? l->grad[t % TAPS] : l->zero;
  }
  int64_t at = conv1d_offset(to, l->b, s < 0 ? s + v->K - 1 : s, l->c0),
          j = s - (v->T - (v->K - 1));
  float *dx = row_begin(to, at, l->tmp);
  gather_row(dx, p, l->n);
  if (!k_absent(v->dlast) && j >= 0 && (v->T == 0 || conv1d_same(v, l->b, s, v->T - 1)))
    row_add(dx, dx, row_read(v->dlast, conv1d_offset(v->dlast, l->b, j, l->c0), l->tmp2, l->n),
            l->n);
  row_write(to, at, dx, l->n);
}

static void backward_piece(conv_piece *l, int64_t t0, int64_t t1, float *part)
{
  const conv *v = l->v;
  taps in = {.bias = 0}, out = {.bias = 0};
  float *sum[TAPS + 1];
  set_weights(v, &in, l->c0);
  set_weights(v, &out, l->c0);
  for (int64_t k = 0; k < TAPS; k++) sum[k] = part + (k < v->K ? k : 0) * v->C + l->c0;
  sum[TAPS] = part + v->K * v->C + l->c0;
  l->have = INT64_MIN;
  int64_t next = t0;
  for (int64_t s = t0 == 0 ? -(v->K - 1) : t0; s < t1; s++) {
    for (; next < v->T && next <= s + v->K - 1; next++)
      back_token(l, &in, next, next < t1 ? sum : 0);
    back_row(l, &out, s);
  }
}

static void backward_tasks(void *arg, int64_t begin, int64_t end, int thread)
{
  const conv *v = arg;
  conv_piece l;
  conv_piece_open(&l, v, thread);
  for (int64_t i = begin; i < end; i++) {
    int64_t t0, t1, n = (v->K + 1) * v->C;
    conv1d_block_of(v, i, &l.b, &t0, &t1);
    memset(v->part + i * n, 0, (size_t)n * sizeof(float));
    for (l.c0 = 0; l.c0 < v->C; l.c0 += PIECE) {
      l.n = v->C - l.c0 < PIECE ? v->C - l.c0 : PIECE;
      backward_piece(&l, t0, t1, v->part + i * n);
    }
  }
}

/* Adds the blocks in order into `total`, and transposes the taps back to [C, K]. */
static void put_params(const conv *v, const k_tensor *dw, const k_tensor *dbias, float *total)
{
  int64_t n = (v->K + 1) * v->C;
  memset(total, 0, (size_t)n * sizeof(float));
  for (int64_t i = 0; i < v->nb * v->per_batch; i++) row_add(total, total, v->part + i * n, n);
  for (int64_t c = 0; c < v->C; c++)
    for (int64_t k = 0; k < v->K; k++)
      row_narrow(row_at(dw, c * v->K + k), total + k * v->C + c, dw->dtype, 1);
  if (!k_absent(dbias)) row_narrow(dbias->data, total + v->K * v->C, dbias->dtype, v->C);
}

int64_t k_cpu_conv1d_bwd_work(const k_call *call)
{
  conv v = {.y = 0};
  conv1d_plan(&v, call, call->in + 1);
  int64_t rows = 1 + v.nb * v.per_batch; /* of taps and bias: the weights, then the blocks */
  return conv_piece_bytes(call) + rows * (v.K + 1) * v.C * (int64_t)sizeof(float);
}

int k_cpu_conv1d_bwd(const k_call *call)
{
  conv v = {.dy = &call->in[0], .dlast = &call->in[6], .dx = &call->out[0],
            .dinitial = &call->out[3], .scratch = call->work};
  conv1d_plan(&v, call, call->in + 1);
  TIDE_TRY(sequence_check(call, v.seq));
  v.wide = (float *)((char *)call->work + conv_piece_bytes(call));
  v.part = v.wide + (v.K + 1) * v.C;
  widen_weights(&v);
  tide__pool_for(call->nthread, v.nb * v.per_batch, 1, backward_tasks, &v);
  put_params(&v, &call->out[1], &call->out[2], v.wide);
  return TIDE_OK;
}
