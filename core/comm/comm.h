/* Communicators: one handle for every transport, and what a transport must provide.
 *
 * The one idea: a collective is a tide__coll, a description on raw pointers that has passed every
 * check a rank can make alone. comm.c and collective.c fill it, a transport runs it to its end on
 * whichever thread it is given (the rank's own or the communicator's helper), and leaves status
 * and message inside. So a transport never sees a tensor, a context or Lua.
 *
 * Invariants: collectives of one communicator run one at a time, in the order of the calls. The
 * first failure is kept and returned for ever after. A tide_comm belongs to its context's thread;
 * only tide_comm_abort and the transport's abort may come from elsewhere.
 *
 * Layer 4.
 */
#ifndef TIDE_COMM_H
#define TIDE_COMM_H

#include "core/base/ctx.h"
#include "core/base/foreign.h"
#include "core/device/capture.h"

enum {
  TIDE__ALL_REDUCE, TIDE__REDUCE, TIDE__BROADCAST, TIDE__ALL_GATHER, TIDE__ALL_GATHER_V,
  TIDE__REDUCE_SCATTER, TIDE__REDUCE_SCATTER_V, TIDE__ALL_TO_ALL, TIDE__ALL_TO_ALL_V,
  TIDE__GATHER, TIDE__SCATTER, TIDE__SEND_RECV, TIDE__BARRIER, TIDE__SPLIT,
  TIDE__REPLAY,                /* of a captured step with calls of the communicator */
  TIDE__NCOLL
};

enum { TIDE__MAX_RANK = 1024, TIDE__SITE = 64, TIDE__COMM_NAME = 48, TIDE__COMM_TEXT = 960,
       TIDE__NRECORD = 256 };

/* One tensor of a collective that takes several. In-place collectives have in == out. */
typedef struct tide__seg {
  const char *in;
  char       *out;
  int64_t     nin, nout;       /* elements */
  int32_t     in_type, out_type;
} tide__seg;

/* What a communicator has on a device that its ranks share: device.c. device null: nothing yet. */
typedef struct tide__lane {
  const struct tide__device *device;
  void *stream;
  void *ready, *moved;         /* events, marked anew in each call; peers wait for them */
} tide__lane;

typedef struct tide__coll {
  int32_t op, reduce, dtype;   /* reduce, dtype: -1 where there is none */
  int32_t root;                /* -1: none */
  int32_t to, from;            /* send_recv: -1 none */
  int64_t count;               /* elements of a rank's part, or of the whole */
  size_t  size;                /* bytes of an element */
  const char *in;
  char       *out;
  int64_t     nseg;            /* all_reduce, reduce, broadcast, send_recv work on seg */
  tide__seg  *seg;
  const int64_t *in_counts, *out_counts; /* _v forms: one a rank */
  tide__lane *far;             /* where in, out and seg lie; null: in host memory */
  void       *before;          /* there: comes when the operands are what the caller means */
  void       *event;           /* the transport's: comes when the call is done; null: it is */
  bool        blocking;        /* the caller goes on when the call is on its stream, or done */
  bool        captured;        /* it is recorded: its event is part of a capture */
  int32_t     far_status;      /* the first failure there */
  uint64_t    hash;            /* of everything else that must agree: lists of counts, dtypes */
  int32_t     color, key;      /* split */
  const char *name;
  void       *sub;             /* split: state, rank and size of the new communicator; */
  int32_t     sub_rank, sub_size; /* null: none wanted */

  int64_t     seq;
  double      timeout;         /* seconds to wait for the others */
  atomic_int *interrupt;       /* two pending requests end a wait */
  double      begin, end;      /* trace clock */
  int32_t     status;
  char        site[TIDE__SITE];
  char        message[TIDE__COMM_TEXT];
} tide__coll;

/* A graph that a communicator's calls are in; in a list of the transport's. */
typedef struct tide__held {
  tide_graph *graph;
  struct tide__held *next;
} tide__held;

