/* Communicators: one handle for every transport, and what a transport must provide.
 *
 * A collective is a tide__coll: a description on raw pointers that has passed every check a rank
 * can make alone. collective.c and send_recv.c fill it. comm.c runs it on the transport, on the
 * rank's own thread or on the communicator's helper thread; status and message are left inside. A
 * transport never sees a tensor, a context or Lua.
 *
 * Each rule has one file: call.h describes a call to other ranks, agree.c compares calls, failure.c
 * keeps the first failure, wait.c waits, move.c says what goes where, device.c copies and reduces.
 *
 * Invariants: collectives of one communicator run one at a time, in the order of the calls. The
 * first failure ends every later call. A tide_comm belongs to its context's thread; only
 * tide_comm_abort and a release may come from another.
 */
#pragma once

#include "core/comm/wait.h"
#include "core/device/device.h"

enum { TIDE__NRECORD = 256 };

/* One tensor of a collective that takes several. In-place collectives have in == out. */
typedef struct tide__seg {
  const char *in;
  char       *out;
  int64_t     nin, nout;       /* elements */
  int32_t     in_type, out_type;
} tide__seg;

/* A communicator's stream on a device that its ranks share. device null: not opened. */
typedef struct tide__stream {
  const struct tide__device *device;
  void *stream;
  void *ready, *moved;         /* events, recorded in each call; other ranks wait for them */
} tide__stream;

typedef struct tide__coll {
  int32_t op, reduce, dtype;   /* reduce, dtype: -1 if not applicable */
  int32_t root;                /* -1: none */
  int32_t to, from;            /* send_recv: -1 none */
  int64_t count;               /* elements of a rank's part, or of the whole */
  size_t  size;                /* bytes of an element */
  const char *in;
  char       *out;
  int64_t     nseg;            /* all_reduce, reduce, broadcast, send_recv work on seg */
  tide__seg  *seg;
  const int64_t *in_counts, *out_counts; /* _v forms: one a rank */
  uint64_t    hash;            /* of what else must agree: shapes, lists of counts, dtypes */
  int32_t     shape[TIDE__SHOWN]; /* as in tide__call_same */
  int32_t     color, key;      /* split */
  const char *name;
  void       *sub;             /* split: state, rank and size of the new communicator; */
  int32_t     sub_rank, sub_size; /* null, 0: this rank is in none */

  tide__stream *stream;        /* where in, out and seg lie; null: in host memory */
  const struct tide__device *device; /* of the event */
  void       *before;          /* event: the operands hold what the caller has computed */
  void       *event;           /* set by the transport: the call is complete; null: it is */
  int32_t     device_status;   /* the first failure on the device */
  bool        blocking;        /* the caller continues when the call is on its stream or complete */
  bool        alone;           /* the caller waits for it, and no asynchronous call is under way */
  bool        captured;        /* it is recorded: its event is part of a capture */

  int64_t     seq;
  int64_t     turn;            /* drawn from the transport */
  double      timeout;         /* seconds to wait for the other ranks */
  atomic_int *interrupt;       /* two pending requests end a wait */
  double      begin, end;      /* trace clock */
  int32_t     status;
  char        site[TIDE__SITE];
  char        message[TIDE__COMM_TEXT];
} tide__coll;

/* A graph that holds calls of the communicator; an element of the transport's list. */
typedef struct tide__held {
  tide_graph *graph;
  struct tide__held *next;
} tide__held;

/* What a transport provides for captured steps, for the members of the same names in device.h.
 * enter returns the failure's status; launched sets c->event. A transport that fails kills the
 * graphs that it has entered and not dropped, but not before leave. */
typedef struct tide__capture_calls {
  int  (*enter)(void *state, tide__held *h);
  int  (*join)(void *state);
  int  (*begin)(void *state);
  int  (*launched)(void *state, tide__coll *c);
  void (*leave)(void *state);
  void (*drop)(void *state, tide__held *h);
} tide__capture_calls;

