/* Products of few rows with an NF4 weight (kernels/ref/nf4.h has the format). */
#pragma once

#include "kernels/cpu/row.h"
#include "kernels/ref/nf4.h"

/* y = x W^T + bias: x [m, cols] and y [m, rows] of one dtype, bias [rows] or absent. */
typedef struct nf4_few {
  const nf4 *w;        /* [rows, cols] */
  const k_tensor *x, *bias, *y;
  int64_t m, rows, cols;
  float *pairs;        /* tide__nf4_few_work bytes; 64-byte aligned */
} nf4_few;

/* Returns whether the product of m rows is for this file: few rows, and whole blocks in a row of
 * the weight. */
int tide__nf4_few_fits(int64_t m, const k_nf4_attrs *a);

int64_t tide__nf4_few_work(int64_t m, int64_t cols);

/* Computes the product, with the same bits on any number of threads. */
void tide__nf4_few(nf4_few *p, int nthread);
