/* attention_sinks_ and its backward on the CPU: one pass over the rows, f32 throughout. Meaning:
 * kernels/ref/attention_sinks.c.
 *
 * Backward: blocks of BLOCK tokens give a partial sum of each head, which one thread adds in the
 * order of the blocks. f64 is left to the reference kernel.
 */
#include "kernels/cpu/row.h"

#include "kernels/ref/load.h"

enum { GRAIN = 16, WIDE = 256, BLOCK = 64 };

TIDE_LEVELS(void, sinks_scale, (float *x, float w, int64_t n), (x, w, n))
{
#pragma omp simd
  for (int64_t i = 0; i < n; i++) x[i] *= w;
}

static int64_t sinks_row(const k_tensor *t, int64_t b, int64_t i, int64_t h)
{
  return b * t->stride[0] + i * t->stride[1] + h * t->stride[2];
}

static float *sinks_lse(const k_tensor *t, int64_t b, int64_t i, int64_t h)
{
  return (float *)t->data + b * t->stride[0] + h * t->stride[1] + i * t->stride[2];
}

static float sinks_total(float lse, float sink)
{
  const float hi = lse > sink ? lse : sink, lo = lse > sink ? sink : lse;
  if (lse != lse || sink != sink) return NAN;
  return lo == -INFINITY ? hi : hi + log1pf(expf(lo - hi));
}

/* Multiplies n elements from `at` on by w; a weight of 0 clears them whatever they are. */
static void sinks_weigh(const k_tensor *out, int64_t at, float w, int64_t n)
{
  float tmp[WIDE];
  for (int64_t i = 0; i < n; i += WIDE) {
    const int64_t m = n - i < WIDE ? n - i : WIDE;
    float *x = w == 0 ? row_begin(out, at + i, tmp) : row_read(out, at + i, tmp, m);
    if (w == 0) memset(x, 0, (size_t)m * sizeof *x);
    else sinks_scale(x, w, m);
    row_write(out, at + i, x, m);
  }
}

static void sinks_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const k_call *call = arg;
  const k_tensor *sinks = &call->in[0], *out = &call->out[0];
  const int64_t T = out->shape[1], H = out->shape[2];
  (void)thread;
  for (int64_t r = begin; r < end; r++) {
    const int64_t h = r % H, t = r / H % T, b = r / H / T;
    float *l = sinks_lse(&call->out[1], b, t, h);
    const float total = sinks_total(*l, (float)ref_get(sinks, h * sinks->stride[0]));
    sinks_weigh(out, sinks_row(out, b, t, h), *l == -INFINITY ? 0 : expf(*l - total),
                out->shape[3]);
    *l = total;
  }
}

int k_cpu_attention_sinks_(const k_call *call)
{
  const k_tensor *out = &call->out[0];
  const int64_t rows = out->shape[0] * out->shape[1] * out->shape[2];
  tide__pool_for(call->nthread, rows, GRAIN, sinks_rows, (void *)call);
  return TIDE_OK;
}

static int64_t sinks_blocks(const k_tensor *out)
{
  return (out->shape[0] * out->shape[1] + BLOCK - 1) / BLOCK;
}

int64_t k_cpu_attention_sinks_work(const k_call *call)
{
  return sinks_blocks(&call->in[1]) * call->in[1].shape[2] * (int64_t)sizeof(float);
}

/* Returns dout . out of a row. */
static float sinks_dot(const k_tensor *dout, int64_t x, const k_tensor *out, int64_t y, int64_t n)
{
  float sum = 0, a[WIDE], b[WIDE];
  for (int64_t i = 0; i < n; i += WIDE) {
    const int64_t m = n - i < WIDE ? n - i : WIDE;
    sum += row_dot(row_read(dout, x + i, a, m), row_read(out, y + i, b, m), m);
  }
  return sum;
}

/* Returns what one query adds to the gradient of a sink. */
static float sinks_part(const k_call *call, int64_t b, int64_t t, int64_t h)
{
  const k_tensor *dout = &call->in[0], *out = &call->in[1], *sinks = &call->in[3];
  const float sink = (float)ref_get(sinks, h * sinks->stride[0]);
  const float share = sink == -INFINITY ? 0 : expf(sink - *sinks_lse(&call->in[2], b, t, h));
  if (share == 0) return 0;
  float g = -sinks_dot(dout, sinks_row(dout, b, t, h), out, sinks_row(out, b, t, h), out->shape[3]);
  if (!k_absent(&call->in[4])) g += *sinks_lse(&call->in[4], b, t, h);
  return share * g;
}

static void sinks_partial(void *arg, int64_t begin, int64_t end, int thread)
{
  const k_call *call = arg;
  const k_tensor *out = &call->in[1];
  const int64_t T = out->shape[1], H = out->shape[2], N = out->shape[0] * T;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    float *sum = (float *)call->work + i * H;
    memset(sum, 0, (size_t)H * sizeof *sum);
    for (int64_t n = i * BLOCK; n < (i + 1) * BLOCK && n < N; n++)
      for (int64_t h = 0; h < H; h++) sum[h] += sinks_part(call, n / T, n % T, h);
  }
}

int k_cpu_attention_sinks_backward(const k_call *call)
{
  const k_tensor *dsinks = &call->out[0];
  const int64_t n = sinks_blocks(&call->in[1]), H = call->in[1].shape[2];
  tide__pool_for(call->nthread, n, 1, sinks_partial, (void *)call);
  for (int64_t h = 0; h < H; h++) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += ((const float *)call->work)[i * H + h];
    ref_put(dsinks, h * dsinks->stride[0], sum);
  }
  return TIDE_OK;
}