/* What a kind of communicator provides. state is its own; rank is this rank's number there. */
typedef struct tide__transport {
  const char *name;
  bool instant;                /* run never waits: asynchronous calls need no helper thread */
  bool bytes;                  /* moves real data: operands need bytes on the host */
  bool on_device;              /* or, with this, on a device */
  bool shared_device;          /* also on one device that all ranks share (coll.stream) */
  /* A call may fail after run has returned (a rank that never arrives, an error of the network), so
   * every call goes through the helper thread, which polls it to its end. Otherwise the owner polls
   * where it needs to know. */
  bool watched;
  /* Draws the place of a call among all of the rank, on the owner's thread, before run; run then
   * follows. May be null. */
  int64_t (*draw)(void *state);
  /* Runs the collective: exchanges calls, compares them, moves data. Returns a status; on failure
   * c->message says why. */
  int  (*run)(void *state, int rank, tide__coll *c);
  /* Polls a call that run has left with c->event, on a transport that is watched. Returns 1 if it
   * is complete, 0 if not, or the status it failed with. Barrier and split leave no event. */
  int  (*poll)(void *state, tide__coll *c);
  /* The failure that ranks share; null: the communicator has its own. */
  tide__failure *(*failure)(void *state);
  /* How often the shared state was mended after a failure; null: never. */
  int64_t (*mended)(void *state);
  /* Sets the failure on every rank. status: E_PEER, E_TIMEOUT or E_INTERRUPT. May be null: nothing
   * but the failure has to be set. Thread-safe. */
  void (*abort)(void *state, int rank, int status, const char *text);
  /* The rank's own thread waits for call seq of the helper thread or runs it; 0: no longer. */
  void (*await)(void *state, int rank, int64_t seq);
  /* This rank makes no more calls; wakes ranks that wait for it. May be null. */
  void (*leave)(void *state, int rank);
  void (*close)(void *state, int rank); /* may be null */
  /* Registers memory of the device that many collectives will use, until close. Returns a status;
   * text says why. May be null: nothing to prepare. */
  int  (*keep)(void *state, void *ptr, size_t size, char *text, size_t n);
  const tide__capture_calls *captures; /* null: calls cannot be part of a captured step */
} tide__transport;

extern const tide__transport tide__transport_self, tide__transport_local, tide__transport_sim;

struct tide__engine;

/* A graph and what a replay of it moves. */
struct tide__recorded {
  tide__held held;
  tide_comm_stats traffic;     /* of one replay */
  struct tide__recorded *next;
};

struct tide_comm {
  tide__object object;
  int64_t  refs;               /* the user's handle and every work handle */
  tide_ctx *ctx;
  const tide__transport *transport;
  void    *state;              /* the transport's */
  tide_group *group;           /* counted; null unless ranks are threads */
  tide_comm *host;             /* counted: the same ranks, for host memory; null: this one */
  int      rank, nrank, host_size;
  double   timeout;
  int64_t  seq;
  tide__failure *failure;      /* the transport's, or own */
  tide__failure  own;
  int      status;             /* the first failure, once the owner has seen it, until adopted */
  int64_t  nmend;              /* the transport's count that this rank has taken over */
  char     message[TIDE__COMM_TEXT];
  char     site[TIDE__SITE], name[TIDE__COMM_NAME];
  tide__stream stream;         /* for collectives on a shared device; opened by the first */
  struct tide__engine *engine; /* helper thread and its queue; null until the first async call */
  struct tide__kept *kept;     /* buffers that tide_comm_register was given */
  tide__participant participant;
  struct tide__recorded *recorded; /* graphs that hold this communicator, newest first */
  tide_work *pending;          /* works that have not been settled, oldest first */
  tide_comm_stats stats;
  tide_comm_record *ring;      /* TIDE__NRECORD, indexed by seq */
};

/* ---- comm.c ---------------------------------------------------------------------------------- */

/* Makes a communicator on a transport's state; takes over state and, if given, a reference to
 * group. On failure leaves and closes state. */
int  tide__comm_new(tide_comm **out, tide_ctx *ctx, const tide__transport *transport, void *state,
                    tide_group *group, int rank, int nrank, const char *name);
/* Drops n references. The owner's thread. */
void tide__comm_unref(tide_comm *comm, int64_t n);
/* Runs c (filled but for seq, site, timeout) now, or as *work if work is not null. ts: tensors to
 * keep alive meanwhile. The lists of c (seg, counts) are copied for a work. */
int  tide__comm_run(tide_comm *comm, tide__coll *c, tide_work **work, int64_t nt,
                    tide_tensor *const *ts);
/* Sets the number of c, its timeout and its call site from the communicator. */
void tide__comm_number(tide_comm *comm, tide__coll *c);
/* Puts a call into the communicator's history. */
void tide__comm_note(tide_comm *comm, const tide__coll *c, bool async);
/* Declares that the owner's thread waits for call seq; 0: it no longer waits. */
void tide__comm_await(tide_comm *comm, int64_t seq);
/* Runs c on the calling thread and writes its times. */
void tide__coll_execute(const tide__transport *transport, void *state, int rank, tide__coll *c);
/* Takes over the result of a finished collective: record, trace, failure. Returns its status. */
int  tide__comm_settle(tide_comm *comm, tide__coll *c);
/* Returns E_STATE or the failure, before arguments are looked at. */
int  tide__comm_check(tide_comm *comm, const char *op);
/* Calls fn for each communicator of the context that belongs to the group. */
void tide__comm_each(tide_ctx *ctx, const tide_group *group, void (*fn)(tide_comm *comm));
/* Blocks until asynchronous calls have ended. */
void tide__comm_rest(tide_comm *comm);
/* Starts again if the shared state was mended: no failure, call numbers from 1. */
void tide__comm_adopt(tide_comm *comm);
/* Returns the elements of all tensors of the call. */
int64_t tide__coll_count(const tide__coll *c);

/* ---- collective_bytes.c ---------------------------------------------------------------------- */

