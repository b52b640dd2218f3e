/* Memory, streams, events and graphs of the emulated runtime. See stream.h and cuda_runtime.h.
 *
 * One lock guards all streams; whoever waits runs steps under it, so that a launch has the process
 * to itself. An event is a count of records; who waits for one runs the stream it was recorded on,
 * as far as that. Who asks whether one has come is told no the first time, and nothing runs. An
 * event that is used after it was destroyed ends the program.
 * While a stream captures, what it is given goes to the graph, and so does what streams are given
 * that have waited for an event of a capturing one. At a launch every such stream is a queue of its
 * own, so what nobody waits for in the capture runs as late as it may then too. What the driver
 * refuses is refused, and spoils the capture: asking or waiting for a stream that captures or an
 * event of a capture, waiting in a capture for what is outside of it. A capture cannot end while
 * the stream that began it does not wait, directly or not, for all that is in it.
 *
 * Environment: TIDE_EMULATE_DEVICES (default 1; 0: a driver without a device; -1: no driver),
 * TIDE_EMULATE_CAPABILITY (default 89, the least with FP8; 90: a Hopper chip, with its shared
 * memory and its tensor maps), TIDE_EMULATE_FAULT (that kernel, counted from 1, ends the device as
 * an illegal address does). Specs also call tide_emulate_waits, how often the host waited for the
 * device, tide_emulate_launches, and tide_emulate_refuse(n): the n-th copy within the device from
 * now on is an error.
 * Spec only.
 */
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "cuda.h"
#include "cuda_runtime.h"

typedef std::function<bool()> step_t;
typedef std::map<tide_emulate_stream *, int> before_t; /* how much of each stream came before */

/* One thing that a stream was given: a step, or a mark that it sets or waits for. */
struct recorded {
  tide_emulate_stream *stream;
  std::function<step_t()> make;
  int set, awaited; /* -1: none */
};

struct tide_emulate_graph {
  std::vector<recorded> list;
  std::map<tide_emulate_stream *, before_t> known;
  int nmark = 0;
  long id = 0;
  tide_emulate_stream *origin = nullptr;
  bool broken = false;
  void add(const recorded &r)
  {
    list.push_back(r);
    known[r.stream][r.stream]++;
  }
  bool joined()
  {
    for (auto &row : known)
      if (row.second[row.first] > known[origin][row.first]) return false;
    return true;
  }
};

namespace {

std::recursive_mutex device_lock;
typedef std::lock_guard<std::recursive_mutex> guard;
std::atomic<bool> dead;
int nkernel;
thread_local int current;

std::map<std::string, long> launches; /* by name, since tide_emulate_launches */

struct queue : tide_emulate_stream {
  std::deque<step_t> steps;
  tide_emulate_graph *capture = nullptr;
  bool busy = false;

