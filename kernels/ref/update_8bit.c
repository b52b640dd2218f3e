/* Defines adamw8_, quantize8 and dequantize8: moments as dynamic 8-bit numbers (dynamic8.h).
 *
 * The moments of a block are computed in double and rounded to f32 before they are coded.
 */
#include "kernels/ref/dynamic8.h"
#include "kernels/ref/update.h"

static int64_t block_end(int64_t begin, int64_t n)
{
  return begin + DYN8_BLOCK < n ? begin + DYN8_BLOCK : n;
}

static int magnitude_below(const dyn8 *d, float t)
{
  int q = 0;
  while (fabsf(t) > d->mid[q + 1] && q + 1 < d->top) q++;
  return q;
}

/* Writes the codes of a block of n numbers. */
static void put_block(const dyn8 *d, uint8_t *codes, float *scale, const float *x, int64_t n)
{
  float high = 0, low = 0;
  int is_finite = 1;
  for (int64_t i = 0; i < n; i++) {
    high = x[i] > high ? x[i] : high;
    low = x[i] < low ? x[i] : low;
    is_finite &= isfinite(x[i]) != 0;
  }
  if (d->zero == 0) low = 0;
  *scale = dyn8_scale(high, low, is_finite);
  for (int64_t i = 0; i < n; i++) {
    float t = *scale == 0 || isnan(*scale) ? 0 : x[i] / *scale;
    codes[i] = dyn8_code(d, t, magnitude_below(d, t));
  }
}

/* ---- adamw8_ -------------------------------------------------------------------------------- */

/* A block of one tensor: its elements and its number. */
typedef struct block { int64_t begin, end, at; } block;

static void adamw8_block(const k_call *call, const k_adamw_attrs *a, const dyn8 *map, int64_t i,
                         block b)
{
  const k_tensor *g = &call->in[i], *p = &call->out[i], *master = &call->out[5 * a->n + i];
  const k_tensor *weight = k_absent(master) ? p : master;
  uint8_t *m = (uint8_t *)call->out[a->n + i].data + b.begin;
  uint8_t *v = (uint8_t *)call->out[2 * a->n + i].data + b.begin;
  float *m_scale = (float *)call->out[3 * a->n + i].data + b.at;
  float *v_scale = (float *)call->out[4 * a->n + i].data + b.at;
  float new_m[DYN8_BLOCK], new_v[DYN8_BLOCK];
  double scale = ref_total_scale(&call->in[a->n], a->grad_scale, a->maximize);
  double rate = a->lr / (1 - pow(a->beta1, (double)a->step)), decay = a->lr * a->weight_decay;
  double root = 1 / sqrt(1 - pow(a->beta2, (double)a->step));
  for (int64_t k = 0; k < b.end - b.begin; k++) {
    double gk = ref_get(g, b.begin + k) * scale, w = ref_get(weight, b.begin + k);
    double mk = map[0].of[m[k]] * *m_scale, vk = map[1].of[v[k]] * *v_scale;
    mk += (1 - a->beta1) * (gk - mk);
    vk += (1 - a->beta2) * (gk * gk - vk);
    new_m[k] = (float)mk;
    new_v[k] = (float)vk;
    w = (w - decay * w) - rate * mk / (sqrt(vk) * root + a->eps);
    ref_put_opt(master, b.begin + k, w);
    ref_put(p, b.begin + k, w);
  }
  put_block(&map[0], m, m_scale, new_m, b.end - b.begin);
  put_block(&map[1], v, v_scale, new_v, b.end - b.begin);
}

int k_ref_adamw8_(const k_call *call)
{
  k_adamw_attrs now;
  const k_adamw_attrs *a = ref_adamw_now(call, &now);
  int rc = a ? tide__ref_adamw_check(call, a) : TIDE_OK;
  dyn8 map[2];
  dyn8_init(&map[0], 1);
  dyn8_init(&map[1], 0);
  for (int64_t i = 0; a && rc == TIDE_OK && i < a->n; i++) {
    int64_t n = k_numel(&call->out[i]);
    for (int64_t at = 0; at * DYN8_BLOCK < n; at++)
      adamw8_block(call, a, map, i,
                   (block){ at * DYN8_BLOCK, block_end(at * DYN8_BLOCK, n), at });
  }
  return rc;
}

/* ---- quantize8, dequantize8 ----------------------------------------------------------------- */

int k_ref_quantize8(const k_call *call)
{
  const k_tensor *x = &call->in[0];
  int64_t n = k_numel(x);
  dyn8 map;
  dyn8_init(&map, ((const k_dyn8_attrs *)call->attrs)->is_signed);
  for (int64_t begin = 0; begin < n; begin += DYN8_BLOCK)
    put_block(&map, (uint8_t *)call->out[0].data + begin,
              (float *)call->out[1].data + begin / DYN8_BLOCK, (const float *)x->data + begin,
              block_end(begin, n) - begin);
  return TIDE_OK;
}

int k_ref_dequantize8(const k_call *call)
{
  const uint8_t *codes = call->in[0].data;
  const float *scale = call->in[1].data;
  float *y = call->out[0].data;
  dyn8 map;
  dyn8_init(&map, ((const k_dyn8_attrs *)call->attrs)->is_signed);
  for (int64_t i = 0; i < k_numel(&call->in[0]); i++)
    y[i] = map.of[codes[i]] * scale[i / DYN8_BLOCK];
  return TIDE_OK;
}