/* How calls become part of a captured step; each is what the member of that name in capture.h asks
 * of a communicator's state. enter returns the status of the cause; launched sets c->event. A
 * transport that fails for good kills the graphs that it was entered with and that were not
 * dropped, but not before leave. */
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
  /* Runs the collective to its end. Status; on failure c->message says why. */
  int  (*run[TIDE__NCOLL])(void *state, int rank, tide__coll *c);
  bool instant;                /* run never waits: asynchronous calls need no helper */
  bool bytes;                  /* moves real data: operands need bytes on the host */
  bool on_device;              /* or, with this, on a device */
  bool near;                   /* also on one device that all ranks share (coll.far) */
  /* A call may end before its time (a peer that does not come, an error of the network) after run
   * has returned: every call goes by the helper, which alone looks, until it is done. Else the
   * owner looks, where it wants to know. */
  bool watched;
  /* Null, or: run may return before the call is done, with c->event. Then look tells: 1 done, 0
   * under way, or the status it failed with; of a watched call that is also the cause of all later
   * ones. order: what is enqueued on compute from now on starts after it; a status. forget: frees
   * the event. Barrier and split leave no event. */
  int  (*look)(void *state, int rank, tide__coll *c);
  int  (*order)(void *state, int rank, tide__coll *c);
  void (*forget)(void *state, int rank, tide__coll *c);
  /* The next four may be null: nothing but the communicator itself has to know.
   * 0, or the status all calls now have, with its message. */
  int  (*cause)(void *state, int rank, char *text, size_t n);
  /* Poisons for every rank. Any thread. status E_PEER, E_TIMEOUT or E_INTERRUPT. */
  void (*abort)(void *state, int rank, int status, const char *text);
  /* The rank's own thread waits for call seq of the helper or runs it; 0: no longer. */
  void (*await)(void *state, int rank, int64_t seq);
  /* This rank will not come again; wakes whoever waits for it. */
  void (*leave)(void *state, int rank);
  void (*close)(void *state, int rank);
  /* Memory on the device that many collectives will use, until close; may be null: nothing to
   * prepare. A status; text says why. */
  int  (*keep)(void *state, void *ptr, size_t size, char *text, size_t n);
  const tide__capture_calls *captures; /* null: calls cannot be part of a captured step */
} tide__transport;

extern const tide__transport tide__transport_self, tide__transport_local, tide__transport_sim;

struct tide__engine;

/* What a replay of a graph moves. */
struct tide__recorded {
  tide__held held;
  tide_comm_stats traffic;     /* of one replay */
  struct tide__recorded *next;
};

struct tide_comm {
  int64_t  refs;               /* the user's handle and every work handle */
  tide__foreign foreign;
  tide_ctx *ctx;
  const tide__transport *transport;
  void    *state;              /* the transport's */
  tide_group *group;           /* counted; null for self and sim */
  tide_comm *host;             /* counted: the same ranks, for host memory; null: this one */
  int      rank, nrank, host_size;
  double   timeout;
  int64_t  seq;
  atomic_int aborted;          /* by tide_comm_abort, where the transport keeps no poison */
  int      status;             /* the first failure, for ever */
  char     message[TIDE__COMM_TEXT];
  char     site[TIDE__SITE], name[TIDE__COMM_NAME];
  tide__lane lane;             /* for collectives on a shared device; nothing until the first */
  struct tide__engine *engine; /* helper thread and its queue; null until the first async call */
  struct tide__kept *kept;     /* buffers that tide_comm_register was given */
  tide__party party;
  struct tide__recorded *recorded; /* graphs that hold this communicator, newest first */
  tide_work *pending;          /* works that have not been settled, oldest first */
  tide_comm_stats stats;
  tide_comm_record *ring;      /* TIDE__NRECORD, indexed by seq */
};

/* The owner's thread begins to wait for call seq; 0: it no longer waits. */
void tide__comm_await(tide_comm *comm, int64_t seq);
/* Drops n references. The owner's thread. */
void tide__comm_unref(tide_comm *comm, int64_t n);
/* A communicator on a transport's state; takes over state and, if given, a reference to group. On
 * failure leaves and closes state. */
int  tide__comm_new(tide_comm **out, tide_ctx *ctx, const tide__transport *transport, void *state,
                    tide_group *group, int rank, int nrank, const char *name);
/* Runs c (filled but for seq, site, timeout) now, or as *work if work is not null. ts: tensors to
 * keep alive meanwhile. work's lists (seg, counts) are copied. */
int  tide__comm_run(tide_comm *comm, tide__coll *c, tide_work **work, int64_t nt,
                    tide_tensor *const *ts);
