/* The state of a context on a GPU, for the files that need the device itself. */
#pragma once

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
  char why[K_MSG];             /* text of the last failure that did not end the context */
  pthread_mutex_t lock;        /* failed, spoilt: collectives run on threads of their own */
  int spoilt;                  /* why the contents are wrong: a status; atomic. 0: they are not */
  char spoilt_text[K_MSG];
  bool dead;
  char failed[K_MSG];          /* the error that ended the CUDA context */
  tide_cuda_blas *blas;        /* created at the first product */
  void *encode;                /* the driver's cuTensorMapEncodeTiled, found when first needed */
};

static inline tide_cuda_state *tide_cuda_state_of(void *p)
{
  return static_cast<tide_cuda_state *>(p);
}

/* Makes the context's device current for a scope, then restores the thread's own. */
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

/* Returns e as a status and records its text; an error that ends the CUDA context is kept. */
int tide_cuda_status(tide_cuda_state *s, cudaError_t e);
/* The same after a wait, where faults that earlier kernels reported count too. */
int tide_cuda_waited(tide_cuda_state *s, cudaError_t e);

/* Returns and clears the status set by tide__streams.set_error, with its text in msg. */
int tide_cuda_spoilt_take(tide_cuda_state *s, char *msg, size_t size);

/* Returns the error that ended the CUDA context, or null. Thread-safe. */
const char *tide_cuda_failed(void *state);

/* kernels/cuda/ranks.cu */
int tide_cuda_rank_copy(void *state, void *stream, void *dst, const void *src, size_t size);
int tide_cuda_rank_reduce(void *state, void *stream, void *const *dst, int ndst,
                          const void *const *src, int nsrc, int64_t n, int dtype, int op);

/* kernels/cuda/streams.cu */
extern const tide__streams tide_cuda_streams;
extern const tide__graphs tide_cuda_graphs;
