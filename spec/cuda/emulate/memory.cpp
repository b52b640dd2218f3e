/* Device memory of the emulated runtime: an arena that only steps of streams may touch.
 *
 * Addresses are handed out once, so that memory which was freed is known by its address. The arena
 * has no access rights but while steps run: a host that reads or writes device memory ends with the
 * address and the last kernel that its thread launched. A step opens a chunk of the arena by the
 * fault of its first access there: it needs few chunks, and most steps that threads ask for again
 * find nothing to do. Between two allocations lie bytes of no tensor. Fresh memory holds 0xff.
 *
 * cudaMalloc: an address is a multiple of 256 (CUDA C++ Programming Guide, "Device Memory
 * Accesses"); an allocation that does not fit is cudaErrorMemoryAllocation (CUDA Runtime API,
 * cudaMalloc). cudaMemcpyAsync: addresses that do not fit the direction, or the bytes of which do
 * not belong to one allocation, are cudaErrorInvalidValue (CUDA Runtime API, cudaMemcpyAsync).
 * cudaFree waits for the device ("Memory Management", cudaFree; programming guide, "Implicit
 * Synchronization"). While an NCCL kernel waits for other ranks that is a deadlock where these are
 * threads of the process (NCCL User Guide, "Using multiple NCCL communicators concurrently"), so it
 * ends the program here.
 *
 * Environment: TIDE_EMULATE_MEMORY, bytes of each device (default: all that the host has). Spec
 * only.
 */
#include <signal.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <vector>

#include "inside.h"

namespace emulated {

namespace {

const size_t SPACE = (size_t)1 << 37; /* addresses of a device, which are not used again */
const size_t UNIT = 256, GUARD = 256, PAGE = 4096, CHUNK = (size_t)1 << 17;
enum { NDEVICE = 8 };

struct arena {
  char *base;
  uint32_t *owner; /* of each UNIT: number of its allocation + 1 */
  size_t top[NDEVICE], live[NDEVICE];
  std::deque<allocation> list;
  std::map<const char *, size_t> pinned;
  std::vector<char *> open; /* chunks */
  struct sigaction before;
};
arena *all;
thread_local int nscope; /* of `opened` */

size_t up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/* A fault elsewhere is left to what handled it before. */
void faulted(int number, siginfo_t *info, void *)
{
  const char *at = static_cast<const char *>(info->si_addr);
  const allocation *a = allocation_of(at);
  if (a && nscope) {
    all->open.push_back(all->base + (size_t)(at - all->base) / CHUNK * CHUNK);
    mprotect(all->open.back(), CHUNK, PROT_READ | PROT_WRITE);
    return;
  }
  if (a)
    wrong("the host touches device memory at %p: byte %td of an allocation of %zu bytes on device "
          "%d; the last kernel that it launched is %s", static_cast<const void *>(at), at - a->ptr,
          a->size, a->device, last_kernel_launched());
  sigaction(number, &all->before, nullptr);
}

void *reserve(size_t n, int rights)
{
  void *p = mmap(nullptr, n, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) wrong("the system has no addresses for device memory");
  return p;
}

void open_arena()
{
  if (all) return;
  arena *made = new arena();
  made->base = static_cast<char *>(reserve(SPACE * NDEVICE, PROT_NONE));
  made->owner = static_cast<uint32_t *>(reserve(SPACE / UNIT * NDEVICE * sizeof(uint32_t),
                                                PROT_READ | PROT_WRITE));
  madvise(made->base, SPACE * NDEVICE, MADV_HUGEPAGE);
  struct sigaction now = {};
  now.sa_sigaction = faulted;
  now.sa_flags = SA_SIGINFO;
  sigemptyset(&now.sa_mask);
  all = made;
  sigaction(SIGSEGV, &now, &all->before);
}

size_t offset_of(const void *p)
{
  return all ? (size_t)(static_cast<const char *>(p) - all->base) : SIZE_MAX;
}

size_t limit()
{
  const char *said = getenv("TIDE_EMULATE_MEMORY");
  return said ? (size_t)strtoull(said, nullptr, 10) : SIZE_MAX;
}

cudaError_t take(void **p, size_t n)
{
  open_arena();
  int d = current_device();
  size_t whole = up(n ? n : 1, UNIT), at = all->top[d];
  if (whole > limit() || all->live[d] > limit() - whole)
    return report(cudaErrorMemoryAllocation);
  if (d >= NDEVICE || whole + GUARD > SPACE - at)
    wrong("%d devices of %zu bytes, over the time of the process, are all there are", (int)NDEVICE,
          SPACE);
  all->top[d] = at + whole + GUARD;
  all->live[d] += whole;
  char *ptr = all->base + (size_t)d * SPACE + at;
  all->list.push_back({ptr, n, d, true});
  for (size_t i = 0; i < (whole + GUARD) / UNIT; i++)
    all->owner[offset_of(ptr) / UNIT + i] = (uint32_t)all->list.size();
  opened scope;
  memset(ptr, 0xff, n);
  *p = ptr;
  return cudaSuccess;
}

allocation *begin_of(const void *p)
{
  allocation *a = const_cast<allocation *>(allocation_of(p));
  return a && a->live && a->ptr == p ? a : nullptr;
}

/* Waits for what the streams of a device were given. */
cudaError_t wait_for(int device, const char *what)
{
  return until([=] {
    bool done = run_streams(device) || dead;
    if (!done) wrong("%s waits for a collective that other ranks have not come to", what);
    return done;
  });
}

bool holds(const void *p, size_t n)
{
  const allocation *a = allocation_of(p);
  return a && a->live && static_cast<const char *>(p) + n <= a->ptr + a->size;
}

}  // namespace

opened::opened() { nscope++; }
opened::~opened()
{
  if (--nscope || !all) return;
  for (char *chunk : all->open) mprotect(chunk, CHUNK, PROT_NONE);
  all->open.clear();
}

bool is_device_memory(const void *p) { return offset_of(p) < SPACE * NDEVICE; }

const allocation *allocation_of(const void *p)
{
  uint32_t i = is_device_memory(p) ? all->owner[offset_of(p) / UNIT] : 0;
  return i ? &all->list[i - 1] : nullptr;
}

bool is_pinned(const void *p, size_t n)
{
  const char *at = static_cast<const char *>(p);
  if (!all) return false;
  auto after = all->pinned.upper_bound(at);
  if (after == all->pinned.begin()) return false;
  --after;
  return at + n <= after->first + after->second;
}

}  // namespace emulated

