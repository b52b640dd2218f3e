/* Parallel loops over libgomp's pool. See pool.h.
 *
 * A loop is cut into pieces by index, and a team of as many threads as there are pieces (at most
 * nthread and the number of processors) takes them. One thread, one piece, or a call from inside
 * another loop runs inline and never enters OpenMP.
 *
 * libgomp ends the process if it cannot start a thread. So plain threads try first whether a team
 * can be larger than those before it.
 *
 * Each thread sets its floating-point state for its body and restores the caller's: denormals are
 * flushed, rounding is to nearest, nothing traps. A host may have set another state.
 */
#include "kernels/cpu/pool.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/flush.h"

#ifdef _OPENMP
#include <omp.h>
#endif
#if defined(__x86_64__)
#include <immintrin.h>
#endif

/* ---- floating-point state ---- */

#if defined(__x86_64__)

enum { FLUSH = 0x8040, QUIET = 0x1f80, ROUND = 0x6000 }; /* FTZ and DAZ; masks; rounding mode */

static unsigned flush_begin(void)
{
  unsigned old = _mm_getcsr(), own = (old & ~(unsigned)ROUND) | FLUSH | QUIET;
  if (own != old) _mm_setcsr(own);
  return old;
}

/* Restores the caller's state, exception flags included. */
static void flush_end(unsigned old)
{
  if (_mm_getcsr() != old) _mm_setcsr(old);
}

#elif defined(__aarch64__)

/* FZ; the traps; the rounding mode */
enum { FLUSH = 1 << 24, TRAPS = 0x9f00, ROUND = 3 << 22 };

static unsigned flush_begin(void)
{
  uint64_t old, kept = ~(uint64_t)(TRAPS | ROUND);
  __asm__ volatile("mrs %0, fpcr" : "=r"(old));
  __asm__ volatile("msr fpcr, %0" : : "r"((old & kept) | FLUSH));
  return (unsigned)old;
}

static void flush_end(unsigned old) { __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)old)); }

#else

static unsigned flush_begin(void) { return 0; }
static void flush_end(unsigned old) { (void)old; }

#endif

void k_cpu_flushed(void (*fn)(void *arg), void *arg)
{
  unsigned old = flush_begin();
  fn(arg);
  flush_end(old);
}

/* ---- the two loops ---- */

/* The process that started the pool's threads, 0 before that. libgomp's pool is one per process,
 * and so is this. */
static _Atomic pid_t pool_owner;

bool tide__pool_is_lost(void)
{
  pid_t owner = atomic_load_explicit(&pool_owner, memory_order_relaxed);
  return owner != 0 && owner != getpid();
}

static void run_inline(int64_t n, tide__pool_fn fn, void *arg)
{
  unsigned old = flush_begin();
  fn(arg, 0, n, 0);
  flush_end(old);
}

#ifdef _OPENMP

/* The largest team of the calling thread: libgomp has a pool for each thread that starts teams. */
static _Thread_local struct {
  int size;     /* with the caller; 0 before the first */
  bool is_full; /* the system has refused a thread */
} largest;

static void *wait_for_release(void *gate)
{
  pthread_mutex_lock(gate);
  pthread_mutex_unlock(gate);
  return NULL;
}

/* Returns how many of n threads the system starts side by side. */
static int startable(int n)
{
  pthread_mutex_t gate = PTHREAD_MUTEX_INITIALIZER;
  pthread_t *thread = malloc((size_t)n * sizeof *thread);
  int started = 0;
  if (!thread) return 0;
  pthread_mutex_lock(&gate);
  while (started < n && !pthread_create(&thread[started], NULL, wait_for_release, &gate)) started++;
  pthread_mutex_unlock(&gate);
  for (int i = 0; i < started; i++) pthread_join(thread[i], NULL);
  free(thread);
  return started;
}

/* Returns the size of a team that is to have n threads. There must be room for twice as many: what
 * has ended counts for some time, here and where libgomp ends threads that a smaller team leaves
 * over. */
static int allowed(int n)
{
  if (n > largest.size && !largest.is_full) {
    int had = largest.size > 1 ? largest.size : 1, room = startable(2 * (n - had));
    largest.is_full = room < 2 * (n - had);
    largest.size = had + room / 2;
  }
  return n < largest.size ? n : largest.size;
}

/* Returns the number of threads for `piece` pieces of work; 1 means inline. */
static int team_size(int nthread, int64_t piece)
{
  if (nthread <= 1 || piece <= 1 || omp_in_parallel()) return 1;
  int nproc = omp_get_num_procs();
  int most = nthread < nproc ? nthread : nproc, n = allowed(piece < most ? (int)piece : most);
  if (n > 1 && !atomic_load_explicit(&pool_owner, memory_order_relaxed))
    atomic_store_explicit(&pool_owner, getpid(), memory_order_relaxed);
  return n;
}

#endif

void tide__pool_for(int nthread, int64_t n, int64_t grain, tide__pool_fn fn, void *arg)
{
  if (n <= 0) return;
#ifdef _OPENMP
  int team = nthread <= 1 ? 1 : team_size(nthread, n / (grain < 1 ? 1 : grain));
  if (team > 1) {
#pragma omp parallel num_threads(team)
    {
      /* The runtime may grant fewer threads than requested. */
      int64_t got = omp_get_num_threads(), me = omp_get_thread_num();
      int64_t each = n / got, more = n % got;
      int64_t begin = me * each + (me < more ? me : more);
      unsigned old = flush_begin();
      fn(arg, begin, begin + each + (me < more), (int)me);
      flush_end(old);
    }
    return;
  }
#endif
  (void)nthread, (void)grain;
  run_inline(n, fn, arg);
}

void tide__pool_tasks(int nthread, int64_t n, int64_t chunk, tide__pool_fn fn, void *arg)
{
  if (n <= 0) return;
  if (chunk < 1) chunk = 1;
#ifdef _OPENMP
  int64_t piece = (n - 1) / chunk + 1;
  int team = nthread <= 1 ? 1 : team_size(nthread, piece);
  if (team > 1) {
    _Atomic int64_t next = 0;
#pragma omp parallel num_threads(team)
    {
      int me = omp_get_thread_num();
      unsigned old = flush_begin();
      for (;;) {
        int64_t i = atomic_fetch_add_explicit(&next, 1, memory_order_relaxed);
        if (i >= piece) break;
        int64_t begin = i * chunk;
        fn(arg, begin, n - begin < chunk ? n : begin + chunk, me);
      }
      flush_end(old);
    }
    return;
  }
#endif
  (void)nthread;
  run_inline(n, fn, arg);
}
