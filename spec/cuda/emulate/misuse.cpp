/* Programs that a chip or its runtime would refuse, one a run: misuse NAME. What the emulated
 * runtime says of each is in spec/cuda/emulated_misuse_spec.lua. Spec only.
 */
#include <dlfcn.h>

#include <climits>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "cuda_runtime.h"
#include "wgmma_emulated.h"

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

__global__ void double_kernel(float *x)
{
  float v = *x;
  *x = 2 * v + (float)blockIdx.x;
}

__global__ void shared_kernel(float *x)
{
  TIDE_DYNAMIC_SHARED(raw);
  raw[threadIdx.x] = 1;
  x[threadIdx.x] = raw[threadIdx.x];
}

/* One box of 64 x 16 elements from (c0, t0) of a map to shared memory, its sum to *y. */
__global__ void box_kernel(const __grid_constant__ CUtensorMap map, int c0, int t0, float *y)
{
  TIDE_DYNAMIC_SHARED(raw);
  uint32_t begin = tide_shared_address(raw), barrier = (begin + 7) / 8 * 8;
  uint32_t box = (barrier + 8 + 1023) / 1024 * 1024;
  if (threadIdx.x != 0) return;
  tide_barrier_init(barrier, 1);
  tide_barrier_init_fence();
  tide_barrier_expect(barrier, 64 * 16 * 2);
  tide_box_copy(box, &map, barrier, c0, 0, t0, 0);
  tide_barrier_wait(barrier, 0);
  float sum = 0;
  for (int i = 0; i < 64 * 16; i++) {
    uint16_t half;
    memcpy(&half, raw + (box - begin) + i * 2, 2);
    sum += half == 0x3c00 ? 1 : half == 0 ? 0 : NAN; /* ones and zeros of f16 */
  }
  *y = sum;
}

