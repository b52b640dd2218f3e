/* The first failure of a communicator: it ends every later call on every rank,
 * until the communicator is mended (local/turn.c). A transport keeps
 * one where all ranks of the process can read it, and sends it to ranks of other processes. Later
 * failures change nothing. */
#pragma once

#include "core/comm/call.h"

typedef struct tide__failure {
  pthread_mutex_t lock;
  atomic_int seen;             /* 1 once all below is set */
  int  status, rank;           /* rank: where it began; -1: on no rank in particular */
  char text[TIDE__COMM_TEXT];
  /* Called once, under the lock, when the failure is set; may be null. False: after all it must not
   * be, and nothing is kept. */
  bool (*first)(struct tide__failure *f, const void *arg);
} tide__failure;

void tide__failure_init(tide__failure *f, bool (*first)(tide__failure *f, const void *arg));
void tide__failure_close(tide__failure *f);
/* Sets the failure unless one is set; arg is passed to `first`. Returns whether one is set now.
 * Thread-safe. */
bool tide__failure_set(tide__failure *f, int status, int rank, const char *text, const void *arg);
/* Sets the failure with which a call ends on this rank. An interrupt is answered by it: the
 * request is taken back. */
bool tide__failure_end(tide__failure *f, struct tide__coll *c, int status, int rank,
                       const char *text, const void *arg);
/* Returns 0, or the status that calls of this rank end with, and its text: an interrupt of another
 * rank is E_PEER. Thread-safe. */
int  tide__failure_get(tide__failure *f, int rank, char *text, size_t n);

/* Forgets the failure. No rank is in a call. */
void tide__failure_reset(tide__failure *f);

/* Returns whether a failure is set. Thread-safe, without a lock. */
static inline bool tide__failed(tide__failure *f)
{
  return atomic_load_explicit(&f->seen, memory_order_acquire) != 0;
}

/* ---- wait.c ---------------------------------------------------------------------------------- */

/* How a rank waits for others: it polls, then yields, then sleeps, and looks around meanwhile for a
 * failure, an interrupt and the clock. */

/* The figures of one kind of wait: polls, seconds, nanoseconds. */
typedef struct tide__patience {
  int    spins;                /* polls before the first yield */
  double yield;                /* seconds of yielding before the first sleep */
  int    polls;                /* between two sleeps; more where progress needs them */
  long   nap, longest;         /* nanoseconds of the first sleep and of the longest; it doubles */
} tide__patience;

typedef struct tide__wait {
  tide__patience patience;
  double start, timeout;       /* start: 0 until spinning is over; seconds */
  int    npoll;
  int   *shared;               /* waits to come without yields; null: yields are always tried */
  void (*sleep)(void *arg, long ns); /* null: nanosleep */
  void  *arg;
} tide__wait;

/* Begins a wait. It never blocks longer at once than the policy's longest sleep. */
tide__wait tide__wait_begin(const tide__patience *p, double timeout);
/* Shares the processors with other programs. *shared: a counter of the rank's, 0 at first. A yield
 * that lasts a time slice of another program sets it. Then waits sleep at once: sleeping keeps a
 * rank's priority, and yielding loses it. */
void tide__wait_share(tide__wait *w, int *shared);
/* Pauses between two polls. Returns true now and then: the caller should look around. */
bool tide__wait_pause(tide__wait *w);
/* Returns what ends the wait of c: 0, TIDE_E_PEER if f (may be null) is set, TIDE_E_INTERRUPT if
 * two requests are pending, or TIDE_E_TIMEOUT. */
int  tide__wait_look(tide__wait *w, tide__failure *f, const struct tide__coll *c);
/* Waits for a signal of a condition made by tide__wait_cond_init, ns nanoseconds at most. */
void tide__wait_cond(pthread_cond_t *cond, pthread_mutex_t *lock, long ns);
/* Makes a condition for it. */
void tide__wait_cond_init(pthread_cond_t *cond);
