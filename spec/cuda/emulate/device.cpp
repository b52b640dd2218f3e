/* Devices, errors and attributes of the emulated runtime. See cuda_runtime.h.
 *
 * The runtime keeps the last error of each thread in one word, which cudaGetLastError reads and
 * clears (CUDA Runtime API, "Error Handling", cudaGetLastError: "resets it to cudaSuccess"), also
 * after an error that has ended the context (seen in libcudart 13.0). What ends the context is
 * returned by every later call ("Data types used by CUDA Runtime", cudaErrorIllegalAddress).
 *
 * Environment: TIDE_EMULATE_DEVICES (default 1; 0: a driver without a device; -1: no driver),
 * TIDE_EMULATE_CAPABILITY (default 89, the least with FP8; 90: a Hopper chip, with its shared
 * memory and its tensor maps), TIDE_EMULATE_FAULT (that kernel, counted from 1, ends the device as
 * an illegal address does), TIDE_EMULATE_NOT_READY=1 (cudaErrorNotReady stays as the last error, as
 * in older runtimes; that of CUDA 13.0 keeps it out: seen in its libcudart). Spec only.
 */
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>

#include "cuda.h"
#include "inside.h"

namespace emulated {

std::recursive_mutex device_lock;
std::atomic<bool> dead;

static thread_local cudaError_t last_error;
static thread_local int current;

static bool keeps_not_ready()
{
  const char *said = getenv("TIDE_EMULATE_NOT_READY");
  return said && *said == '1';
}

cudaError_t report(cudaError_t e)
{
  if (e != cudaSuccess && (e != cudaErrorNotReady || keeps_not_ready())) last_error = e;
  return e;
}

cudaError_t sticky() { return report(dead ? cudaErrorIllegalAddress : cudaSuccess); }

int current_device() { return current; }

void wrong(const char *format, ...)
{
  va_list list;
  va_start(list, format);
  fprintf(stderr, "emulated CUDA: ");
  vfprintf(stderr, format, list);
  fprintf(stderr, "\n");
  va_end(list);
  abort();
}

}  // namespace emulated

using namespace emulated;

bool tide_emulate_kernel_fails()
{
  static int nkernel;
  const char *said = getenv("TIDE_EMULATE_FAULT");
  if (said && ++nkernel == atoi(said)) dead = true;
  return dead;
}

const char *cudaGetErrorString(cudaError_t e)
{
  switch (e) {
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "the capture was invalidated before";
    case cudaErrorStreamCaptureUnjoined: return "a forked stream was not joined";
    case cudaErrorStreamCaptureMerge: return "two captures would become one";
    case cudaErrorStreamCaptureIsolation: return "a dependency would leave the capture";
    case cudaErrorCapturedEvent: return "the event was recorded in a capture";
    default: return "emulated error";
  }
}

cudaError_t cudaGetLastError()
{
  cudaError_t e = last_error;
  last_error = cudaSuccess;
  return e;
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Bytes of dynamic shared memory that kernels may have, by device and function. */
static std::map<std::pair<int, const void *>, int> allowed;

/* An attribute is that of the function on the current device (CUDA Runtime API,
 * cudaFuncSetAttribute). */
cudaError_t tide_emulate_allow_shared(const void *function, int bytes)
{
  guard g(device_lock);
  if (bytes < 0 || bytes > tide_emulate_shared_limit()) return report(cudaErrorInvalidValue);
  allowed[{current, function}] = bytes;
  return sticky();
}

/* A launch needs the stream's device to be the thread's current one (CUDA C++ Programming Guide,
 * multi-device systems, "Stream and Event Behavior"). More than 48 KB of dynamic shared memory need
 * cudaFuncAttributeMaxDynamicSharedMemorySize ("Compute Capabilities", "Shared Memory": an explicit
 * opt-in); without it the launch is cudaErrorInvalidValue. */
bool tide_emulate_may_launch(const tide_emulate_stream *stream, const tide_emulate_kernel &kernel,
                             size_t shared)
{
  guard g(device_lock);
  if (sticky() != cudaSuccess) return false;
  cudaError_t e = stream->device == current ? cudaSuccess : cudaErrorInvalidResourceHandle;
  auto found = allowed.find({current, kernel.function});
  if (shared > 48 << 10 && (found == allowed.end() || shared > (size_t)found->second))
    e = cudaErrorInvalidValue;
  return report(e) == cudaSuccess;
}

/* ---- devices --------------------------------------------------------------------------------- */

extern "C" __attribute__((visibility("default"))) int tide_emulate_device() { return current; }

cudaError_t cudaGetDeviceCount(int *n)
{
  const char *said = getenv("TIDE_EMULATE_DEVICES");
  *n = said ? atoi(said) : 1;
  return *n < 0 ? cudaErrorInsufficientDriver : cudaSuccess;
}

cudaError_t cudaGetDevice(int *d)
{
  *d = current;
  return cudaSuccess;
}

cudaError_t cudaSetDevice(int d)
{
  int n = 0;
  cudaGetDeviceCount(&n);
  if (d < 0 || d >= n) return report(cudaErrorInvalidDevice);
  current = d;
  return sticky();
}

extern "C" __attribute__((visibility("default"))) int tide_emulate_capability()
{
  const char *said = getenv("TIDE_EMULATE_CAPABILITY");
  return said ? atoi(said) : 89;
}

cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr what, int)
{
  *v = what == cudaDevAttrComputeCapabilityMajor ? tide_emulate_capability() / 10
    : tide_emulate_capability() % 10;
  return cudaSuccess;
}

int tide_emulate_shared_limit() { return (tide_emulate_capability() == 90 ? 227 : 99) << 10; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
  bool here = tide_emulate_capability() >= 90 && !strcmp(name, "cuTensorMapEncodeTiled");
  *function = here ? reinterpret_cast<void *>(cuTensorMapEncodeTiled) : nullptr;
  *found = here ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}
