/* What the files of the program `tide` share. One program, in its main thread unless said.
 *
 *   main.c     the commands         signal.c   what SIGINT and SIGTERM do
 *   help.c     the help texts       output.c   lines of ranks, each with its prefix
 *   run.c      tide run: its command line, restarts, one rank in the main thread
 *   exit.c     exit codes        env.c     misspelt variables of the environment
 *   threads.c  several ranks as threads     place.c  one rank of a launcher's job
 */
#ifndef TIDE_CLI_H
#define TIDE_CLI_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

#include "ranks.h"
#include "tide_lua.h"

/* Exit codes; also what os.exit was given, and 128 + signal after a signal. */
enum { EXIT_RAISED = 1, EXIT_USAGE = 2 };

typedef struct run_options {
  int nrank, nthread, max_restarts;
  int grace;               /* seconds; -1: the default */
  int restart;             /* 0 in the first attempt */
  const char *job;         /* names all attempts together */
  const char *params, *recipe, *trace;
  int narg;
  const char *const *args;
} run_options;

/* ---- signal.c -------------------------------------------------------------------------------- */

void cli_watch_signals(void);
/* Who is interrupted: one context, several ranks, or (both null) nobody. */
void cli_set_running(tide_ctx *ctx, tide_host_ranks *ranks);
void cli_set_prompt(void);  /* SIGINT stops the op under way and no more */
void cli_set_placed(int rank); /* this process is one rank of a launcher's job */
int  cli_signal(void);      /* the last one, 0: none */
int  cli_signal_count(void);

/* ---- output.c -------------------------------------------------------------------------------- */

typedef struct line_buffer {
  char *text;
  size_t n, cap;
} line_buffer;

typedef struct printer {
  pthread_mutex_t lock;
  int first;               /* rank of lines[0] */
  line_buffer (*lines)[2]; /* [rank - first][0 stdout, 1 stderr] */
  line_buffer line;        /* under lock: prefix and line, for one write */
  const run_options *options;
} printer;

/* Bytes that a rank writes to stdout (0) or stderr (1): whole lines are printed, the rest waits. */
void cli_write(printer *p, int rank, int stream, const char *text, size_t n);
/* As hooks of ranks. begin: what the rank's state prints goes through the printer. end: prints what
 * waits; may be called again. */
int  cli_begin_rank(lua_State *L, int rank, void *printer);
void cli_end_rank(lua_State *L, int rank, void *printer);
/* With --trace: writes what this rank did. Not worth failing for. */
void cli_leave_trace(lua_State *L);

/* ---- exit.c ---------------------------------------------------------------------------------- */

/* A rank that called os.exit, and its code. */
bool cli_is_exit(const char *message, int *code);
/* message: what the recipe raised. */
int  cli_exit_code(int status, const char *message);
/* Writes what the standard output holds. Returns code, or a failure if some output was lost. */
int  cli_end_output(int code);
/* os.exit of a state that has the process to itself closes it first. As lua_cpcall. */
int  cli_close_on_exit(lua_State *L);

/* ---- env.c ----------------------------------------------------------------------------------- */

/* Warns of variables TIDE_... whose names are near that of a parameter. */
void cli_check_environment(void);

/* ---- run.c ----------------------------------------------------------------------------------- */

int  cli_run(int argc, char **argv);
/* Prints one line; EXIT_USAGE. */
int  cli_complain(const char *text);
/* Null after a message; *code: the exit code that it deserves. */
tide_ctx *cli_open_ctx(const run_options *o, int *code);
/* A context and a state on it. 0, or the exit code after a message. */
int  cli_open(const run_options *o, tide_ctx **ctx, lua_State **L);
/* For tide.comm.launch: only jobs that may be restarted have a name. As lua_cpcall. */
int  cli_describe_job(lua_State *L, const run_options *o);

/* ---- threads.c, place.c ---------------------------------------------------------------------- */

/* *status: how the ranks ended. Returns the exit code. */
int  cli_run_threads(const run_options *o, int *status);

/* Where a launcher has put this process. size 1: there is none. */
typedef struct place { int rank, size, local_size; } place;

/* 0, or the exit code after a message: the environment contradicts itself. */
int  cli_find_place(lua_State *L, place *at);
/* Threads for a rank of so many on this host. */
int  cli_share_of_cores(int local_size);
/* Runs the recipe with each line prefixed; the status. The printer outlives the state, whose
 * finalizers may print. */
int  cli_run_placed(const run_options *o, lua_State *L, const place *at, printer *p);
/* How a rank ended. message: what the recipe raised. */
typedef struct ending { int status, code; const char *message; } ending;
/* Once the state is closed: ends MPI, or with a code the job, after the message. Returns the exit
 * code. */
int  cli_end_job(printer *p, const place *at, const ending *how);

/* ---- help.c ---------------------------------------------------------------------------------- */

extern const char cli_help_text[], cli_help_run[], cli_help_repl[];

#endif
