/* Blocks as fibers: the launches of spec/cuda/emulate/cuda_runtime.h.
 *
 * A fiber runs threads of the block one after another until one of them meets a barrier; only then
 * is another fiber needed. A fiber that waits switches to the next one that can go on. One launch
 * at a time in the process (static shared memory is one): streams.cpp runs the steps of streams
 * under a lock.
 *
 * Environment: TIDE_EMULATE_ORDER=reverse (blocks and threads begin with the last; CUDA C++
 * Programming Guide, "Thread Hierarchy": blocks run in any order), =both (see access.cpp).
 */
#include "inside.h"

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

using emulated::launch_now;
using emulated::wrong;

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

extern "C" void tide_emulate_switch(void **save, void *to);
__asm__(
  ".text\n.globl tide_emulate_switch\n.hidden tide_emulate_switch\n"
  ".type tide_emulate_switch, @function\ntide_emulate_switch:\n"
  "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
  "  movq %rsp, (%rdi)\n  movq %rsi, %rsp\n"
  "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
  "  popq %rcx\n  jmp *%rcx\n" /* not ret: the processor's stack of returns is another fiber's */
  ".size tide_emulate_switch, .-tide_emulate_switch\n");

namespace {

enum { STACK = 256 << 10, SHARED = 227 << 10, MOST = 1024 };
enum state_t { IDLE, READY, WAIT_BLOCK, WAIT_WARP, WAIT_UNTIL };

struct fiber {
  void *sp = nullptr;
  char *stack = nullptr;
  state_t state = IDLE;
  unsigned thread = 0;
  uint3 index = {0, 0, 0}; /* of the thread */
  std::function<bool()> until;
  const void *awaits = nullptr;
};

/* slot: what lanes give to each other. A lane that gives again may do so before the others have
 * read, so there are two, in turns: for the third meeting all lanes have come to the second. */
struct warp {
  int came, turn;
  fiber *waiting[32];
  alignas(16) unsigned char slot[2][32 * TIDE_EMULATE_SLOT];
};

std::vector<fiber *> fibers;
size_t nfiber; /* of them, those that the block needed until now */
fiber *ready[MOST]; /* a ring of those that can go on */
unsigned first_ready, nready;
fiber *now;
void *scheduler;
const tide_emulate_body *body;
bool backwards; /* the last blocks and threads first */
unsigned nthread, next_thread, finished;
int came, any_flag, any_result;
warp warps[32];
size_t shared_size, turn; /* turn: the fiber that goes first is another after each barrier */
alignas(128) unsigned char shared_bytes[SHARED];
struct event { std::function<void()> what; const void *awaited; };
std::vector<event> later;

void place(unsigned t)
{
  now->thread = t;
  if (t < blockDim.x) now->index = {t, 0, 0};
  else now->index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
  threadIdx = now->index;
}

void enter(fiber *f)
{
  now = f;
  launch_now->stack = f->stack;
  threadIdx = f->index;
  f->state = READY;
}

/* Returns a fiber that can go on, or null. Threads that have not begun come first. */
fiber *next_fiber();

/* The thread that runs stops here; what is next goes on. */
void leave()
{
  fiber *f = now, *next = next_fiber();
  if (!next) return tide_emulate_switch(&f->sp, scheduler);
  enter(next);
  tide_emulate_switch(&f->sp, next->sp);
}

void run_threads()
{
  for (;;) {
    while (next_thread < nthread) {
      unsigned t = next_thread++;
      place(backwards ? nthread - 1 - t : t);
      body->run(body->bound);
      finished++;
    }
    now->state = IDLE;
    leave();
  }
}

/* Stacks begin at other lines of a page: the fibers of a warp have them in the cache together. */
fiber *make_fiber()
{
  fiber *f = new fiber;
  f->stack = static_cast<char *>(aligned_alloc(64, STACK));
  size_t line = fibers.size() % 61 * 64;
  void **top = reinterpret_cast<void **>(f->stack + STACK - line) - 2;
  *top = reinterpret_cast<void *>(run_threads);
  f->sp = top - 6;
  fibers.push_back(f);
  return f;
}

fiber *next_fiber()
{
  if (next_thread < nthread) {
    nfiber++;
    return nfiber <= fibers.size() ? fibers[nfiber - 1] : make_fiber();
  }
  if (!nready) return nullptr;
  nready--;
  return ready[first_ready++ % MOST];
}

void goes_on(fiber *f)
{
  f->state = READY;
  ready[(first_ready + nready++) % MOST] = f;
}

/* Lets fibers of a list go on that wait for what, which begins at another one each time. */
void release(fiber *const *list, size_t n, state_t what)
{
  if (!n) return;
  size_t k = turn = (turn + 37) % n;
  for (size_t i = 0; i < n; i++, k = k + 1 < n ? k + 1 : 0)
    if (list[k]->state == what) goes_on(list[k]);
}

void wait(state_t what)
{
  now->state = what;
  leave();
}

warp &warp_now() { return warps[now->thread / 32]; }

/* Whether the thread that runs is the last of its warp to come. It is noted if it is not; if it is
 * the others go on. */
bool completes(warp &w)
{
  unsigned rest = nthread - now->thread / 32 * 32;
  if (w.came + 1 < (int)(rest < 32 ? rest : 32)) {
    w.waiting[w.came++] = now;
    return false;
  }
  release(w.waiting, (size_t)w.came, WAIT_WARP);
  w.came = 0;
  return true;
}

/* The last of what threads wait for happens, and nothing that they do not wait for. */
bool happen()
{
  for (size_t i = later.size(); i-- > 0;)
    for (size_t k = 0; k < nfiber; k++) {
      const fiber *f = fibers[k];
      if (f->state != WAIT_UNTIL || f->awaits != later[i].awaited) continue;
      std::function<void()> what = later[i].what;
      later.erase(later.begin() + (std::ptrdiff_t)i);
      what();
      return true;
    }
  return false;
}

/* Lets the fibers go on that waited for what is so by now. */
bool look()
{
  for (size_t k = 0; k < nfiber; k++)
    if (fibers[k]->state == WAIT_UNTIL && fibers[k]->until()) goes_on(fibers[k]);
  return nready > 0;
}

void run_block(size_t shared)
{
  next_thread = finished = 0;
  nfiber = 0;
  came = any_flag = 0;
  for (unsigned i = 0; i < (nthread + 31) / 32; i++) warps[i].came = 0;
  shared_size = shared;
  emulated::block();
  memset(shared_bytes, 0xff, shared);
  for (;;) {
    while (fiber *f = next_fiber()) {
      enter(f);
      tide_emulate_switch(&scheduler, f->sp);
    }
    if (finished == nthread) break;
    if (look() || happen()) continue;
    wrong("%u of %u threads ended, the others wait at a barrier", finished, nthread);
  }
  if (!later.empty()) wrong("a block ended while copies into its shared memory ran");
}

}  // namespace

