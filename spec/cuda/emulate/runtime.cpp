/* Blocks as fibers: the launches of spec/cuda/emulate/cuda_runtime.h.
 *
 * A fiber runs threads of the block one after another until one of them meets a barrier; only then
 * is another fiber needed. One launch at a time in the process (static shared memory is one):
 * streams.cpp runs the steps of streams under a lock.
 *
 * Environment: TIDE_EMULATE_ORDER=reverse (blocks and threads begin with the last; CUDA C++
 * Programming Guide, "Thread Hierarchy": blocks run in any order), =both (see access.cpp).
 */
#include "inside.h"

#include <cstdio>
#include <cstdlib>
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
  "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n  ret\n"
  ".size tide_emulate_switch, .-tide_emulate_switch\n");

namespace {

enum { STACK = 256 << 10, SHARED = 227 << 10 };
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
fiber *now;
void *scheduler;
const tide_emulate_body *body;
bool backwards; /* the last blocks and threads first */
unsigned nthread, next_thread, finished;
int came, any_flag, any_result;
warp warps[32];
size_t shared_size, turn; /* turn: the fiber that goes first is another in each round */
alignas(128) unsigned char shared_bytes[SHARED];
struct event { std::function<void()> what; const void *awaited; };
std::vector<event> later;

void place(unsigned t)
{
  now->thread = t;
  now->index = {t % blockDim.x, t / blockDim.x % blockDim.y, t / blockDim.x / blockDim.y};
  threadIdx = now->index;
}

void leave() { tide_emulate_switch(&now->sp, scheduler); }

void run_threads()
{
  for (;;) {
    while (next_thread < nthread) {
      unsigned t = next_thread++;
      place(backwards ? nthread - 1 - t : t);
      body->run(body->bound.get());
      finished++;
    }
    now->state = IDLE;
    leave();
  }
}

fiber *make_fiber()
{
  fiber *f = new fiber;
  f->stack = static_cast<char *>(aligned_alloc(64, STACK));
  void **top = reinterpret_cast<void **>(f->stack + STACK) - 2;
  *top = reinterpret_cast<void *>(run_threads);
  f->sp = top - 6;
  fibers.push_back(f);
  return f;
}

void resume(fiber *f)
{
  now = f;
  launch_now->stack = f->stack;
  threadIdx = f->index;
  f->state = READY;
  tide_emulate_switch(&scheduler, f->sp);
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
  for (int i = 0; i < w.came; i++) w.waiting[i]->state = READY;
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

/* The first fiber that the block did not need before. */
fiber *next_fiber()
{
  nfiber++;
  return nfiber <= fibers.size() ? fibers[nfiber - 1] : make_fiber();
}

void run_block(size_t shared)
{
  next_thread = finished = 0;
  nfiber = 0;
  came = any_flag = 0;
  for (warp &w : warps) w.came = 0;
  shared_size = shared;
  emulated::block();
  memset(shared_bytes, 0xff, shared);
  while (finished < nthread) {
    bool moved = false;
    for (; next_thread < nthread; moved = true) resume(next_fiber());
    size_t n = nfiber, k = turn = (turn + 37) % n;
    for (size_t i = 0; i < n; i++, k = k + 1 < n ? k + 1 : 0) {
      fiber *f = fibers[k];
      if (f->state == WAIT_UNTIL && f->until()) f->state = READY;
      if (f->state != READY) continue;
      resume(f);
      moved = true;
    }
    if (moved || happen()) continue;
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
  tide_emulate_body call;

  void run() const
  {
    order_t how = order();
    emulated::running now = {kernel.name, device, call.bound.get(), call.size, nullptr, STACK,
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
  launch l = {kernel, grid, block, shared, stream->device, call};
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
  for (size_t k = 0; k < nfiber; k++)
    if (fibers[k]->state == WAIT_BLOCK) fibers[k]->state = READY;
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
  unsigned char *slots = w.slot[w.turn];
  memcpy(slots + now->thread % 32 * TIDE_EMULATE_SLOT, give, n);
  if (completes(w)) w.turn ^= 1;
  else wait(WAIT_WARP);
  return slots;
}

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
