/* Ranks that are threads of one process: the state that they share, and the group it belongs to.
 *
 * Each rank has a slot that only it writes. A collective is: describe the call in the
 * slot, pass the entry barrier together, compare the slots, move data, meet at the exit barrier.
 * The entry barrier can be closed for ever, by a rank whose timeout expired, by a failure, by
 * leaving. The exit barrier cannot: between the two a rank waits for nothing but the others, which
 * passed the entry too. So a collective happens on all ranks or on none, and no rank returns while
 * another still reads its buffers.
 *
 * On a device that ranks share, hosts meet in the same way, and that keeps the stream's events of
 * two calls apart: they are recorded again only when all ranks have waited for them.
 *
 * A small payload is left in the slot before the entry, and then there is no exit barrier: what
 * other ranks read is in the slot, not in a caller's buffer. A slot has two pages for it, used in
 * turn (by the parity of the call's number, which is the entry's). A rank writes a page again when
 * it has passed the next entry, which no rank passes before all have read. An entry that is closed
 * keeps no rank back, so a rank that has found it closed writes nothing any more.
 * spec/deep/protocol_spec.lua searches this protocol for every order of steps.
 *
 * Everything here is allocated by malloc: it belongs to no context.
 */
#pragma once

#include "core/comm/comm.h"

enum { TIDE__POST = 2048 };    /* bytes of a payload that travels in the slot */

/* ---- barrier.c ------------------------------------------------------------------------------- */

/* Holds the count of arrivals and how it was closed. Each change is atomic, so passing and closing
 * exclude each other. Ranks number the arrivals: the n of the first meeting are 1 to n. */
typedef struct tide__barrier {
  _Atomic uint64_t word;
  _Atomic uint32_t nsleep;
} tide__barrier;

enum { TIDE__PASSED, TIDE__CLOSED, TIDE__WAITING };

/* Arrives at the meeting whose last arrival has number `last`. WAITING: others are missing. A rank
 * that has found the barrier closed must not arrive again. */
int  tide__barrier_arrive(tide__barrier *b, uint32_t last);
/* Waits for the others after an arrival. PASSED, CLOSED, or why c's wait ends: TIDE_E_INTERRUPT or
 * TIDE_E_TIMEOUT; it may be called again with the same wait. */
int  tide__barrier_wait(tide__barrier *b, uint32_t last, tide__wait *w, const tide__coll *c);
/* Closes the barrier, unless the meeting of *last (may be null) is complete: then false. */
bool tide__barrier_close(tide__barrier *b, const uint32_t *last);

/* ---- group.c --------------------------------------------------------------------------------- */

/* The entry of calls. tag: of what all ranks have in common, by rank and by parity of the call's
 * number. Those of the first ranks lie in the barrier's cache line: two or three ranks that pass
 * read no other. */
typedef struct tide__entry {
  _Alignas(64) tide__barrier barrier;
  _Atomic uint64_t tag[][2];
} tide__entry;

/* What else decides whether calls agree, with a payload of a few numbers. As in tide__comm_call. */
typedef struct tide__page {
  _Alignas(128) int32_t to, from;
  uint64_t sent, expected;
  _Alignas(32) char payload[TIDE__POST];
} tide__page;

enum { TIDE__CALL_WORDS = sizeof(tide__comm_call) / 8 };

/* The first line is the rank's own between calls. `call` may be read as a whole between entry and
 * exit; else through tide__slot_read, as a rank that gives up reads the slots of ranks it misses:
 * `version` is odd while it changes. */
typedef struct tide__slot {
  _Alignas(128) _Atomic uint64_t version;
  _Atomic int64_t done;        /* the last call that has ended */
  _Atomic int64_t moved;       /* the last call whose data this rank has moved */
  int64_t on_device;           /* the last call that showed this rank's events */
  uint32_t entered, left;      /* last arrivals at entry and exit, of this rank's last calls */
  bool closed;                 /* this rank has found the entry closed */
  int spin;                    /* polls before it yields in the current call */
  const tide__coll *coll;      /* read by other ranks between entry and exit only */
  int64_t *list;               /* of the call; the same */
  union {
    tide__comm_call call;
    _Atomic uint64_t word[TIDE__CALL_WORDS];
  };
  _Alignas(128) atomic_int cpu; /* processor the rank was last seen on; rarely written */
  tide__page page[2];          /* by parity of the call's number */
} tide__slot;

typedef struct tide__local_comm {
  _Alignas(64) tide__barrier exit;
  _Alignas(64) atomic_int refs;
  int nrank, spin;
  int64_t nmend;               /* how often it was mended; written while all ranks pause */
  atomic_bool left;            /* a rank has left: it is not mended */
  tide_group *group;           /* not counted: an owner of this holds its group */
  tide__failure failure;       /* setting it closes the entry */
  char name[TIDE__COMM_NAME];
  struct tide__local_comm *prev, *next; /* of the group, under its lock */
  _Atomic int64_t device_failed; /* the call in which a rank's device failed */
  tide__entry *entry;
  int *member;                 /* ranks in the group, by rank here */
  int64_t *lists;
  tide__slot slot[];
} tide__local_comm;

/* The call that a rank's own thread waits for, itself or in the helper thread; comm null: none. */
typedef struct tide__owner {
  _Alignas(64) _Atomic(struct tide__local_comm *) comm;
  _Atomic int64_t seq;
  atomic_int paused;           /* written under the group's lock */
} tide__owner;

struct tide_group {
  uint32_t tag;                /* TIDE__TAG of its kind (base/door.h) */
  atomic_int refs;
  int nrank, spin;
  double timeout;
  const uint32_t *mark;        /* 1; a forked child finds 0 */
  pthread_mutex_t lock;        /* comms, joined, npaused; taken before a failure's */
  tide__local_comm *world;     /* held by the group */
  tide__local_comm *comms;
  bool *joined;
  int npaused;
  tide__owner *owner;          /* by rank */
};

/* Makes the shared state of a communicator, with refs 1, or returns NULL: out of memory. member is
 * copied. */
tide__local_comm *tide__local_new(tide_group *group, int nrank, const int *member,
                                  const char *name);
void tide__local_hold(tide__local_comm *s);
void tide__local_drop(tide__local_comm *s);

/* Reads the call that a slot describes, whole, and the number of the last one that has ended.
 * Thread-safe. */
void tide__slot_read(tide__slot *slot, tide__comm_call *call, int64_t *done);
/* Returns the number of the call that a slot describes. Thread-safe. */
int64_t tide__slot_seq(tide__slot *slot);
/* Adds the calls that a rank of the group is in on communicators other than s. */
void tide__group_whereabouts(tide_group *group, const tide__local_comm *s, int rank,
                             tide__text *t);

/* ---- deadlock.c ------------------------------------------------------------------------------ */

/* Searches for a cycle of waits that begins at rank me of s, which waits in a call. Returns a
 * number of it, or 0 for none. If that is `before`, from an earlier search, all communicators of
 * the cycle fail with E_COMM. */
uint64_t tide__group_deadlock(tide__local_comm *s, int me, uint64_t before);

/* ---- turn.c ---------------------------------------------------------------------------------- */

/* Returns how many ranks have not arrived for the call c; *npaused: how many of them have
 * paused. */
int tide__turn_missing(tide__local_comm *s, const tide__coll *c, int *npaused);
/* Adds that ranks are missing in c because they have paused, and which. */
void tide__turn_describe(tide__local_comm *s, const tide__coll *c, tide__text *t);
