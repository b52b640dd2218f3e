/* Defines linear_fp8: rounding an operand to FP8 by blocks, and products of codes, whose sums are
 * accumulated in f64 and rounded once. See kernel.h for operands, kernels/fp8.h for scales. */
#include "kernels/fp8.h"
#include "kernels/ref/load.h"

/* x as a matrix: rows by the strides of its leading dims, or its transpose. */
typedef struct matrix {
  const k_tensor *x;
  int64_t rows, cols;
  int turned;
} matrix;

static float matrix_at(const matrix *m, int64_t r, int64_t c)
{
  int64_t row = m->turned ? c : r, col = m->turned ? r : c;
  return (float)ref_get(m->x, k_row_offset(m->x, row) + col * m->x->stride[m->x->ndim - 1]);
}

/* Returns the largest magnitude of rows [r0, r1) and columns [c0, c1), NaN ignored. */
static float largest_of(const matrix *m, int64_t r0, int64_t r1, int64_t c0, int64_t c1)
{
  float most = 0;
  for (int64_t r = r0; r < r1; r++)
    for (int64_t c = c0; c < c1; c++) {
      float a = fabsf(matrix_at(m, r, c));
      if (a > most) most = a;
    }
  return most;
}

static uint8_t fp8_code(float v, int e5m2)
{
  return e5m2 ? tide__f32_to_e5m2(v) : tide__f32_to_e4m3(v);
}

static int64_t ref_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Codes one block, which begins at (r0, c0), and writes its scale. */
static void ref_code_block(const matrix *m, const k_fp8_attrs *at, int64_t r0, int64_t c0,
                       int64_t height, int64_t width, uint8_t *codes, float *scale)
{
  int64_t r1 = ref_least(r0 + height, m->rows), c1 = ref_least(c0 + width, m->cols);
  float most = largest_of(m, r0, r1, c0, c1);
  float s = at->kind == K_FP8_TENSOR ? k_fp8_scale(most, at->e5m2)
                                     : k_fp8_block_scale(most, at->f32_scale);
  *scale = 1 / s;
  for (int64_t r = r0; r < r1; r++)
    for (int64_t c = c0; c < c1; c++)
      codes[r * k_fp8_wide(m->cols) + c] = fp8_code(matrix_at(m, r, c) * s, at->e5m2);
}

/* Fills codes with 0 and scale with 1 first: what no block covers keeps that. */
static void code_matrix(const matrix *m, const k_fp8_attrs *at, const k_tensor *codes,
                        const k_tensor *scale)
{
  int64_t height = 1, width = K_FP8_BLOCK;
  float none, *all = k_absent(scale) ? &none : scale->data;
  if (k_absent(codes) && k_absent(scale)) return;
  if (at->kind != K_FP8_ROWS) height = K_FP8_BLOCK;
  if (at->kind == K_FP8_TENSOR) height = m->rows > 0 ? m->rows : 1, width = m->cols;
  if (!k_absent(codes)) memset(codes->data, 0, (size_t)k_numel(codes));
  for (int64_t i = 0; !k_absent(scale) && i < k_numel(scale); i++) all[i] = 1;
  if (k_absent(codes)) return;
  for (int64_t r = 0; r < m->rows; r += height)
    for (int64_t c = 0; c < m->cols; c += width) {
      int64_t place = k_fp8_scale_at(at->kind, m->rows, m->cols, r, c / K_FP8_BLOCK);
      float *own = k_absent(scale) ? &none : all + place;
      ref_code_block(m, at, r, c, height, width, codes->data, own);
    }
}

int k_ref_fp8_codes(const k_call *call)
{
  const k_tensor *x = &call->in[0];
  const k_tensor *y = call->out;
  matrix m = {.x = x, .rows = k_row_count(x), .cols = k_row_size(x)};
  code_matrix(&m, call->attrs, &y[0], &y[1]);
  matrix t = {.x = x, .rows = m.cols, .cols = m.rows, .turned = 1};
  /* A scale of all is of either direction. */
  int shared = ((const k_fp8_attrs *)call->attrs)->kind == K_FP8_TENSOR && k_absent(&y[0]);
  code_matrix(&t, call->attrs, &y[2], shared ? &y[1] : &y[3]);
  return TIDE_OK;
}

/* An operand of a product: codes [rows, k] and scales. */
typedef struct operand {
  const uint8_t *codes;
  const float *scale;
  int64_t rows, k;
  int kind, e5m2;
} operand;

static double fp8_number(const operand *o, int64_t r, int64_t p)
{
  uint8_t c = o->codes[r * k_fp8_wide(o->k) + p];
  return o->e5m2 ? tide__e5m2_to_f32(c) : tide__e4m3_to_f32(c);
}

static double scale_of(const operand *o, int64_t r, int64_t block)
{
  return o->scale[k_fp8_scale_at(o->kind, o->rows, o->k, r, block)];
}

static double fp8_dot(const operand *a, int64_t r, const operand *b, int64_t c)
{
  double sum = 0;
  int64_t step = a->kind == K_FP8_TENSOR ? a->k : K_FP8_BLOCK;
  for (int64_t p0 = 0; p0 < a->k; p0 += step) {
    double part = 0;
    int64_t end = ref_least(p0 + step, a->k);
    for (int64_t p = p0; p < end; p++) part += fp8_number(a, r, p) * fp8_number(b, c, p);
    sum += part * scale_of(a, r, p0 / K_FP8_BLOCK) * scale_of(b, c, p0 / K_FP8_BLOCK);
  }
  return sum;
}

/* fp8_add_product_ too, whose target is read. */
int k_ref_linear_fp8(const k_call *call)
{
  const k_fp8_product_attrs *at = call->attrs;
  int add = call->nin == K_FP8_ADDED;
  const k_tensor *in = add ? call->in : call->in + K_FP8_A, *y = &call->out[0];
  const k_tensor *bias = add ? NULL : k_or_null(&call->in[K_FP8_BIAS]);
  int a_kind = at->b_kind == K_FP8_SQUARE ? K_FP8_ROWS : at->b_kind;
  operand a = {in[0].data, in[1].data, at->m, at->k, a_kind, at->a_e5m2};
  operand b = {in[2].data, in[3].data, at->n, at->k, at->b_kind, 0};
  for (int64_t r = 0; r < at->m; r++)
    for (int64_t c = 0; c < at->n; c++) {
      int64_t to = k_row_offset(y, r) + c * y->stride[y->ndim - 1];
      double s = fp8_dot(&a, r, &b, c);
      if (bias) s += ref_get(bias, c * bias->stride[0]);
      if (add) s += ref_get(y, to);
      ref_put(y, to, s);
    }
  return TIDE_OK;
}
