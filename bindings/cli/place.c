/* One rank of a job of processes: where the launcher has put it, and how the job ends.
 *
 * The one idea: each process runs one rank in its main thread; the job ends as a whole, with the
 * first failure shown by the rank that had it.
 */
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

int cli_find_place(lua_State *L, place *at)
{
  static const char code[] = "return require('tide.dist.launch').describe()";
  *at = (place){0, 1, 1};
  if (tide_lua_run_string(L, code, sizeof code - 1, "=tide", 0, NULL) < 0) {
    fprintf(stderr, "tide: %.*s\n", (int)strcspn(tide_lua_message(L), "\n"), tide_lua_message(L));
    return EXIT_USAGE;
  }
  const char *text = tide_lua_result(L, NULL);
  if (text) sscanf(text, "%d %d %d", &at->rank, &at->size, &at->local_size);
  return 0;
}

static int cores_of(pid_t pid)
{
  cpu_set_t set;
  int n = sched_getaffinity(pid, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
  return n > 0 ? n : 1;
}

/* A share of the host, unless the launcher has bound this process to some of its processors. */
int cli_share_of_cores(int local_size)
{
  int mine = cores_of(0);
  if (mine < cores_of(getppid())) return mine;
  return mine / local_size > 0 ? mine / local_size : 1;
}

static void sleep_seconds(double seconds)
{
  struct timespec ts = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};
  nanosleep(&ts, NULL);
}

/* Of ranks that fail together the lowest speaks, and ends the job before the next would. Those that
 * stop because of another wait longer. A signal meanwhile is the end of the job. */
static void report_in_turn(printer *p, const place *at, int status, const char *message)
{
  char head[64];
  int turn = at->rank < 2 ? at->rank : 2, n = cli_signal_count(), code;
  if (cli_is_exit(message, &code)) return;
  sleep_seconds((status == TIDE_E_PEER ? 1.5 : 0) + 0.6 * turn);
  if (cli_signal_count() > n) return;
  int k = snprintf(head, sizeof head, "tide: rank %d failed: ", at->rank);
  cli_write(p, at->rank, 1, head, (size_t)k);
  cli_write(p, at->rank, 1, message, strlen(message));
}

/* The state is closed: the other ranks know, and have a moment to print what they have. */
int cli_end_job(int code)
{
  if (!tide_mpi_running()) return code;
  if (code == 0) {
    tide_mpi_end();
    return 0;
  }
  fflush(NULL);
  sleep_seconds(0.4);
  tide_mpi_abort(code);
  return code;
}

int cli_run_placed(const run_options *o, lua_State *L, const place *at, printer *p)
{
  p->first = at->rank;
  int rc = cli_begin_rank(L, at->rank, p) == 0
           ? tide_lua_run_file(L, o->recipe, o->narg, o->args) : TIDE_E_NOMEM;
  cli_leave_trace(L);
  cli_end_rank(L, at->rank, p);
  if (rc < 0) report_in_turn(p, at, rc, tide_lua_message(L));
  cli_end_rank(L, at->rank, p);
  return rc;
}
