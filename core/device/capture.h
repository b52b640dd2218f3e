/* A step that is captured once and replayed: see tide_graph_begin. */
#ifndef TIDE_DEVICE_CAPTURE_H
#define TIDE_DEVICE_CAPTURE_H

#include "core/device/device.h"

/* Returns whether work enqueued on this device is being captured. */
bool tide__captures(const tide_ctx *ctx, int device);
/* Fails with E_STATE under op while a step is captured: op blocks on the device. */
int  tide__not_captured(tide_ctx *ctx, const char *op);

/* A capture participant: it enqueues work on streams of its own and may take part in a captured
 * step (a communicator). Its stream joins the capture behind compute, and compute joins it again
 * before the capture ends. Members are called on the context's thread; an int is a status, with its
 * message recorded. */
typedef struct tide__participant tide__participant;
typedef struct tide__participant_calls {
  /* Before a capture: flushes pending work, so that none reaches a stream later. */
  int  (*settle)(tide__participant *p);
  /* Takes a reference to the graph until drop. The participant stays open until leave. */
  int  (*enter)(tide__participant *p, tide_graph *g);
  /* Before the capture ends: orders compute after the participant's captured work. */
  int  (*join)(tide__participant *p);
  /* Before a launch: orders compute after its work so far. It stays open until leave. */
  int  (*begin)(tide__participant *p);
  /* After a launch: watches the launch as one of its own calls. */
  int  (*launched)(tide__participant *p, tide_graph *g);
  void (*leave)(tide__participant *p);
  void (*drop)(tide__participant *p, tide_graph *g);
} tide__participant_calls;
struct tide__participant {
  const tide__participant_calls *calls;
  tide__participant *next; /* of the context */
};
void tide__participant_add(tide_ctx *ctx, tide__participant *p);
void tide__participant_remove(tide_ctx *ctx, tide__participant *p);
/* Adds p to the step being captured, before its first call in it. Idempotent. */
int  tide__participant_enter(tide_ctx *ctx, tide__participant *p);
/* Invalidates the graph of a participant that has failed for good: later launches fail. Thread-safe
 * between enter and drop. */
void tide__graph_kill(tide_graph *g);

#endif
