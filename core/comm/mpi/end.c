/* The end of a process of an MPI job: with the others, or as the one that reports the error.
 *
 * Every process sends every other one how it ends. From the same facts each elects the same rank,
 * the lowest of those with the best reason, and none has to sleep longer than another. A process
 * that hangs sends nothing: after a moment the others decide without it, and the elected rank sends
 * them the result, so that a late one stays silent.
 *
 * Messages go through MPI_COMM_WORLD with its largest tag, after the last communicator is closed.
 */
#include <math.h>
#include <stdlib.h>

#include "core/comm/mpi/api.h"
#include "core/comm/wait.h"

/* How a process ends, the first to be reported first; UNKNOWN: it has sent nothing yet. */
enum { ELECTED, CAUSE, PEER, WELL, UNKNOWN };

/* Seconds to wait for the others. With a cause the job should end soon; without one some rank has
 * it, unless all that are left hang; a rank that is not elected waits to be ended. */
static const tide__patience patience = {.polls = 1, .nap = 500000, .longest = 500000};
static const double moment = 0.8, long_moment = 8, last_moment = 15;

typedef struct peer {
  tide__mpi_handle recv;
  bool receiving;
  int32_t word;          /* what is being received */
  int news;              /* the best it has sent */
} peer;

typedef struct election {
  tide__mpi *mpi;
  int rank, size, tag, mine;
  peer *peer;
} election;

static void receive(election *t, int q)
{
  peer *v = &t->peer[q];
  v->receiving = tide__mpi_recv(t->mpi, &v->word, sizeof v->word, q, t->tag, &v->recv) == 0;
}

/* Sends how this process ends. The words are small, so MPI takes them at once; it may still own
 * them when everything else has been freed. */
static void end_announce(election *t, int what)
{
  static const int32_t words[UNKNOWN] = {ELECTED, CAUSE, PEER, WELL};
  t->mine = what;
  for (int q = 0; q < t->size; q++) {
    tide__mpi_handle r;
    bool done = false;
    if (q == t->rank || tide__mpi_send(t->mpi, &words[what], sizeof words[what], q, t->tag, &r))
      continue;
    tide__mpi_test(t->mpi, &r, &done);
  }
}

static int end_begin(election *t, int what)
{
  *t = (election){0};
  TIDE_TRY(tide__mpi_attach(&t->mpi));
  t->rank = tide__mpi_rank(t->mpi);
  t->size = tide__mpi_size(t->mpi);
  t->tag = tide__mpi_max_tag(t->mpi);
  t->mine = what;
  t->peer = calloc((size_t)t->size, sizeof *t->peer);
  int rc = !t->peer ? TIDE_E_NOMEM : tide__mpi_dead(t->mpi) ? TIDE_E_STATE : TIDE_OK;
  for (int q = 0; q < t->size && !rc; q++) {
    t->peer[q].news = UNKNOWN;
    if (q != t->rank) receive(t, q);
  }
  if (!rc) end_announce(t, what);
  return rc;
}

/* Frees the election. Open receives keep the array: MPI may still own it. */
static void end(election *t)
{
  bool idle = true;
  for (int q = 0; t->peer && q < t->size; q++) idle = idle && !t->peer[q].receiving;
  if (idle) free(t->peer);
  if (t->mpi) tide__mpi_detach(t->mpi);
}

/* Receives what has arrived. A rank that fails may yet send that it is elected. */
static void look(election *t)
{
  for (int q = 0; q < t->size; q++) {
    peer *v = &t->peer[q];
    bool done = false;
    if (!v->receiving) continue;
    tide__mpi_test(t->mpi, &v->recv, &done);
    if (!done) continue;
    v->receiving = false;
    if (v->word < v->news) v->news = v->word;
    if (v->news != WELL && v->news != ELECTED) receive(t, q);
  }
}

/* Returns how many others have sent nothing; *best: the rank to be elected of those that have. */
static int count_silent(const election *t, int *best)
{
  int silent = 0, least = t->mine;
  *best = t->rank;
  for (int q = 0; q < t->size; q++) {
    if (q == t->rank) continue;
    int news = t->peer[q].news;
    silent += news == UNKNOWN;
    if (news >= WELL || news > least || (news == least && q > *best)) continue;
    least = news;
    *best = q;
  }
  return silent;
}

/* Waits until all others have sent, another is to be elected, or so many seconds have passed.
 * Returns the rank to be elected: this one if no other has a better cause. */
static int end_listen(election *t, double seconds, int *silent)
{
  tide__wait w = tide__wait_begin(&patience, seconds);
  double begin = tide_trace_clock();
  for (int best;; tide__wait_pause(&w)) {
    look(t);
    *silent = count_silent(t, &best);
    if (*silent == 0 || best != t->rank || tide_trace_clock() - begin > seconds) return best;
  }
}

static void wait_to_be_ended(election *t)
{
  tide__wait w = tide__wait_begin(&patience, last_moment);
  double begin = tide_trace_clock();
  for (; tide_trace_clock() - begin < last_moment; tide__wait_pause(&w)) look(t);
}

int tide_mpi_elect(int cause)
{
  election t;
  int silent, rc = end_begin(&t, cause ? CAUSE : PEER);
  if (rc == TIDE_OK) {
    rc = end_listen(&t, cause ? moment : long_moment, &silent) == t.rank ? TIDE_MORE : TIDE_OK;
    if (rc == TIDE_MORE) end_announce(&t, ELECTED);
    else wait_to_be_ended(&t);
  }
  end(&t);
  if (rc >= 0) return rc;
  return tide__fail(NULL, TIDE_E_STATE, "mpi_elect", "the processes of the job cannot communicate: "
                    "MPI does not run, or was given up after a failure");
}

/* Waits for the others before MPI_Finalize: here a wait costs little and can have an end. */
static int end_with_all(election *t)
{
  int silent;
  bool late = tide__mpi_was_late(t->mpi);
  if (end_listen(t, late ? last_moment : HUGE_VAL, &silent) != t->rank) wait_to_be_ended(t);
  else if (silent == 0) {
    tide__mpi_finalize(t->mpi);
    return TIDE_OK;
  }
  return TIDE_E_PEER;
}

int tide_mpi_end(void)
{
  election t;
  int rc = end_begin(&t, WELL);
  if (rc == TIDE_OK) rc = end_with_all(&t);
  else if (rc == TIDE_E_STATE) rc = t.mpi ? TIDE_E_PEER : TIDE_OK; /* null: MPI does not run */
  end(&t);
  if (rc >= 0) return rc;
  return tide__fail(NULL, rc, "mpi_end", "some processes of the job have not ended well; this one "
                    "must abort");
}
