/* Memory, streams, events and graphs of the emulated runtime. See stream.h and cuda_runtime.h.
 *
 * One lock guards all streams; whoever waits runs steps under it, so that a launch has the process
 * to itself. An event is a count of records; who waits for one runs the stream it was recorded on,
 * as far as that. Who asks whether one has come is told no the first time, and nothing runs. An
 * event that is used after it was destroyed ends the program.
 * While a stream captures, what it is given goes to the graph, and so does what streams are given
 * that have waited for an event of a capturing one, until the first waits for them in turn.
 *
 * Environment: TIDE_EMULATE_DEVICES (default 1; 0: a driver without a device; -1: no driver),
 * TIDE_EMULATE_CAPABILITY (default 89, the least with FP8; 90: a Hopper chip, with its shared
 * memory and its tensor maps), TIDE_EMULATE_FAULT (that kernel, counted from 1, ends the device as
 * an illegal address does). Specs also call tide_emulate_waits, how often the host waited for the
 * device, and tide_emulate_refuse(n): the n-th copy within the device from now on is an error.
 * Spec only.
 */
#include <sched.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <set>
#include <vector>

#include "cuda.h"
#include "cuda_runtime.h"

struct tide_emulate_graph {
  std::vector<std::function<bool()>> steps;
  std::set<tide_emulate_stream *> forked;
  tide_emulate_stream *origin = nullptr;
  bool broken = false;
};

namespace {

std::recursive_mutex device_lock;
typedef std::lock_guard<std::recursive_mutex> guard;
std::atomic<bool> dead;
int nkernel;
thread_local int current;

struct queue : tide_emulate_stream {
  std::deque<std::function<bool()>> steps;
  tide_emulate_graph *capture = nullptr;
  bool busy = false;

  bool capturing() const override { return capture != nullptr; }
  void enqueue(std::function<bool()> step) override
  {
    guard g(device_lock);
    if (dead) return;
    if (capture) capture->steps.push_back(step);
    else steps.push_back(step);
  }
  /* Until enough says so. True: nothing is left. */
  bool advance(const std::function<bool()> &enough = [] { return false; })
  {
    if (busy) return false;
    busy = true;
    while (!steps.empty() && !enough() && (dead || steps.front()())) steps.pop_front();
    busy = false;
    return steps.empty();
  }
};

std::atomic<long> nwait, refused_copy; /* refused_copy: how many until that one; 0: none */
std::set<queue *> streams;
queue *of(cudaStream_t s) { return static_cast<queue *>(s); }

cudaError_t sticky() { return dead ? cudaErrorIllegalAddress : cudaSuccess; }

/* The host waits: asks again until ready answers true, in turns with the other threads. */
cudaError_t until(const std::function<bool()> &ready)
{
  for (nwait++;;) {
    {
      guard g(device_lock);
      if (ready()) return sticky();
    }
    sched_yield();
  }
}

}  // namespace

struct tide_emulate_event {
  queue *stream = nullptr;
  tide_emulate_graph *capture = nullptr;
  long issued = 0, reached = 0, asked = 0; /* asked: the last that was asked about */
  bool destroyed = false;
};

extern "C" __attribute__((visibility("default"))) long tide_emulate_waits() { return nwait; }
extern "C" __attribute__((visibility("default"))) void tide_emulate_refuse(int n)
{
  refused_copy = n;
}

bool tide_emulate_kernel_fails()
{
  const char *said = getenv("TIDE_EMULATE_FAULT");
  if (said && ++nkernel == atoi(said)) dead = true;
  return dead;
}

/* ---- errors and devices ---------------------------------------------------------------------- */

const char *cudaGetErrorString(cudaError_t e)
{
  switch (e) {
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated: return "the capture was invalidated before";
    case cudaErrorStreamCaptureUnjoined: return "a forked stream was not joined";
    default: return "emulated error";
  }
}

cudaError_t cudaGetLastError() { return sticky(); }

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
  if (d < 0 || d >= n) return cudaErrorInvalidDevice;
  current = d;
  return sticky();
}

static int capability()
{
  const char *said = getenv("TIDE_EMULATE_CAPABILITY");
  return said ? atoi(said) : 89;
}

cudaError_t cudaDeviceGetAttribute(int *v, cudaDeviceAttr what, int)
{
  *v = what == cudaDevAttrComputeCapabilityMajor ? capability() / 10 : capability() % 10;
  return cudaSuccess;
}

int tide_emulate_shared_limit() { return (capability() == 90 ? 227 : 99) << 10; }

cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult *found)
{
  bool here = capability() >= 90 && !strcmp(name, "cuTensorMapEncodeTiled");
  *function = here ? reinterpret_cast<void *>(cuTensorMapEncodeTiled) : nullptr;
  *found = here ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

/* ---- memory ---------------------------------------------------------------------------------- */

static cudaError_t fresh(void **p, size_t n)
{
  *p = aligned_alloc(256, (n + 255) / 256 * 256);
  if (!*p) return cudaErrorMemoryAllocation;
  memset(*p, 0xff, n);
  return cudaSuccess;
}

cudaError_t cudaMalloc(void **p, size_t n) { return dead ? sticky() : fresh(p, n); }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned) { return dead ? sticky() : fresh(p, n); }