static void run_grid(dim3 grid, dim3 block, size_t shared)
{
  nthread = block.x * block.y * block.z;
  gridDim = grid;
  blockDim = block;
  uint64_t n = (uint64_t)grid.x * grid.y * grid.z;
  for (uint64_t i = 0; i < n; i++) {
    uint64_t b = backwards ? n - 1 - i : i;
    blockIdx = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                (unsigned)(b / grid.x / grid.y)};
    run_block(shared);
  }
}

namespace {

enum order_t { FORWARD, REVERSE, BOTH };

order_t order()
{
  const char *said = getenv("TIDE_EMULATE_ORDER");
  if (!said || !strcmp(said, "forward")) return FORWARD;
  if (!strcmp(said, "reverse")) return REVERSE;
  if (strcmp(said, "both")) wrong("TIDE_EMULATE_ORDER is %s: forward, reverse or both", said);
  if (!emulated::sees_accesses()) wrong("TIDE_EMULATE_ORDER=both needs kernels compiled by GCC");
  return BOTH;
}

struct launch {
  tide_emulate_kernel kernel;
  dim3 grid, block;
  size_t shared;
  int device;
  std::shared_ptr<void> bound; /* a copy of the arguments */
  tide_emulate_body call;

  void run() const
  {
    order_t how = order();
    emulated::running now = {kernel.name, device, call.bound, call.size, nullptr, STACK,
                             0, 0};
    body = &call;
    launch_now = &now;
    backwards = how == REVERSE;
    if (how == BOTH) emulated::record();
    run_grid(grid, block, shared);
    if (how == BOTH) {
      emulated::turn_back();
      backwards = true;
      run_grid(grid, block, shared);
      emulated::compare(kernel.name);
    }
    launch_now = nullptr;
  }
};

thread_local const char *last_kernel = "none";

}  // namespace

const char *emulated::last_kernel_launched() { return last_kernel; }

/* CUDA_LAUNCH_BLOCKING=1: a launch returns when its kernel has ended, and with its error (CUDA C++
 * Programming Guide, "Concurrent Execution between Host and Device"). */
