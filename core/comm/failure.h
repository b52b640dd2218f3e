/* The first failure of a communicator: it ends every later call on every rank, until the
 * communicator is mended (local/turn.c, mpi/turn.c). A transport keeps one where all ranks of the
 * process can read it, and sends it to ranks of other processes. Later failures change nothing. */
#pragma once

#include "core/comm/call.h"

typedef struct tide__failure {
  pthread_mutex_t lock;
  atomic_int seen;             /* 1 once all below is set */
  int  status, rank;           /* rank: where it began; -1: on no rank in particular */
  char text[TIDE__COMM_TEXT];
  /* Called once, under the lock, while a failure is set; may be null. Returns false to refuse:
   * then no failure is set. */
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

/* Clears the failure. No rank may be in a call. */
void tide__failure_reset(tide__failure *f);

/* Returns whether a failure is set. Thread-safe, without a lock. */
static inline bool tide__failed(tide__failure *f)
{
  return atomic_load_explicit(&f->seen, memory_order_acquire) != 0;
}
