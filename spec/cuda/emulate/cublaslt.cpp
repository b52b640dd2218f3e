/* A libcublasLt.so of plain loops, so that how kernels/cuda/blas.cu asks for products is tested:
 * descriptors, leading dims, transpositions, batches, bias, activations, factors of FP8 operands.
 * Columns first, as the real one.
 *
 * It refuses what the real one refuses (cuBLAS documentation, "Using the cuBLASLt API"): a leading
 * dim that is too small (cublasLtMatrixLayoutCreate), an epilogue for f64 (cublasLtMatmul, table of
 * types), shapes that do not fit, an algorithm that was asked for another problem or for addresses
 * that are multiples of more (cublasLtMatmulPreferenceAttributes_t, MIN_ALIGNMENT); of FP8 codes
 * two e5m2, any order but transposed times plain, sizes and addresses off 16 bytes, a bias where
 * the result is f32, which would have to be bf16 (cublasLtMatmul, "To use FP8 kernels"); a handle
 * whose device is not the current one (cublasLtCreate: "on the current device").
 *
 * Scales of blocks ("Narrow Precision Data Types Usage", "128-element 1D and 128x128 2D Block
 * Scaling For FP8 Data Types"): both operands have them, and not both 128x128; on compute
 * capability 9.0 alone ("Scaling Mode Support Overview"); scales begin at 16 bytes, M and N are
 * multiples of 4. Of VEC128 they are M-major (N-major) of [M, ceil(K / 128)]; of
 * BLK128x128 K-major with columns of ceil(K / 128) in steps of 4 ("Scaling factors layouts"). The
 * sum of a block of K is multiplied by both. An activation beside them is nowhere promised, and
 * refused.
 *
 * With TIDE_EMULATE_LT=least it has algorithms for what tensor cores take, no more: none for f64,
 * nor for 16-bit operands of an odd k. The heuristic may answer so (cublasLtMatmulAlgoGetHeuristic:
 * CUBLAS_STATUS_NOT_SUPPORTED). With TIDE_EMULATE_LT=old it is older than 12.8 and knows no modes
 * of scales (cublasLtMatmulDescSetAttribute: CUBLAS_STATUS_INVALID_VALUE). Spec only.
 */
#include "cublasLt.h"

#include <cstdlib>
#include <vector>

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "stream.h"

struct tide_emulated_desc {
  cublasComputeType_t compute;
  int32_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void *bias = nullptr, *a_scale = nullptr, *b_scale = nullptr;
  void *aux = nullptr;
  int64_t aux_ld = 0;
  int32_t a_mode = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, b_mode = a_mode;
};
struct tide_emulated_layout {
  cudaDataType_t type;
  int64_t rows, cols, ld;
  int32_t batch = 1;
  int64_t stride = 0;
};
struct tide_emulated_preference {
  uint32_t align[4] = {256, 256, 256, 256}; /* of a, b, c, d */
};
struct cublasLtContext { int device; };
extern "C" int tide_emulate_device(); /* libtide_cuda: the thread's current device */
extern "C" int tide_emulate_capability(); /* likewise: of every device, 90 is 9.0 */

static bool said_to_be(const char *what)
{
  const char *said = getenv("TIDE_EMULATE_LT");
  return said && !strcmp(said, what);
}

static double get(const void *p, cudaDataType_t type, int64_t i)
{
  switch (type) {
    case CUDA_R_64F: return static_cast<const double *>(p)[i];
    case CUDA_R_16F: return __half2float(static_cast<const __half *>(p)[i]);
    case CUDA_R_16BF: return __bfloat162float(static_cast<const __nv_bfloat16 *>(p)[i]);
    case CUDA_R_8F_E4M3: return tide__e4m3_to_f32(static_cast<const uint8_t *>(p)[i]);
    case CUDA_R_8F_E5M2: return tide__e5m2_to_f32(static_cast<const uint8_t *>(p)[i]);
    default: return static_cast<const float *>(p)[i];
  }
}

