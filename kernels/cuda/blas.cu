/* cuBLASLt, opened at the first product of a context.
 *
 * libtide_cuda does not link cuBLAS: functions are looked up by name, so a machine without it
 * lacks products and nothing else. A shape that cuBLASLt has no algorithm for is multiplied by
 * plain loops (product_plain.cu). cuBLASLt is column-major, so y = a b of row-major matrices
 * becomes y' = b' a'. The algorithm of each shape is cached, since the heuristic takes longer than
 * a launch.
 *
 * f32 products run in f32 unless the context's matmul_precision allows tf32 or bf16 operands.
 * Epilogues: bias, relu, gelu by tanh (also with its operand kept), accumulation into y (beta 1),
 * and the factors of FP8 operands. cuBLASLt knows no silu.
 */
#include <cublasLt.h>
#include <dlfcn.h>

#include <cstdlib>
#include <cstring>

#include "kernels/cuda/product.cuh"
#include "kernels/cuda/backend.cuh"

namespace {

enum { REMEMBERED = 512, WORKSPACE = 32 << 20 };

/* The key of the algorithm cache. Compared as bytes, so it is zeroed first. */
struct problem {
  int64_t m, n, k, lda, ldb, ldd, batch, stride_a, stride_b, stride_d;
  int in_a, in_b, out, trans_a, trans_b, bias, accumulate, act, pre;
  int align_a, align_b, align_d, align_bias, precision;
  int scale_a, scale_b;
};

enum answer { UNKNOWN, FOUND, REFUSED };

struct choice {
  problem key;
  answer said;
  cublasLtMatmulAlgo_t algo;
};

#define FUNCTIONS(F)                                                                     \
  F(cublasLtCreate) F(cublasLtDestroy) F(cublasLtMatmul) F(cublasLtMatmulDescCreate)     \
  F(cublasLtMatmulDescDestroy) F(cublasLtMatmulDescSetAttribute)                         \
  F(cublasLtMatrixLayoutCreate) F(cublasLtMatrixLayoutDestroy)                           \
  F(cublasLtMatrixLayoutSetAttribute) F(cublasLtMatmulPreferenceCreate)                  \
  F(cublasLtMatmulPreferenceDestroy) F(cublasLtMatmulPreferenceSetAttribute)             \
  F(cublasLtMatmulAlgoGetHeuristic)

}  // namespace

struct tide_cuda_blas {
  cublasLtHandle_t handle;
  void *workspace;
  choice *known;
#define MEMBER(f) decltype(&::f) f;
  FUNCTIONS(MEMBER)
#undef MEMBER
};

