/* What a context has on a GPU. For backend.cu, streams.cu and those that need the
 * device itself: blas.cu, attention.cu, attention_wgmma.cuh. */
#ifndef TIDE_KERNELS_CUDA_BACKEND_CUH
#define TIDE_KERNELS_CUDA_BACKEND_CUH

#include <pthread.h>

#include "kernels/cuda/cuda.cuh"

extern "C" {
#include "core/base/param.h"
#include "core/device/backend.h"
}

struct tide_cuda_state {
  int device;
  const struct tide__params *params; /* of the context */
  int capability;              /* 90: compute capability 9.0 */
  cudaStream_t compute, copies;
  bool capturing;
  tide_cuda_fault *fault;      /* host memory that kernels can write */
  char why[K_MSG];             /* of the last copy or wait that failed for now */
  pthread_mutex_t lock;        /* failed, spoilt: collectives run on threads of their own */
  int spoilt;                  /* 0, or why the contents are wrong, a status; read without lock */
  char spoilt_text[K_MSG];
  bool dead;
  char failed[K_MSG];          /* why the device answers no more */
  tide_cuda_blas *blas;        /* made at the first product */
  void *encode;                /* the driver's cuTensorMapEncodeTiled, found when first needed */
};

static inline tide_cuda_state *tide_cuda_state_of(void *p)
{
  return static_cast<tide_cuda_state *>(p);
}

/* The calls of a context find its device whatever the host thread used last. */
struct tide_cuda_guard {
  int before = -1;
  explicit tide_cuda_guard(int device)
  {
    if (cudaGetDevice(&before) != cudaSuccess) before = -1;
    if (before != device) cudaSetDevice(device);
    else before = -1;
  }
  ~tide_cuda_guard()
  {
    if (before >= 0) cudaSetDevice(before);
  }
};

/* e as a status; one that is not success is kept, for good if the device repeats it. */
int tide_cuda_status(tide_cuda_state *s, cudaError_t e);
/* After a wait: what the kernels before it found wrong counts as well. */
int tide_cuda_waited(tide_cuda_state *s, cudaError_t e);

/* Takes the reason why the device's contents are wrong, if there is one: status, text in msg. */
int tide_cuda_spoilt_take(tide_cuda_state *s, char *msg, size_t size);

/* Null, or why the device answers no more. */
const char *tide_cuda_failed(void *state);

/* kernels/cuda/ranks.cu */
int tide_cuda_near_copy(void *state, void *stream, void *dst, const void *src, size_t size);
int tide_cuda_near_reduce(void *state, void *stream, void *const *dst, int ndst,
                          const void *const *src, int nsrc, int64_t n, int dtype, int op);

/* kernels/cuda/streams.cu */
extern const tide__streams tide_cuda_streams;
extern const tide__graphs tide_cuda_graphs;

#endif