static void put(void *p, cudaDataType_t type, int64_t i, double v)
{
  switch (type) {
    case CUDA_R_64F: static_cast<double *>(p)[i] = v; break;
    case CUDA_R_16F: static_cast<__half *>(p)[i] = __float2half((float)v); break;
    case CUDA_R_16BF: static_cast<__nv_bfloat16 *>(p)[i] = __float2bfloat16((float)v); break;
    default: static_cast<float *>(p)[i] = (float)v;
  }
}

static int64_t shape_word(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a,
                          cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t d)
{
  int64_t h = op->trans_a * 2 + op->trans_b;
  for (int64_t v : {a->rows, a->cols, a->ld, b->rows, b->cols, b->ld, d->rows, d->cols, d->ld})
    h = h * 1000003 + v;
  return h;
}

TIDE_LT cublasLtCreate(cublasLtHandle_t *handle)
{
  *handle = new cublasLtContext{tide_emulate_device()};
  return CUBLAS_STATUS_SUCCESS;
}
TIDE_LT cublasLtDestroy(cublasLtHandle_t handle)
{
  delete handle;
  return CUBLAS_STATUS_SUCCESS;
}

TIDE_LT cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t c, cudaDataType_t)
{
  *d = new tide_emulated_desc;
  (*d)->compute = c;
  return CUBLAS_STATUS_SUCCESS;
}
TIDE_LT cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
  delete d;
  return CUBLAS_STATUS_SUCCESS;
}
TIDE_LT cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                                       const void *value, size_t size)
{
  void *to;
  size_t expect = 8;
  bool mode = what == CUBLASLT_MATMUL_DESC_A_SCALE_MODE
    || what == CUBLASLT_MATMUL_DESC_B_SCALE_MODE;
  if (mode && said_to_be("old")) return CUBLAS_STATUS_INVALID_VALUE;
  switch (what) {
    case CUBLASLT_MATMUL_DESC_A_SCALE_MODE: to = &d->a_mode, expect = 4; break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_MODE: to = &d->b_mode, expect = 4; break;
    case CUBLASLT_MATMUL_DESC_TRANSA: to = &d->trans_a, expect = 4; break;
    case CUBLASLT_MATMUL_DESC_TRANSB: to = &d->trans_b, expect = 4; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE: to = &d->epilogue, expect = 4; break;
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER: to = &d->a_scale; break;
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER: to = &d->b_scale; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: to = &d->aux; break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: to = &d->aux_ld; break;
    default: to = &d->bias;
  }
  if (size != expect) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(to, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

TIDE_LT cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows,
                                   uint64_t cols, int64_t ld)
{
  *l = new tide_emulated_layout;
  (*l)->type = type, (*l)->rows = (int64_t)rows, (*l)->cols = (int64_t)cols, (*l)->ld = ld;
  return CUBLAS_STATUS_SUCCESS;
}
TIDE_LT cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
  delete l;
  return CUBLAS_STATUS_SUCCESS;
}
TIDE_LT cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                         cublasLtMatrixLayoutAttribute_t what, const void *value,
                                         size_t size)
{
  bool count = what == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT;
  if (size != (count ? 4u : 8u)) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(count ? (void *)&l->batch : (void *)&l->stride, value, size);
  return CUBLAS_STATUS_SUCCESS;
}

