/* Streams, events, pinned memory and captured graphs of the CUDA backend.
 *
 * The host never blocks to keep two streams apart; an event does. An asynchronous copy runs on the
 * copy stream behind all compute work so far, since its memory may have been in use until then, and
 * returns the event that is recorded when it is done.
 */
#include <cstdio>
#include <cstdlib>

#include "kernels/cuda/backend.cuh"
#include <nvtx3/nvToolsExt.h>

namespace {

typedef tide_cuda_state state_t;
typedef tide_cuda_guard guard;

state_t *of(void *p) { return tide_cuda_state_of(p); }

cudaError_t new_event(cudaEvent_t *e)
{
  return cudaEventCreateWithFlags(e, cudaEventDisableTiming);
}

/* Makes `later` wait for all work enqueued on `earlier` so far. Each call has an event of its own,
 * so it is thread-safe; the driver keeps a destroyed event until it has completed. */
cudaError_t follow(cudaStream_t later, cudaStream_t earlier)
{
  cudaEvent_t event = nullptr;
  cudaError_t e = new_event(&event);
  if (e != cudaSuccess) return e;
  e = cudaEventRecord(event, earlier);
  if (e == cudaSuccess) e = cudaStreamWaitEvent(later, event, 0);
  cudaEventDestroy(event);
  return e;
}

cudaStream_t stream_of(void *stream) { return static_cast<cudaStream_t>(stream); }

int open_stream(void *p, void **out)
{
  guard g(of(p)->device);
  cudaStream_t made = nullptr;
  cudaError_t e = cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
  *out = made;
  return tide_cuda_status(of(p), e);
}

void close_stream(void *p, void *stream)
{
  guard g(of(p)->device);
  cudaStreamDestroy(stream_of(stream));
}

/* Returns 1, 0 for work under way, or the status of e. Runtimes before CUDA 13 keep
 * cudaErrorNotReady as the thread's last error, which the next launch would report as its own. */
int answer(void *p, cudaError_t e)
{
  if (e == cudaErrorNotReady) cudaGetLastError();
  return e == cudaErrorNotReady ? 0 : e == cudaSuccess ? 1 : tide_cuda_status(of(p), e);
}

int done(void *p, void *stream)
{
  guard g(of(p)->device);
  return answer(p, cudaStreamQuery(stream_of(stream)));
}

int behind(void *p, void *stream)
{
  guard g(of(p)->device);
  return tide_cuda_status(of(p), follow(stream_of(stream), of(p)->compute));
}

/* Other threads may read an event while it is recorded again, so *out keeps its value. */
int mark(void *p, void *stream, void **out)
{
  guard g(of(p)->device);
  cudaEvent_t event = static_cast<cudaEvent_t>(*out), made = nullptr;
  cudaError_t e = event ? cudaSuccess : new_event(&made);
  if (made) event = made;
  if (e == cudaSuccess)
    e = cudaEventRecord(event, stream ? stream_of(stream) : of(p)->compute);
  if (e != cudaSuccess && made) cudaEventDestroy(made);
  else if (made) *out = made;
  return tide_cuda_status(of(p), e);
}

int order(void *p, void *stream, void *event)
{
  guard g(of(p)->device);
  return tide_cuda_status(of(p), cudaStreamWaitEvent(stream_of(stream),
                                                     static_cast<cudaEvent_t>(event), 0));
}

/* Keeps the first status until tide_cuda_spoilt_take. */
void spoil(void *p, int status, const char *text)
{
  state_t *s = of(p);
  pthread_mutex_lock(&s->lock);
  if (!s->spoilt) snprintf(s->spoilt_text, sizeof s->spoilt_text, "%s", text);
  if (!s->spoilt) __atomic_store_n(&s->spoilt, status, __ATOMIC_RELEASE);
  pthread_mutex_unlock(&s->lock);
}

int move(void *p, void *stream, void *dst, const void *src, size_t size, bool to_device)
{
  guard g(of(p)->device);
  cudaMemcpyKind kind = to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
  return tide_cuda_status(of(p), cudaMemcpyAsync(dst, src, size, kind, stream_of(stream)));
}

int wait(void *p, void *stream)
{
  guard g(of(p)->device);
  return tide_cuda_status(of(p), cudaStreamSynchronize(stream_of(stream)));
}

int index(void *p) { return of(p)->device; }

int bind(void *p) { return tide_cuda_status(of(p), cudaSetDevice(of(p)->device)); }

/* ---- pinned host memory and asynchronous copies ---------------------------------------------- */

void *pin(void *p, size_t size)
{
  guard g(of(p)->device);
  void *ptr = nullptr;
  cudaError_t e = cudaHostAlloc(&ptr, size ? size : 1, cudaHostAllocPortable);
  if (e == cudaSuccess) return ptr;
  if (e == cudaErrorMemoryAllocation) cudaGetLastError();
  else tide_cuda_status(of(p), e);
  return nullptr;
}

void unpin(void *p, void *ptr, size_t)
{
  guard g(of(p)->device);
  cudaFreeHost(ptr);
}

int copy(void *p, void *dst, const void *src, size_t size, bool to_device, void **out)
{
  state_t *s = of(p);
  guard g(s->device);
  cudaEvent_t event = nullptr;
  *out = nullptr;
  cudaError_t e = follow(s->copies, s->compute);
  if (e == cudaSuccess) e = new_event(&event);
  if (e == cudaSuccess)
    e = cudaMemcpyAsync(dst, src, size, to_device ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
                        s->copies);
  if (e == cudaSuccess) e = cudaEventRecord(event, s->copies);
  if (e != cudaSuccess && event) cudaEventDestroy(event);
  if (e == cudaSuccess) *out = event;
  return tide_cuda_status(s, e);
}

int event_done(void *p, void *event)
{
  guard g(of(p)->device);
  return answer(p, cudaEventQuery(static_cast<cudaEvent_t>(event)));
}

int event_wait(void *p, void *event)
{
  guard g(of(p)->device);
  return tide_cuda_waited(of(p), cudaEventSynchronize(static_cast<cudaEvent_t>(event)));
}

int event_order(void *p, void *event) { return order(p, of(p)->compute, event); }

void event_free(void *p, void *event)
{
  guard g(of(p)->device);
  cudaEventDestroy(static_cast<cudaEvent_t>(event));
}

/* ---- time, ranges ---------------------------------------------------------------------------- */

int time_event(void *p, void **out)
{
  guard g(of(p)->device);
  cudaEvent_t event = static_cast<cudaEvent_t>(*out);
  cudaError_t e = event ? cudaSuccess : cudaEventCreateWithFlags(&event, cudaEventBlockingSync);
  if (e == cudaSuccess) e = cudaEventRecord(event, of(p)->compute);
  if (e != cudaSuccess && event && !*out) cudaEventDestroy(event);
  else if (e == cudaSuccess) *out = event;
  return tide_cuda_status(of(p), e);
}

int event_ms(void *p, void *from, void *to, double *ms)
{
  cudaEvent_t first = static_cast<cudaEvent_t>(from), last = static_cast<cudaEvent_t>(to);
  guard g(of(p)->device);
  float apart = 0;
  cudaError_t e = cudaEventSynchronize(first);
  if (e == cudaSuccess) e = cudaEventSynchronize(last);
  if (e == cudaSuccess) e = cudaEventElapsedTime(&apart, first, last);
  *ms = apart;
  return tide_cuda_waited(of(p), e);
}

/* NVTX is a header: without a profiler a range is a test of one pointer. */
void range(const char *name)
{
  if (name) nvtxRangePushA(name);
  else nvtxRangePop();
}

/* ---- recording ------------------------------------------------------------------------------- */

/* Relaxed mode: during the capture the allocator calls cudaMalloc, other threads make calls of
 * their own, and NCCL's threads enqueue work that belongs to the graph. */
int graph_begin(void *p)
{
  state_t *s = of(p);
  guard g(s->device);
  cudaError_t e = cudaStreamBeginCapture(s->compute, cudaStreamCaptureModeRelaxed);
  s->capturing = e == cudaSuccess;
  return tide_cuda_status(s, e);
}

int graph_end(void *p, void **out)
{
  state_t *s = of(p);
  guard g(s->device);
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  *out = nullptr;
  s->capturing = false;
  cudaError_t e = cudaStreamEndCapture(s->compute, &graph);
  if (e == cudaSuccess) e = cudaGraphInstantiate(&exec, graph, 0);
  if (graph) cudaGraphDestroy(graph);
  if (e == cudaSuccess) *out = exec;
  return tide_cuda_status(s, e);
}

int graph_launch(void *p, void *graph)
{
  guard g(of(p)->device);
  return tide_cuda_status(of(p), cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph),
                                                 of(p)->compute));
}

void graph_free(void *p, void *graph)
{
  guard g(of(p)->device);
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace

static const tide__backend pinned = {
  TIDE_DEV_CPU, /* host */ true, /* has_bytes */ true, /* lazy */ false, pin, unpin,
  /* discard */ nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
  tide_cuda_failed, nullptr, nullptr, nullptr, nullptr, nullptr, nullptr,
};
const tide__streams tide_cuda_streams = {open_stream, close_stream, done, behind, mark,
                                         order, spoil, move, wait, index, bind,
                                         &pinned, copy, event_done, event_wait, event_order,
                                         event_free, time_event, event_ms, range};
const tide__graphs tide_cuda_graphs = {graph_begin, graph_end, graph_launch, graph_free};
