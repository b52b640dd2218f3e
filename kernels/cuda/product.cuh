/* Matrix products for the kernels here: what to multiply, in row-major words.
 */
#pragma once

#include "kernels/cuda/block.cuh"

/* Beside the public dtypes, of matrices here alone: FP8 codes. */
enum { TIDE_CUDA_E4M3 = TIDE_NDTYPE, TIDE_CUDA_E5M2 };

/* What a factor of FP8 codes is of: all of them, 128 neighbours along k, or 128 x 128. Factors of
 * blocks lie as fp8_codes writes them (kernels/kernel.h). */
enum { TIDE_CUDA_SCALE_ALL, TIDE_CUDA_SCALE_128, TIDE_CUDA_SCALE_128X128 };

/* What a product may do with its sums before it rounds them: relu, or gelu by tanh. */
enum { TIDE_CUDA_PLAIN, TIDE_CUDA_RELU, TIDE_CUDA_GELU };

/* A matrix [rows, cols] of a batch. One of the two strides is 1 (or its dim has size 1). */
struct tide_matrix {
  void *data;
  int dtype;
  int64_t rows, cols, row_stride, col_stride, batch_stride;
};

/* y = a b (+ bias along the columns of y) (+ y if accumulate), for `batch` matrices. y is row-major
 * (col_stride 1). a and b have one dtype; y has it too, or f32. Sums in f32, in f64 for f64. bias
 * may be null; it has y's dtype.
 *
 * Of FP8 codes: y = a b * a_scale * b_scale + bias, the factors on the device. a and b may be of
 * two formats, not both e5m2; a is row-major, b column-major; y is f32 (then bias is null), bf16 or
 * f16; rows of a and b are multiples of 16, addresses and strides of 16 bytes. With factors of
 * blocks the products of each 128 along k are summed, times both factors; at most one operand has
 * 128X128. TIDE_E_UNSUPPORTED where cuBLASLt lacks such factors. */
struct tide_product {
  tide_matrix a, b, y;
  int64_t batch;
  const void *bias;
  bool accumulate;
  const float *a_scale = nullptr, *b_scale = nullptr; /* of FP8 */
  int a_scaling = TIDE_CUDA_SCALE_ALL, b_scaling = TIDE_CUDA_SCALE_ALL;
  int act = TIDE_CUDA_PLAIN; /* not of f64, nor with accumulate */
  void *pre = nullptr;       /* of gelu: where its operand goes, as y lies; columns in steps of 8 */
};
int tide_cuda_product(const k_call *call, const tide_product &p);

/* The same by plain loops (product_plain.cu), of any dtype and strides: (row, column) of a, b and
 * y; those of the batch are in the layout, y first. pre lies as y. */
struct tide_plain_product {
  tide_array a, b, y, bias, pre; /* bias, pre: null if absent */
  tide_layout batch;
  int64_t m, n, k, as[2], bs[2], ys[2];
  bool add; /* to what y holds */
  int act;
  const float *a_scale, *b_scale;
};
int tide_cuda_plain_product(const k_call *call, const tide_plain_product &p);
int tide_cuda_plain_product_of(const k_call *call, const tide_product &p);