TIDE_LT cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p)
{
  *p = new tide_emulated_preference;
  return CUBLAS_STATUS_SUCCESS;
}
TIDE_LT cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
  delete p;
  return CUBLAS_STATUS_SUCCESS;
}
TIDE_LT cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                             cublasLtMatmulPreferenceAttributes_t what,
                                             const void *value, size_t size)
{
  if (what == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return CUBLAS_STATUS_SUCCESS;
  if (size != 4) return CUBLAS_STATUS_INVALID_VALUE;
  memcpy(&p->align[what - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], value, size);
  return CUBLAS_STATUS_SUCCESS;
}

static bool is_fp8(cublasLtMatrixLayout_t l)
{
  return l->type == CUDA_R_8F_E4M3 || l->type == CUDA_R_8F_E5M2;
}

static bool aligned(const void *p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

/* Modes of scales, and what those of blocks ask. */
static bool scales_fit(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t d)
{
  const int32_t all = CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F;
  const int32_t vector = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  const int32_t square = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  if (op->a_mode == all && op->b_mode == all) return true;
  bool pair = (op->a_mode == vector && (op->b_mode == vector || op->b_mode == square))
    || (op->a_mode == square && op->b_mode == vector);
  bool bias_alone = op->epilogue == CUBLASLT_EPILOGUE_DEFAULT
    || op->epilogue == CUBLASLT_EPILOGUE_BIAS;
  return pair && bias_alone && op->a_scale && op->b_scale && aligned(op->a_scale)
    && aligned(op->b_scale) && d->rows % 4 == 0 && d->cols % 4 == 0
    && tide_emulate_capability() == 90;
}

/* What tensor cores of sm_89 and sm_90 ask of FP8 operands; addresses apart. */
static bool fp8_fits(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                     cublasLtMatrixLayout_t d)
{
  bool formats = is_fp8(a) && is_fp8(b)
    && (a->type == CUDA_R_8F_E4M3 || b->type == CUDA_R_8F_E4M3);
  bool order = op->trans_a == CUBLAS_OP_T && op->trans_b == CUBLAS_OP_N;
  bool sizes = a->rows % 16 == 0 && a->cols % 16 == 0 && b->cols % 16 == 0 && a->ld % 16 == 0
    && b->ld % 16 == 0 && d->ld % 16 == 0;
  bool result = d->type == CUDA_R_16BF || d->type == CUDA_R_16F
    || (d->type == CUDA_R_32F && op->epilogue == CUBLASLT_EPILOGUE_DEFAULT);
  return formats && order && sizes && result && op->compute == CUBLAS_COMPUTE_32F
    && scales_fit(op, d);
}

/* 128 asks for the operand of gelu, in steps of 8; no such thing of relu is used here. */
static bool epilogue_fits(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t d)
{
  uint32_t act = op->epilogue & ~(uint32_t)CUBLASLT_EPILOGUE_BIAS;
  if (op->epilogue == CUBLASLT_EPILOGUE_DEFAULT || act == 0 || act == CUBLASLT_EPILOGUE_RELU
      || act == CUBLASLT_EPILOGUE_GELU) return true;
  return act == CUBLASLT_EPILOGUE_GELU_AUX && op->aux && op->aux_ld % 8 == 0
    && op->aux_ld >= d->rows && reinterpret_cast<uintptr_t>(op->aux) % 16 == 0 && d->batch == 1;
}

/* Shapes and leading dims: what does not hold is an impossible configuration, INVALID_VALUE
 * (cublasLtMatmulAlgoGetHeuristic). */
static bool possible(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                     cublasLtMatrixLayout_t d)
{
  int64_t m = op->trans_a ? a->cols : a->rows, k = op->trans_a ? a->rows : a->cols;
  int64_t k2 = op->trans_b ? b->cols : b->rows, n = op->trans_b ? b->rows : b->cols;
  bool sizes = m == d->rows && n == d->cols && k == k2 && m > 0 && n > 0 && k > 0;
  bool lead = a->ld >= a->rows && b->ld >= b->rows && d->ld >= d->rows;
  return sizes && lead && a->batch == d->batch && b->batch == d->batch;
}

static bool fits(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                 cublasLtMatrixLayout_t d)
{
  bool fp8 = is_fp8(a) || is_fp8(b);
  bool plain = a->type == b->type && (d->type == a->type || d->type == CUDA_R_32F)
    && (a->type == CUDA_R_64F) == (op->compute == CUBLAS_COMPUTE_64F)
    && (a->type == CUDA_R_32F || op->compute < CUBLAS_COMPUTE_32F_FAST_TF32)
    && (a->type != CUDA_R_64F || op->epilogue == CUBLASLT_EPILOGUE_DEFAULT)
    && !op->a_scale && !op->b_scale && !op->a_mode && !op->b_mode;
  return epilogue_fits(op, d) && (fp8 ? fp8_fits(op, a, b, d) : plain);
}

static bool has_algorithm(cublasLtMatmulDesc_t op, cublasLtMatrixLayout_t a)
{
  if (!said_to_be("least")) return true;
  int64_t k = op->trans_a ? a->rows : a->cols;
  bool half = a->type == CUDA_R_16F || a->type == CUDA_R_16BF;
  return a->type != CUDA_R_64F && !(half && k % 2);
}

TIDE_LT cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t d,
                                       cublasLtMatmulPreference_t want, int most,
                                       cublasLtMatmulHeuristicResult_t *found, int *n)
{
  *n = 0;
  if (!possible(op, a, b, d)) return CUBLAS_STATUS_INVALID_VALUE;
  *n = most > 0 && fits(op, a, b, d) && has_algorithm(op, a);
  if (!*n) return CUBLAS_STATUS_NOT_SUPPORTED;
  found->algo.data[0] = (uint64_t)shape_word(op, a, b, d);
  for (int i = 0; i < 4; i++) found->algo.data[1 + i] = want->align[i];
  found->state = CUBLAS_STATUS_SUCCESS;
  return CUBLAS_STATUS_SUCCESS;
}

/* All that a product needs when its stream reaches it. */
struct product {
  tide_emulated_desc op;
  tide_emulated_layout a, b, d;
  double alpha, beta;
  const void *pa, *pb, *pc;
  void *pd;
};

/* An operand as the product sees it: to nearest, ties to even, in 10 or 7 bits of fraction. */
static double rounded(double v, cublasComputeType_t compute)
{
  int drop = compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? 13
    : compute == CUBLAS_COMPUTE_32F_FAST_16BF ? 16 : 0;
  if (!drop || !std::isfinite(v)) return v;
  unsigned u = __float_as_uint((float)v);
  u += (1u << (drop - 1)) - 1 + (u >> drop & 1);
  return __uint_as_float(u >> drop << drop);
}

static double activate(uint32_t epilogue, double v)
{
  if (epilogue == CUBLASLT_EPILOGUE_DEFAULT) return v;
  if (epilogue & CUBLASLT_EPILOGUE_RELU) return v > 0 || v != v ? v : 0;
  if (!(epilogue & CUBLASLT_EPILOGUE_GELU)) return v;
  return 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)));
}

