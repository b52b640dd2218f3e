/* Programs that a chip or its runtime would refuse, one a run: misuse NAME. What the emulated
 * runtime says of each is in spec/cuda/emulated_misuse_spec.lua. Spec only.
 */
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "cuda_runtime.h"

static cudaStream_t tide_cuda_stream(cudaStream_t s) { return s; }

static void expect(bool holds, const char *what)
{
  if (holds) return;
  printf("not so: %s\n", what);
  exit(1);
}

static cudaStream_t stream_of(int device)
{
  cudaStream_t s = nullptr;
  cudaSetDevice(device);
  cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking);
  return s;
}

static float *floats(int n)
{
  void *p = nullptr;
  expect(cudaMalloc(&p, sizeof(float) * (size_t)n) == cudaSuccess, "there is memory");
  return static_cast<float *>(p);
}

__global__ void set_kernel(float *x, int n, float v)
{
  int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] = v;
}

__global__ void four_kernel(const float *from, float *to)
{
  *reinterpret_cast<float4 *>(to) = *reinterpret_cast<const float4 *>(from);
}

/* The sum of neighbours in shared memory, without the barrier between. */
__global__ void race_kernel(float *x)
{
  __shared__ float part[64];
  part[threadIdx.x] = (float)threadIdx.x;
  x[threadIdx.x] = threadIdx.x ? part[threadIdx.x - 1] : 0;
}

__global__ void last_block_kernel(float *x) { *x = (float)blockIdx.x; }

__global__ void shared_kernel(float *x)
{
  TIDE_DYNAMIC_SHARED(raw);
  raw[threadIdx.x] = 1;
  x[threadIdx.x] = raw[threadIdx.x];
}

static void set(cudaStream_t s, float *x, int n)
{
  TIDE_CUDA_LAUNCH(s, set_kernel, 1, 64, 0, x, n, 2.0f);
}

static void host_reads()
{
  cudaStream_t s = stream_of(0);
  float *x = floats(64);
  set(s, x, 64);
  cudaStreamSynchronize(s);
  printf("%g\n", (double)x[3]);
}

static void kernel_reaches_host()
{
  cudaStream_t s = stream_of(0);
  float *x = static_cast<float *>(malloc(1024));
  set(s, x, 64);
  cudaStreamSynchronize(s);
}

static void behind_the_end()
{
  cudaStream_t s = stream_of(0);
  set(s, floats(63), 64);
  cudaStreamSynchronize(s);
}

static void freed()
{
  cudaStream_t s = stream_of(0);
  float *x = floats(64);
  cudaFree(x);
  set(s, x, 64);
  cudaStreamSynchronize(s);
}

static void unaligned()
{
  cudaStream_t s = stream_of(0);
  float *x = floats(64);
  TIDE_CUDA_LAUNCH(s, four_kernel, 1, 1, 0, x, x + 6);
  cudaStreamSynchronize(s);
}

static void other_device()
{
  float *x = (cudaSetDevice(1), floats(64));
  cudaStream_t s = stream_of(0);
  set(s, x, 64);
  cudaStreamSynchronize(s);
}

static void races()
{
  cudaStream_t s = stream_of(0);
  TIDE_CUDA_LAUNCH(s, race_kernel, 1, 64, 0, floats(64));
  cudaStreamSynchronize(s);
}

static void blocks()
{
  cudaStream_t s = stream_of(0);
  TIDE_CUDA_LAUNCH(s, last_block_kernel, 3, 1, 0, floats(1));
  cudaStreamSynchronize(s);
}

/* What the runtime answers instead of ending the program. */
static void answers()
{
  cudaStream_t s = stream_of(0), other = stream_of(1);
  float *x = (cudaSetDevice(0), floats(64)), there[64];
  set(other, x, 64);
  expect(cudaGetLastError() == cudaErrorInvalidResourceHandle, "a stream of another device");
  expect(cudaGetLastError() == cudaSuccess, "the last error is cleared");
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  expect(cudaEventRecord(event, other) == cudaErrorInvalidResourceHandle, "an event of another");
  expect(cudaEventRecord(event, s) == cudaSuccess && cudaEventQuery(event) == cudaErrorNotReady,
         "an event of this device");
  expect(cudaStreamWaitEvent(other, event, 0) == cudaSuccess, "any stream may wait");
  size_t bytes = sizeof there;
  expect(cudaMemcpyAsync(there, x, bytes, cudaMemcpyHostToDevice, s) == cudaErrorInvalidValue
           && cudaMemcpyAsync(x, x + 32, bytes, cudaMemcpyDeviceToDevice, s)
             == cudaErrorInvalidValue
           && cudaMemcpyAsync(there, x, bytes, cudaMemcpyDeviceToHost, s) == cudaSuccess,
         "copies of bytes that lie where they say");
  cudaGetLastError();
  TIDE_CUDA_LAUNCH(s, shared_kernel, 1, 64, 49 << 10, x);
  expect(cudaGetLastError() == cudaErrorInvalidValue, "49 KB of shared memory are too many");
  cudaFuncSetAttribute(shared_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 49 << 10);
  TIDE_CUDA_LAUNCH(s, shared_kernel, 1, 64, 49 << 10, x);
  expect(cudaGetLastError() == cudaSuccess, "49 KB that were asked for");
  expect(cudaStreamSynchronize(s) == cudaSuccess, "they run");
  expect(cudaFree(x + 1) == cudaErrorInvalidValue && cudaFree(x) == cudaSuccess, "frees");
  printf("answers\n");
}

/* With TIDE_EMULATE_MEMORY=4096. */
static void memory()
{
  void *a = nullptr, *b = nullptr;
  expect(cudaMalloc(&a, 3000) == cudaSuccess, "3000 bytes");
  expect(cudaMalloc(&b, 2000) == cudaErrorMemoryAllocation, "not 2000 more");
  cudaFree(a);
  expect(cudaMalloc(&b, 4096) == cudaSuccess, "4096 bytes");
  cudaSetDevice(1);
  expect(cudaMalloc(&b, 4096) == cudaSuccess, "4096 bytes of another device");
  printf("memory\n");
}

int main(int argc, char **argv)
{
  const std::map<std::string, void (*)()> all = {
    {"host_reads", host_reads}, {"kernel_reaches_host", kernel_reaches_host},
    {"behind_the_end", behind_the_end}, {"freed", freed}, {"unaligned", unaligned},
    {"other_device", other_device}, {"races", races}, {"blocks", blocks}, {"answers", answers},
    {"memory", memory}};
  auto one = argc > 1 ? all.find(argv[1]) : all.end();
  if (one == all.end()) return 2;
  one->second();
  printf("it ended\n");
  return 0;
}
