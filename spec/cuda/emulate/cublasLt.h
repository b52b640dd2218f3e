/* The part of cuBLASLt that kernels/cuda calls, with numbers of its own, but for those that
 * blas.cu writes as numbers: spec/cuda/emulate only. */
#pragma once

#include "cuda_runtime.h"

enum cublasStatus_t {
  CUBLAS_STATUS_SUCCESS, CUBLAS_STATUS_INVALID_VALUE = 7, CUBLAS_STATUS_EXECUTION_FAILED = 13,
  CUBLAS_STATUS_NOT_SUPPORTED = 15
};
enum cudaDataType_t {
  CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF, CUDA_R_8F_E4M3, CUDA_R_8F_E5M2
};
enum cublasComputeType_t {
  CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F, CUBLAS_COMPUTE_32F_FAST_TF32, CUBLAS_COMPUTE_32F_FAST_16BF
};
enum { CUBLAS_OP_N, CUBLAS_OP_T };
enum {
  CUBLASLT_EPILOGUE_DEFAULT = 1, CUBLASLT_EPILOGUE_RELU = 2, CUBLASLT_EPILOGUE_BIAS = 4,
  CUBLASLT_EPILOGUE_RELU_BIAS = 6, CUBLASLT_EPILOGUE_GELU = 32, CUBLASLT_EPILOGUE_GELU_BIAS = 36,
  CUBLASLT_EPILOGUE_GELU_AUX = 160, CUBLASLT_EPILOGUE_GELU_AUX_BIAS = 164
};
enum cublasLtMatmulDescAttributes_t {
  CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB, CUBLASLT_MATMUL_DESC_EPILOGUE,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
  CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
  CUBLASLT_MATMUL_DESC_A_SCALE_MODE = 31, CUBLASLT_MATMUL_DESC_B_SCALE_MODE = 32
};
enum cublasLtMatmulMatrixScale_t {
  CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F = 4,
  CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F = 5
};
enum cublasLtMatrixLayoutAttribute_t {
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET
};
enum cublasLtMatmulPreferenceAttributes_t {
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES
};

struct cublasLtMatmulAlgo_t { uint64_t data[8]; };
struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
};
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct tide_emulated_desc *cublasLtMatmulDesc_t;
typedef struct tide_emulated_layout *cublasLtMatrixLayout_t;
typedef struct tide_emulated_preference *cublasLtMatmulPreference_t;

#define TIDE_LT extern "C" __attribute__((visibility("default"))) cublasStatus_t
TIDE_LT cublasLtCreate(cublasLtHandle_t *handle);
TIDE_LT cublasLtDestroy(cublasLtHandle_t handle);
TIDE_LT cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t, cudaDataType_t);
TIDE_LT cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d);
TIDE_LT cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what,
                                       const void *value, size_t size);
TIDE_LT cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType_t type, uint64_t rows,
                                   uint64_t cols, int64_t ld);
TIDE_LT cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l);
TIDE_LT cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                         cublasLtMatrixLayoutAttribute_t what, const void *value,
                                         size_t size);
TIDE_LT cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *p);
TIDE_LT cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p);
TIDE_LT cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                             cublasLtMatmulPreferenceAttributes_t what,
                                             const void *value, size_t size);
TIDE_LT cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t op,
                                       cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                       cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       cublasLtMatmulPreference_t, int most,
                                       cublasLtMatmulHeuristicResult_t *found, int *n);
TIDE_LT cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t op, const void *alpha, const void *a,
                       cublasLtMatrixLayout_t la, const void *b, cublasLtMatrixLayout_t lb,
                       const void *beta, const void *c, cublasLtMatrixLayout_t lc, void *d,
                       cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo, void *workspace,
                       size_t nworkspace, cudaStream_t stream);
