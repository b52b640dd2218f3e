/* CUDA memory and streams behind the device seam, and the table that libtide asks for.
 *
 * The one idea: a context has one compute stream on the device that was current when it opened.
 * Everything is enqueued there in program order, so a block that the host has given back may be
 * handed out again at once: whoever had it before runs earlier. Only download and sync wait.
 *
 * Errors that CUDA calls sticky poison the context: every later call of it fails with the same
 * sentence, the process lives on. A driver that shuts down under late releases counts as done.
 *
 * Layer 2k.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/cuda.cuh"

extern "C" {
#include "core/device/backend.h"
}

namespace {

struct state_t {
  int device;
  cudaStream_t compute;
  tide_cuda_fault *fault; /* host memory that kernels can write */
  char why[K_MSG];        /* of the last copy or wait that failed */
  tide_cuda_blas *blas; /* made at the first product */
};

state_t *of(void *p) { return static_cast<state_t *>(p); }

bool shutting_down(cudaError_t e)
{
  return e == cudaErrorCudartUnloading || e == cudaErrorContextIsDestroyed;
}

/* The calls of a context find its device whatever the host thread used last. */
struct guard {
  int before = -1;
  explicit guard(int device)
  {
    if (cudaGetDevice(&before) != cudaSuccess) before = -1;
    if (before != device) cudaSetDevice(device);
    else before = -1;
  }
  ~guard()
  {
    if (before >= 0) cudaSetDevice(before);
  }
};

int open_device(void **out, char *msg)
{
  int n = 0;
  cudaError_t e = cudaGetDeviceCount(&n);
  if (e == cudaErrorInsufficientDriver || e == cudaErrorNoDevice || (e == cudaSuccess && n == 0)) {
    snprintf(msg, TIDE__OPEN_MSG, "%s", e == cudaErrorInsufficientDriver
             ? "no CUDA driver, or one older than the toolkit tide was built with"
             : "the CUDA driver sees no device");
    return TIDE_E_DEVICE;
  }
  if (e != cudaSuccess) {
    snprintf(msg, TIDE__OPEN_MSG, "the CUDA driver answers: %s", cudaGetErrorString(e));
    return TIDE_E_DEVICE;
  }
  state_t *s = static_cast<state_t *>(calloc(1, sizeof *s));
  if (!s) {
    snprintf(msg, TIDE__OPEN_MSG, "no host memory");
    return TIDE_E_NOMEM;
  }
  e = cudaGetDevice(&s->device);
  if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&s->compute, cudaStreamNonBlocking);
  void *fault = nullptr;
  if (e == cudaSuccess) e = cudaHostAlloc(&fault, sizeof *s->fault, cudaHostAllocMapped);
  s->fault = static_cast<tide_cuda_fault *>(fault);
  if (e != cudaSuccess) {
    snprintf(msg, TIDE__OPEN_MSG, "device %d cannot be used: %s", s->device,
             cudaGetErrorString(e));
    free(s);
    return TIDE_E_DEVICE;
  }
  memset(s->fault, 0, sizeof *s->fault);
  *out = s;
  return TIDE_OK;
}

void close_device(void *p)
{
  state_t *s = of(p);
  guard g(s->device);
  tide_cuda_blas_close(s->blas);
  cudaStreamDestroy(s->compute);
  cudaFreeHost(s->fault);
  free(s);
}

void *take(void *p, size_t size)
{
  guard g(of(p)->device);
  void *ptr = nullptr;
  if (cudaMalloc(&ptr, size ? size : 1) == cudaSuccess) return ptr;
  cudaGetLastError(); /* running out of memory is an answer, not a state */
  return nullptr;
}

void give(void *p, void *ptr, size_t)
{
  guard g(of(p)->device);
  cudaError_t e = cudaFree(ptr);
  if (e != cudaSuccess && shutting_down(e)) cudaGetLastError();
}

