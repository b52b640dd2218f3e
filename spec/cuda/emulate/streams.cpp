/* Streams, events and graphs of the emulated runtime. See stream.h and cuda_runtime.h.
 *
 * One lock guards all streams; a thread that waits runs steps under it, so that a launch has the
 * process to itself. A wait for an event is one for its last record (CUDA Runtime API,
 * cudaStreamWaitEvent: "the contents of event as captured by the last call to cudaEventRecord");
 * it runs the stream of that as far as there. The first query of a record answers no, and nothing
 * runs. An event that is used after it was destroyed ends the program.
 *
 * A stream belongs to the device that was current when it was made, and so does an event: it is
 * recorded on streams of its device only, and waited for on any (CUDA C++ Programming Guide,
 * multi-device systems, "Stream and Event Behavior"). cudaStreamQuery and cudaEventQuery answer
 * cudaErrorNotReady for work that is under way (CUDA Runtime API, cudaEventQuery).
 *
 * While a stream captures, what it is given goes to the graph, and so does what streams are given
 * that have waited for an event of a capturing one. At a launch every such stream is a queue of its
 * own, so what is not waited for in the capture runs as late as it may then too. What the driver
 * refuses is refused, and spoils the capture: asking or waiting for a stream that captures or an
 * event of a capture, waiting in a capture for what is outside of it. A capture cannot end while
 * the stream that began it does not wait, directly or not, for all that is in it (programming
 * guide, "CUDA Graphs", "Creating a Graph Using Stream Capture": cross-stream dependencies,
 * prohibited and unhandled operations, invalidation).
 *
 * Specs call tide_emulate_waits, how often the host waited for the device, and
 * tide_emulate_launches. Spec only.
 */
#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "inside.h"

using namespace emulated;

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

std::map<std::string, long> launches; /* by name, since tide_emulate_launches */

struct queue : tide_emulate_stream {
  std::deque<step_t> steps;
  tide_emulate_graph *capture = nullptr;
  bool busy = false;

  bool capturing() const override { return capture != nullptr; }
  bool reaches(const void *p, size_t n) const override
  {
    guard g(device_lock);
    const allocation *a = allocation_of(p);
    if (!a) return is_pinned(p, n);
    return a->live && a->device == device && static_cast<const char *>(p) + n <= a->ptr + a->size;
  }
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
    if (steps.empty()) return true;
    opened memory;
    busy = true;
    while (!steps.empty() && !enough() && (dead || steps.front()())) steps.pop_front();
    busy = false;
    return steps.empty();
  }
};

std::atomic<long> nwait;
std::set<queue *> streams;
std::set<tide_emulate_graph *> captures; /* under way */
queue *of(cudaStream_t s) { return static_cast<queue *>(s); }

}  // namespace

cudaError_t emulated::until(const std::function<bool()> &ready)
{
  nwait++;
  for (int asked = 0;; asked++) {
    {
      guard g(device_lock);
      if (ready()) return sticky();
    }
    if (asked < 50) sched_yield();
    else usleep(100); /* what is waited for may be a rank's that takes its time */
  }
}

bool emulated::run_streams(int device)
{
  bool all = true;
  for (queue *q : streams) all = (q->device != device || q->advance()) && all;
  return all;
}

/* One record of an event. */
struct occasion {
  queue *stream;
  bool reached, asked;
  double at; /* seconds, when it was reached; of an event with timing */
};

struct tide_emulate_event {
  int device = current_device();
  std::shared_ptr<occasion> last; /* outside of a capture; null: never */
  tide_emulate_graph *capture = nullptr; /* where it was recorded last, as a mark */
  long id = 0;                           /* of that */
  int mark = -1;
  before_t before;
  bool destroyed = false;
  bool timed = false;
};

extern "C" __attribute__((visibility("default"))) long tide_emulate_waits() { return nwait; }

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

/* ---- streams and events ---------------------------------------------------------------------- */

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned)
{
  if (dead) return sticky();
  guard g(device_lock);
  queue *q = new queue;
  q->device = current_device();
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
  return dead ? sticky() : done ? cudaSuccess : report(cudaErrorNotReady);
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
  if (e->device != s->device) return report(cudaErrorInvalidResourceHandle);
  e->capture = of(s)->capture;
  if (e->capture) {
    e->id = e->capture->id;
    e->mark = e->capture->nmark++;
    e->capture->add({s, nullptr, e->mark, -1});
    e->before = e->capture->known[s];
    return sticky();
  }
  std::shared_ptr<occasion> now(new occasion{of(s), false, false, 0});
  e->last = now;
  s->enqueue([now, timed = e->timed] {
    if (timed) now->at = seconds();
    return now->reached = true;
  });
  return sticky();
}

static bool reached(const std::shared_ptr<occasion> &o)
{
  if (!o || dead || o->reached || !streams.count(o->stream)) return true;
  o->stream->advance([o] { return o->reached; });
  return o->reached;
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
  if (q->capture && q->capture != e->capture && (e->capture || e->last)) {
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
  std::shared_ptr<occasion> awaited = e->last;
  if (awaited) s->enqueue([awaited] { return reached(awaited); });
  return sticky();
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
  guard g(device_lock);
  alive(e);
  if (refused(e)) return report(cudaErrorCapturedEvent);
  occasion *o = e->last.get();
  bool done = !o || (o->asked ? reached(e->last) : o->reached);
  if (o) o->asked = true;
  return dead ? sticky() : done ? cudaSuccess : report(cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
  {
    guard g(device_lock);
    alive(e);
    if (refused(e)) return report(cudaErrorCapturedEvent);
  }
  return until([last = e->last] { return reached(last); });
}

/* As the runtime: both were recorded with timing and are reached. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
  guard g(device_lock);
  alive(from);
  alive(to);
  if (dead) return sticky();
  for (cudaEvent_t e : {from, to}) {
    if (!e->timed || !e->last || e->capture) return report(cudaErrorInvalidResourceHandle);
    if (!e->last->reached) return report(cudaErrorNotReady);
  }
  *ms = static_cast<float>(1e3 * (to->last->at - from->last->at));
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

/* One launch: its marks, what sets each, and a queue for each stream beside the first. */
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
