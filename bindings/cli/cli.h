/* Shared by the files of the program `tide`. Functions run in its main thread unless stated.
 *
 *   main.c        the commands
 *   help.c        the help texts
 *   run.c         tide run: its command line, restarts, one rank in the main thread
 *   threads.c     several ranks as threads
 *   procs.c       ranks as processes
 *   place.c       one rank of a launcher's job
 *   prompt.c      tide repl
 *   prompt_mpi.c  tide repl over processes
 *   board.c       lines of the prompt for its ranks
 *   link.c        the connections between the processes of a prompt
 *   busy.c        lines that Ctrl-C stops
 *   output.c      lines of ranks, each with its prefix
 *   signal.c      what SIGINT and SIGTERM do
 *   exit.c        exit codes
 *   env.c         misspelt variables of the environment
 *   shipped.c     where recipes and guides are
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "ranks.h"
#include "tide_lua.h"

/* Exit codes; also the argument of os.exit, and 128 + signal after a signal. */
enum { EXIT_RAISED = 1, EXIT_USAGE = 2 };

typedef struct run_options {
  int nrank, nthread, max_restarts;
  int nproc;               /* processes of one rank each; 0: this one */
  int grace;               /* seconds; -1: the default */
  int timeout;             /* seconds of a collective; 0: the default */
  int restart;             /* 0 in the first attempt */
  const char *job;         /* one name for all attempts */
  const char *params, *recipe, *trace, *device;
  const char *code;        /* Lua text to run in place of a file; recipe is its name then */
  int narg;
  const char *const *args;
} run_options;

/* ---- signal.c -------------------------------------------------------------------------------- */

/* Installs the handlers of SIGINT and SIGTERM. */
void cli_watch_signals(void);
/* Sets what a signal interrupts: one context, several ranks, or (both null) nothing. */
void cli_set_running(tide_ctx *ctx, tide_host_ranks *ranks);
/* Makes SIGINT stop only the running line, and SIGTERM end the program. */
void cli_set_prompt(void);
/* Sets the ranks of a prompt, which SIGINT stops; null: none. */
typedef struct cli_board cli_board;
void cli_set_ranks(tide_host_ranks *ranks, cli_board *board);
void cli_interrupt_line(void); /* does what SIGINT does at the prompt */
void cli_watch_launcher(void); /* makes SIGUSR1, which mpirun passes on, act as SIGINT there */
void cli_set_placed(int rank); /* declares this process one rank of a launcher's job */
int  cli_signal(void);         /* returns the last signal; 0: none yet */
int  cli_signal_count(void);   /* returns how many have arrived */

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

/* Takes bytes that a rank writes to stdout (0) or stderr (1): prints whole lines, keeps the
 * rest. */
void cli_write(printer *p, int rank, int stream, const char *text, size_t n);
/* Hooks of ranks. begin redirects the prints of the rank's state to the printer. end prints the
 * rest; may be called again. */
int  cli_begin_rank(lua_State *L, int rank, void *printer);
void cli_end_rank(lua_State *L, int rank, void *printer);
/* With --trace: writes the trace of this rank. Failures are ignored. */
void cli_leave_trace(lua_State *L);

/* ---- exit.c ---------------------------------------------------------------------------------- */

/* Returns whether a message is that of a rank that called os.exit; *code receives its code. */
bool cli_is_exit(const char *message, int *code);
/* Returns the exit code of a run. message: the error of the recipe. */
int  cli_exit_code(int status, const char *message);
/* Flushes the standard output. Returns code, or a failure if some output was lost. */
int  cli_end_output(int code);
/* Makes os.exit close its state first, in a state that has the process to itself. As lua_cpcall. */
int  cli_close_on_exit(lua_State *L);

/* ---- env.c ----------------------------------------------------------------------------------- */

/* Warns of variables TIDE_... that are misspelt names of parameters. */
void cli_check_environment(void);

/* ---- run.c ----------------------------------------------------------------------------------- */

/* Runs `tide run`, or a command whose code is in the library and runs on several ranks (`tide
 * score`). code null: a recipe follows the options. Returns the exit code. */
int  cli_run(const char *command, const char *code, int argc, char **argv);
/* Runs the recipe, or the code, in a state. Returns its status. */
int  cli_run_recipe(const run_options *o, lua_State *L);
/* Sets one option of `tide run` or `tide repl`. value null: it is missing. Returns 0, or the exit
 * code after a message. */
int  cli_parse_option(const char *command, const char *name, const char *value, run_options *o);
/* Prints one line; returns EXIT_USAGE. */
int  cli_complain(const char *text);
/* Opens a context. Returns NULL after a message; *code receives the exit code. */
tide_ctx *cli_open_ctx(const run_options *o, int *code);
/* Opens a context and a state on it. Returns 0, or the exit code after a message. */
int  cli_open(const run_options *o, tide_ctx **ctx, lua_State **L);
/* Describes the job for tide.comm: its timeout, and its name if it may be restarted. As
 * lua_cpcall. */
int  cli_describe_job(lua_State *L, const run_options *o);

/* ---- procs.c --------------------------------------------------------------------------------- */

/* Launches o->nproc processes that run the command with its words but for --procs. Returns the exit
 * code of the job: 128 + signal if a signal ended it. */