namespace {

const char *const files[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};

int refuse(const k_call *call, const char *what, const char *why)
{
  snprintf(call->msg, K_MSG, "products need cuBLASLt: %s (%s)", what, why);
  return TIDE_E_DEVICE;
}

int load(const k_call *call, tide_cuda_blas *b)
{
  void *lib = nullptr;
  for (const char *file : files)
    if (!lib) lib = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (!lib) return refuse(call, "libcublasLt.so could not be opened", "is cuBLAS installed?");
#define LOOK(f)                                                       \
  b->f = reinterpret_cast<decltype(b->f)>(dlsym(lib, #f));            \
  if (!b->f) return refuse(call, #f, "not in this libcublasLt.so");
  FUNCTIONS(LOOK)
#undef LOOK
  return TIDE_OK;
}

int make(const k_call *call, tide_cuda_blas **out)
{
  tide_cuda_blas *b = static_cast<tide_cuda_blas *>(calloc(1, sizeof *b));
  if (b) b->known = static_cast<choice *>(calloc(REMEMBERED, sizeof *b->known));
  if (!b || !b->known) {
    free(b);
    return TIDE_E_NOMEM;
  }
  int rc = load(call, b);
  if (rc == TIDE_OK && b->cublasLtCreate(&b->handle) != CUBLAS_STATUS_SUCCESS)
    rc = refuse(call, "cublasLtCreate failed", "an old driver, or no device memory");
  if (rc == TIDE_OK && cudaMalloc(&b->workspace, WORKSPACE) != cudaSuccess) {
    b->cublasLtDestroy(b->handle);
    rc = refuse(call, "no device memory", "32 MiB of workspace");
  }
  if (rc < 0) {
    free(b->known);
    free(b);
    return rc;
  }
  *out = b;
  return TIDE_OK;
}

cudaDataType_t type_of(int dtype)
{
  switch (dtype) {
    case TIDE_F64: return CUDA_R_64F;
    case TIDE_BF16: return CUDA_R_16BF;
    case TIDE_F16: return CUDA_R_16F;
    case TIDE_CUDA_E4M3: return CUDA_R_8F_E4M3;
    case TIDE_CUDA_E5M2: return CUDA_R_8F_E5M2;
    default: return CUDA_R_32F;
  }
}

/* Returns the largest power of two up to 256 that divides an address. */
int alignment(const void *p)
{
  int a = 256;
  while ((uintptr_t)p % a) a /= 2;
  return a;
}

/* Returns a row-major matrix as columns: element (r, c) at r * ld + c, or transposed. Rows (or
 * columns) must not overlap; the stride of a single one is unused and ld is the least legal
 * value. */
void as_columns(const tide_matrix &m, int64_t *ld, int *trans)
{
  bool plain = m.col_stride == 1 || m.cols == 1;
  if (plain && m.rows > 1 && m.row_stride < m.cols) plain = m.row_stride != 1;
  *trans = !plain;
  *ld = plain ? m.row_stride : m.col_stride;
  int64_t least = plain ? m.cols : m.rows;
  if ((plain ? m.rows : m.cols) == 1) *ld = least;
}

/* Returns the product as cuBLASLt takes it: D[n, m] = op(b) op(a), its first matrix our second. */
problem problem_of(const tide_product &p)
{
  problem q;
  memset(&q, 0, sizeof q);
  q.m = p.y.cols, q.n = p.y.rows, q.k = p.a.cols, q.batch = p.batch;
  as_columns(p.b, &q.lda, &q.trans_a);
  as_columns(p.a, &q.ldb, &q.trans_b);
  q.ldd = p.y.rows == 1 ? p.y.cols : p.y.row_stride;
  q.stride_a = p.b.batch_stride, q.stride_b = p.a.batch_stride, q.stride_d = p.y.batch_stride;
  q.in_a = p.b.dtype, q.in_b = p.a.dtype, q.out = p.y.dtype;
  q.bias = p.bias != nullptr, q.accumulate = p.accumulate;
  q.act = p.act, q.pre = p.pre != nullptr;
  q.align_a = alignment(p.b.data), q.align_b = alignment(p.a.data), q.align_d = alignment(p.y.data);
  q.align_bias = p.bias ? alignment(p.bias) : 0;
  q.scale_a = p.b_scaling, q.scale_b = p.a_scaling;
  return q;
}

cublasComputeType_t compute_of(const problem &q)
{
  if (q.in_a == TIDE_F64) return CUBLAS_COMPUTE_64F;
  return q.precision == 2 ? CUBLAS_COMPUTE_32F_FAST_16BF
    : q.precision == 1 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

/* Epilogue numbers are bit sums; 128 adds the output of gelu's operand. */
uint32_t epilogue_of(const problem &q)
{
  static_assert(CUBLASLT_EPILOGUE_RELU_BIAS == 6 && CUBLASLT_EPILOGUE_GELU_AUX_BIAS == 164, "");
  uint32_t sum = 0;
  if (q.act == TIDE_CUDA_RELU) sum |= (uint32_t)CUBLASLT_EPILOGUE_RELU;
  if (q.act == TIDE_CUDA_GELU) sum |= (uint32_t)CUBLASLT_EPILOGUE_GELU;
  if (q.bias) sum |= (uint32_t)CUBLASLT_EPILOGUE_BIAS;
  if (q.pre) sum |= 128;
  return sum ? sum : (uint32_t)CUBLASLT_EPILOGUE_DEFAULT;
}

/* By number, as headers before 12.9 lack the names, and a library as old refuses the numbers. */
enum { DESC_A_SCALE_MODE = 31, DESC_B_SCALE_MODE = 32, SCALE_VEC128 = 4, SCALE_BLK128X128 = 5 };
#if CUBLAS_VERSION >= 120900
static_assert(CUBLASLT_MATMUL_DESC_A_SCALE_MODE == (int)DESC_A_SCALE_MODE
              && CUBLASLT_MATMUL_DESC_B_SCALE_MODE == (int)DESC_B_SCALE_MODE
              && CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F == (int)SCALE_VEC128
              && CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F == (int)SCALE_BLK128X128, "");
#endif

/* The four descriptors of a product. One that could not be created stays null; status: the first
 * failure. */
struct plan {
  tide_cuda_blas *b;
  cublasLtMatmulDesc_t op = nullptr;
  cublasLtMatrixLayout_t a = nullptr, x = nullptr, d = nullptr;
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

  bool good() const { return status == CUBLAS_STATUS_SUCCESS; }
  void took(cublasStatus_t s) { status = good() ? s : status; }
  void layout(cublasLtMatrixLayout_t *l, int dtype, int64_t rows, int64_t cols, int64_t ld,
              const problem &q, int64_t stride)
  {
    took(b->cublasLtMatrixLayoutCreate(l, type_of(dtype), (uint64_t)rows, (uint64_t)cols, ld));
    if (!good() || q.batch == 1) return;
    int32_t n = (int32_t)q.batch;
    took(b->cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &n, sizeof n));
    took(b->cublasLtMatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                             &stride, sizeof stride));
  }
  template <class V> void set(cublasLtMatmulDescAttributes_t what, V v)
  {
    if (good()) took(b->cublasLtMatmulDescSetAttribute(op, what, &v, sizeof v));
  }
  /* One factor for all is the default, which every cuBLASLt has. */
  void scale_mode(int what, int scaling)
  {
    int32_t mode = scaling == TIDE_CUDA_SCALE_128 ? SCALE_VEC128 : SCALE_BLK128X128;
    if (scaling != TIDE_CUDA_SCALE_ALL) set((cublasLtMatmulDescAttributes_t)what, mode);
  }
  plan(tide_cuda_blas *blas, const problem &q, const tide_product &p) : b(blas)
  {
    took(b->cublasLtMatmulDescCreate(&op, compute_of(q),
                                     q.in_a == TIDE_F64 ? CUDA_R_64F : CUDA_R_32F));
    set(CUBLASLT_MATMUL_DESC_TRANSA, (int32_t)(q.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(CUBLASLT_MATMUL_DESC_TRANSB, (int32_t)(q.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(q));
    if (q.bias) set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    if (q.pre) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p.pre);
      set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, q.ldd);
    }
    if (p.a_scale) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void *>(p.b_scale));
      set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void *>(p.a_scale));
      scale_mode(DESC_A_SCALE_MODE, q.scale_a);
      scale_mode(DESC_B_SCALE_MODE, q.scale_b);
    }
    layout(&a, q.in_a, q.trans_a ? q.k : q.m, q.trans_a ? q.m : q.k, q.lda, q, q.stride_a);
    layout(&x, q.in_b, q.trans_b ? q.n : q.k, q.trans_b ? q.k : q.n, q.ldb, q, q.stride_b);
    layout(&d, q.out, q.m, q.n, q.ldd, q, q.stride_d);
  }
  ~plan()
  {
    if (d) b->cublasLtMatrixLayoutDestroy(d);
    if (x) b->cublasLtMatrixLayoutDestroy(x);
    if (a) b->cublasLtMatrixLayoutDestroy(a);
    if (op) b->cublasLtMatmulDescDestroy(op);
  }
};

