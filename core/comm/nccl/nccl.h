/* A communicator over NCCL: its state, and the ways in which it fails and waits.
 *
 * The one idea: NCCL moves data on a stream that the communicator owns, and the host looks on. A
 * call is given to NCCL behind what is on compute; from there an event says when it is done, and
 * compute waits for that event, not the host. Whoever looks at a call that is under way (the thread
 * inside NCCL, or the helper that watches the stream) also sees what may end it before its time:
 * an error of NCCL, the clock, the interrupt, an abort.
 *
 * In a captured step the stream joins the capture behind compute and the same calls are recorded.
 * What the host must see meanwhile, the compared calls, goes over a stream of its own (aside).
 *
 * Invariants: calls of NCCL are made by one thread at a time. An abort waits until nobody is
 * between enter and leave, and is carried out by the last to leave: so NCCL's communicator is there
 * for them, and for graphs that are being captured or launched. A failure ends NCCL's communicator,
 * and with it the kernels that wait for other ranks; it is never used again. What compute then
 * works on is not what it should be, so the context is told (spoil) before NCCL is ended.
 *
 * nccl.c makes and closes it, wait.c is failures and waits, move.c moves data.
 * Layer 4.
 */
#ifndef TIDE_COMM_NCCL_H
#define TIDE_COMM_NCCL_H

#include "core/device/device.h"
#include "core/comm/comm.h"
#include "core/comm/nccl/api.h"

/* What all communicators of one opening share. */
typedef struct tide__nccl_shared {
  int refs;
  tide_ctx *ctx;               /* of this rank; every communicator holds it */
  tide__nccl api;
  const tide__backend *backend;
  void *device;                /* the backend's state */
  bool check;
} tide__nccl_shared;

typedef struct tide__nccl_comm {
  tide__nccl_shared *all;
  void *comm;                  /* null after an abort */
  void *stream;                /* of its own */
  void *aside;                 /* another, where calls are compared; null without check */
  char *scratch;               /* on the device: what a barrier sums, what calls are compared by */
  char *words;                 /* pinned: the same for the host; null without check */
  int rank, nrank;
  atomic_int flying;           /* calls and replays whose end nobody has seen */
  bool forked;                 /* the stream is part of a capture */
  void **kept;                 /* handles of registered buffers */
  size_t nkept, room;          /* used and allocated */
  pthread_mutex_t lock;        /* cause, text, inside, graphs, comm's end */
  int cause;
  int inside;                  /* how many are between enter and leave */
  tide__held *graphs;          /* that NCCL's communicator must not be ended before */
  char text[TIDE__COMM_TEXT];
} tide__nccl_comm;

static inline const tide__streams *tide__nccl_streams(const tide__nccl_comm *s)
{
  return s->all->backend->streams;
}

static inline bool tide__nccl_going(int rc)
{
  return rc == TIDE__NCCL_OK || rc == TIDE__NCCL_IN_PROGRESS;
}

/* ---- wait.c ----------------------------------------------------------------------------- */

/* Of the transport (comm.h). */
int  tide__nccl_cause(void *state, int rank, char *text, size_t n);
void tide__nccl_abort(void *state, int rank, int status, const char *text);
int  tide__nccl_look(void *state, int rank, tide__coll *c);
/* Around every use of s->comm by a call. False: the communicator has failed. leave returns rc. */
bool tide__nccl_enter(tide__nccl_comm *s, tide__coll *c);
int  tide__nccl_leave(tide__nccl_comm *s, int rc);
/* Fail for good with this text (c->message or another), with what NCCL says, with what the device
 * says. Return the status. */
int  tide__nccl_fail(tide__nccl_comm *s, tide__coll *c, int status, const char *text);
int  tide__nccl_failed(tide__nccl_comm *s, tide__coll *c, int error);
int  tide__nccl_device_failed(tide__nccl_comm *s, tide__coll *c);
/* Until NCCL has taken what it was given: after that it is on the stream. */
int  tide__nccl_ready(tide__nccl_comm *s, tide__coll *c);
/* Until the stream (s->stream, s->aside) has done all that is on it: the host waits. */
int  tide__nccl_wait(tide__nccl_comm *s, tide__coll *c, void *stream);
/* Captured steps. */
extern const tide__capture_calls tide__nccl_captures;
/* Yields at first; then naps, so that a long wait costs no processor. */
void tide__nccl_nap(double waited);

/* ---- move.c ----------------------------------------------------------------------------- */

/* Of the transport: everything but split. */
int  tide__nccl_run(void *state, int rank, tide__coll *c);
size_t tide__nccl_scratch_size(const tide__nccl_comm *s);

#endif
