/* The barrier of ranks that are threads. This is where tide_comm_barrier waits for them.
 *
 * The word: the high half counts arrivals. The low half is 0, or CLOSED and the arrivals up to the
 * closing, without their highest bit. An arrival is one addition, so a rank asks for the word's
 * cache line once; the count wraps. What arrives at a closed barrier is counted and means nothing.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/comm/local/local.h"

#define ARRIVAL (UINT64_C(1) << 32)
#define CLOSED (UINT64_C(1) << 31)

/* Returns whether arrival number `last` has been made: before the closing, if there was one. */
static bool is_complete(uint64_t w, uint32_t last)
{
  if (!(w & CLOSED)) return (int32_t)((uint32_t)(w >> 32) - last) >= 0;
  return (int32_t)(((uint32_t)w - last) << 1) >= 0;
}

/* Returns the half of the word that every arrival and every closing changes; the processors are
 * little-endian. */
static uint32_t *futex_of(tide__barrier *b) { return (uint32_t *)&b->word + 1; }

static void barrier_wake(tide__barrier *b)
{
  if (atomic_load(&b->nsleep)) syscall(SYS_futex, futex_of(b), FUTEX_WAKE_PRIVATE, 1 << 30,
                                       NULL, NULL, 0);
}

/* Sleeps until the word differs from what the rank has seen. Counts in nsleep first: a waker reads
 * it after it has changed the word. */
typedef struct sleeper { tide__barrier *barrier; uint32_t seen; } sleeper;
static void barrier_sleep(void *arg, long ns)
{
  sleeper *s = arg;
  struct timespec ts = {0, ns};
  atomic_fetch_add(&s->barrier->nsleep, 1);
  syscall(SYS_futex, futex_of(s->barrier), FUTEX_WAIT_PRIVATE, s->seen, &ts, NULL, 0);
  atomic_fetch_sub(&s->barrier->nsleep, 1);
}

int tide__barrier_wait(tide__barrier *b, uint32_t last, tide__wait *w, const tide__coll *c)
{
  sleeper s = {b, 0};
  w->sleep = barrier_sleep;
  w->arg = &s;
  for (;;) {
    uint64_t seen = atomic_load_explicit(&b->word, memory_order_acquire);
    if (is_complete(seen, last)) return TIDE__PASSED;
    if (seen & CLOSED) return TIDE__CLOSED;
    s.seen = (uint32_t)(seen >> 32);
    int why = tide__wait_pause(w) ? tide__wait_look(w, NULL, c) : TIDE_OK;
    if (why < 0) return why;
  }
}

int tide__barrier_arrive(tide__barrier *b, uint32_t last)
{
  uint64_t w = atomic_fetch_add(&b->word, ARRIVAL);
  if (w & CLOSED) return TIDE__CLOSED;
  if (!is_complete(w + ARRIVAL, last)) return TIDE__WAITING;
  barrier_wake(b);
  return TIDE__PASSED;
}

bool tide__barrier_close(tide__barrier *b, const uint32_t *last)
{
  uint64_t w = atomic_load(&b->word), next;
  do {
    if (last && is_complete(w, *last)) return false;
    next = w & CLOSED ? w : (w + ARRIVAL) | CLOSED | (w >> 32 & (CLOSED - 1));
  } while (!atomic_compare_exchange_weak(&b->word, &w, next));
  barrier_wake(b);
  return true;
}