/* Asks for an algorithm. Returns cuBLASLt's status: NOT_SUPPORTED if it has none. */
cublasStatus_t ask(const plan &p, const problem &q, cublasLtMatmulAlgo_t *algo)
{
  tide_cuda_blas *b = p.b;
  cublasLtMatmulPreference_t want = nullptr;
  cublasStatus_t s = b->cublasLtMatmulPreferenceCreate(&want);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  uint64_t space = WORKSPACE;
  uint32_t align[4] = {(uint32_t)q.align_a, (uint32_t)q.align_b, (uint32_t)q.align_d,
                       (uint32_t)q.align_d};
  const cublasLtMatmulPreferenceAttributes_t name[4] = {
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
    CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
  b->cublasLtMatmulPreferenceSetAttribute(want, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &space,
                                          sizeof space);
  for (int i = 0; i < 4; i++)
    b->cublasLtMatmulPreferenceSetAttribute(want, name[i], &align[i], sizeof align[i]);
  cublasLtMatmulHeuristicResult_t found;
  int n = 0;
  s = b->cublasLtMatmulAlgoGetHeuristic(b->handle, p.op, p.a, p.x, p.d, p.d, want, 1, &found, &n);
  b->cublasLtMatmulPreferenceDestroy(want);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  if (n > 0) *algo = found.algo;
  return n > 0 ? found.state : CUBLAS_STATUS_NOT_SUPPORTED;
}

choice *slot(tide_cuda_blas *b, const problem &q)
{
  const unsigned char *p = reinterpret_cast<const unsigned char *>(&q);
  uint64_t h = 1469598103934665603u; /* FNV-1a */
  for (size_t i = 0; i < sizeof q; i++) h = (h ^ p[i]) * 1099511628211u;
  return &b->known[(h ^ h >> 32) % REMEMBERED];
}

cublasStatus_t multiply(const k_call *call, const plan &plan, const problem &q,
                        const tide_product &p, const cublasLtMatmulAlgo_t *algo)
{
  tide_cuda_blas *b = plan.b;
  float one = 1, beta = p.accumulate ? 1 : 0;
  double one64 = 1, beta64 = beta;
  bool wide = q.in_a == TIDE_F64;
  return b->cublasLtMatmul(b->handle, plan.op, wide ? (void *)&one64 : &one, p.b.data, plan.a,
                           p.a.data, plan.x, wide ? (void *)&beta64 : &beta, p.y.data, plan.d,
                           p.y.data, plan.d, algo, b->workspace, WORKSPACE,
                           tide_cuda_stream(call));
}

/* Returns cuBLASLt's status: NOT_SUPPORTED, which is remembered, if it has no algorithm. */
cublasStatus_t by_library(const k_call *call, tide_cuda_blas *b, const problem &q,
                          const tide_product &p)
{
  choice *c = slot(b, q);
  if (memcmp(&c->key, &q, sizeof q) != 0) c->said = UNKNOWN;
  c->key = q;
  if (c->said == REFUSED) return CUBLAS_STATUS_NOT_SUPPORTED;
  plan plan(b, q, p);
  cublasStatus_t s = plan.status;
  if (plan.good() && c->said == UNKNOWN) s = ask(plan, q, &c->algo);
  if (s == CUBLAS_STATUS_SUCCESS) s = multiply(call, plan, q, p, &c->algo);
  c->said = s == CUBLAS_STATUS_SUCCESS ? FOUND
    : s == CUBLAS_STATUS_NOT_SUPPORTED ? REFUSED : UNKNOWN;
  return s;
}

bool lacks(cublasStatus_t s)
{
  return s == CUBLAS_STATUS_NOT_SUPPORTED || s == CUBLAS_STATUS_INVALID_VALUE;
}

int refuse_blocks(const k_call *call, cublasStatus_t s)
{
  snprintf(call->msg, K_MSG, "this cuBLASLt multiplies no FP8 with scales of blocks: that needs "
           "cuBLAS 12.9 or above (status %d); use scaling 'tensor'", (int)s);
  return TIDE_E_UNSUPPORTED;
}

}  // namespace

