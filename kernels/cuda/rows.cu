/* Every CUDA kernel: op by name, function, work function, dtypes, layout. As kernels/kernel.def, in
 * a table of its own because the core finds it at run time.
 *
 * Each function is entered with the device of its context current: a launch, and a library handle
 * made on the way, belong to the thread's current device. The host thread gets its own back.
 */
#include "kernels/cuda/backend.cuh"

#define K(op, dtypes, layout) int k_cuda_##op(const k_call *);
#define KW(op, dtypes, layout)        \
  int k_cuda_##op(const k_call *);    \
  int64_t k_cuda_##op##_work(const k_call *);
#include "kernels/cuda/rows.def"
#undef K
#undef KW

template <k_fn kernel> static int on_its_device(const k_call *call)
{
  tide_cuda_guard g(tide_cuda_state_of(call->stream)->device);
  return kernel(call);
}

const k_row tide_cuda_rows[] = {
#define K(op, dtypes, layout) {#op, on_its_device<k_cuda_##op>, nullptr, dtypes, layout},
#define KW(op, dtypes, layout) \
  {#op, on_its_device<k_cuda_##op>, k_cuda_##op##_work, dtypes, layout},
#include "kernels/cuda/rows.def"
#undef K
#undef KW
};

const int tide_cuda_nrow = sizeof tide_cuda_rows / sizeof tide_cuda_rows[0];
