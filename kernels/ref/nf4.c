/* Defines quantize_nf4, dequantize_nf4, linear_nf4 and its grouped form: numbers of 4 bits (nf4.h),
 * one at a time. */
#include "kernels/ref/load.h"
#include "kernels/ref/nf4.h"
#include "kernels/ref/nf4_groups.h"

int64_t k_ref_quantize_nf4_work(const k_call *call)
{
  return 4 * nf4_blocks(k_numel(&call->in[0]));
}

int k_ref_quantize_nf4(const k_call *call)
{
  const k_tensor *x = &call->in[0];
  int64_t n = k_numel(x);
  uint8_t *codes = call->out[0].data;
  float *most = call->work, block[NF4_BLOCK];
  for (int64_t at = 0; at < n; at += NF4_BLOCK) {
    int64_t size = n - at < NF4_BLOCK ? n - at : NF4_BLOCK;
    for (int64_t i = 0; i < size; i++) block[i] = (float)ref_get(x, at + i);
    most[at / NF4_BLOCK] = nf4_largest(block, size);
    nf4_code_block(codes + at / 2, block, size, most[at / NF4_BLOCK]);
  }
  nf4_code_magnitudes(codes + nf4_pairs(n), call->out[1].data, most, nf4_blocks(n));
  return TIDE_OK;
}

static float number_at(const nf4 *q, int64_t i)
{
  int64_t row = i / q->at.cols, place = nf4_row_start(q, row) + i % q->at.cols;
  return nf4_share[nf4_code_at(q, i)] * nf4_magnitude(q, row, place / NF4_BLOCK);
}

int k_ref_dequantize_nf4(const k_call *call)
{
  const k_tensor *y = &call->out[0];
  int64_t n = k_numel(y);
  nf4 q;
  nf4_init(&q, call->in[0].data, call->in[1].data, call->attrs);
  for (int64_t i = 0; i < n; i++) ((float *)y->data)[i] = number_at(&q, i);
  return TIDE_OK;
}

/* Returns the bytes of the weight in x's dtype, held as f32. */
int64_t k_ref_linear_nf4_work(const k_call *call)
{
  const k_nf4_attrs *a = call->attrs;
  return 4 * a->rows * a->cols;
}

static void read_weight(float *w, const k_call *call)
{
  const k_nf4_attrs *a = call->attrs;
  int64_t n = a->rows * a->cols;
  nf4 q;
  nf4_init(&q, call->in[1].data, call->in[2].data, a);
  for (int64_t i = 0; i < n; i++) {
    double cell;
    k_tensor one = {.data = &cell, .dtype = call->in[0].dtype};
    ref_put(&one, 0, number_at(&q, i));
    w[i] = (float)ref_get(&one, 0);
  }
}

int k_ref_linear_nf4(const k_call *call)
{
  const k_tensor *x = &call->in[0], *bias = &call->in[3], *y = &call->out[0];
  const k_nf4_attrs *a = call->attrs;
  int64_t k = a->transposed ? a->rows : a->cols, n = a->transposed ? a->cols : a->rows;
  int64_t by_k = a->transposed ? a->cols : 1, by_n = a->transposed ? 1 : a->cols;
  float *w = call->work;
  read_weight(w, call);
  for (int64_t i = 0; i < k_numel(y); i++) {
    int64_t r = i / n, c = i % n;
    double s = k_absent(bias) ? 0 : ref_get(bias, c);
    for (int64_t p = 0; p < k; p++) s += ref_get(x, r * k + p) * w[p * by_k + c * by_n];
    ref_put(y, i, s);
  }
  return TIDE_OK;
}

int k_ref_grouped_linear_nf4(const k_call *call) { return nf4_each_group(call, k_ref_linear_nf4); }
