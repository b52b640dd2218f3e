/* A step that is captured once and replayed: see tide_graph_begin. */
#ifndef TIDE_DEVICE_CAPTURE_H
#define TIDE_DEVICE_CAPTURE_H

#include "core/device/device.h"

/* Whether what is enqueued on this device now is recorded. */
bool tide__captures(const tide_ctx *ctx, int device);
/* E_STATE under op if a step is being captured: op needs the host to wait for the device. */
int  tide__not_captured(tide_ctx *ctx, const char *op);

/* Who enqueues on streams of its own and may take part in a captured step: a communicator. Its work
 * joins the capture behind compute and comes back to compute before the capture ends. Members are
 * called on the context's thread; an int is a status, with its message recorded. */
typedef struct tide__party tide__party;
typedef struct tide__party_calls {
  /* Before a capture: nothing that it was given will come to a stream later. */
  int  (*settle)(tide__party *p);
  /* The graph holds it until drop. From here until leave nobody ends it. */
  int  (*enter)(tide__party *p, tide_graph *g);
  /* The capture ends: compute comes after all that was recorded of it. */
  int  (*join)(tide__party *p);
  /* Before a launch: compute comes after all that is under way. Until leave nobody ends it. */
  int  (*begin)(tide__party *p);
  /* Just after it: the launch is watched as its own calls are. */
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
/* Part of the step that is being captured from its first call in it; again is nothing. */
int  tide__party_enter(tide_ctx *ctx, tide__party *p);
/* A party has failed for good and the graph with it: no launch from now on. Any thread, between
 * enter and drop. */
void tide__graph_kill(tide_graph *g);

#endif
