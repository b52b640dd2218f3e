/* Weights of 4 bits (NF4): coding and reading them, and products that read them a part at a time,
 * also of groups of rows with a weight each (grouped.c has the meaning of groups).
 *
 * A coded weight gets no gradient; for y = x w^T + bias, dx = dy w is a product with the same
 * codes.
 */
#include "core/op/derivative.h"
#include "core/op/op.h"
#include "core/op/operand.h"

enum { BLOCK = 64, GROUP = 256 }; /* see kernels/ref/nf4.h */

static int64_t nf4_parts(int64_t n, int64_t size) { return n / size + (n % size > 0); }
static int64_t nf4_code_bytes(int64_t n) { return nf4_parts(n, 2) + nf4_parts(n, BLOCK); }
static int64_t nf4_scale_size(int64_t n) { return 1 + nf4_parts(nf4_parts(n, BLOCK), GROUP); }

int tide_quantize_nf4(tide_tensor **codes, tide_tensor **scale, tide_tensor *x)
{
  tide__call c;
  tide_tensor *y[2] = {NULL, NULL};
  *codes = *scale = NULL;
  TIDE_TRY(tide__begin(&c, TIDE_OP_QUANTIZE_NF4, NULL, 1, &x, 0));
  if (x->dtype != TIDE_F32 && x->dtype != TIDE_BF16 && x->dtype != TIDE_F16)
    return TIDE__FAIL(&c, TIDE_E_DTYPE, "x: expected f32, bf16 or f16, got %s",
                      tide_dtype_name(x->dtype));
  int64_t n = tide__tensor_numel(x), nbyte = nf4_code_bytes(n), nscale = nf4_scale_size(n);
  tide__result(&c, 0, TIDE_U8, 1, &nbyte);
  tide__result(&c, 1, TIDE_F32, 1, &nscale);
  TIDE_TRY(tide__dispatch(&c, y, 2));
  *codes = y[0];
  *scale = y[1];
  return TIDE_OK;
}

static const int64_t most_numbers = (int64_t)1 << 46; /* of a weight: no size overflows */

/* Checks codes and scales of all n numbers. */
static int check_nf4(tide__call *c, const tide_tensor *codes, const tide_tensor *scale, int64_t n)
{
  int64_t nbyte = nf4_code_bytes(n), nscale = nf4_scale_size(n);
  if (codes->dtype != TIDE_U8 || codes->ndim != 1 || codes->shape[0] != nbyte)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "codes: expected u8 [%lld], of %lld numbers as quantize_nf4 "
                      "gives them, got %s", (long long)nbyte, (long long)n, TIDE__TEXT(codes));
  if (scale->dtype != TIDE_F32 || scale->ndim != 1 || scale->shape[0] != nscale)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "scale: expected f32 [%lld], of %lld numbers as "
                      "quantize_nf4 gives them, got %s", (long long)nscale, (long long)n,
                      TIDE__TEXT(scale));
  return TIDE_OK;
}

/* Returns the attributes of a whole weight. */
static k_nf4_attrs whole_nf4(int64_t rows, int64_t cols)
{
  return (k_nf4_attrs){.rows = rows, .cols = cols, .stride = cols};
}

/* Checks the attributes of a part of a weight and completes them. bytes: those of its codes; least:
 * the numbers of its scale at least. */