/* Every rank's number, by rank. comm moves bytes of the host. */
int  tide__all_gather_number(tide_comm *comm, int64_t mine, int64_t *all);
/* E_STATE or the poison, before arguments are looked at. */
int  tide__comm_check(tide_comm *comm, const char *op);
/* E_ARG unless root is one of the ranks. coll: which collective the message names. */
int  tide__check_root(tide_comm *comm, int coll, int root);

/* device.c. What is enqueued returns at once; failures go to c->far_status. */
int  tide__lane_open(tide__lane *lane, const struct tide__device *d);
/* No peer will ask for its events any more; what is on its stream still runs. */
void tide__lane_close(tide__lane *lane);
/* By the caller, on the context's thread: c's operands lie on the device of the lane and are what
 * compute makes of them so far. A status. unaim: the call will not be run after all. */
int  tide__coll_aim(tide__coll *c, tide__lane *lane);
void tide__coll_unaim(tide__coll *c);
/* The call begins: its stream goes on when its operands are ready. Nothing for the host. */
void tide__coll_enter(tide__coll *c);
/* c's stream goes on after the event. */
void tide__coll_after(tide__coll *c, void *event);
/* *event: comes when all that is on c's stream so far is done (mark in core/device/backend.h). */
void tide__coll_mark(tide__coll *c, void **event);
/* What is on c's device is wrong, for the reason in c->message. */
void tide__coll_spoil(const tide__coll *c, int status);
/* look, order and forget of transports that are near. */
int  tide__near_look(void *state, int rank, tide__coll *c);
int  tide__near_order(void *state, int rank, tide__coll *c);
void tide__near_forget(void *state, int rank, tide__coll *c);
/* What kernels/reduce_ranks.h does, where c's operands lie. */
void tide__coll_copy(tide__coll *c, void *dst, const void *src, size_t n);
void tide__coll_reduce(tide__coll *c, void *const *dst, int ndst, const void *const *src, int nsrc,
                       int64_t n, int dtype, int reduce);
/* Runs c on the calling thread and writes times and record. */
void tide__coll_execute(const tide__transport *transport, void *state, int rank, tide__coll *c);
/* Takes the result of a finished collective over: record, trace, poison. */
int  tide__comm_settle(tide_comm *comm, tide__coll *c);

/* The next number of a call, and what it takes over from the communicator. */
void tide__comm_number(tide_comm *comm, tide__coll *c);
/* The record of an asynchronous call that has been queued. */
void tide__comm_note_async(tide_comm *comm, const tide__coll *c);

/* work.c */
int  tide__work_submit(tide_work **out, tide_comm *comm, const tide__coll *c, int64_t nt,
                       tide_tensor *const *ts);
/* Blocks until the helper has nothing to do and no call is under way. */
void tide__work_drain(tide_comm *comm);
/* Blocks until the helper has nothing left to begin. */
void tide__work_issue(tide_comm *comm);
/* Works that were recorded are part of what compute does: their capture ends. */
void tide__work_joined(tide_comm *comm);
/* Watches c, which is on the device with an event, to its end. */
int  tide__work_watch(tide_comm *comm, const tide__coll *c);
/* Settles works that are done. */
void tide__work_reap(tide_comm *comm);
/* Ends the helper and gives all works' operands back; the transport has been left. */
void tide__work_close(tide_comm *comm);

/* capture.c */
extern const tide__party_calls tide__comm_party;

/* traffic.c: adds what c costs a rank. */
void tide__traffic_add(tide_comm_stats *s, const tide__coll *c, int rank, int nrank, int host_size);
int64_t tide__coll_count(const tide__coll *c);

/* Part r of count elements cut into nrank, at cache lines: the share of a rank in a reduction. */
typedef struct tide__slice { int64_t at, n; } tide__slice;
tide__slice tide__slice_of(int64_t count, int r, int nrank, size_t size);

/* call.c: a call as text, from the words that ranks exchange. */
typedef struct tide__call_words { uint64_t what, count, root, hash; } tide__call_words;
tide__call_words tide__call_pack(const tide__coll *c);
/* "all_reduce(sum, f32, 1000)"; returns buf. */
const char *tide__call_text(const tide__call_words *w, char *buf, size_t n);
uint64_t tide__hash_step(uint64_t h, uint64_t v);
/* Appends to a text of at most n bytes; the length so far is *at. */
void tide__append(char *buf, size_t n, size_t *at, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

#endif
