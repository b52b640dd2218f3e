/* `tide repl`: its command line, one rank in the main thread, or several as threads; those of a
 * launcher are in prompt_mpi.c.
 *
 * With several ranks the main thread edits lines in a state of its own and posts them to a board;
 * each rank runs lua/tide/repl/ranks.lua, which takes them from there. A thread runs the ranks and
 * waits for them.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* ---- the command line ------------------------------------------------------------------------ */

/* Returns 0, or the exit code after a message. */
static int parse_prompt(int argc, char **argv, run_options *o)
{
  *o = (run_options){.nrank = 1, .grace = -1};
  for (int i = 0; i < argc;) {
    const char *name = argv[i++];
    const char *const known[] = {"-n", "-t", "-p", "--device"};
    bool is_known = false;
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++)
      is_known = is_known || strcmp(name, known[k]) == 0;
    if (!is_known) {
      fprintf(stderr, "tide: repl: unexpected argument '%s'; see `tide help repl`\n", name);
      return EXIT_USAGE;
    }
    int rc = cli_parse_option("repl", name, i < argc ? argv[i++] : NULL, o);
    if (rc) return rc;
  }
  return 0;
}

/* ---- the device of new tensors --------------------------------------------------------------- */

static void describe_device(lua_State *L, const void *device)
{
  lua_pushstring(L, device);
  lua_setfield(L, -2, "device");
}

int cli_set_device(lua_State *L, const char *device)
{
  return device ? tide_host_describe(L, describe_device, device) : 0;
}

/* Returns 0, or the exit code after a message if the device is unknown or absent. */
static int check_device(tide_ctx *ctx, const char *device)
{
  int code = 0;
  if (!device) return 0;
  while (tide_device_name(code) && strcmp(tide_device_name(code), device) != 0) code++;
  if (tide_device_name(code) && tide_device_available(ctx, code) == 1) return 0;
  fprintf(stderr, "tide: repl: --device %s: %s\n", device,
          tide_device_name(code) ? tide_error(ctx)->message : "no such device");
  return EXIT_USAGE;
}

/* ---- the prompt's state ---------------------------------------------------------------------- */

/* The Lua code returns the number of the exit code. */
int cli_run_prompt(lua_State *L)
{
  static const char lua[] = "return require('tide.repl').run()";
  int rc = tide_lua_run_string(L, lua, sizeof lua - 1, "=repl", 0, NULL);
  const char *message = tide_lua_message(L), *result = tide_lua_result(L, NULL);
  fflush(stdout);
  if (rc < 0) fprintf(stderr, "tide: %s\n", message);
  int code = cli_exit_code(rc, message);
  return code == 0 && result ? atoi(result) : code;
}

/* ---- ranks as threads ------------------------------------------------------------------------ */

typedef struct prompt_job {
  cli_board *board;
  tide_host_ranks *ranks;
  const run_options *options;
} prompt_job;

static int begin_prompt_rank(lua_State *L, int rank, void *user)
{
  const prompt_job *j = user;
  int rc = cli_set_device(L, j->options->device);
  return rc ? rc : cli_board_show(j->board, L, rank);
}

/* The prompt ends with the first rank that does: the others end their lines and get no more. */
static void end_prompt_rank(lua_State *L, int rank, void *user)
{
  const prompt_job *j = user;
  (void)L;
  cli_board_end_watch(j->board, rank);
  cli_board_rank_ended(j->board, rank);
}

static void *run_ranks(void *user)
{
  prompt_job *j = user;
  tide_host_ranks_run(j->ranks);
  cli_board_ranks_ended(j->board);
  return NULL;
}