static bool launch_blocks()
{
  const char *said = getenv("CUDA_LAUNCH_BLOCKING");
  return said && atoi(said) == 1;
}

/* Limits of a launch: CUDA C++ Programming Guide, "Compute Capabilities", "Features and Technical
 * Specifications". */
void tide_emulate_launch(tide_emulate_stream *stream, const tide_emulate_kernel &kernel, dim3 grid,
                         dim3 block, size_t shared, const tide_emulate_body &call)
{
  unsigned n = block.x * block.y * block.z;
  last_kernel = kernel.name;
  if (n == 0 || n > 1024 || shared > (size_t)tide_emulate_shared_limit() || grid.x == 0 ||
      grid.y == 0 || grid.y > 65535 || grid.z == 0 || grid.z > 65535)
    wrong("a launch of %s [%u %u %u] x %u with %zu bytes is not valid", kernel.name, grid.x, grid.y,
          grid.z, n, shared);
  if (!tide_emulate_may_launch(stream, kernel, shared)) return;
  stream->count(kernel.name);
  size_t whole = (call.size + TIDE_EMULATE_ALIGN - 1) / TIDE_EMULATE_ALIGN * TIDE_EMULATE_ALIGN;
  std::shared_ptr<void> bound(aligned_alloc(TIDE_EMULATE_ALIGN, whole), free);
  memcpy(bound.get(), call.bound, call.size);
  launch l = {kernel, grid, block, shared, stream->device, bound,
              {bound.get(), call.size, call.run}};
  stream->enqueue([l] {
    if (!tide_emulate_kernel_fails()) l.run();
    return true;
  });
  if (launch_blocks() && !stream->capturing()) cudaStreamSynchronize(stream);
}

void *tide_emulate_shared() { return shared_bytes; }
size_t tide_emulate_shared_size() { return shared_size; }

void tide_emulate_until(const void *event, std::function<bool()> ready)
{
  if (ready()) return;
  now->until = ready;
  now->awaits = event;
  wait(WAIT_UNTIL);
}

void tide_emulate_later(const void *event, std::function<void()> what)
{
  later.push_back({what, event});
}

void __syncthreads()
{
  if (++came < (int)nthread) return wait(WAIT_BLOCK);
  came = 0;
  any_result = any_flag;
  any_flag = 0;
  release(fibers.data(), nfiber, WAIT_BLOCK);
}

int __syncthreads_or(int v)
{
  any_flag |= v != 0;
  __syncthreads();
  int r = any_result;
  __syncthreads();
  return r;
}

void __syncwarp(unsigned)
{
  if (!completes(warp_now())) wait(WAIT_WARP);
}

const unsigned char *tide_emulate_meet(const void *give, size_t n)
{
  warp &w = warp_now();
  unsigned char *slots = w.slot[w.turn], *mine = slots + now->thread % 32 * TIDE_EMULATE_SLOT;
  if (n == 4) memcpy(mine, give, 4);
  else if (n == 8) memcpy(mine, give, 8);
  else memcpy(mine, give, n);
  if (completes(w)) w.turn ^= 1;
  else wait(WAIT_WARP);
  return slots;
}

void tide_emulate_together(const void *give, size_t n, void (*what)(const unsigned char *all))
{
  warp &w = warp_now();
  unsigned char *slots = w.slot[w.turn];
  memcpy(slots + now->thread % 32 * TIDE_EMULATE_SLOT, give, n);
  if (!completes(w)) return wait(WAIT_WARP);
  w.turn ^= 1;
  what(slots);
}

void tide_emulate_reads(const void *p, size_t n) { emulated::access(p, n, false); }

/* ---- copies under way: a queue a thread ------------------------------------------------------ */

namespace {
struct copy { void *to; const void *from; bool there; int group; };
struct copies { std::vector<copy> list; int group = 0; };
copies under_way[1024];
}  // namespace

void tide_emulate_copy(void *to, const void *from, bool there)
{
  copies &c = under_way[now->thread];
  if (there) emulated::access(from, 16, false);
  c.list.push_back({to, from, there, c.group});
}

void tide_emulate_commit() { under_way[now->thread].group++; }

void tide_emulate_wait(int n)
{
  copies &c = under_way[now->thread];
  std::vector<copy> left;
  for (const copy &x : c.list)
    if (x.group < c.group - n) {
      if (x.there) memcpy(x.to, x.from, 16);
      else memset(x.to, 0, 16);
    } else left.push_back(x);
  c.list.swap(left);
}
