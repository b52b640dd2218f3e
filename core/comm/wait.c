/* See wait.h. */

#include <sched.h>
#include <time.h>

#include "core/comm/comm.h"

/* A yield that lasts longer than this was spent in time slices of other programs. */
static const double foreign_slice = 1e-3;
/* SHARED_WAITS: waits that sleep at once before a yield is tried again. */
enum { BUSY_SPINS = 16, SHARED_WAITS = 64, LOOK_SPINS = 256, LOOK_YIELDS = 16 };

tide__wait tide__wait_begin(const tide__patience *p, double timeout)
{
  return (tide__wait){.patience = *p, .timeout = timeout};
}

void tide__wait_share(tide__wait *w, int *shared)
{
  w->shared = shared;
  if (*shared == 0) return;
  --*shared;
  w->patience.spins = 0;
}

static void relax(void)
{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void sleep_once(tide__wait *w, bool longer)
{
  tide__patience *p = &w->patience;
  struct timespec ts = {0, p->nap};
  if (w->sleep) w->sleep(w->arg, p->nap);
  else nanosleep(&ts, NULL);
  if (longer) p->nap = 2 * p->nap < p->longest ? 2 * p->nap : p->longest;
}

bool tide__wait_pause(tide__wait *w)
{
  const tide__patience *p = &w->patience;
  if (++w->npoll < p->spins) {
    if (w->npoll > BUSY_SPINS) relax();
    return w->npoll % LOOK_SPINS == 0;
  }
  double now = tide_trace_clock();
  if (w->start == 0) w->start = now;
  bool shared = w->shared && *w->shared > 0, late = now - w->start >= p->yield;
  if (shared || (late && w->npoll % p->polls == 0)) {
    sleep_once(w, late);
    return true;
  }
  sched_yield();
  if (w->shared && tide_trace_clock() - now > foreign_slice) *w->shared = SHARED_WAITS;
  return w->npoll % LOOK_YIELDS == 0;
}

int tide__wait_look(tide__wait *w, tide__failure *f, const tide__coll *c)
{
  if (f && tide__failed(f)) return TIDE_E_PEER;
  if (c->interrupt && atomic_load_explicit(c->interrupt, memory_order_relaxed) > 1)
    return TIDE_E_INTERRUPT;
  if (w->start == 0) w->start = tide_trace_clock();
  return tide_trace_clock() - w->start > w->timeout ? TIDE_E_TIMEOUT : TIDE_OK;
}

void tide__wait_cond_init(pthread_cond_t *cond)
{
  pthread_condattr_t attr;
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(cond, &attr);
  pthread_condattr_destroy(&attr);
}

void tide__wait_cond(pthread_cond_t *cond, pthread_mutex_t *lock, long ns)
{
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_nsec += ns;
  if (until.tv_nsec >= 1000000000) {
    until.tv_nsec -= 1000000000;
    until.tv_sec++;
  }
  pthread_cond_timedwait(cond, lock, &until);
}