/* Gathers one number of each rank, by rank. comm moves bytes of the host. */
int tide__all_gather_number(tide_comm *comm, int64_t mine, int64_t *all);

/* ---- device.c: copies and reductions where a call's operands lie ----------------------------- */

/* Opens the stream and its events. Returns a status. */
int  tide__stream_open(tide__stream *s, const struct tide__device *d);
/* Closes the stream; no rank waits for its events any more. Work on it still runs. */
void tide__stream_close(tide__stream *s);
/* Binds c to the stream of the device that holds its operands, as compute leaves them now. unbind
 * undoes it for a call that will not run. The context's thread. */
int  tide__coll_bind(tide__coll *c, tide__stream *s);
void tide__coll_unbind(tide__coll *c);
/* Returns the number of the device that holds the operands, -1: host memory. */
int  tide__coll_device(const tide__coll *c);
/* These functions enqueue where there is a stream, and leave failures in c->device_status. */
/* Makes the stream wait until the operands are ready. Does nothing for host memory. */
void tide__coll_begin(tide__coll *c);
void tide__coll_wait_event(tide__coll *c, void *event);
/* Records *event behind all that is on the stream; creates it if it is null. */
void tide__coll_record(tide__coll *c, void **event);
/* Makes the next kernel, download or wait of the device fail with status and c->message. */
void tide__coll_set_error(const tide__coll *c, int status);
/* kernels/reduce_ranks.h. */
void tide__coll_copy(tide__coll *c, void *dst, const void *src, size_t n);
void tide__coll_reduce(tide__coll *c, void *const *dst, int ndst, const void *const *src, int nsrc,
                       int64_t n, int dtype, int reduce);
/* Returns 1 if the call is complete, 0 if not, or a status. A transport may return from run with
 * c->event before that. */
int  tide__coll_poll(const tide__coll *c);
/* Makes compute wait for the event. Returns a status. */
int  tide__coll_order(const tide__coll *c);
/* Frees the event. */
void tide__coll_forget(tide__coll *c);

/* ---- work.c: asynchronous calls -------------------------------------------------------------- */

int  tide__work_submit(tide_work **out, tide_comm *comm, const tide__coll *c, int64_t nt,
                       tide_tensor *const *ts);
/* Blocks until the helper thread is idle and no call is under way. */
void tide__work_drain(tide_comm *comm);
/* Blocks until the helper thread has begun every call. */
void tide__work_issue(tide_comm *comm);
/* Completes the recorded works at the end of their capture: compute waits for them in the
 * recording. */
void tide__work_joined(tide_comm *comm);
/* Has the helper thread poll c, which is on the device with an event, to its end. */
int  tide__work_watch(tide_comm *comm, const tide__coll *c);
/* Settles works that are done. */
void tide__work_reap(tide_comm *comm);
/* Ends the helper thread and gives all works' operands back; the transport has been left. */
void tide__work_close(tide_comm *comm);

/* ---- capture.c ------------------------------------------------------------------------------- */

/* Returns the communicator of a participant, or NULL if it is another kind of participant. */
tide_comm *tide__comm_of(tide__participant *p);
extern const tide__participant_calls tide__comm_participant;

/* ---- move.c ---------------------------------------------------------------------------------- */

/* What each collective moves to which rank, stated only here.
 *
 * A collective is copies between pairs of ranks (a part) or reductions of which each rank computes
 * one share. Transports differ in how the bytes travel, and in nothing else. */

/* What a rank exchanges with rank q: nin bytes at in go to q, nout bytes from q arrive at out. A
 * pointer is null where the rank has no such operand; then its size is 0. */
typedef struct tide__part {
  const char *in;
  char *out;
  size_t nin, nout;
} tide__part;

/* Returns how many parts a pair of ranks exchanges: the tensors of a list, or 1; 0 for
 * reductions. */
int64_t tide__move_count(const tide__coll *c);
/* Returns part i of the call c of `rank`, with rank q, which may be itself. */
tide__part tide__move_part(const tide__coll *c, int rank, int q, int64_t i);
/* Returns whether the call c of a rank reads or writes memory of rank q (not of its own). */
bool tide__move_touches(const tide__coll *c, int q);

/* Elements [at, at + n). */
typedef struct tide__slice { int64_t at, n; } tide__slice;
/* Returns the slice of each rank's `count` elements that rank r combines. all_reduce and reduce:
 * r's share of the work, whole cache lines of elements of `size` bytes; all ranks or root get the
 * result. reduce_scatter: the elements that r gets. */
tide__slice tide__move_share(const tide__coll *c, int64_t count, size_t size, int r, int nrank);

/* Lists the ranks of rank me's color in order of (key, rank) and returns how many; none if its
 * color is negative. *mine: which of them it is. */
int tide__split_members(const int *color, const int *key, int nrank, int me, int *list, int *mine);

/* Adds messages and bytes that the call costs a rank, by the algorithms that are used at scale. */
void tide__traffic_add(tide_comm_stats *s, const tide__coll *c, int rank, int nrank, int host_size);
