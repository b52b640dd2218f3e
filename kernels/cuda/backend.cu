/* The CUDA backend: device memory, copies that the host waits for, failures of a device, and the
 * plugin table that libtide looks up.
 *
 * Kernels of a context run on one compute stream of one device, in program order. So a block that
 * was freed may be handed out again at once: the kernels that used it run before those that will.
 * Only download and sync block the host. The other streams are in streams.cu.
 *
 * After an error that leaves the CUDA context unusable, every call of the tide context fails with
 * the text of that error; the process lives on. Releases after the driver has shut down succeed.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/backend.cuh"

namespace {

typedef tide_cuda_state state_t;
typedef tide_cuda_guard guard;

state_t *of(void *p) { return tide_cuda_state_of(p); }

int refuse(char *msg, int status, const char *text)
{
  snprintf(msg, TIDE__OPEN_MSG, "%s", text);
  return status;
}

int refuse_driver(char *msg, cudaError_t e)
{
  snprintf(msg, TIDE__OPEN_MSG, "the CUDA driver answers: %s", cudaGetErrorString(e));
  return TIDE_E_DEVICE;
}

/* Returns the number of devices that the driver sees, at least 1, or a negative status. */
int count(char *msg)
{
  int n = 0;
  cudaError_t e = cudaGetDeviceCount(&n);
  if (e == cudaErrorInsufficientDriver)
    return refuse(msg, TIDE_E_DEVICE,
                  "no CUDA driver, or one older than the toolkit tide was built with");
  if (e == cudaErrorNoDevice || (e == cudaSuccess && n == 0))
    return refuse(msg, TIDE_E_DEVICE, "the CUDA driver sees no device; nvidia-smi lists those that "
                  "there are, CUDA_VISIBLE_DEVICES those that it shows to a process");
  return e == cudaSuccess ? n : refuse_driver(msg, e);
}

/* Sets *device to index, or to the thread's current device for -1. E_DEVICE if out of range. */
int choose(int index, int *device, char *msg)
{
  int n = count(msg);
  if (n < 0) return n;
  if (index >= n) {
    snprintf(msg, TIDE__OPEN_MSG, "parameter cuda_device is %d, the CUDA driver sees devices 0 to "
             "%d", index, n - 1);
    return TIDE_E_DEVICE;
  }
  *device = index;
  cudaError_t e = index < 0 ? cudaGetDevice(device) : cudaSuccess;
  return e == cudaSuccess ? TIDE_OK : refuse_driver(msg, e);
}

void close_device(void *p)
{
  state_t *s = of(p);
  guard g(s->device);
  tide_cuda_blas_close(s->blas);
  if (s->compute) cudaStreamDestroy(s->compute);
  if (s->copies) cudaStreamDestroy(s->copies);
  if (s->fault) cudaFreeHost(s->fault);
  pthread_mutex_destroy(&s->lock);
  free(s);
}

cudaError_t fill(state_t *s)
{
  void *fault = nullptr;
  int major = 0, minor = 0;
  cudaError_t e = cudaStreamCreateWithFlags(&s->compute, cudaStreamNonBlocking);
  if (e == cudaSuccess) e = cudaStreamCreateWithFlags(&s->copies, cudaStreamNonBlocking);
  if (e == cudaSuccess) e = cudaHostAlloc(&fault, sizeof *s->fault, cudaHostAllocMapped);
  s->fault = static_cast<tide_cuda_fault *>(fault);
  if (s->fault) memset(s->fault, 0, sizeof *s->fault);
  if (e == cudaSuccess)
    e = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, s->device);
  if (e == cudaSuccess)
    e = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, s->device);
  s->capability = major * 10 + minor;
  return e;
}

int open_device(void **out, const struct tide__params *params, char *msg)
{
  int device = 0, rc = choose((int)params->cuda_device, &device, msg);
  if (rc < 0) return rc;
  state_t *s = static_cast<state_t *>(calloc(1, sizeof *s));
  if (!s) return refuse(msg, TIDE_E_NOMEM, "no host memory");
  pthread_mutex_init(&s->lock, nullptr);
  s->device = device;
  s->params = params;
  guard g(device);
  cudaError_t e = fill(s);
  if (e != cudaSuccess) {
    snprintf(msg, TIDE__OPEN_MSG, "device %d cannot be used: %s", device, cudaGetErrorString(e));
    close_device(s);
    return TIDE_E_DEVICE;
  }
  *out = s;
  return TIDE_OK;
}

/* Returns device memory, or null when it is used up, which is not recorded as a failure. */
void *take(void *p, size_t size)
{
  guard g(of(p)->device);
  void *ptr = nullptr;
  cudaError_t e = cudaMalloc(&ptr, size ? size : 1);
  if (e == cudaSuccess) return ptr;
  if (e == cudaErrorMemoryAllocation) cudaGetLastError();
  else tide_cuda_status(of(p), e);
  return nullptr;
}

void give(void *p, void *ptr, size_t)
{
  guard g(of(p)->device);
  cudaError_t e = cudaFree(ptr);
  if (e != cudaErrorCudartUnloading && e != cudaErrorContextIsDestroyed)
    tide_cuda_status(of(p), e);
  else cudaGetLastError();
}

