/* How a rank waits for others: it polls, then yields, then sleeps, and looks around meanwhile for a
 * failure, an interrupt and the clock. */
#pragma once

#include "core/comm/failure.h"

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
  int   *shared;               /* later waits without yields; null: yields are always tried */
  void (*sleep)(void *arg, long ns); /* null: nanosleep */
  void  *arg;
} tide__wait;

/* Begins a wait. It never blocks longer at once than the policy's longest sleep. */
tide__wait tide__wait_begin(const tide__patience *p, double timeout);
/* Shares the processors with other programs. *shared: a counter of the rank's, 0 at first. A yield
 * that lasts a time slice of another program sets it. Then waits sleep at once: sleeping keeps a
 * rank's priority, and yielding loses it. */
void tide__wait_share(tide__wait *w, int *shared);
/* Pauses between two polls. Returns true now and then: the caller should then call
 * tide__wait_look. */
bool tide__wait_pause(tide__wait *w);
/* Returns what ends the wait of c: 0, TIDE_E_PEER if f (may be null) is set, TIDE_E_INTERRUPT if
 * two requests are pending, or TIDE_E_TIMEOUT. */
int  tide__wait_look(tide__wait *w, tide__failure *f, const struct tide__coll *c);
/* Waits for a signal of a condition made by tide__wait_cond_init, ns nanoseconds at most. */
void tide__wait_cond(pthread_cond_t *cond, pthread_mutex_t *lock, long ns);
/* Makes a condition for it. */
void tide__wait_cond_init(pthread_cond_t *cond);
