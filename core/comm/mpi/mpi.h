/* A communicator over MPI: its state, and the packets that ranks exchange before data move.
 *
 * Before its part of a collective each rank sends every other rank a packet that
 * describes the call. A rank that has everyone's packet knows that all have arrived and, as all
 * compare the same packets, every rank reaches the same verdict. A rank that cannot continue sends
 * a packet of another kind instead, so no rank waits for it.
 *
 * A communicator has two tags of the private world: one for packets, one for data. Packets of one
 * rank arrive in order. One receive per rank is always posted, except while its inbox is read.
 *
 * Invariants: `busy` is held while a collective runs or a packet is sent. done counts finished
 * collectives: a farewell with done >= n does not concern call n. Each rank sends one farewell, so
 * what a communicator that is closed has yet to receive is known (tide__mpi_owe).
 *
 * Memory is malloc's: MPI may still own some of it when the context is gone.
 */
#pragma once

#include "core/comm/comm.h"
#include "core/comm/mpi/api.h"

enum { TIDE__MPI_CALL = 1, TIDE__MPI_FAIL, TIDE__MPI_LEAVE };

typedef struct tide__mpi_packet {
  int32_t kind, status;        /* FAIL: why */
  int32_t alone, spare;        /* CALL: the sender does nothing else until the call ends */
  int64_t done;                /* FAIL, LEAVE: the sender's finished calls */
  tide__comm_call call;        /* CALL */
  int64_t nmore;               /* bytes in use behind the packet: the call's list, or a text */
  int64_t more[];
} tide__mpi_packet;

typedef struct tide__mpi_peer {
  tide__mpi_handle recv, send;
  bool receiving, sending, here; /* here: the inbox holds a packet that has not been used */
  tide__mpi_packet *inbox;
  tide__comm_call last;        /* the last call it announced, for messages */
  int64_t sent, got;           /* packets */
} tide__mpi_peer;

typedef struct tide__mpi_request {
  tide__mpi_handle handle;
  int with_rank;               /* its other end */
  bool incoming, over;
} tide__mpi_request;

typedef struct tide__mpi_comm tide__mpi_comm;

struct tide__mpi_comm {
  tide__mpi *mpi;
  int rank, nrank, tag, pid;
  bool check, crowd;           /* crowd: more ranks than processors */
  int shared;                  /* see tide__wait_share */
  int *member;                 /* ranks in MPI's world, by rank here */
  size_t room;                 /* bytes behind a packet */
  tide__mpi_packet *out, *bye, *farewell; /* a call, a failure, the end */
  bool left;                   /* the farewell has been sent */
  tide__mpi_peer *peer;
  int nreq;                    /* data requests under way, of req */
  tide__mpi_request *req;
  char *scratch;               /* 2 * TIDE__MPI_CHUNK and a little; pages are used when touched */
  int64_t done, called;        /* called: the last call that this rank has announced */
  pthread_mutex_t busy;
  tide__failure failure;
  atomic_int told;             /* the other ranks were sent the failure */
  struct tide__mpi_turn *turn; /* turn.c */
  tide__mpi_comm *next;        /* of turn's list */
  double absent_since, stopped_since; /* of the call: a rank will not come; an interrupt */
  double search_at;            /* of the call: the next search for crossed calls */
  bool crossed;                /* of the call: the last search found some */
  int64_t nmend;
  char name[TIDE__COMM_NAME];
};

enum { TIDE__MPI_CHUNK = 4 << 20, TIDE__MPI_PIECE = 1 << 30 };

/* ---- exchange.c ------------------------------------------------------------------------------ */

/* Returns null if there is no memory. id: the number of the communicator. Takes a reference to
 * m. */
tide__mpi_comm *tide__mpi_comm_new(tide__mpi *m, int id, int rank, int nrank, const int *member,
                                   bool check, const char *name);
void tide__mpi_comm_free(tide__mpi_comm *s);

/* Begins a wait; spins: polls before it yields, where each rank has a processor. */
tide__wait tide__mpi_wait(tide__mpi_comm *s, const tide__coll *c, int spins, double yield);
/* Exchanges calls with all ranks. Returns TIDE_OK if they agree, or the failure, with
 * c->message. */
int  tide__mpi_exchange(tide__mpi_comm *s, tide__coll *c);
/* Returns 0, or why the call cannot end, with c->message: a rank that failed in it, an abort, an
 * interrupt, or the clock of w (may be null), for which `missing` gets the blame. */
int  tide__mpi_look(tide__mpi_comm *s, tide__coll *c, tide__wait *w,
                    bool (*missing)(tide__mpi_comm *s, int q));
/* Sets the failure, sends it to the others and returns it with c->message. The caller holds
 * busy. */
int  tide__mpi_fail(tide__mpi_comm *s, tide__coll *c, int status, const char *text);
/* Sends the farewell, with this text. */
void tide__mpi_leave(tide__mpi_comm *s, const char *text);
/* Sets the failure and sends it to the others, now if no call is under way, else by that call.
 * Thread-safe. */
void tide__mpi_abort(void *state, int rank, int status, const char *text);

/* Receives what is left of the packets that rank q has sent, n in all. Returns false if they do not
 * arrive within so many seconds. Between turns. */
bool tide__mpi_drain(tide__mpi_comm *s, int q, int64_t n, double seconds);
/* Forgets the failure and all calls. Between turns. */
void tide__mpi_renew(tide__mpi_comm *s);

/* ---- turn.c ---------------------------------------------------------------------------------- */

/* The turns of a world's ranks; see tide_comm_pause. */
typedef struct tide__mpi_turn tide__mpi_turn;

tide__mpi_turn *tide__mpi_turn_new(tide__mpi *m); /* null: no memory */
void tide__mpi_turn_add(tide__mpi_turn *t, tide__mpi_comm *s);
/* Takes s off its turns, which end with their last communicator. */
void tide__mpi_turn_remove(tide__mpi_comm *s);
bool tide__mpi_turn_active(const tide__mpi_comm *s);
/* Returns how many of the missing ranks have ended their turn without call c; absent receives
 * them. 0 also while others of them may still arrive, for a moment. */
int  tide__mpi_turn_look(tide__mpi_comm *s, const tide__coll *c,
                         bool (*missing)(tide__mpi_comm *s, int q), int *absent);
/* Calls fn(o, arg) for every other communicator of this process's world. */
void tide__mpi_turn_others(tide__mpi_comm *s, void (*fn)(tide__mpi_comm *o, void *arg), void *arg);
/* Returns whether an interrupted wait continues: the ranks are interrupted together, and those that
 * have announced the call would move data. */
bool tide__mpi_turn_holds(tide__mpi_comm *s);

/* ---- move.c ---------------------------------------------------------------------------------- */

/* Moves the data of any collective but split. Returns a status. */
int  tide__mpi_move(tide__mpi_comm *s, tide__coll *c);
/* Gathers everyone's size bytes into all, in rank order, within call c. */
int  tide__mpi_swap(tide__mpi_comm *s, tide__coll *c, const void *mine, void *all, size_t size);
