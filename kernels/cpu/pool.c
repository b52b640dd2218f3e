/* Parallel loops over libgomp's pool. See pool.h.
 *
 * A loop is cut into pieces by index, and a team of as many threads as there are pieces (at most
 * nthread and the number of processors) takes them. One thread, one piece, or a call from inside
 * another loop runs inline and never enters OpenMP.
 *
 * libgomp ends the process if it cannot start a thread. So plain threads try first whether a team
 * can be larger than those before it. Between that and the start of the team another program can
 * take the last threads of a common limit; nothing here can prevent that.
 *
 * Each thread sets its floating-point state for its body and restores the caller's: denormals are
 * flushed, rounding is to nearest, nothing traps. A host may have set another state.
 */
#include "kernels/cpu/pool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/file.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

#include "kernels/flush.h"
#include "kernels/threads.h"

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

#ifdef __linux__
#define TIDE__THREAD_ID() syscall(SYS_gettid)
#define TIDE__THREAD_LIVES(id) (syscall(SYS_tgkill, getpid(), id, 0) == 0)
#else
#define TIDE__THREAD_ID() 0L
#define TIDE__THREAD_LIVES(id) ((void)(id), false)
#endif

/* Teams of the calling thread: libgomp has a pool for each thread that starts teams. */
static _Thread_local struct {
  int size;      /* the largest team so far, with the caller; 0 before the first */
  int wanted;    /* the size that the system refused, until tide__pool_refused returns it */
  bool is_tight; /* the system has refused room for twice the threads of a team */
  bool is_full;  /* the system has refused a thread of a team */
} teams;

struct probe { pthread_mutex_t gate; pthread_t thread; long id; };

static void *wait_for_release(void *arg)
{
  struct probe *p = arg;
  p->id = TIDE__THREAD_ID();
  pthread_mutex_lock(&p->gate);
  pthread_mutex_unlock(&p->gate);
  return NULL;
}

/* Blocks until the system counts a joined thread no longer, at most some milliseconds. */
static void wait_until_gone(long id)
{
  for (int i = 0; i < 200 && TIDE__THREAD_LIVES(id); i++) usleep(20);
}

/* Returns how many of n threads the system starts side by side. They have ended at the return. */
static int startable(int n)
{
  struct probe *probe = calloc((size_t)n, sizeof *probe);
  int up = 0;
  if (!probe) return 0;
  for (; up < n; up++) {
    struct probe *p = &probe[up];
    pthread_mutex_init(&p->gate, NULL);
    pthread_mutex_lock(&p->gate);
    if (pthread_create(&p->thread, NULL, wait_for_release, p)) break;
  }
  for (int i = 0; i < up; i++) pthread_mutex_unlock(&probe[i].gate);
  for (int i = 0; i < up; i++) pthread_join(probe[i].thread, NULL);
  for (int i = 0; i < up; i++) wait_until_gone(probe[i].id);
  free(probe);
  return up;
}

/* Takes the lock by which ranks, threads and processes of one program, start threads in turn. Waits
 * some tenths of a second at most: the order is a help, and the lock's file is open to other
 * programs. A file system may have no locks (NFS has none on a file that is read). Returns a file
 * to close, or -1. */
static int take_turn(void)
{
  int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  for (int i = 0; file >= 0 && flock(file, LOCK_EX | LOCK_NB) != 0 && i < 1000; i++) {
    if (errno != EWOULDBLOCK && errno != EINTR) break;
    usleep(100);
  }
  return file;
}

/* Starts libgomp's threads for teams of n, or of as many as the system starts. Ranks take turns:
 * what one has tried out, another would take. Room for twice as many allows teams of any size. With
 * less, libgomp always starts the same number: it ends the threads that a smaller team leaves over,
 * and the system counts them for some time. */
static void enlarge(int n)
{
  int had = teams.size > 1 ? teams.size : 1, more = n - had;
  int file = take_turn();
  int room = startable(2 * more);
  teams.is_tight = room < 2 * more;
  teams.size = room < more ? had + room : n;
  teams.is_full = teams.size < n;
  if (teams.is_full) teams.wanted = n;
  if (teams.size > 1) {
#pragma omp parallel num_threads(teams.size)
    (void)0;
  }
  if (file >= 0) close(file);
}

/* Returns the size of a team that is to have n threads. */
static int allowed(int n)
{
  if (n > teams.size && !teams.is_full) enlarge(n);
  return n < teams.size ? n : teams.size;
}

/* Returns the number of threads to start for a team; those beyond it do nothing. */
static int started(int team) { return teams.is_tight ? teams.size : team; }

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

int tide__pool_refused(int *got)
{
  int wanted = teams.wanted;
  if (!wanted) return 0;
  *got = teams.size;
  teams.wanted = 0;
  return wanted;
}

#else

int tide__pool_refused(int *got) { return *got = 0; }

#endif

void tide__pool_for(int nthread, int64_t n, int64_t grain, tide__pool_fn fn, void *arg)
{
  if (n <= 0) return;
#ifdef _OPENMP
  int team = nthread <= 1 ? 1 : team_size(nthread, n / (grain < 1 ? 1 : grain));
  if (team > 1) {
#pragma omp parallel num_threads(started(team))
    {
      /* The runtime may grant fewer threads than requested. */
      int64_t got = omp_get_num_threads(), me = omp_get_thread_num();
      if (got > team) got = team;
      int64_t each = n / got, more = n % got;
      int64_t begin = me * each + (me < more ? me : more);
      unsigned old = flush_begin();
      if (me < got) fn(arg, begin, begin + each + (me < more), (int)me);
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
#pragma omp parallel num_threads(started(team))
    {
      int me = omp_get_thread_num();
      unsigned old = flush_begin();
      while (me < team) {
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
