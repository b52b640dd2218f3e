/* The end of a process of an MPI job: with the others, or as the one that says why there is none.
 *
 * The one idea: every process tells every other one how it ends, and hears the same. What all know
 * needs no order of sleeping: the lowest of the best reasons is elected by each alike. A process
 * that hangs tells nothing; after a moment those that have spoken decide, and the one that is
 * elected says so to the others, so that a late one keeps silent.
 *
 * Messages go through MPI_COMM_WORLD with its largest tag, after the last communicator is closed.
 *
 * Layer 4.
 */
#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "core/comm/mpi/api.h"
#include "tide/tide.h"

/* How a process ends, the best reason first; NEWS: nothing heard of it yet. */
enum { ELECTED, CAUSE, PEER, WELL, NEWS };

/* Seconds to wait for the news of others. With a cause the job should end soon; without one some
 * rank has it, unless all that are left hang; who is not elected waits to be ended. */
static const double moment = 0.8, long_moment = 8, last_moment = 15;

typedef struct voice {
  tide__mpi_handle recv;
  bool receiving;
  int32_t word;          /* what is being received */
  int news;              /* the best it has said */
} voice;

typedef struct talk {
  tide__mpi *mpi;
  int rank, size, tag, mine;
  voice *voice;
} talk;

static void hear(talk *t, int q)
{
  voice *v = &t->voice[q];
  v->receiving = tide__mpi_recv(t->mpi, &v->word, sizeof v->word, q, t->tag, &v->recv) == 0;
}

/* Says how this process ends. The words are small, so MPI takes them at once; it may still own them
 * when everything else has gone. */
static void say(talk *t, int what)
{
  static const int32_t words[NEWS] = {ELECTED, CAUSE, PEER, WELL};
  t->mine = what;
  for (int q = 0; q < t->size; q++) {
    tide__mpi_handle r;
    bool done = false;
    if (q == t->rank || tide__mpi_send(t->mpi, &words[what], sizeof words[what], q, t->tag, &r))
      continue;
    tide__mpi_test(t->mpi, &r, &done);
  }
}

static int begin(talk *t, int what)
{
  *t = (talk){0};
  int rc = tide__mpi_attach(&t->mpi);
  if (rc) return rc;
  t->rank = tide__mpi_rank(t->mpi);
  t->size = tide__mpi_size(t->mpi);
  t->tag = tide__mpi_max_tag(t->mpi);
  t->mine = what;
  t->voice = calloc((size_t)t->size, sizeof *t->voice);
  rc = !t->voice ? TIDE_E_NOMEM : tide__mpi_dead(t->mpi) ? TIDE_E_STATE : TIDE_OK;
  for (int q = 0; q < t->size && !rc; q++) {
    t->voice[q].news = NEWS;
    if (q != t->rank) hear(t, q);
  }
  if (!rc) say(t, what);
  return rc;
}

/* Open receives keep the voices: MPI may still own them. */
static void end(talk *t)
{
  bool idle = true;
  for (int q = 0; t->voice && q < t->size; q++) idle = idle && !t->voice[q].receiving;
  if (idle) free(t->voice);
  if (t->mpi) tide__mpi_detach(t->mpi);
}

/* Takes in what has come. A rank that fails may yet say that it is elected. */
static void look(talk *t)
{
  for (int q = 0; q < t->size; q++) {
    voice *v = &t->voice[q];
    bool done = false;
    if (!v->receiving) continue;
    tide__mpi_test(t->mpi, &v->recv, &done);
    if (!done) continue;
    v->receiving = false;
    if (v->word < v->news) v->news = v->word;
    if (v->news != WELL && v->news != ELECTED) hear(t, q);
  }
}

/* How many others have said nothing; *best: the rank to be elected of those that have. */
static int count_silent(const talk *t, int *best)
{
  int silent = 0, least = t->mine;
  *best = t->rank;
  for (int q = 0; q < t->size; q++) {
    if (q == t->rank) continue;
    int news = t->voice[q].news;
    silent += news == NEWS;
    if (news >= WELL || news > least || (news == least && q > *best)) continue;
    least = news;
    *best = q;
  }
  return silent;
}

static void nap(void)
{
  static const struct timespec ts = {0, 500000};
  nanosleep(&ts, NULL);
}

/* Until all others have spoken, another is to be elected, or so many seconds have passed. Returns
 * the rank to be elected: this one if no other has a better cause. */
static int listen(talk *t, double seconds, int *silent)
{
  double begin = tide_trace_clock();
  int best;
  for (;;) {
    look(t);
    *silent = count_silent(t, &best);
    if (*silent == 0 || best != t->rank || tide_trace_clock() - begin > seconds) return best;
    nap();
  }
}

static void wait_to_be_ended(talk *t)
{
  double begin = tide_trace_clock();
  for (; tide_trace_clock() - begin < last_moment; nap()) look(t);
}

int tide_mpi_elect(int cause)
{
  talk t;
  int silent, rc = begin(&t, cause ? CAUSE : PEER);
  if (rc == TIDE_OK) {
    rc = listen(&t, cause ? moment : long_moment, &silent) == t.rank ? TIDE_MORE : TIDE_OK;
    if (rc == TIDE_MORE) say(&t, ELECTED);
    else wait_to_be_ended(&t);
  }
  end(&t);
  return rc == TIDE_E_NOMEM ? TIDE_E_STATE : rc;
}

/* Who ends well waits for the others here, where a wait costs little and may have an end, rather
 * than in MPI_Finalize. */
static int end_well(talk *t)
{
  int silent;
  bool late = tide__mpi_was_late(t->mpi);
  if (listen(t, late ? last_moment : HUGE_VAL, &silent) != t->rank) wait_to_be_ended(t);
  else if (silent == 0) {
    tide__mpi_finalize(t->mpi);
    return TIDE_OK;
  }
  return TIDE_E_PEER;
}

int tide_mpi_end(void)
{
  talk t;
  int rc = begin(&t, WELL);
  if (rc == TIDE_OK) rc = end_well(&t);
  else if (rc == TIDE_E_STATE) rc = t.mpi ? TIDE_E_PEER : TIDE_OK; /* null: MPI does not run */
  end(&t);
  return rc;
}