static int check_part_of(tide__call *c, k_nf4_attrs *a, int64_t *bytes, int64_t *least)
{
  int64_t n, last, blocks = 0;
  if (a->rows < 0 || a->rows > most_numbers)
    return TIDE__FAIL(c, TIDE_E_ARG, "rows: expected a count of rows, got %lld",
                      (long long)a->rows);
  if (a->first < 0 || a->first % 2 || a->first > most_numbers)
    return TIDE__FAIL(c, TIDE_E_ARG, "first: expected the even place where the part begins, got "
                      "%lld", (long long)a->first);
  if (a->cols < 0 || a->stride < a->cols || a->stride > most_numbers
      || (a->stride > 0 && a->rows > most_numbers / a->stride))
    return TIDE__FAIL(c, TIDE_E_ARG, "cols, stride: %lld rows of %lld numbers, %lld apart, are no "
                      "part of a weight", (long long)a->rows, (long long)a->cols,
                      (long long)a->stride);
  if (a->cols != a->stride && (a->cols % 2 || a->stride % 2))
    return TIDE__FAIL(c, TIDE_E_ARG, "cols, stride: %lld of %lld columns; both are even, or all "
                      "columns in the part", (long long)a->cols, (long long)a->stride);
  n = a->rows * a->cols;
  last = n ? a->first + (a->rows - 1) * a->stride + a->cols : 0;
  if (a->cols != a->stride)
    a->row_blocks = a->stride % BLOCK ? (a->cols + BLOCK - 2) / BLOCK + 1
                                      : nf4_parts(a->first % BLOCK + a->cols, BLOCK);
  if (n > 0)
    blocks = a->row_blocks ? a->rows * a->row_blocks : nf4_parts(last, BLOCK) - a->first / BLOCK;
  *bytes = nf4_parts(n, 2) + blocks;
  *least = nf4_scale_size(last);
  return TIDE_OK;
}

/* Checks codes and scales of a part of a weight, and completes its attributes. */
static int check_nf4_part(tide__call *c, const tide_tensor *codes, const tide_tensor *scale,
                          k_nf4_attrs *a)
{
  int64_t bytes, least;
  TIDE_TRY(check_part_of(c, a, &bytes, &least));
  if (codes->dtype != TIDE_U8 || codes->ndim != 1 || codes->shape[0] != bytes)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "codes: expected u8 [%lld], of %lld rows of %lld numbers, "
                      "got %s", (long long)bytes, (long long)a->rows, (long long)a->cols,
                      TIDE__TEXT(codes));
  if (scale->dtype != TIDE_F32 || scale->ndim != 1 || scale->shape[0] < least)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "scale: expected f32 of the whole weight, at least [%lld], "
                      "got %s", (long long)least, TIDE__TEXT(scale));
  return TIDE_OK;
}

int tide_dequantize_nf4(tide_tensor **out, tide_tensor *codes, tide_tensor *scale, int64_t n)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_DEQUANTIZE_NF4, out, 2, (tide_tensor *[]){codes, scale}, 0));
  if (n < 0 || n > most_numbers)
    return TIDE__FAIL(&c, TIDE_E_ARG, "n: expected the count of numbers, got %lld", (long long)n);
  TIDE_TRY(check_nf4(&c, codes, scale, n));
  c.attrs.nf4 = whole_nf4(1, n);
  return tide__dispatch_one(&c, out, TIDE_F32, 1, &n);
}

int tide_dequantize_nf4_part(tide_tensor **out, tide_tensor *codes, tide_tensor *scale,
                             int64_t rows, int64_t cols, int64_t first, int64_t stride)
{
  tide__call c;
  k_nf4_attrs a = {.rows = rows, .cols = cols, .first = first, .stride = stride};
  TIDE_TRY(tide__begin(&c, TIDE_OP_DEQUANTIZE_NF4_PART, out, 2,
                       (tide_tensor *[]){codes, scale}, 0));
  TIDE_TRY(check_nf4_part(&c, codes, scale, &a));
  c.attrs.nf4 = a;
  return tide__dispatch_one(&c, out, TIDE_F32, 2, (int64_t[]){rows, cols});
}