/* A [1, t, 1, d] tensor of f16, or of what else the arguments say. */
static CUresult encode(CUtensorMap *map, void *data, cuuint64_t d, cuuint64_t t,
                       cuuint64_t stride, cuuint32_t rows, cuuint32_t width = 64)
{
  cuuint64_t dim[4] = {d, 1, t, 1}, strides[3] = {stride, stride, stride * t};
  cuuint32_t box[4] = {width, 1, rows, 1}, steps[4] = {1, 1, 1, 1};
  return cuTensorMapEncodeTiled(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4, data, dim, strides, box,
                                steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_NONE,
                                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
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

static void blocks_in_place()
{
  cudaStream_t s = stream_of(0);
  float *x = floats(1);
  set(s, x, 1);
  TIDE_CUDA_LAUNCH(s, double_kernel, 3, 1, 0, x);
  cudaStreamSynchronize(s);
}

/* With TIDE_EMULATE_ORDER=both, too. */
static void in_place()
{
  cudaStream_t s = stream_of(0);
  float *x = floats(1), there = 0;
  set(s, x, 1);
  TIDE_CUDA_LAUNCH(s, double_kernel, 1, 1, 0, x);
  cudaMemcpyAsync(&there, x, sizeof there, cudaMemcpyDeviceToHost, s);
  cudaStreamSynchronize(s);
  printf("%g\n", (double)there);
}

/* A tensor of ones, [20, 72] of f16. */
static void *ones()
{
  void *x = nullptr;
  uint16_t host[20 * 72];
  for (uint16_t &h : host) h = 0x3c00;
  expect(cudaMalloc(&x, sizeof host) == cudaSuccess, "there is memory");
  cudaStream_t s = stream_of(0);
  cudaMemcpyAsync(x, host, sizeof host, cudaMemcpyHostToDevice, s);
  cudaStreamSynchronize(s);
  return x;
}

static float box_sum(const CUtensorMap &map, int c0, int t0)
{
  cudaStream_t s = stream_of(0);
  float *y = floats(1), there = -1;
  TIDE_CUDA_LAUNCH(s, box_kernel, 1, 32, 4096, map, c0, t0, y);
  cudaMemcpyAsync(&there, y, sizeof there, cudaMemcpyDeviceToHost, s);
  cudaStreamSynchronize(s);
  return there;
}

/* Which maps there are, and what a box holds outside the tensor: zeros. */
static void tensor_maps()
{
  CUtensorMap map;
  char *x = static_cast<char *>(ones());
  expect(encode(&map, x, 72, 20, 144, 16) == CUDA_SUCCESS, "a map");
  expect(box_sum(map, 0, 0) == 64 * 16, "a box inside");
  expect(box_sum(map, 64, 16) == 8 * 4, "a box over two ends");
  expect(box_sum(map, -8, -8) == 56 * 8, "a box before the beginning");
  expect(box_sum(map, 72, 0) == 0 && box_sum(map, 0, 20) == 0, "boxes outside");
  const CUresult no = CUDA_ERROR_INVALID_VALUE;
  expect(encode(&map, x + 8, 64, 20, 144, 16) == no, "an address that is not a multiple of 16");
  expect(encode(&map, x, 72, 20, 136, 16) == no, "a stride that is not a multiple of 16");
  expect(encode(&map, x, 72, 20, (cuuint64_t)1 << 40, 16) == no, "a stride of 2^40");
  expect(encode(&map, x, 0, 20, 144, 16) == no && encode(&map, x, 72, 0, 144, 16) == no, "no size");
  expect(encode(&map, x, 72, 20, 144, 257) == no && encode(&map, x, 72, 20, 144, 0) == no, "rows");
  expect(encode(&map, x, 72, 20, 144, 16, 128) == no, "an inner row of 256 bytes");
  printf("maps\n");
}

static void map_of_freed()
{
  CUtensorMap map;
  void *x = ones();
  encode(&map, x, 72, 20, 144, 16);
  cudaFree(x);
  box_sum(map, 0, 0);
}

static void map_behind_the_end()
{
  CUtensorMap map;
  encode(&map, ones(), 72, 21, 144, 16);
  box_sum(map, 0, 16);
}

template <class F> static F nccl(const char *name)
{
  Dl_info here;
  dladdr(reinterpret_cast<void *>(&host_reads), &here);
  std::string file = here.dli_fname;
  file = file.substr(0, file.rfind('/') + 1) + "libnccl.so.2";
  void *library = dlopen(file.c_str(), RTLD_NOW);
  expect(library, "the emulated NCCL lies beside the program");
  return reinterpret_cast<F>(dlsym(library, name));
}

/* A sum over one rank, of memory of the host. */
static void nccl_reaches_host()
{
  struct { char bytes[128]; } id;
  struct { size_t size; unsigned magic, version; int blocking, cga, least, most; const char *net;
           int share; } config = {sizeof config, 0xcafebeef, 21800, 0, INT_MIN, INT_MIN, INT_MIN,
                                  nullptr, INT_MIN};
  void *comm = nullptr;
  int error = -1;
  nccl<int (*)(decltype(id) *)>("ncclGetUniqueId")(&id);
  nccl<int (*)(void **, int, decltype(id), int, decltype(config) *)>("ncclCommInitRankConfig")(
    &comm, 1, id, 0, &config);
  nccl<int (*)(void *, int *)>("ncclCommGetAsyncError")(comm, &error);
  expect(error == 0, "a communicator of one rank");
  auto sum = nccl<int (*)(const void *, void *, size_t, int, int, void *, cudaStream_t)>(
    "ncclAllReduce");
  cudaStream_t s = stream_of(0);
  float *x = floats(64), host[64];
  sum(x, x, 64, 7, 0, comm, s);
  printf("device memory\n");
  fflush(stdout);
  sum(x, host, 64, 7, 0, comm, s);
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
    {"other_device", other_device}, {"races", races}, {"blocks", blocks},
    {"blocks_in_place", blocks_in_place}, {"in_place", in_place},
    {"tensor_maps", tensor_maps}, {"map_of_freed", map_of_freed},
    {"map_behind_the_end", map_behind_the_end}, {"nccl_reaches_host", nccl_reaches_host},
    {"answers", answers}, {"memory", memory}};
  auto one = argc > 1 ? all.find(argv[1]) : all.end();
  if (one == all.end()) return 2;
  one->second();
  printf("it ended\n");
  return 0;
}
