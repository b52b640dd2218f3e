/* The barrier of ranks that are threads. This is where tide_comm_barrier waits for them.
 *
 * The word: bits 0-10 arrivals, bit 11 closed, bits 12-31 generation. Arrivals are
 * read-modify-writes on one word, so what each rank wrote before it arrives is seen by all after.
 */
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "core/comm/local/local.h"

enum { COUNT = 0x7ff, CLOSED = 0x800, GEN = 0x1000 };
#define GEN_OF(w) ((w) & ~(uint32_t)0xfff)

static void barrier_wake(tide__barrier *b)
{
  if (atomic_load(&b->nsleep)) syscall(SYS_futex, &b->word, FUTEX_WAKE_PRIVATE, 1 << 30, NULL,
                                       NULL, 0);
}

/* Sleeps until the word differs from what the rank has seen. Counts in nsleep first: a waker reads
 * it after it has changed the word. */
typedef struct sleeper { tide__barrier *barrier; uint32_t seen; } sleeper;
static void barrier_sleep(void *arg, long ns)
{
  sleeper *s = arg;
  struct timespec ts = {0, ns};
  atomic_fetch_add(&s->barrier->nsleep, 1);
  syscall(SYS_futex, &s->barrier->word, FUTEX_WAIT_PRIVATE, s->seen, &ts, NULL, 0);
  atomic_fetch_sub(&s->barrier->nsleep, 1);
}

int tide__barrier_wait(tide__barrier *b, uint32_t gen, tide__wait *w, const tide__coll *c)
{
  sleeper s = {b, 0};
  w->sleep = barrier_sleep;
  w->arg = &s;
  for (;;) {
    s.seen = atomic_load_explicit(&b->word, memory_order_acquire);
    if (GEN_OF(s.seen) != gen) return TIDE__PASSED;
    if (s.seen & CLOSED) return TIDE__CLOSED;
    int why = tide__wait_pause(w) ? tide__wait_look(w, NULL, c) : TIDE_OK;
    if (why < 0) return why;
  }
}

int tide__barrier_arrive(tide__barrier *b, int n, uint32_t *gen)
{
  uint32_t w = atomic_load_explicit(&b->word, memory_order_relaxed), next;
  do {
    if (w & CLOSED) return TIDE__CLOSED;
    next = (int)(w & COUNT) + 1 == n ? GEN_OF(w) + GEN : w + 1;
  } while (!atomic_compare_exchange_weak(&b->word, &w, next));
  *gen = GEN_OF(w);
  if (GEN_OF(next) == *gen) return TIDE__WAITING;
  barrier_wake(b);
  return TIDE__PASSED;
}

bool tide__barrier_close(tide__barrier *b, const uint32_t *gen)
{
  uint32_t w = atomic_load(&b->word);
  do {
    if (gen && GEN_OF(w) != *gen) return false;
  } while (!atomic_compare_exchange_weak(&b->word, &w, w | CLOSED));
  barrier_wake(b);
  return true;
}
