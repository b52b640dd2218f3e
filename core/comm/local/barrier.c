/* Meetings: everyone waits until everyone has come. See local.h.
 *
 * The word: bits 0-10 arrivals, bit 11 poison, bits 12-31 generation. Memory order: arrivals are
 * read-modify-writes on one word, so what each rank wrote before arriving is seen by all after.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/comm/local/local.h"

enum { COUNT = 0x7ff, POISON = 0x800, GEN = 0x1000 };
#define GEN_OF(w) ((w) & ~(uint32_t)0xfff)

/* Seconds of yielding before sleep, and the longest sleep between two looks around. */
static const double yield_seconds = 200e-6, nap_seconds = 0.05;

static void relax(void)
{
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("yield");
#endif
}

static void sleep_on(_Atomic uint32_t *word, uint32_t value, double seconds)
{
  struct timespec ts = {0, (long)(seconds * 1e9)};
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, &ts, NULL, 0);
}

static void wake(tide__meet *m)
{
  if (atomic_load(&m->nsleep)) syscall(SYS_futex, &m->word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL,
                                       NULL, 0);
}

static int look(tide__meet *m, uint32_t gen, uint32_t *word)
{
  *word = atomic_load_explicit(&m->word, memory_order_acquire);
  if (GEN_OF(*word) != gen) return TIDE__PASSED;
  return *word & POISON ? TIDE__POISONED : -1;
}

int tide__meet_wait(tide__meet *m, uint32_t gen, double timeout, atomic_int *interrupt)
{
  double start = tide_trace_clock(), now = start;
  uint32_t word;
  for (int i = 0, state; now - start < yield_seconds; i++) {
    if ((state = look(m, gen, &word)) >= 0) return state;
    sched_yield();
    if (i % 4 == 3) now = tide_trace_clock();
  }
  atomic_fetch_add(&m->nsleep, 1);
  int state;
  while ((state = look(m, gen, &word)) < 0) {
    double left = timeout > 0 ? start + timeout - tide_trace_clock() : nap_seconds;
    if (left <= 0) { state = TIDE__EXPIRED; break; }
    if (interrupt && atomic_load_explicit(interrupt, memory_order_relaxed) > 1) {
      state = TIDE__STOPPED;
      break;
    }
    sleep_on(&m->word, word, left < nap_seconds ? left : nap_seconds);
  }
  atomic_fetch_sub(&m->nsleep, 1);
  return state;
}

int tide__meet_arrive(tide__meet *m, int n, int spin, uint32_t *gen, double timeout,
                      atomic_int *interrupt)
{
  uint32_t w = atomic_load_explicit(&m->word, memory_order_relaxed), next;
  do {
    if (w & POISON) return TIDE__POISONED;
    next = (int)(w & COUNT) + 1 == n ? GEN_OF(w) + GEN : w + 1;
  } while (!atomic_compare_exchange_weak(&m->word, &w, next));
  *gen = GEN_OF(w);
  if (GEN_OF(next) != *gen) {
    wake(m);
    return TIDE__PASSED;
  }
  for (int i = 0, state; i < spin; i++) {
    if ((state = look(m, *gen, &w)) >= 0) return state;
    relax();
  }
  return tide__meet_wait(m, *gen, timeout, interrupt);
}

bool tide__meet_poisoned(tide__meet *m)
{
  return atomic_load_explicit(&m->word, memory_order_acquire) & POISON;
}

bool tide__meet_poison(tide__meet *m, const uint32_t *gen)
{
  uint32_t w = atomic_load(&m->word);
  do {
    if (gen && GEN_OF(w) != *gen) return false;
  } while (!atomic_compare_exchange_weak(&m->word, &w, w | POISON));
  wake(m);
  return true;
}
