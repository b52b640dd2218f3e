/* A communicator over NCCL: its state, and the ways in which it fails and waits.
 *
 * NCCL moves data on a stream that the communicator owns. A call goes to NCCL after the work that
 * is on compute. An event marks its end, and compute waits for that event, not the host. The thread
 * that watches a call (the one inside NCCL, or the helper thread) also sees what may end it early:
 * an error of NCCL, the clock, the interrupt, an abort.
 *
 * In a captured step the stream joins the capture after compute and the same calls are recorded.
 * What the host must see meanwhile, the compared calls, goes over a stream of its own (aside).
 *
 * All communicators of a rank issue their calls in one order, that of the program (order.c).
 *
 * Invariants: one thread at a time makes calls of NCCL. A failure ends NCCL's communicator, and
 * with it the kernels that wait for other ranks; it is never used again. It ends when no thread is
 * between enter and leave, so calls and graphs that are being captured or launched keep it alive.
 * Compute may then work on incomplete data, so the device gets the error before NCCL's communicator
 * ends.
 */
#pragma once

#include "core/comm/comm.h"

/* ---- api.c ----------------------------------------------------------------------------------- */

/* NCCL as this library uses it: opened at run time, its C interface declared by hand.
 *
 * Types and numbers are those of nccl.h since 2.18 (the first with ncclCommSplit); they have not
 * changed since, and a config carries the version it was written for. A handle is a pointer, a
 * stream is a pointer, a unique id is 128 bytes by value. */

enum { TIDE__NCCL_OK = 0, TIDE__NCCL_IN_PROGRESS = 7, TIDE__NCCL_OLDEST = 21800,
       TIDE__NCCL_ORDERS = 22600 }; /* has NCCL_LAUNCH_ORDER_IMPLICIT */

typedef struct tide__nccl_id { char bytes[128]; } tide__nccl_id;

/* ncclConfig_t of 2.18. What is not chosen is INT_MIN or null. */
typedef struct tide__nccl_config {
  size_t size;
  unsigned magic, version;
  int blocking, cga_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share;
} tide__nccl_config;
enum { TIDE__NCCL_MAGIC = (int)0xcafebeef };

typedef struct tide__nccl {
  void *object;
  int version;                 /* 22703: 2.27.3 */
  int (*get_version)(int *version);
  int (*get_unique_id)(tide__nccl_id *id);
  int (*comm_init)(void **comm, int nrank, tide__nccl_id id, int rank, tide__nccl_config *config);
  int (*comm_split)(void *comm, int color, int key, void **out, tide__nccl_config *config);
  int (*comm_user_rank)(const void *comm, int *rank);
  int (*comm_count)(const void *comm, int *count);
  int (*comm_finalize)(void *comm);
  int (*comm_destroy)(void *comm);
  int (*comm_abort)(void *comm);
  int (*comm_async_error)(void *comm, int *error);
  const char *(*error_string)(int error);
  const char *(*last_error)(const void *comm);
  int (*group_start)(void), (*group_end)(void);
  int (*all_reduce)(const void *in, void *out, size_t n, int type, int op, void *comm, void *st);
  int (*reduce)(const void *in, void *out, size_t n, int type, int op, int root, void *comm,
                void *st);
  int (*broadcast)(const void *in, void *out, size_t n, int type, int root, void *comm, void *st);
  int (*all_gather)(const void *in, void *out, size_t n, int type, void *comm, void *st);
  int (*reduce_scatter)(const void *in, void *out, size_t n, int type, int op, void *comm,
                        void *st);
  int (*send)(const void *in, size_t n, int type, int to, void *comm, void *st);
  int (*recv)(void *out, size_t n, int type, int from, void *comm, void *st);
  /* Since 2.19; null in 2.18. */
  int (*comm_register)(const void *comm, void *buffer, size_t size, void **handle);
  int (*comm_deregister)(const void *comm, void *handle);
} tide__nccl;

/* Opens NCCL. library: a file name, or null for the usual one. TIDE_E_UNSUPPORTED with one sentence
 * in msg. The library stays in the process: it has threads of its own. */
int  tide__nccl_open(tide__nccl *l, const char *library, char *msg, size_t n);
void tide__nccl_close(tide__nccl *l);

/* ---- the communicator ------------------------------------------------------------------------ */

/* The order of a rank's calls, shared by all of its communicators. */
typedef struct tide__nccl_order {
  int refs;                    /* openings; of the owner's thread, as is drawn */
  int64_t drawn;               /* turns, from 1 on */
  pthread_mutex_t lock;        /* of what follows */
  pthread_cond_t next;
  int64_t passed;              /* the last turn that has ended */
  void *last;                  /* stream of the last call, or null */
  bool captured;               /* that call is part of a capture */
  const tide_graph *graph;     /* the last one that was captured */
  void *event;                 /* where a call waits for the one before */
} tide__nccl_order;