static int linear_nf4(int op, tide_tensor **out, tide_tensor *x, tide_tensor *codes,
                      tide_tensor *scale, tide_tensor *bias, k_nf4_attrs a)
{
  tide__call c;
  int64_t shape[TIDE_MAX_DIM];
  TIDE_TRY(tide__begin(&c, op, out, 4, (tide_tensor *[]){x, codes, scale, bias}, 8));
  memcpy(shape, x->shape, sizeof shape);
  shape[x->ndim - 1] = a.transposed ? a.cols : a.rows;
  c.attrs.nf4 = a;
  tide__result(&c, 0, x->dtype, x->ndim, shape);
  return tide__dispatch(&c, out, 1);
}

static int check_linear_nf4(tide__call *c, const tide_tensor *x, const tide_tensor *bias,
                            int64_t n)
{
  if (x->ndim < 1 || n < 0)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "x %s and n %lld: expected x [..., K] and the count of rows "
                      "of the weight [n, K]", TIDE__SHAPE_OF(x), (long long)n);
  int64_t k = x->shape[x->ndim - 1];
  if (k > 0 && n > most_numbers / k)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "n: a weight of %lld rows of %lld is too large",
                      (long long)n, (long long)k);
  if (bias && (bias->ndim != 1 || bias->shape[0] != n))
    return TIDE__FAIL(c, TIDE_E_SHAPE, "bias: expected [%lld], got %s", (long long)n,
                      TIDE__SHAPE_OF(bias));
  if (x->dtype != TIDE_F32 && x->dtype != TIDE_BF16 && x->dtype != TIDE_F16)
    return TIDE__FAIL(c, TIDE_E_DTYPE, "x: expected f32, bf16 or f16, got %s",
                      tide_dtype_name(x->dtype));
  if (bias && bias->dtype != x->dtype)
    return TIDE__FAIL(c, TIDE_E_DTYPE, "x is %s, bias is %s; cast them to one dtype",
                      tide_dtype_name(x->dtype), tide_dtype_name(bias->dtype));
  return TIDE_OK;
}

int tide_linear_nf4(tide_tensor **out, tide_tensor *x, tide_tensor *codes, tide_tensor *scale,
                    tide_tensor *bias, int64_t n)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_LINEAR_NF4, out, 4,
                       (tide_tensor *[]){x, codes, scale, bias}, 8));
  TIDE_TRY(check_linear_nf4(&c, x, bias, n));
  int64_t k = x->shape[x->ndim - 1];
  TIDE_TRY(check_nf4(&c, codes, scale, n * k));
  return linear_nf4(TIDE_OP_LINEAR_NF4, out, x, codes, scale, bias, whole_nf4(n, k));
}

int tide_linear_nf4_part(tide_tensor **out, tide_tensor *x, tide_tensor *codes, tide_tensor *scale,
                         tide_tensor *bias, int64_t n, int64_t first, int64_t stride)
{
  tide__call c;
  k_nf4_attrs a = {.rows = n, .first = first, .stride = stride};
  TIDE_TRY(tide__begin(&c, TIDE_OP_LINEAR_NF4_PART, out, 4,
                       (tide_tensor *[]){x, codes, scale, bias}, 8));
  TIDE_TRY(check_linear_nf4(&c, x, bias, n));
  a.cols = x->shape[x->ndim - 1];
  TIDE_TRY(check_nf4_part(&c, codes, scale, &a));
  return linear_nf4(TIDE_OP_LINEAR_NF4_PART, out, x, codes, scale, bias, a);
}

int tide__grad_linear_nf4(const tide__grad_call *g)
{
  tide__temps v = {0};
  k_nf4_attrs a = g->attrs->nf4;
  tide_tensor *dy = g->gout[0];
  a.transposed = !a.transposed;
  if (g->need[0])
    TIDE__DO(&v, linear_nf4(TIDE_OP_LINEAR_NF4, &g->gin[0], dy, g->in[1], g->in[2], NULL, a));
  if (g->need[3]) {
    int32_t first = 0;
    int64_t n = dy->shape[dy->ndim - 1];
    dy = TIDE__TEMP(&v, tide_reshape, dy, 2, (int64_t[]){n ? tide__tensor_numel(dy) / n : 0, n});
    TIDE__DO(&v, tide_sum(&g->gin[3], dy, 1, &first, false));
  }
  return tide__temps_end(&v);
}

