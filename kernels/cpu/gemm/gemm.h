/* The matrix product of every CPU kernel: C (+)= A B + bias, by the fastest method for the shape.
 *
 * A is m x k, B is k x n, each with any pair of strides of which one is 1 (so transposes are free).
 * C is row-major with row stride c_rs. Accumulation is f32 (f64 for f64).
 */
#ifndef TIDE_KERNELS_CPU_GEMM_H
#define TIDE_KERNELS_CPU_GEMM_H

#include <stdint.h>

typedef struct cpu_gemm {
  int64_t m, n, k;
  const void *a;
  int64_t a_rs, a_cs;        /* row and column stride of A, elements */
  const void *b;
  int64_t b_rs, b_cs;
  void *c;
  int64_t c_rs;
  const void *bias;          /* n values of C's dtype added to every row, or null */
  int ab_dtype;              /* of A and B: f32, f64, bf16, f16 */
  int c_dtype;               /* of C and bias: ab_dtype, or f32 with bf16/f16 operands */
  int accumulate;            /* 0: C = AB, 1: C = C + AB */
} cpu_gemm;

/* Returns the bytes of scratch for this product with up to nthread threads (0 is possible). */
int64_t tide__cpu_gemm_work(const cpu_gemm *g, int nthread);
/* Computes the product. work: scratch of that size, 64-aligned. The result does not depend on
 * nthread. */
void tide__cpu_gemm(const cpu_gemm *g, int nthread, void *work);

#endif
