/* A communicator over MPI: its state, and the gate that calls pass before data move.
 *
 * The one idea: before its part of a collective each rank sends every other rank a packet that says
 * which call it is in. A rank that has everyone's packet knows that all have come and, as all
 * compare the same packets, every rank reaches the same verdict. A rank that cannot go on sends a
 * packet of another kind instead, so nobody waits for it.
 *
 * A communicator has two tags of the private world: one for packets, one for data. Packets of one
 * rank arrive in order; one receive per peer is always posted, except while its inbox is read.
 *
 * Invariants: `busy` is held by whoever runs a collective or sends a packet. done counts finished
 * collectives: a farewell with done >= n does not concern call n. Each rank says farewell exactly
 * once, so what a communicator that is closed has yet to receive is known (tide__mpi_owe).
 *
 * Memory is malloc's: MPI may still own some of it when the context is gone. Layer 4.
 */
#ifndef TIDE_COMM_MPI_H
#define TIDE_COMM_MPI_H

#include "core/comm/comm.h"
#include "core/comm/mpi/api.h"

enum { TIDE__MPI_CALL = 1, TIDE__MPI_FAIL, TIDE__MPI_LEAVE };

typedef struct tide__mpi_packet {
  int32_t kind, status;        /* FAIL: why */
  int64_t seq;                 /* CALL: its number; else the calls finished */
  tide__call_words words;
  int32_t to, from, nseg;      /* send_recv */
  int64_t give_n, take_n;      /* its first tensors */
  int32_t give_type, take_type;
  uint64_t give, take;         /* counts and dtypes of all, hashed */
  char site[TIDE__SITE];
  int64_t nmore;               /* bytes in use behind the packet: counts, or a text */
  char more[];
} tide__mpi_packet;

typedef struct tide__mpi_peer {
  tide__mpi_handle recv, send;
  bool receiving, sending, here; /* here: the inbox holds a packet that has not been used */
  tide__mpi_packet *inbox;
  tide__call_words words;      /* the last call it announced, for messages */
  int64_t seq;
  char site[TIDE__SITE];
} tide__mpi_peer;

typedef struct tide__mpi_comm {
  tide__mpi *mpi;
  int rank, nrank, tag, pid;
  bool check, crowd;           /* crowd: more ranks than processors */
  int shared;                  /* waits to come without spinning: others use the processors */
  int *member;                 /* ranks in MPI's world, by rank here */
  size_t room;                 /* bytes behind a packet */
  tide__mpi_packet *out, *bye, *farewell; /* a call, a failure, the end */
  bool left;                   /* the farewell has been sent */
  tide__mpi_peer *peer;
  int nreq;                    /* data requests under way, of req; who: their peers */
  tide__mpi_handle *req;
  int *who;
  bool *incoming, *over;
  char *scratch;               /* 2 * TIDE__MPI_CHUNK and a little; pages are used when touched */
  int64_t done;
  pthread_mutex_t busy, lock;  /* lock: cause, text, told */
  atomic_int failed;           /* cause, set after text */
  int cause, cause_rank;
  bool told;                   /* the others know */
  char text[TIDE__COMM_TEXT], name[TIDE__COMM_NAME];
} tide__mpi_comm;

enum { TIDE__MPI_CHUNK = 4 << 20, TIDE__MPI_PIECE = 1 << 30 };

/* Null: no memory. id numbers the communicator; it takes a reference to m. */
tide__mpi_comm *tide__mpi_comm_new(tide__mpi *m, int id, int rank, int nrank, const int *member,
                                   bool check, const char *name);
void tide__mpi_comm_free(tide__mpi_comm *s);

/* What a wait has used up. */
typedef struct tide__mpi_patience {
  double start, limit;         /* limit: seconds of yielding before naps */
  int64_t polls, spins;        /* spins: polls before yielding, where each rank has a processor */
  long nap;
} tide__mpi_patience;
void tide__mpi_be_patient(tide__mpi_comm *s, tide__mpi_patience *p, int64_t spins, double limit);
/* A pause between two looks. True now and then: time to look around. */
bool tide__mpi_pause(tide__mpi_comm *s, tide__mpi_patience *p);

/* move.c: data of any collective but split, after the gate. */
int  tide__mpi_move(tide__mpi_comm *s, tide__coll *c);
/* Everyone's size bytes into all, in rank order, within call c. */
int  tide__mpi_swap(tide__mpi_comm *s, tide__coll *c, const void *mine, void *all, size_t size);

/* All ranks have come and agree, or the failure, with c->message. */
int  tide__mpi_gate(tide__mpi_comm *s, tide__coll *c);
/* During data: 0, or why the call cannot end: a peer that failed in it, an abort, an interrupt. */
int  tide__mpi_trouble(tide__mpi_comm *s, tide__coll *c);
/* Says farewell, with this text. */
void tide__mpi_leave(tide__mpi_comm *s, const char *text);
/* Keeps the first failure, sends it to the others and answers with it. Under busy. */
int  tide__mpi_fail(tide__mpi_comm *s, tide__coll *c, int status, const char *text);
/* As fail, for a rank that waited too long for `who`. */
int  tide__mpi_late(tide__mpi_comm *s, tide__coll *c, const bool *missing);
/* Any thread: fails now if nothing is under way, else as soon as it looks. */
void tide__mpi_poison(tide__mpi_comm *s, int status, const char *text);
int  tide__mpi_cause(tide__mpi_comm *s, int rank, char *text, size_t n);

#endif