void tide_cuda_blas_close(tide_cuda_blas *b)
{
  if (!b) return;
  b->cublasLtDestroy(b->handle);
  cudaFree(b->workspace);
  free(b->known);
  free(b);
}

int tide_cuda_product(const k_call *call, const tide_product &p)
{
  tide_cuda_blas **at = tide_cuda_blas_slot(call);
  int rc = *at ? TIDE_OK : make(call, at);
  if (rc < 0) return rc;
  tide_cuda_blas *b = *at;
  problem q = problem_of(p);
  if (q.in_a == TIDE_F32)
    q.precision = (int)tide_cuda_state_of(call->stream)->params->matmul_precision;
  cublasStatus_t s = by_library(call, b, q, p);
  if (s == CUBLAS_STATUS_SUCCESS) return TIDE_CUDA_LAUNCHED(call);
  if (q.scale_a != TIDE_CUDA_SCALE_ALL && lacks(s)) return refuse_blocks(call, s);
  if (s == CUBLAS_STATUS_NOT_SUPPORTED) return tide_cuda_plain_product_of(call, p);
  snprintf(call->msg, K_MSG, "cuBLASLt fails in a product [%lld, %lld] x [%lld, %lld] (status %d)",
           (long long)q.n, (long long)q.k, (long long)q.k, (long long)q.m, (int)s);
  return TIDE_E_DEVICE;
}
