/* The description of a collective that ranks send each other: flat bytes without pointers, and its
 * text. Every transport carries the same bytes (a slot in shared memory, a packet of MPI, a gather
 * of NCCL). Only agree.c compares them, and messages are written from them. */
#pragma once

#include "core/base/base.h"

enum {
  TIDE__ALL_REDUCE, TIDE__REDUCE, TIDE__BROADCAST, TIDE__ALL_GATHER, TIDE__ALL_GATHER_V,
  TIDE__REDUCE_SCATTER, TIDE__REDUCE_SCATTER_V, TIDE__ALL_TO_ALL, TIDE__ALL_TO_ALL_V,
  TIDE__GATHER, TIDE__SCATTER, TIDE__SEND_RECV, TIDE__BARRIER, TIDE__SPLIT,
  TIDE__REPLAY,                /* of a captured step with calls of the communicator */
  TIDE__NCOLL
};

enum { TIDE__SHOWN = 4 };

enum { TIDE__MAX_RANK = 1024, TIDE__SITE = 64, TIDE__COMM_NAME = 48, TIDE__COMM_TEXT = 960 };

struct tide__coll;

/* The part that must be equal on all ranks. Compared as bytes: it has no padding. */
typedef struct tide__call_same {
  int8_t   op, reduce, dtype;  /* reduce, dtype: -1 if not applicable */
  int8_t   device;             /* number of the device that holds the operands; -1: host memory */
  int32_t  root;               /* -1: none */
  int64_t  count;              /* elements; -1: each pair of ranks has its own */
  int64_t  ntensor;            /* of a list; 0: one tensor, or send_recv */
  uint64_t hash;               /* of shapes; of counts, dtypes and shapes in lists */
  int32_t  shape[TIDE__SHOWN]; /* of one tensor of 2 to so many dims, for messages: size + 1 */
} tide__call_same;

typedef struct tide__comm_call {
  int64_t  seq;                /* number of the call; 0: none yet */
  tide__call_same same;
  int32_t  to, from;           /* send_recv: ranks, -1: none */
  int32_t  ntensor, device;    /* send_recv: as above */
  uint64_t sent, expected;     /* send_recv: hashes of device, counts and dtypes */
  char     site[TIDE__SITE];   /* file and line of the caller, ended by 0 */
} tide__comm_call;

/* A call and its list of tide__call_nlist words: what the rank sends to and expects from each rank
 * (all_to_all_v: elements, by rank), or each tensor as elements << 8 | dtype (send_recv). */
typedef struct tide__call_ref {
  const tide__comm_call *call;
  const int64_t *list;
} tide__call_ref;

/* Returns the number of words in a list. Tensors beyond half of it are compared by their hash
 * alone. */
static inline int tide__call_nlist(int nrank) { return nrank < 16 ? 32 : 2 * nrank; }

/* Fills *call, and list (may be null) if the op has one. Returns whether the op has one. */
bool tide__call_of(const struct tide__coll *c, int nrank, tide__comm_call *call, int64_t *list);

/* Returns TIDE_OK, or TIDE_E_COMM with the reason and every rank's call in text: the same on every
 * rank. name: of the communicator. */
int tide__agree(const tide__call_ref *calls, int nrank, const char *name, char *text, size_t n);

/* ---- text ------------------------------------------------------------------------------------ */

/* Adds "all_reduce(sum, f32, 1000 elements)". */
void tide__add_call(tide__text *t, const tide__comm_call *call);
/* Adds "#3 all_reduce(sum, f32, 1000 elements) on 'world' at train.lua:12"; name null: no "on". */
void tide__add_where(tide__text *t, const tide__comm_call *call, const char *name);
/* Adds a line about a rank that has not arrived. last: its last call here. */
void tide__add_missing(tide__text *t, int rank, const tide__comm_call *last);
/* Adds "rank 1 waited 5 s in" or, with TIDE_E_INTERRUPT, "rank 1 was interrupted in", and where. */
void tide__add_ended(tide__text *t, int status, int rank, const struct tide__coll *c,
                     const char *name);
/* Adds "rank 1 has left 'world' after" and its last call. */
void tide__add_left(tide__text *t, int rank, const char *name, const tide__comm_call *last);
/* Adds call c and the n ranks that have paused without making it. */
void tide__add_absent(tide__text *t, const struct tide__coll *c, const char *name, const int *rank,
                      int n);

/* Returns the hash h, extended by the word v. */
uint64_t tide__hash_step(uint64_t h, uint64_t v);
