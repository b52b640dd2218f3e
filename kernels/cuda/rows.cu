/* Every CUDA kernel: op by name, function, work function, dtypes, layout. As kernels/kernel.def, in
 * a table of its own because the core finds it at run time. Layer 2k. */
#include "kernels/cuda/cuda.cuh"

#define K(op, dtypes, layout) int k_cuda_##op(const k_call *);
#define KW(op, dtypes, layout)        \
  int k_cuda_##op(const k_call *);    \
  int64_t k_cuda_##op##_work(const k_call *);
#include "kernels/cuda/rows.def"
#undef K
#undef KW

const k_row tide_cuda_rows[] = {
#define K(op, dtypes, layout) {#op, k_cuda_##op, nullptr, dtypes, layout},
#define KW(op, dtypes, layout) {#op, k_cuda_##op, k_cuda_##op##_work, dtypes, layout},
#include "kernels/cuda/rows.def"
#undef K
#undef KW
};

const int tide_cuda_nrow = sizeof tide_cuda_rows / sizeof tide_cuda_rows[0];
