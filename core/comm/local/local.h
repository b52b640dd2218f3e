/* A room: where the ranks of one local communicator meet, and the group it belongs to.
 *
 * The one idea: each rank has a seat that only it writes. A collective is: describe the call on
 * the seat, pass the gate together, compare the seats, move data, meet on the floor. The gate can
 * be closed for ever (poison): by a rank whose timeout expired, by a failure, by leaving. The
 * floor cannot: between gate and floor a rank waits for nothing but the others, which passed the
 * gate too. So a collective happens on all ranks or on none, and no rank returns while another
 * still reads its buffers.
 *
 * On a device that ranks share, hosts meet so too, and meetings keep its events apart: those of one
 * call are marked again only when all ranks have asked for them.
 *
 * A small payload is left on the seat before the gate, and then there is no floor: what peers read
 * after the gate is on the seat, not in a caller's buffer. Seats have two pages, used in turn (by
 * the parity of the call's number, which is the gate's): a rank writes a page again only after the
 * next gate, which no rank passes before all have read. A poisoned gate keeps no rank back, so
 * after it a rank writes nothing: each call looks at the gate first. spec/comm/protocol_spec.lua
 * searches this protocol for every order of steps.
 *
 * The gate's word holds generation, poison bit and count of arrivals; each change is one
 * compare-and-swap, so passing and poisoning exclude each other. Waiters spin briefly (not at all
 * if another rank was last seen on the same processor), then yield, then sleep on a futex: more
 * ranks than processors neither burn nor collapse.
 *
 * Everything here comes from malloc: it belongs to no context. Layer 4.
 */
#ifndef TIDE_COMM_LOCAL_H
#define TIDE_COMM_LOCAL_H

#include "core/comm/comm.h"

enum { TIDE__POST = 2048 };    /* bytes of a payload that travels on the seat */

typedef struct tide__meet {
  _Alignas(64) _Atomic uint32_t word;
  _Atomic uint32_t nsleep;
} tide__meet;

enum { TIDE__PASSED, TIDE__POISONED, TIDE__EXPIRED, TIDE__STOPPED };

/* For the words that ranks read of each other. */
#define LOAD_ACQUIRE(x) atomic_load_explicit(&(x), memory_order_acquire)
#define LOAD_RELAXED(x) atomic_load_explicit(&(x), memory_order_relaxed)
#define STORE_RELEASE(x, v) atomic_store_explicit(&(x), v, memory_order_release)

/* tag: equal on all ranks, or no data moves; the words are for messages. A payload of a number or
 * three lies in their line. */
typedef struct tide__page {
  _Alignas(128) _Atomic uint64_t tag, what, count, root, hash;
  char payload[TIDE__POST];
} tide__page;

/* Words are atomic because a rank that gives up reads the seats of ranks it misses; `version` is
 * odd while they change. coll is read by peers between gate and floor only. */
typedef struct tide__seat {
  _Alignas(64) _Atomic uint64_t version;
  _Atomic int64_t seq, done;  /* the last call announced here, the last one finished */
  _Atomic int64_t moved;      /* the last call whose data this rank has moved */
  atomic_int cpu;             /* where the rank ran then */
  const tide__coll *coll;
  int64_t far;                /* the last call that told peers of this rank's events; its own */
  _Alignas(64) _Atomic uint64_t site[TIDE__SITE / 8];
  tide__page page[2];         /* by parity of seq */
} tide__seat;

typedef struct tide__room {
  tide__meet gate, floor;
  atomic_int refs;
  int nrank, spin;
  tide_group *group;          /* not counted: whoever holds a room holds its group */
  pthread_mutex_t lock;       /* cause */
  int cause, cause_rank;      /* 0: none; cause_rank -1: nobody's in particular */
  char text[TIDE__COMM_TEXT];
  char name[TIDE__COMM_NAME];
  struct tide__room *prev, *next; /* rooms of the group, under its lock */
  _Atomic int64_t far_failed; /* the call in which a rank's device failed */
  int *member;                /* ranks in the group, by rank here */
  tide__seat seat[];
} tide__room;

/* The call that a rank's own thread waits for, itself or in the helper thread; room null: none. */
typedef struct tide__owner {
  _Alignas(64) _Atomic(struct tide__room *) room;
  _Atomic int64_t seq;
} tide__owner;

struct tide_group {
  uint64_t magic;             /* while the group lives */
  atomic_int refs;
  int nrank, spin;
  double timeout;
  const uint32_t *mark;       /* 1; a forked child finds 0 */
  pthread_mutex_t lock;       /* rooms, joined */
  tide__room *world;          /* held by the group */
  tide__room *rooms;
  bool *joined;
  tide__owner *owner;         /* by rank */
};

/* Null: out of memory. refs 1. member is copied. */
tide__room *tide__room_new(tide_group *group, int nrank, const int *member, const char *name);
void tide__room_hold(tide__room *room);
void tide__room_drop(tide__room *room);
/* Closes the gate, unless *gen (may be null) has passed already: then false. The first cause
 * stays. */
bool tide__room_fail(tide__room *room, const uint32_t *gen, int status, int rank, const char *text);

/* Arrives at a meeting of n; *gen receives the generation waited for. */
int  tide__meet_arrive(tide__meet *m, int n, int spin, uint32_t *gen, double timeout,
                       atomic_int *interrupt);
/* Waits on for the others, after an arrival that ended with EXPIRED or STOPPED. timeout 0: none. */
int  tide__meet_wait(tide__meet *m, uint32_t gen, double timeout, atomic_int *interrupt);
bool tide__meet_poisoned(tide__meet *m);
bool tide__meet_poison(tide__meet *m, const uint32_t *gen);

/* The last call announced on a seat, whole. */
typedef struct tide__seat_copy {
  tide__call_words words;
  int64_t seq, done;
  char site[TIDE__SITE];
} tide__seat_copy;
void tide__seat_read(tide__seat *seat, tide__seat_copy *copy);
/* deadlock.c: searches for a cycle of waits that starts at rank me of the room, which waits in a
 * call. Returns a number of it, or 0 for none. If that is `before`, from an earlier search, all
 * rooms of the cycle fail with E_COMM. */
uint64_t tide__group_deadlock(tide__room *room, int me, uint64_t before);
/* What keeps a rank of the group, if it waits in another room: appended to buf. */
void tide__group_whereabouts(tide_group *group, const tide__room *room, int rank, char *buf,
                             size_t n, size_t *at);

#endif