int status(state_t *s, cudaError_t e)
{
  if (e == cudaSuccess) return TIDE_OK;
  snprintf(s->why, sizeof s->why, "CUDA device %d: %s", s->device, cudaGetErrorString(e));
  return TIDE_E_DEVICE;
}

/* After a wait: what the kernels before it found wrong counts as well. */
int waited(state_t *s, cudaError_t e)
{
  return e == cudaSuccess ? tide_cuda_fault_take(s->fault, -1, s->why, sizeof s->why)
                          : status(s, e);
}

/* The source is the caller's pageable memory: the copy has left it on return. */
int upload(void *p, void *dst, const void *src, size_t size)
{
  guard g(of(p)->device);
  if (size == 0) return TIDE_OK;
  cudaError_t e = cudaMemcpyAsync(dst, src, size, cudaMemcpyHostToDevice, of(p)->compute);
  return status(of(p), e == cudaSuccess ? cudaStreamSynchronize(of(p)->compute) : e);
}

int download(void *p, void *dst, const void *src, size_t size)
{
  guard g(of(p)->device);
  if (size == 0) return TIDE_OK;
  cudaError_t e = cudaMemcpyAsync(dst, src, size, cudaMemcpyDeviceToHost, of(p)->compute);
  return waited(of(p), e == cudaSuccess ? cudaStreamSynchronize(of(p)->compute) : e);
}

void *queue(void *p) { return p; }
void *stream(void *p) { return of(p)->compute; }

int stream_done(void *p)
{
  guard g(of(p)->device);
  cudaError_t e = cudaStreamQuery(of(p)->compute);
  if (e == cudaErrorNotReady) return 0;
  return e == cudaSuccess ? 1 : status(of(p), e);
}

int sync(void *p)
{
  guard g(of(p)->device);
  return waited(of(p), cudaStreamSynchronize(of(p)->compute));
}

const char *why(void *p) { return of(p)->why; }

const tide__backend backend = {
  TIDE_DEV_CUDA, /* host */ false, /* has_bytes */ true, /* lazy */ false, take, give,
  /* discard */ nullptr, upload, download, open_device, close_device, queue, stream, stream_done,
  sync, why,
};

}  // namespace

/* A kernel's stream is the whole state, so that products reach their library handle too. */
cudaStream_t tide_cuda_stream(const k_call *call) { return of(call->stream)->compute; }
int tide_cuda_device(const k_call *call) { return of(call->stream)->device; }
tide_cuda_fault *tide_cuda_fault_of(const k_call *call) { return of(call->stream)->fault; }

int tide_cuda_fault_take(tide_cuda_fault *f, int op, char *msg, size_t size)
{
  if (*(volatile int *)&f->set != 2) return TIDE_OK;
  const char *whose = f->op == op ? "" : "an earlier op: ";
  long long v = f->value, at = f->position, limit = f->limit, other = f->other;
  if (f->kind == TIDE_FAULT_INDEX)
    snprintf(msg, size, "%sindex %lld at position %lld is outside [0, %lld)", whose, v, at, limit);
  else if (f->kind == TIDE_FAULT_SEQUENCE)
    snprintf(msg, size, "%ssequence: number %lld at token %lld; expected numbers from 0 on that "
             "never decrease (is the end of the stream covered?)", whose, v, at);
  else
    snprintf(msg, size, "%sthe target of row %lld is %lld, expected a class in [0, %lld) or the "
             "ignore_index %lld", whose, at, v, limit, other);
  f->set = 0;
  return TIDE_E_ARG;
}
tide_cuda_blas **tide_cuda_blas_slot(const k_call *call) { return &of(call->stream)->blas; }

extern "C" __attribute__((visibility("default"))) const tide__plugin *tide_plugin(void)
{
  static const tide__plugin table = {
    sizeof(tide__plugin), TIDE__PLUGIN_VERSION, TIDE_CUDA_LIBRARY_VERSION, &backend,
    tide_cuda_rows, tide_cuda_nrow,
  };
  return &table;
}
