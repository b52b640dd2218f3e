/* Several ranks as threads of this process, and which one failed.
 *
 * The cause is shown once: usually last, when all ranks have ended and the number of ranks with the
 * same message is known; but a rank may run on for long (a loop without calls of tide), so a
 * watcher thread shows it after a second. A rank that has not ended after the grace period ends
 * with the process.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

static void end_thread(lua_State *L, int rank, void *user)
{
  cli_leave_trace(L);
  cli_end_rank(L, rank, user);
}

static bool fill_job(tide_host_ranks *r, const run_options *o)
{
  int rc = o->code ? tide_host_ranks_code(r, o->code, strlen(o->code), o->recipe)
                   : tide_host_ranks_file(r, o->recipe);
  for (int i = 0; i < o->narg && rc == 0; i++) rc = tide_host_ranks_arg(r, o->args[i]);
  if (rc == 0) rc = tide_host_ranks_nthread(r, o->nthread);
  if (rc == 0) rc = tide_host_ranks_params(r, o->params, 1);
  if (rc == 0 && o->grace >= 0) rc = tide_host_ranks_grace(r, o->grace);
  return rc == 0;
}

static bool same_line(const char *a, const char *b)
{
  size_t n = strcspn(a, "\n");
  return n == strcspn(b, "\n") && memcmp(a, b, n) == 0;
}

typedef struct job {
  printer out;              /* first member: the hooks receive it */
  tide_host_ranks *ranks;
  int nrank;
  pthread_mutex_t lock;     /* failed, over */
  pthread_cond_t changed;
  bool failed, over;
  bool shown;               /* the watcher's, then the main thread's */
} job;

enum { MOMENT = 1 }; /* seconds that the other ranks have to end */

static void show_cause(const job *j, const char *cause, int same)
{
  int n = (int)strcspn(cause, "\n"), first = tide_host_ranks_first(j->ranks), code;
  if (cli_is_exit(cause, &code))
    fprintf(stderr, "tide: rank %d ended the run with %s\n", first, cause);
  else if (same == j->nrank - 1 && !strstr(cause, "\nstack traceback:"))
    fprintf(stderr, "tide: %s\n", cause);
  else if (same > 0)
    fprintf(stderr, "tide: rank %d failed: %.*s (%d more say the same)%s\n", first, n, cause, same,
            cause + n);
  else
    fprintf(stderr, "tide: rank %d failed: %s\n", first, cause);
}

/* Prints the cause last, unless it has been shown, and the others in one line each, unless they
 * repeat it. */
static void threads_report(const job *j)
{
  int first = tide_host_ranks_first(j->ranks), same = 0, code;
  const char *cause = first >= 0 ? tide_host_ranks_message(j->ranks, first) : "";
  for (int i = 0; i < j->nrank; i++) {
    int status = tide_host_ranks_status(j->ranks, i);
    const char *message = tide_host_ranks_message(j->ranks, i);
    if (i == first || status >= 0 || status == TIDE_E_PEER || cli_is_exit(message, &code)) continue;
    if (same_line(message, cause)) same++;
    else if (strncmp(message, "rank ", 5) == 0) /* abandoned; the cause is shown below or above */
      fprintf(stderr, "tide: %.*s\n", (int)strcspn(message, ";"), message);
    else fprintf(stderr, "tide: rank %d: %.*s\n", i, (int)strcspn(message, "\n"), message);
  }
  if (first >= 0 && !j->shown) show_cause(j, cause, same);
}

static void on_failure(int rank, void *user)
{
  job *j = user;
  (void)rank;
  pthread_mutex_lock(&j->lock);
  j->failed = true;
  pthread_cond_signal(&j->changed);
  pthread_mutex_unlock(&j->lock);
}

/* Waits for a failure, then for the end of the job, which may take long. */
static void *watch(void *user)
{
  job *j = user;
  struct timespec until;
  int rc = 0;
  pthread_mutex_lock(&j->lock);
  while (!j->failed && !j->over) pthread_cond_wait(&j->changed, &j->lock);
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += MOMENT;
  while (!j->over && rc == 0) rc = pthread_cond_timedwait(&j->changed, &j->lock, &until);
  bool late = !j->over;
  pthread_mutex_unlock(&j->lock);
  if (!late) return NULL;
  const char *cause = tide_host_ranks_message(j->ranks, tide_host_ranks_first(j->ranks));
  pthread_mutex_lock(&j->out.lock);
  show_cause(j, cause, 0);
  pthread_mutex_unlock(&j->out.lock);
  j->shown = true;
  return NULL;
}

/* Runs the ranks beside a watcher. Without one (no thread available) the cause is printed at the
 * end. */
static int run_watched(job *j)
{
  pthread_condattr_t attr;
  pthread_t watcher;
  pthread_mutex_init(&j->out.lock, NULL);
  pthread_mutex_init(&j->lock, NULL);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&j->changed, &attr);
  pthread_condattr_destroy(&attr);
  tide_host_ranks_hooks hooks = {cli_begin_rank, end_thread, on_failure, j};
  tide_host_ranks_set_hooks(j->ranks, &hooks);
  bool watched = pthread_create(&watcher, NULL, watch, j) == 0;
  cli_set_running(NULL, j->ranks);
  int rc = tide_host_ranks_run(j->ranks);
  cli_set_running(NULL, NULL);
  pthread_mutex_lock(&j->lock);
  j->over = true;
  pthread_cond_signal(&j->changed);
  pthread_mutex_unlock(&j->lock);
  if (watched) pthread_join(watcher, NULL);
  threads_report(j);
  pthread_cond_destroy(&j->changed);
  pthread_mutex_destroy(&j->lock);
  pthread_mutex_destroy(&j->out.lock);
  return rc;
}

/* Ends the process without exit(), which would free what a running rank still uses. */
static void end_process(int code)
{
  fflush(stdout);
  fprintf(stderr, "tide: the process ends with that rank\n");
  fflush(stderr);
  _exit(code);
}

int cli_run_threads(const run_options *o, int *status)
{
  job j = {.ranks = tide_host_ranks_new(o->nrank, NULL), .nrank = o->nrank};
  j.out = (printer){.lines = calloc((size_t)o->nrank, sizeof *j.out.lines), .options = o};
  int code = EXIT_RAISED;
  *status = TIDE_E_NOMEM;
  if (j.ranks && j.out.lines && fill_job(j.ranks, o)) {
    *status = run_watched(&j);
    int first = tide_host_ranks_first(j.ranks);
    const char *cause = first >= 0 ? tide_host_ranks_message(j.ranks, first) : "";
    code = cli_exit_code(*status, first >= 0 ? cause : "\nstack traceback:");
    if (tide_host_ranks_running(j.ranks) > 0) end_process(code);
  } else {
    cli_complain("out of memory");
  }
  free(j.out.line.text);
  free(j.out.lines);
  tide_host_ranks_free(j.ranks);
  return code;
}
