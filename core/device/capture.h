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
typedef struct tide__party tide__party;
typedef struct tide__party_calls {
  /* Before a capture: flushes pending work, so that none reaches a stream later. */
  int  (*settle)(tide__party *p);
  /* Takes a reference to the graph until drop. The participant stays open until leave. */
  int  (*enter)(tide__party *p, tide_graph *g);
  /* Before the capture ends: orders compute after the participant's captured work. */
  int  (*join)(tide__party *p);
  /* Before a launch: orders compute after its work so far. It stays open until leave. */
  int  (*begin)(tide__party *p);
  /* After a launch: watches the launch as one of its own calls. */
  int  (*launched)(tide__party *p, tide_graph *g);
  void (*leave)(tide__party *p);
  void (*drop)(tide__party *p, tide_graph *g);
} tide__party_calls;
struct tide__party {
  const tide__party_calls *calls;
  tide__party *next;           /* of the context */
};
void tide__party_add(tide_ctx *ctx, tide__party *p);
void tide__party_remove(tide_ctx *ctx, tide__party *p);
/* Adds p to the step being captured, before its first call in it. Idempotent. */
int  tide__party_enter(tide_ctx *ctx, tide__party *p);
/* Invalidates the graph of a participant that has failed for good: later launches fail. Thread-safe
 * between enter and drop. */
void tide__graph_kill(tide_graph *g);

#endif