static bool fill_prompt_job(prompt_job *j)
{
  static const char lua[] = "return require('tide.repl.ranks').serve()";
  const run_options *o = j->options;
  const tide_host_ranks_hooks hooks = {begin_prompt_rank, end_prompt_rank, NULL, j};
  j->board = cli_board_new(o->nrank);
  j->ranks = tide_host_ranks_new(o->nrank, NULL);
  if (!j->board || !j->ranks) return false;
  tide_host_ranks_set_hooks(j->ranks, &hooks);
  return tide_host_ranks_code(j->ranks, lua, sizeof lua - 1, "=repl") == 0 &&
         tide_host_ranks_nthread(j->ranks, o->nthread) == 0 &&
         tide_host_ranks_params(j->ranks, o->params, 1) == 0;
}

bool cli_start_thread(pthread_t *thread, void *(*run)(void *user), void *user)
{
  sigset_t block, before;
  sigemptyset(&block);
  sigaddset(&block, SIGINT);
  sigaddset(&block, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &block, &before);
  bool started = pthread_create(thread, NULL, run, user) == 0;
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return started;
}

/* Returns the exit code of ranks that have ended by themselves: os.exit, or a failure. */
static int ended_code(const prompt_job *j, int code)
{
  int first = tide_host_ranks_first(j->ranks);
  if (first < 0) {
    const cli_rank_end *end = cli_board_first_end(j->board);
    if (end) fprintf(stderr, "tide: rank %d ended the prompt with os.exit(0)\n", end->rank);
    return code;
  }
  const char *message = tide_host_ranks_message(j->ranks, first);
  int status = tide_host_ranks_status(j->ranks, first), exit_code;
  fprintf(stderr, "tide: rank %d %s %s\n", first,
          cli_is_exit(message, &exit_code) ? "ended the prompt with" : "failed:", message);
  return cli_exit_code(status, message);
}

static int prompt_of_ranks(lua_State *L, const run_options *o)
{
  prompt_job j = {.options = o};
  pthread_t thread;
  int code = EXIT_RAISED;
  if (!fill_prompt_job(&j) || cli_board_show(j.board, L, -1) != 0 ||
      !cli_start_thread(&thread, run_ranks, &j)) {
    cli_complain("repl: no memory or no thread for the ranks");
  } else {
    cli_set_ranks(j.ranks, j.board);
    code = cli_run_prompt(L);
    cli_board_end_prompt(j.board);
    pthread_join(thread, NULL);
    cli_set_ranks(NULL, NULL);
    code = ended_code(&j, code);
  }
  tide_host_ranks_free(j.ranks);
  cli_board_free(j.board);
  return code;
}

static int prompt_of_one(lua_State *L, tide_ctx *ctx)
{
  if (cli_busy_watch(L, NULL) != 0) return cli_complain("repl: out of memory");
  cli_set_running(ctx, NULL);
  int code = cli_run_prompt(L);
  cli_set_running(NULL, NULL);
  return code;
}

/* Returns 0, or the exit code after a message. */
static int check_place(lua_State *L, const run_options *o, place *at)
{
  int rc = cli_find_place(L, at);
  if (rc || at->size == 1 || o->nrank == 1) return rc;
  fprintf(stderr, "tide: repl: -n %d inside a job of %d processes; let the launcher start all "
          "ranks\n", o->nrank, at->size);
  return EXIT_USAGE;
}

static int prompt_at(lua_State *L, tide_ctx *ctx, const run_options *o, const place *at)
{
  if (at->size > 1) return cli_prompt_mpi(L, o, at);
  return o->nrank > 1 ? prompt_of_ranks(L, o) : prompt_of_one(L, ctx);
}

int cli_prompt(int argc, char **argv)
{
  run_options o;
  place at;
  tide_ctx *ctx;
  lua_State *L;
  int code = parse_prompt(argc, argv, &o);
  if (code) return code;
  cli_set_prompt();
  code = cli_open(&o, &ctx, &L);
  if (code) return code;
  code = check_device(ctx, o.device);
  if (code == 0 && cli_set_device(L, o.device) != 0) code = cli_complain("repl: out of memory");
  if (code == 0) code = check_place(L, &o, &at);
  if (code == 0) code = prompt_at(L, ctx, &o, &at);
  lua_close(L);
  tide_ctx_release(ctx);
  return code;
}