int  cli_run_processes(const run_options *o, const char *command, int argc, char **argv);

/* ---- threads.c, place.c ---------------------------------------------------------------------- */

/* Runs the ranks; *status receives their common status. Returns the exit code. */
int  cli_run_threads(const run_options *o, int *status);

/* The position of this process in a launcher's job. size 1: no launcher. */
typedef struct place { int rank, size, local_size; } place;

/* Reads the position. Returns 0, or the exit code after a message if the environment contradicts
 * itself. */
int  cli_find_place(lua_State *L, place *at);
/* Returns whether the environment is that of a launcher's process. */
bool cli_is_placed(void);
/* Gives a context of all cores the threads of one of local_size ranks on this host: its share of
 * them, or all where the launcher has bound this process to some of the host's. */
void cli_share_cores(tide_ctx *ctx, int local_size);
/* Runs the recipe with each line prefixed; returns the status. The printer outlives the state,
 * whose finalizers may print. */
int  cli_run_placed(const run_options *o, lua_State *L, const place *at, printer *p);
/* The end of a rank. message: the error of the recipe. */
typedef struct ending { int status, code; const char *message; } ending;
/* Ends MPI, or with an exit code the job, after the message; the state is closed. Returns the exit
 * code. */
int  cli_end_job(printer *p, const place *at, const ending *how);

/* ---- prompt.c, prompt_mpi.c, board.c, busy.c ------------------------------------------------- */

/* Runs `tide repl`. Returns the exit code. */
int  cli_prompt(int argc, char **argv);
/* Runs the prompt's loop in its state. Returns the exit code. */
int  cli_run_prompt(lua_State *L);
/* Sets the device of new tensors; null: the default. Returns 0, or a status of Lua. */
int  cli_set_device(lua_State *L, const char *device);
/* Starts a thread of ranks. SIGINT and SIGTERM stay with the main thread. */
bool cli_start_thread(pthread_t *thread, void *(*run)(void *user), void *user);
/* Runs this process's part of a prompt over the processes of a launcher. Returns the exit code. */
int  cli_prompt_mpi(lua_State *L, const run_options *o, const place *at);

cli_board *cli_board_new(int nrank); /* NULL: out of memory */
void cli_board_free(cli_board *b);   /* only when the ranks have ended */
/* Puts the board's functions into package.loaded['tide.host'].board of a state: those of a rank, or
 * with rank -1 the prompt's. Returns 0, or a status of Lua. */
int  cli_board_show(cli_board *b, lua_State *L, int rank);
/* Ends the watch of a rank's lines, on its thread, before its state closes. */
void cli_board_end_watch(cli_board *b, int rank);
/* Records that the thread of a rank ends. The first one ends the prompt, and stops the lines of the
 * other ranks. */
void cli_board_rank_ended(cli_board *b, int rank);
void cli_board_ranks_ended(cli_board *b); /* ends the prompt's waits: all ranks have ended */
void cli_board_end_prompt(cli_board *b);  /* ends the prompt: stops lines, and take returns nil */
void cli_board_interrupt(cli_board *b);   /* stops the ranks' lines; in a signal handler */
/* Gives a board its link (link.h), and shows the prompt's functions as cli_board_show does. The
 * functions below are for such boards. */
struct cli_link;
int  cli_board_join(cli_board *b, lua_State *L, struct cli_link *link, int rank);
/* Takes a text that the process of a rank has sent. Any thread. */
void cli_board_receive(cli_board *b, int rank, const char *text, size_t n);
/* Records that the rank of a process has ended by itself, with an exit code, and a message if it
 * failed; informs rank 0. Any thread. */
void cli_board_process_ended(cli_board *b, int rank, int code, const char *message);
void cli_board_end_everywhere(cli_board *b); /* ends the prompt on all processes */
/* The end of a rank. */
typedef struct cli_rank_end { int rank, code; char message[2048]; } cli_rank_end;
/* Returns the end of the first rank that ended by itself; null: none has. Only when the threads
 * have ended. */
const cli_rank_end *cli_board_first_end(const cli_board *b);

/* Whether a line of a rank runs, and on which thread. */
typedef struct cli_busy { pthread_t thread; atomic_bool on, over; } cli_busy;
/* Puts line(fn) into package.loaded['tide.host'], which calls fn as a line. b null: on the main
 * thread. Returns 0, or a status of Lua. */
int  cli_busy_watch(lua_State *L, cli_busy *b);
/* Ends the watch before the state closes, perhaps in a line; on its thread. */
void cli_busy_end(cli_busy *b);
void cli_busy_here(void);               /* stops the line of this thread; in a signal handler */
void cli_busy_interrupt(cli_busy *b);   /* stops a rank's line; in a signal handler */
void cli_busy_last(cli_busy *b);        /* stops a rank's line and each that begins later */

/* ---- shipped.c ------------------------------------------------------------------------------- */

/* Prints the folders of recipes and guides, where they are known. */
void cli_print_shipped(void);
/* Continues a message on stderr about a recipe that cannot be read: where it may be. */
void cli_suggest_recipe(const char *wanted);

/* ---- help.c ---------------------------------------------------------------------------------- */

extern const char cli_help_text[], cli_help_run[], cli_help_repl[];
