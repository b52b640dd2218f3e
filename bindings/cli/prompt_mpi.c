/* `tide repl` under a launcher: each process is a rank, and that of rank 0 has the prompt.
 *
 * The main thread starts MPI, connects the processes (link.c) and, on rank 0, reads the lines; on
 * the others it waits. The rank runs in a thread of its own, as with -n.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "link.h"

typedef struct rank_job {
  cli_board *board;
  const run_options *options;
  const place *at;
  int code;                    /* an exit code; message: empty unless the rank failed */
  char message[2048];
} rank_job;

/* Runs Lua code of lua/tide/repl. Returns 0 or a status, with the message. */
static int run_code(lua_State *L, const char *code, rank_job *j)
{
  int rc = tide_lua_run_string(L, code, strlen(code), "=repl", 0, NULL);
  snprintf(j->message, sizeof j->message, "%s", rc < 0 ? tide_lua_message(L) : "");
  j->code = cli_exit_code(rc, j->message);
  int unused;
  if (rc < 0 && cli_is_exit(j->message, &unused)) j->message[0] = 0;
  return rc;
}

static int rank_prepare(lua_State *L, rank_job *j)
{
  int rc = cli_set_device(L, j->options->device);
  if (rc == 0) rc = cli_board_show(j->board, L, j->at->rank);
  if (rc == 0) rc = tide_host_rank_exit(L);
  if (rc == 0) return 0;
  snprintf(j->message, sizeof j->message, "out of memory");
  j->code = EXIT_RAISED;
  return rc;
}

static void *run_rank(void *user)
{
  rank_job *j = user;
  tide_ctx *ctx;
  lua_State *L;
  int rc = j->code = cli_open(j->options, &ctx, &L);
  if (rc == 0) {
    if (j->options->nthread == 0) cli_share_cores(ctx, j->at->local_size);
    rc = rank_prepare(L, j);
    cli_set_running(ctx, NULL);
    if (rc == 0) rc = run_code(L, "return require('tide.repl.ranks').serve()", j);
    cli_board_end_watch(j->board, j->at->rank);
    cli_set_running(NULL, NULL);
    lua_close(L);
    tide_ctx_release(ctx);
  }
  if (rc != 0) cli_board_process_ended(j->board, j->at->rank, j->code, j->message);
  return NULL;
}

/* Ends the job, which has the exit code of rank 0. message: of a rank that failed, or null. */
static int end_prompt(int code, int rank, const char *message)
{
  bool failed = message && *message;
  if (failed) fprintf(stderr, "tide: rank %d failed: %s\n", rank, message);
  fflush(NULL);
  signal(SIGTERM, SIG_IGN); /* of a launcher that sees the first process end */
  if (!failed && tide_mpi_end() == TIDE_OK) return code;
  tide_mpi_abort(code ? code : EXIT_RAISED);
  return code ? code : EXIT_RAISED;
}

static int run_connected(lua_State *L, rank_job *j, cli_link *link)
{
  pthread_t thread;
  int code = 0;
  if (!cli_link_start(link) || !cli_start_thread(&thread, run_rank, j))
    return end_prompt(EXIT_RAISED, j->at->rank, "no thread for the prompt");
  cli_set_ranks(NULL, j->board);
  if (j->at->rank == 0) {
    code = cli_run_prompt(L);
    cli_board_end_everywhere(j->board);
  }
  pthread_join(thread, NULL);
  cli_set_ranks(NULL, NULL);
  if (j->at->rank > 0) return end_prompt(0, 0, NULL);
  const cli_rank_end *first = cli_board_first_end(j->board);
  if (first && !*first->message)
    fprintf(stderr, "tide: rank %d ended the prompt with os.exit(%d)\n", first->rank, first->code);
  return end_prompt(first ? first->code : code, first ? first->rank : 0,
                    first ? first->message : NULL);
}

int cli_prompt_mpi(lua_State *L, const run_options *o, const place *at)
{
  rank_job j = {.board = cli_board_new(at->size), .options = o, .at = at};
  cli_link *link = j.board ? cli_link_new(j.board, at->rank, at->size) : NULL;
  int code = EXIT_RAISED;
  cli_set_placed(at->rank);
  cli_watch_launcher();
  if (!link || cli_board_join(j.board, L, link, at->rank) != 0) {
    cli_complain("repl: no memory for the prompt");
  } else if (run_code(L, "require('tide.repl.ranks').meet()", &j) < 0) {
    fprintf(stderr, "tide: rank %d: %s\n", at->rank, j.message);
    code = j.code;
    tide_mpi_abort(code);
  } else {
    code = run_connected(L, &j, link);
  }
  cli_link_free(link);
  cli_board_free(j.board);
  return code;
}