/* The scale of one operand for its row or column `outer` and block b of K; `depth` is K, `most` the
 * number of those rows or columns. */
static double scale_at(const void *scale, int32_t mode, int64_t outer, int64_t b, int64_t depth,
                       int64_t most)
{
  const float *s = static_cast<const float *>(scale);
  if (!s) return 1;
  if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F) return *s;
  if (mode == CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F) return s[b * most + outer];
  return s[outer / 128 * (((depth + 127) / 128 + 3) / 4 * 4) + b];
}

/* Returns the rounded elements of an operand as rows of `depth`: element k of row i lies at
 * first + i * outer + k * inner. */
static std::vector<double> rows_of(const void *p, cudaDataType_t type, int64_t first, int64_t n,
                                   int64_t outer, int64_t depth, int64_t inner,
                                   cublasComputeType_t compute)
{
  std::vector<double> list((size_t)(n * depth));
  for (int64_t i = 0; i < n; i++)
    for (int64_t k = 0; k < depth; k++)
      list[(size_t)(i * depth + k)] = rounded(get(p, type, first + i * outer + k * inner), compute);
  return list;
}

/* part[row] = the sum over k, in order, of a[k][row] b[k]. */
static void dots(std::vector<double> *part, const double *a, const double *b, int64_t depth)
{
  double *to = part->data();
  const size_t rows = part->size();
  for (size_t row = 0; row < rows; row++) to[row] = 0;
  for (int64_t k = 0; k < depth; k++, a += rows)
    for (size_t row = 0; row < rows; row++) to[row] += a[row] * b[k];
}