using namespace emulated;

cudaError_t cudaMalloc(void **p, size_t n)
{
  guard g(device_lock);
  return dead ? sticky() : take(p, n);
}

cudaError_t cudaFree(void *p)
{
  if (!p) return sticky();
  std::unique_lock<std::recursive_mutex> g(device_lock);
  allocation *a = begin_of(p);
  if (!a) return report(cudaErrorInvalidValue);
  g.unlock();
  cudaError_t e = wait_for(a->device, "cudaFree");
  g.lock();
  char *first = all->base + up(offset_of(a->ptr), PAGE), *end = a->ptr + a->size / PAGE * PAGE;
  if (end > first) madvise(first, (size_t)(end - first) / PAGE * PAGE, MADV_DONTNEED);
  a->live = false;
  all->live[a->device] -= up(a->size ? a->size : 1, UNIT);
  return e;
}

cudaError_t cudaHostAlloc(void **p, size_t n, unsigned)
{
  guard g(device_lock);
  if (dead) return sticky();
  open_arena();
  size_t whole = up(n ? n : 1, UNIT);
  char *ptr = static_cast<char *>(aligned_alloc(UNIT, whole));
  if (!ptr) return report(cudaErrorMemoryAllocation);
  memset(ptr, 0xff, whole);
  all->pinned[ptr] = n;
  *p = ptr;
  return cudaSuccess;
}

cudaError_t cudaFreeHost(void *p)
{
  if (!p) return sticky();
  cudaError_t e = wait_for(current_device(), "cudaFreeHost");
  guard g(device_lock);
  if (!all || !all->pinned.erase(static_cast<char *>(p))) return report(cudaErrorInvalidValue);
  free(p);
  return e;
}

/* ---- copies ---------------------------------------------------------------------------------- */

namespace {
std::atomic<long> refused_copy; /* how many until that one; 0: none */
}

extern "C" __attribute__((visibility("default"))) void tide_emulate_refuse(int n)
{
  refused_copy = n;
}

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind kind,
                            cudaStream_t s)
{
  if (kind == cudaMemcpyDeviceToDevice && refused_copy > 0 && --refused_copy == 0)
    return report(cudaErrorInvalidValue);
  if (dead) return sticky();
  {
    guard g(device_lock);
    bool to = kind == cudaMemcpyDeviceToHost ? !is_device_memory(dst) : holds(dst, n);
    bool from = kind == cudaMemcpyHostToDevice ? !is_device_memory(src) : holds(src, n);
    if (n && (!to || !from)) return report(cudaErrorInvalidValue);
  }
  s->enqueue([=] {
    memmove(dst, src, n);
    return true;
  });
  return sticky();
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t s)
{
  if (dead) return sticky();
  {
    guard g(device_lock);
    if (n && !holds(dst, n)) return report(cudaErrorInvalidValue);
  }
  s->enqueue([=] {
    memset(dst, value, n);
    return true;
  });
  return sticky();
}