/* Waits for the device, as the real one does. */
static cudaError_t release(void *p)
{
  cudaError_t e = until([] {
    bool all = true;
    for (queue *q : streams) all = q->advance() && all;
    return all;
  });
  free(p);
  return e;
}

cudaError_t cudaFree(void *p) { return release(p); }
cudaError_t cudaFreeHost(void *p) { return release(p); }

cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t n, cudaMemcpyKind kind,
                            cudaStream_t s)
{
  if (kind == cudaMemcpyDeviceToDevice && refused_copy > 0 && --refused_copy == 0)
    return cudaErrorInvalidValue;
  s->enqueue([=] {
    memmove(dst, src, n);
    return true;
  });
  return sticky();
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t n, cudaStream_t s)
{
  s->enqueue([=] {
    memset(dst, value, n);
    return true;
  });
  return sticky();
}

/* ---- streams and events ---------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
  if (dead) return sticky();
  guard g(device_lock);
  queue *q = new queue;
  q->device = current;
  streams.insert(q);
  *s = q;
  return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t s)
{
  guard g(device_lock);
  of(s)->advance();
  streams.erase(of(s));
  delete of(s);
  return sticky();
}

static bool refused(queue *q)
{
  if (q->capture) q->capture->broken = true;
  return q->capture != nullptr;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
  guard g(device_lock);
  if (refused(of(s))) return cudaErrorStreamCaptureUnsupported;
  bool done = of(s)->advance();
  return dead ? sticky() : done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
  {
    guard g(device_lock);
    if (refused(of(s))) return cudaErrorStreamCaptureUnsupported;
  }
  return until([=] { return of(s)->advance(); });
}

static void alive(const tide_emulate_event *e)
{
  if (!e->destroyed) return;
  fprintf(stderr, "emulated CUDA: an event is used after it was destroyed\n");
  abort();
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned)
{
  *e = new tide_emulate_event;
  return sticky();
}

/* Steps that mention the event may still be queued: it stays. */
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
  guard g(device_lock);
  alive(e);
  e->destroyed = true;
  return sticky();
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
  guard g(device_lock);
  alive(e);
  e->stream = of(s);
  e->capture = of(s)->capture;
  if (e->capture) return sticky(); /* the order of the graph's steps is the order of the calls */
  long ticket = ++e->issued;
  s->enqueue([=] {
    if (e->reached < ticket) e->reached = ticket; /* or recorded on another stream since */
    return true;
  });
  return sticky();
}

static bool reached(cudaEvent_t e, long ticket)
{
  if (dead || e->reached >= ticket) return true;
  if (streams.count(e->stream)) e->stream->advance([=] { return e->reached >= ticket; });
  else return true;
  return e->reached >= ticket;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
  guard g(device_lock);
  queue *q = of(s);
  alive(e);
  if (e->capture) {
    if (q == e->capture->origin) e->capture->forked.erase(e->stream);
    else e->capture->forked.insert(q), q->capture = e->capture;
    return sticky();
  }
  long ticket = e->issued;
  if (ticket) s->enqueue([=] { return reached(e, ticket); });
  return sticky();
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
  guard g(device_lock);
  alive(e);
  bool again = e->asked == e->issued;
  e->asked = e->issued;
  bool done = again ? reached(e, e->issued) : e->reached >= e->issued;
  return dead ? sticky() : done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
  alive(e);
  if (e->capture) return cudaErrorStreamCaptureUnsupported;
  return until([=] { return reached(e, e->issued); });
}

/* ---- graphs ---------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
  guard g(device_lock);
  if (of(s)->capture) return cudaErrorStreamCaptureUnsupported;
  of(s)->capture = new tide_emulate_graph;
  of(s)->capture->origin = s;
  return sticky();
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
  guard g(device_lock);
  tide_emulate_graph *graph = of(s)->capture;
  if (!graph) return cudaErrorInvalidValue;
  for (queue *q : streams)
    if (q->capture == graph) q->capture = nullptr;
  *out = nullptr;
  cudaError_t e = graph->broken ? cudaErrorStreamCaptureInvalidated
    : graph->forked.empty() ? sticky() : cudaErrorStreamCaptureUnjoined;
  if (e == cudaSuccess) *out = graph;
  return e;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
  *out = new tide_emulate_graph(*graph);
  return sticky();
}

/* Steps of a launch that is under way keep what they need: a copy of the list. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s)
{
  for (const std::function<bool()> &step : graph->steps) s->enqueue(step);
  return sticky();
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
  delete graph;
  return sticky();
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph)
{
  delete graph;
  return sticky();
}
