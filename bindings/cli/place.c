/* One rank of a job of processes: its position in the launcher's job, and the end of the job.
 *
 * Each process runs one rank in its main thread; the job ends as a whole, with the first failure
 * shown once, by a rank that the failing ones elect (tide_mpi_elect).
 */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

int cli_find_place(lua_State *L, place *at)
{
  static const char code[] = "return require('tide.comm.launch').describe()";
  *at = (place){0, 1, 1};
  if (tide_lua_run_string(L, code, sizeof code - 1, "=tide", 0, NULL) < 0) {
    fprintf(stderr, "tide: %.*s\n", (int)strcspn(tide_lua_message(L), "\n"), tide_lua_message(L));
    return EXIT_USAGE;
  }
  const char *text = tide_lua_result(L, NULL);
  if (text) sscanf(text, "%d %d %d", &at->rank, &at->size, &at->local_size);
  return 0;
}

bool cli_is_placed(void)
{
  return getenv("RANK") || getenv("OMPI_COMM_WORLD_RANK") || getenv("PMI_RANK") ||
         getenv("SLURM_PROCID");
}

/* Returns whether the launcher has bound this process to some of its own processors. */
static bool is_bound(int cores)
{
  cpu_set_t launcher;
  return sched_getaffinity(getppid(), sizeof launcher, &launcher) == 0 &&
         cores < CPU_COUNT(&launcher);
}

void cli_share_cores(tide_ctx *ctx, int local_size)
{
  int cores = tide_nthread(ctx), share = is_bound(cores) ? cores : cores / local_size;
  tide_set_nthread(ctx, share > 0 ? share : 1);
}

/* Decides without an election, before MPI runs or after it was aborted: rank 0 reports; the
 * launcher then ends the others. Returns true if no signal arrived meanwhile. */
static bool outlive(const place *at, int status)
{
  struct timespec ts = {(at->rank > 0 ? 3 : 0) + (status == TIDE_E_PEER ? 3 : 0), 0};
  return nanosleep(&ts, NULL) == 0;
}

static void place_report(printer *p, int rank, const char *message)
{
  char head[64];
  int code, k = snprintf(head, sizeof head, "tide: rank %d %s ", rank,
                         cli_is_exit(message, &code) ? "ended the run with" : "failed:");
  cli_write(p, rank, 1, head, (size_t)k);
  cli_write(p, rank, 1, message, strlen(message));
  cli_end_rank(NULL, rank, p);
}

static int end_well(printer *p, int rank)
{
  static const char text[] = "not all ranks have come to the end of the job after a call that "
    "failed; it is ended by force";
  if (tide_mpi_end() == TIDE_OK) return 0;
  place_report(p, rank, text);
  tide_mpi_abort(EXIT_RAISED);
  return EXIT_RAISED;
}

/* If ranks fail together, one reports and ends the job. A signal meanwhile ends the job too. */
int cli_end_job(printer *p, const place *at, const ending *how)
{
  int n = cli_signal_count();
  if (how->code == 0) return end_well(p, at->rank);
  if ((at->size == 1 || how->status >= 0) && !tide_mpi_running()) return how->code;
  fflush(NULL);
  int rc = tide_mpi_elect(how->status != TIDE_E_PEER);
  bool mine = rc == TIDE_MORE || (rc < 0 && outlive(at, how->status));
  bool silent = how->status >= 0 || at->size == 1;
  if (mine && !silent && cli_signal_count() == n) place_report(p, at->rank, how->message);
  tide_mpi_abort(how->code);
  return how->code;
}

int cli_run_placed(const run_options *o, lua_State *L, const place *at, printer *p)
{
  p->first = at->rank;
  int rc = cli_begin_rank(L, at->rank, p) == 0 && tide_host_rank_exit(L) == 0
           ? cli_run_recipe(o, L) : TIDE_E_NOMEM;
  cli_leave_trace(L);
  cli_end_rank(L, at->rank, p);
  return rc;
}