int refused_now(state_t *s)
{
  snprintf(s->why, sizeof s->why, "the step is being captured");
  return TIDE_E_STATE;
}

/* Copies between pageable host memory and the device. Blocks until the copy is done. */
int move(state_t *s, void *dst, const void *src, size_t size, cudaMemcpyKind kind)
{
  guard g(s->device);
  if (size == 0) return TIDE_OK;
  if (s->capturing) return refused_now(s);
  cudaError_t e = cudaMemcpyAsync(dst, src, size, kind, s->compute);
  if (e == cudaSuccess) e = cudaStreamSynchronize(s->compute);
  return kind == cudaMemcpyHostToDevice ? tide_cuda_status(s, e) : tide_cuda_waited(s, e);
}

int upload(void *p, void *dst, const void *src, size_t size)
{
  return move(of(p), dst, src, size, cudaMemcpyHostToDevice);
}

int download(void *p, void *dst, const void *src, size_t size)
{
  return move(of(p), dst, src, size, cudaMemcpyDeviceToHost);
}

void *queue(void *p) { return p; }

int sync(void *p)
{
  state_t *s = of(p);
  guard g(s->device);
  if (s->capturing) return refused_now(s);
  cudaError_t e = cudaStreamSynchronize(s->compute);
  if (e == cudaSuccess) e = cudaStreamSynchronize(s->copies);
  return tide_cuda_waited(s, e);
}

const char *why(void *p)
{
  const char *text = tide_cuda_failed(p);
  return text ? text : of(p)->why;
}

const tide__backend backend = {
  TIDE_DEV_CUDA, /* host */ false, /* has_bytes */ true, /* lazy */ false, take, give,
  /* discard */ nullptr, upload, download, open_device, close_device, queue, sync, why,
  tide_cuda_failed,
  &tide_cuda_streams, &tide_cuda_graphs, count, tide_cuda_rank_copy, tide_cuda_rank_reduce,
  /* with_modes */ nullptr,
};

}  // namespace

const char *tide_cuda_failed(void *p)
{
  state_t *s = of(p);
  pthread_mutex_lock(&s->lock);
  bool dead = s->dead;
  pthread_mutex_unlock(&s->lock);
  return dead ? s->failed : nullptr; /* written once */
}

/* Returns whether e leaves the CUDA context unusable until the process ends. The list is that of
 * the errors which the runtime's documentation describes so (cudaError_t, CUDA 13.0). */
static bool ends_context(cudaError_t e)
{
  switch (e) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorUnknown: return true;
    default: return false;
  }
}

int tide_cuda_status(tide_cuda_state *s, cudaError_t e)
{
  if (e == cudaSuccess) return TIDE_OK;
  cudaGetLastError(); /* clears the thread's copy, or the next launch would report it */
  bool lost = ends_context(e);
  pthread_mutex_lock(&s->lock);
  char *text = lost ? s->failed : s->why;
  if (!s->dead)
    snprintf(text, K_MSG, "CUDA device %d: %s%s", s->device, cudaGetErrorString(e),
             lost ? "; it may be of an earlier op, which a run with CUDA_LAUNCH_BLOCKING=1 names; "
                    "start the process again" : "");
  s->dead = s->dead || lost;
  pthread_mutex_unlock(&s->lock);
  return TIDE_E_DEVICE;
}

int tide_cuda_spoilt_take(tide_cuda_state *s, char *msg, size_t size)
{
  if (!__atomic_load_n(&s->spoilt, __ATOMIC_ACQUIRE)) return TIDE_OK;
  pthread_mutex_lock(&s->lock);
  int status = s->spoilt;
  snprintf(msg, size, "%s", s->spoilt_text);
  s->spoilt = 0;
  pthread_mutex_unlock(&s->lock);
  return status;
}

int tide_cuda_waited(tide_cuda_state *s, cudaError_t e)
{
  int spoilt = e == cudaSuccess ? tide_cuda_spoilt_take(s, s->why, sizeof s->why) : TIDE_OK;
  if (spoilt < 0) return spoilt;
  return e == cudaSuccess ? tide_cuda_fault_take(s->fault, -1, s->why, sizeof s->why)
                          : tide_cuda_status(s, e);
}

int tide_cuda_check(const k_call *call, cudaError_t e)
{
  tide_cuda_state *s = tide_cuda_state_of(call->stream);
  int spoilt = e == cudaSuccess ? tide_cuda_spoilt_take(s, call->msg, K_MSG) : TIDE_OK;
  if (spoilt < 0) return spoilt;
  if (e == cudaSuccess) return tide_cuda_fault_take(s->fault, call->op, call->msg, K_MSG);
  int rc = tide_cuda_status(s, e);
  snprintf(call->msg, K_MSG, "%s", why(s));
  return rc;
}

/* k_call.stream is the state of the device, from which products reach their library handle. */
cudaStream_t tide_cuda_stream(const k_call *call)
{
  return of(call->stream)->compute;
}

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
  else if (f->kind == TIDE_FAULT_OFFSET)
    snprintf(msg, size, "%soffsets: %lld at position %lld; expected numbers from 0 to the %lld "
             "rows that never decrease", whose, v, at, limit);
  else if (f->kind == TIDE_FAULT_STEP)
    snprintf(msg, size, "%sstep is %lld, expected 1 for the first update", whose, v);
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