static void multiply(const product &p)
{
  const tide_emulated_layout &la = p.a, &lb = p.b, &ld = p.d;
  int64_t depth = p.op.trans_a ? la.rows : la.cols;
  int64_t as = p.op.trans_a ? 1 : la.ld, ar = p.op.trans_a ? la.ld : 1;
  int64_t bs = p.op.trans_b ? lb.ld : 1, bc = p.op.trans_b ? 1 : lb.ld;
  int64_t block = p.op.a_mode ? 128 : depth;
  std::vector<double> part((size_t)ld.rows);
  for (int64_t z = 0; z < ld.batch; z++) {
    std::vector<double> a = rows_of(p.pa, la.type, z * la.stride, depth, as, ld.rows, ar,
                                    p.op.compute); /* [K, rows of d] */
    std::vector<double> b = rows_of(p.pb, lb.type, z * lb.stride, ld.cols, bc, depth, bs,
                                    p.op.compute);
    for (int64_t col = 0; col < ld.cols; col++) {
      std::vector<double> sums((size_t)ld.rows);
      for (int64_t first = 0; first < depth; first += block) {
        dots(&part, a.data() + first * ld.rows, b.data() + col * depth + first,
             first + block < depth ? block : depth - first);
        for (int64_t row = 0; row < ld.rows; row++)
          sums[(size_t)row] += part[(size_t)row]
            * scale_at(p.op.a_scale, p.op.a_mode, row, first / 128, depth, ld.rows)
            * scale_at(p.op.b_scale, p.op.b_mode, col, first / 128, depth, ld.cols);
      }
      for (int64_t row = 0; row < ld.rows; row++) {
        int64_t at = z * ld.stride + col * ld.ld + row;
        double sum = sums[(size_t)row] * p.alpha;
        if (p.beta != 0) sum += p.beta * get(p.pc, ld.type, at);
        if (p.op.epilogue & CUBLASLT_EPILOGUE_BIAS) sum += get(p.op.bias, ld.type, row);
        if ((p.op.epilogue & 128) != 0) put(p.op.aux, ld.type, col * p.op.aux_ld + row, sum);
        put(p.pd, ld.type, at, activate(p.op.epilogue, sum));
      }
    }
  }
}

/* Products asked for since the library was opened. */
static long asked;
extern "C" __attribute__((visibility("default"))) long tide_emulate_products(void)
{
  return asked;
}

/* alpha is 1 and beta 0 or 1, of the type of the sums. */
TIDE_LT cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t op, const void *alpha,
                       const void *a, cublasLtMatrixLayout_t la, const void *b,
                       cublasLtMatrixLayout_t lb,
                       const void *beta, const void *c, cublasLtMatrixLayout_t, void *d,
                       cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo, void *, size_t,
                       cudaStream_t stream)
{
  if (handle->device != tide_emulate_device() || handle->device != stream->device)
    return CUBLAS_STATUS_EXECUTION_FAILED;
  bool wide = op->compute == CUBLAS_COMPUTE_64F;
  double al = wide ? *(const double *)alpha : *(const float *)alpha;
  double be = wide ? *(const double *)beta : *(const float *)beta;
  bool same = algo->data[0] == (uint64_t)shape_word(op, la, lb, ld);
  if (!same || !possible(op, la, lb, ld) || !fits(op, la, lb, ld))
    return CUBLAS_STATUS_INVALID_VALUE;
  const void *addresses[4] = {a, b, c, d};
  for (int i = 0; i < 4; i++) {
    uint64_t least = is_fp8(la) && algo->data[1 + i] < 16 ? 16 : algo->data[1 + i];
    if (reinterpret_cast<uintptr_t>(addresses[i]) % least) return CUBLAS_STATUS_INVALID_VALUE;
  }
  product p = {*op, *la, *lb, *ld, al, be, a, b, c, d};
  asked++;
  stream->count("cublasLtMatmul");
  stream->enqueue([p] {
    multiply(p);
    return true;
  });
  return CUBLAS_STATUS_SUCCESS;
}
