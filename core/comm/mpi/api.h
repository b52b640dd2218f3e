/* MPI as this library uses it: opened at run time, one table for the two binary interfaces.
 *
 * Open MPI's handles are pointers to objects of the library, MPICH's (and those of
 * its relatives) are ints with fixed values. Both fit a union; each call exists twice, made from
 * one macro, and a table picks the right set once. Only point-to-point calls are used, on a
 * private copy of MPI_COMM_WORLD: what they do can be polled, so waits have an end.
 *
 * Invariants: calls on requests are serialised here when MPI gave less than MPI_THREAD_MULTIPLE. A
 * process that has had to leave requests behind is `dead`: MPI makes no more progress there, so it
 * cannot touch memory that has been given back. Every message is received: what closed
 * communicators are owed is taken in by a hook that MPI_Finalize runs first (an attribute of
 * MPI_COMM_SELF).
 */
#pragma once

#include "core/base/base.h"

enum { TIDE__MPI_SERIALIZED = 2, TIDE__MPI_MULTIPLE = 3 };

typedef union tide__mpi_handle { int i; void *p; } tide__mpi_handle;

typedef struct tide__mpi tide__mpi;

/* Loads libmpi and initialises MPI unless it is initialised; makes a private world. library: a file
 * name, or null for the usual ones. Collective over the processes of the job. TIDE_E_UNSUPPORTED
 * (no MPI here), E_STATE, E_COMM, E_NOMEM, with a message. refs 1. */
int  tide__mpi_open(tide__mpi **out, const char *library, char *msg, size_t n);
tide__mpi *tide__mpi_hold(tide__mpi *m);
void tide__mpi_drop(tide__mpi *m);

/* Attaches to MPI as it runs in this process, at its end: on MPI_COMM_WORLD itself, with tags that
 * no communicator of this library uses there. TIDE_E_STATE: MPI does not run. */
int  tide__mpi_attach(tide__mpi **out);
void tide__mpi_detach(tide__mpi *m);
void tide__mpi_finalize(tide__mpi *m);

int  tide__mpi_rank(const tide__mpi *m);
int  tide__mpi_size(const tide__mpi *m);
/* Returns the level of threads that MPI provides: FUNNELED 1, SERIALIZED 2, MULTIPLE 3. */
int  tide__mpi_level(const tide__mpi *m);
/* Returns whether the calling thread may make MPI calls. */
bool tide__mpi_my_thread(tide__mpi *m);
int  tide__mpi_max_tag(const tide__mpi *m);
/* Returns the next number of a communicator: the least that this process has not seen in use. */
int  tide__mpi_next_id(const tide__mpi *m);
void tide__mpi_raise_id(tide__mpi *m, int next);
/* Counts a packet that will arrive after its communicator is closed; it is received when MPI
 * ends. */
void tide__mpi_owe(tide__mpi *m);
/* Notes that a call of this process timed out on another. */
void tide__mpi_note_late(tide__mpi *m);
bool tide__mpi_was_late(const tide__mpi *m); /* of an attached one */
/* Ends the use of MPI in this process: it is `dead`, see above. */
void tide__mpi_give_up(tide__mpi *m);
bool tide__mpi_dead(const tide__mpi *m);
void tide__mpi_host(tide__mpi *m, char *buf, size_t n);

/* Start to send or receive bytes, to and from a rank of the world. Return 0 or MPI's error code. */
int  tide__mpi_send(tide__mpi *m, const void *p, size_t n, int to, int tag, tide__mpi_handle *r);
int  tide__mpi_recv(tide__mpi *m, void *p, size_t n, int from, int tag, tide__mpi_handle *r);
/* Returns whether a message of a rank of the world waits that no receive has matched. */
bool tide__mpi_sent_more(tide__mpi *m, int from, int tag);
/* Tests a request. *done: it is complete and freed. */
int  tide__mpi_test(tide__mpi *m, tide__mpi_handle *r, bool *done);
/* Cancels a receive that no message has matched; test it afterwards. */
void tide__mpi_cancel(tide__mpi *m, tide__mpi_handle *r);
/* Returns MPI's text for an error code. */
const char *tide__mpi_error(tide__mpi *m, int code, char *buf, size_t n);