/* What all communicators of one opening share. */
typedef struct tide__nccl_shared {
  int refs;
  tide_ctx *ctx;               /* of this rank; every communicator holds it */
  tide__nccl api;
  const tide__device *on;
  const tide__backend *backend; /* its own */
  void *device;                /* the backend's state */
  bool check;
  bool orders_itself;          /* NCCL orders launches on the device */
  tide__nccl_order *order;     /* of the rank */
} tide__nccl_shared;

typedef struct tide__nccl_comm {
  tide__nccl_shared *all;
  void *comm;                  /* null after an abort */
  void *stream;                /* of its own */
  void *aside;                 /* another, where calls are compared; null without check */
  char *scratch;               /* on the device: what a barrier sums, and calls to compare */
  char *calls;                 /* pinned: the same for the host; null without check */
  int rank, nrank;
  atomic_int flying;           /* calls and replays whose end has not been seen */
  bool forked;                 /* the stream is part of a capture */
  void **kept;                 /* handles of registered buffers */
  int64_t nkept, room;         /* used and allocated */
  tide__failure failure;       /* its lock also guards inside, graphs and comm's end */
  int inside;                  /* threads between enter and leave */
  tide__held *graphs;          /* that NCCL's communicator must not be ended before */
  char name[TIDE__COMM_NAME];
} tide__nccl_comm;

static inline const tide__streams *tide__nccl_streams(const tide__nccl_comm *s)
{
  return s->all->backend->streams;
}

static inline bool tide__nccl_going(int rc)
{
  return rc == TIDE__NCCL_OK || rc == TIDE__NCCL_IN_PROGRESS;
}

/* ---- wait.c ---------------------------------------------------------------------------------- */

/* Prepares the failure of s, which ends NCCL's communicator. */
void tide__nccl_failure_init(tide__nccl_comm *s);
int  tide__nccl_poll(void *state, tide__coll *c); /* of the transport */
/* Begin and end every use of s->comm by a call. enter returns false if the communicator has failed,
 * with c->message. leave returns rc. */
bool tide__nccl_enter(tide__nccl_comm *s, tide__coll *c);
int  tide__nccl_leave(tide__nccl_comm *s, int rc);
/* Set the failure: with this text (c->message or another), with what NCCL says, with what the
 * device says. Return the status. */
int  tide__nccl_fail(tide__nccl_comm *s, tide__coll *c, int status, const char *text);
int  tide__nccl_failed(tide__nccl_comm *s, tide__coll *c, int error);
int  tide__nccl_device_failed(tide__nccl_comm *s, tide__coll *c);
/* Waits until NCCL has taken what it was given: after that it is on the stream. */
int  tide__nccl_ready(tide__nccl_comm *s, tide__coll *c);
/* Blocks until the stream (s->stream, s->aside) is idle. */
int  tide__nccl_wait(tide__nccl_comm *s, tide__coll *c, void *stream);
extern const tide__patience tide__nccl_patience;
extern const tide__capture_calls tide__nccl_captures;

/* ---- order.c --------------------------------------------------------------------------------- */

tide__nccl_order *tide__nccl_order_new(tide_ctx *ctx);
void tide__nccl_order_drop(tide__nccl_shared *all);
bool tide__nccl_orders_itself(const tide__nccl *l);
int64_t tide__nccl_draw(void *state); /* of the transport */
/* Wait for the turn of a call, and end it. A turn of 0 has no place in the order. */
void tide__nccl_await_turn(tide__nccl_order *o, int64_t turn);
void tide__nccl_pass_turn(tide__nccl_order *o, int64_t turn);
/* Owner's thread. Blocks until all turns that were drawn have ended. */
void tide__nccl_await_all(tide__nccl_order *o);
/* Orders a stream of s behind the rank's last call on the device, and makes a call on s->stream the
 * last. In the call's turn. */
int  tide__nccl_behind_last(tide__nccl_comm *s, void *stream, bool captured);
/* Take note that the stream of s closes, that the capture of a graph begins, and that this graph is
 * released. */
void tide__nccl_order_forget(tide__nccl_comm *s);
void tide__nccl_order_capture(tide__nccl_order *o, const tide_graph *graph);
void tide__nccl_order_uncapture(tide__nccl_order *o, const tide_graph *graph);

/* ---- move.c ---------------------------------------------------------------------------------- */

/* Runs any call but a split, between enter and leave. */
int  tide__nccl_move(tide__nccl_comm *s, tide__coll *c);
size_t tide__nccl_scratch_size(const tide__nccl_comm *s);