/* ---- groups ---------------------------------------------------------------------------------- */

static int check_grouped_nf4(tide__call *c, const tide_tensor *x, const tide_tensor *codes,
                             const tide_tensor *scale, const tide_tensor *offsets, k_nf4_attrs *a)
{
  int64_t bytes, least;
  if (x->ndim != 2)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "x: expected [rows, K], got %s", TIDE__SHAPE_OF(x));
  if (a->rows < 0 || a->rows > most_numbers)
    return TIDE__FAIL(c, TIDE_E_ARG, "n: expected the count of rows of a weight, got %lld",
                      (long long)a->rows);
  TIDE_TRY(tide__check_index(offsets, TIDE__NAME(c), "offsets"));
  if (offsets->ndim != 1 || offsets->shape[0] < 1)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "offsets: expected [groups + 1], got %s",
                      TIDE__SHAPE_OF(offsets));
  int64_t groups = offsets->shape[0] - 1;
  a->cols = x->shape[1];
  TIDE_TRY(check_part_of(c, a, &bytes, &least));
  if (codes->dtype != TIDE_U8 || codes->ndim != 2 || codes->shape[0] != groups
      || codes->shape[1] != bytes)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "codes: expected u8 [%lld, %lld], of %lld rows of %lld "
                      "numbers a group, got %s", (long long)groups, (long long)bytes,
                      (long long)a->rows, (long long)a->cols, TIDE__TEXT(codes));
  if (scale->dtype != TIDE_F32 || scale->ndim != 2 || scale->shape[0] != groups
      || scale->shape[1] < least)
    return TIDE__FAIL(c, TIDE_E_SHAPE, "scale: expected f32 of whole weights, [%lld, %lld or "
                      "more], got %s", (long long)groups, (long long)least, TIDE__TEXT(scale));
  if (x->dtype != TIDE_F32 && x->dtype != TIDE_BF16 && x->dtype != TIDE_F16)
    return TIDE__FAIL(c, TIDE_E_DTYPE, "x: expected f32, bf16 or f16, got %s",
                      tide_dtype_name(x->dtype));
  return TIDE_OK;
}

static int grouped_linear_nf4(tide_tensor **out, tide_tensor *x, tide_tensor *codes,
                              tide_tensor *scale, tide_tensor *offsets, k_nf4_attrs a)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_GROUPED_LINEAR_NF4, out, 4,
                       (tide_tensor *[]){x, codes, scale, offsets}, 0));
  c.attrs.nf4 = a;
  return tide__dispatch_one(&c, out, x->dtype, 2,
                            (int64_t[]){x->shape[0], a.transposed ? a.cols : a.rows});
}

int tide_grouped_linear_nf4(tide_tensor **out, tide_tensor *x, tide_tensor *codes,
                            tide_tensor *scale, tide_tensor *offsets, int64_t n, int64_t first,
                            int64_t stride)
{
  tide__call c;
  k_nf4_attrs a = {.rows = n, .first = first, .stride = stride};
  TIDE_TRY(tide__begin(&c, TIDE_OP_GROUPED_LINEAR_NF4, out, 4,
                       (tide_tensor *[]){x, codes, scale, offsets}, 0));
  TIDE_TRY(check_grouped_nf4(&c, x, codes, scale, offsets, &a));
  return grouped_linear_nf4(out, x, codes, scale, offsets, a);
}

int tide__grad_grouped_linear_nf4(const tide__grad_call *g)
{
  k_nf4_attrs a = g->attrs->nf4;
  a.transposed = !a.transposed;
  if (!g->need[0]) return TIDE_OK;
  return grouped_linear_nf4(&g->gin[0], g->gout[0], g->in[1], g->in[2], g->in[3], a);
}