  bool capturing() const override { return capture != nullptr; }
  void enqueue(step_t step) override
  {
    record([step] { return step; });
  }
  void record(std::function<step_t()> make) override
  {
    guard g(device_lock);
    if (dead) return;
    if (capture) capture->add({this, make, -1, -1});
    else steps.push_back(make());
  }
  void count(const char *name) override
  {
    guard g(device_lock);
    if (!capture) launches[name]++;
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
std::set<tide_emulate_graph *> captures; /* under way */
queue *of(cudaStream_t s) { return static_cast<queue *>(s); }

/* The runtime keeps the last error of each thread in one word, which cudaGetLastError reads and
 * clears, also after a sticky error (seen in libcudart 13.0); cudaErrorNotReady is not kept. */
thread_local cudaError_t last_error;
cudaError_t report(cudaError_t e)
{
  if (e != cudaSuccess && e != cudaErrorNotReady) last_error = e;
  return e;
}

cudaError_t sticky() { return report(dead ? cudaErrorIllegalAddress : cudaSuccess); }

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
  tide_emulate_graph *capture = nullptr; /* where it was recorded last, as a mark */
  long id = 0;                           /* of that */
  int mark = -1;
  before_t before;
  long issued = 0, reached = 0, asked = 0; /* asked: the last that was asked about */
  bool destroyed = false;
  bool timed = false;
  double at = 0;                         /* seconds, when it was reached last */
};

extern "C" __attribute__((visibility("default"))) long tide_emulate_waits() { return nwait; }
extern "C" __attribute__((visibility("default"))) void tide_emulate_refuse(int n)
{
  refused_copy = n;
}

/* Returns the launches since the last call, captured ones not counted, as lines "name count";
 * valid until the next call. */
extern "C" __attribute__((visibility("default"))) const char *tide_emulate_launches()
{
  static std::string text;
  guard g(device_lock);
  text.clear();
  for (auto &row : launches) text += row.first + ' ' + std::to_string(row.second) + '\n';
  launches.clear();
  return text.c_str();
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

/* A launch needs the stream's device to be the thread's current one (CUDA C++ Programming Guide,
 * "Stream and Event Behavior" of multi-device systems). */
bool tide_emulate_may_launch(const tide_emulate_stream *stream)
{
  if (sticky() != cudaSuccess) return false;
  return report(stream->device == current ? cudaSuccess : cudaErrorInvalidResourceHandle)
    == cudaSuccess;
}

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
  if (!*p) return report(cudaErrorMemoryAllocation);
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
    return report(cudaErrorInvalidValue);
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
  if (refused(of(s))) return report(cudaErrorStreamCaptureUnsupported);
  bool done = of(s)->advance();
  return dead ? sticky() : done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
  {
    guard g(device_lock);
    if (refused(of(s))) return report(cudaErrorStreamCaptureUnsupported);
  }
  return until([=] { return of(s)->advance(); });
}

static void alive(const tide_emulate_event *e)
{
  if (!e->destroyed) return;
  fprintf(stderr, "emulated CUDA: an event is used after it was destroyed\n");
  abort();
}

static double seconds()
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + 1e-9 * now.tv_nsec;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
  *e = new tide_emulate_event;
  (*e)->timed = !(flags & cudaEventDisableTiming);
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
  if (e->capture) {
    e->id = e->capture->id;
    e->mark = e->capture->nmark++;
    e->capture->add({s, nullptr, e->mark, -1});
    e->before = e->capture->known[s];
    return sticky();
  }
  long ticket = ++e->issued;
  s->enqueue([=] {
    if (e->timed) e->at = seconds();
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

/* Whether the capture is that an event was recorded in. */
static bool under_way(cudaEvent_t e)
{
  return captures.count(e->capture) && e->capture->id == e->id;
}

static bool refused(cudaEvent_t e)
{
  if (e->capture && under_way(e)) e->capture->broken = true;
  return e->capture != nullptr;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
  guard g(device_lock);
  queue *q = of(s);
  alive(e);
  if (q->capture && q->capture != e->capture && (e->capture || e->issued)) {
    q->capture->broken = true;
    return e->capture ? cudaErrorStreamCaptureMerge : cudaErrorStreamCaptureIsolation;
  }
  if (e->capture && !under_way(e)) return report(cudaErrorCapturedEvent);
  if (e->capture) {
    q->capture = e->capture;
    q->capture->add({s, nullptr, -1, e->mark});
    before_t &known = q->capture->known[s];
    for (auto &row : e->before) known[row.first] = std::max(known[row.first], row.second);
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
  if (refused(e)) return report(cudaErrorCapturedEvent);
  bool again = e->asked == e->issued;
  e->asked = e->issued;
  bool done = again ? reached(e, e->issued) : e->reached >= e->issued;
  return dead ? sticky() : done ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
  {
    guard g(device_lock);
    alive(e);
    if (refused(e)) return report(cudaErrorCapturedEvent);
  }
  return until([=] { return reached(e, e->issued); });
}

/* As the runtime: both were recorded with timing and are reached. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
  guard g(device_lock);
  alive(from);
  alive(to);
  if (dead) return sticky();
  for (cudaEvent_t e : {from, to}) {
    if (!e->timed || !e->issued || e->capture) return report(cudaErrorInvalidResourceHandle);
    if (e->reached < e->issued) return cudaErrorNotReady;
  }
  *ms = static_cast<float>(1e3 * (to->at - from->at));
  return cudaSuccess;
}

/* ---- graphs ---------------------------------------------------------------------------------- */

cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode)
{
  guard g(device_lock);
  if (of(s)->capture) return report(cudaErrorStreamCaptureUnsupported);
  static long id;
  tide_emulate_graph *graph = of(s)->capture = new tide_emulate_graph;
  graph->origin = s;
  graph->id = ++id;
  captures.insert(graph);
  return sticky();
}

cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *out)
{
  guard g(device_lock);
  tide_emulate_graph *graph = of(s)->capture;
  if (!graph || graph->origin != s) return report(cudaErrorInvalidValue);
  for (queue *q : streams)
    if (q->capture == graph) q->capture = nullptr;
  captures.erase(graph);
  *out = nullptr;
  cudaError_t e = graph->broken ? cudaErrorStreamCaptureInvalidated
    : graph->joined() ? sticky() : report(cudaErrorStreamCaptureUnjoined);
  if (e == cudaSuccess) *out = graph;
  else delete graph;
  return e;
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long)
{
  *out = new tide_emulate_graph(*graph);
  return sticky();
}

/* One launch: its marks, who sets each, and a queue for each stream beside the first. */
struct launch {
  std::vector<bool> is_set;
  std::vector<queue *> setter;
  std::vector<queue *> made;
  ~launch()
  {
    for (queue *q : made) {
      streams.erase(q);
      if (!q->busy) delete q; /* else a device that died in its midst */
    }
  }
  queue *queue_for(int device)
  {
    queue *q = new queue;
    q->device = device;
    streams.insert(q);
    made.push_back(q);
    return q;
  }
  bool reached(size_t mark)
  {
    if (!is_set[mark] && setter[mark]) setter[mark]->advance();
    return is_set[mark];
  }
};

/* It goes with its last step on the stream, when all of its queues have been waited for. */
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t s)
{
  guard g(device_lock);
  if (dead) return sticky();
  auto held = std::make_shared<launch>();
  launch *l = held.get();
  std::map<tide_emulate_stream *, queue *> queue_of = {{graph->origin, of(s)}};
  l->is_set.resize((size_t)graph->nmark);
  l->setter.resize((size_t)graph->nmark);
  for (const recorded &r : graph->list) {
    queue *&q = queue_of[r.stream];
    if (!q) q = l->queue_for(s->device);
    size_t set = (size_t)r.set, awaited = (size_t)r.awaited;
    if (r.make) q->record(r.make);
    else if (r.set < 0) q->enqueue([=] { return l->reached(awaited); });
    else {
      l->setter[set] = q;
      q->enqueue([=] { return l->is_set[set] = true; });
    }
  }
  s->enqueue([held] { return true; });
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
