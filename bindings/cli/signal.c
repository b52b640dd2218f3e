/* Signals of the program.
 *
 * The first SIGINT or SIGTERM requests a stop of the running contexts (tide_interrupt; a loop that
 * calls tide.interrupted() ends its step and saves), the second makes the next op raise
 * E_INTERRUPT, the third exits at once. At the prompt SIGINT stops the running line, on all ranks,
 * and never exits; SIGTERM ends the program, with the terminal as it was. A limit on the size of
 * files (SIGXFSZ) is an error of the write, EFBIG, for what Lua writes, too.
 *
 * The mutable statics are the state of the signal handler; there is one program.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

static tide_ctx *volatile running_ctx;          /* one rank, or the prompt */
static tide_host_ranks *volatile running_ranks; /* several */
static cli_board *volatile running_board;       /* of a prompt's ranks */
static volatile sig_atomic_t seen_signal, seen_count, at_prompt;
static volatile sig_atomic_t placed_rank = -1, quiet_launcher, has_terminal;
static struct termios terminal; /* as it was when the prompt began */

static void interrupt_all(void)
{
  if (running_ctx) tide_interrupt(running_ctx);
  if (running_ranks) tide_host_ranks_interrupt(running_ranks);
}

static void say(const char *text)
{
  ssize_t n = write(STDERR_FILENO, text, strlen(text));
  (void)n; /* there is no stream to report it on */
}

void cli_interrupt_line(void)
{
  interrupt_all();
  interrupt_all(); /* the running op stops now */
  cli_busy_here();
  if (running_board) cli_board_interrupt(running_board);
}

/* The launcher prints why it ends a job, for example because a rank was killed. If it is quiet,
 * ranks 0 and 1 print it: one of them is alive if one rank was killed. */
static void say_placed(void)
{
  if (!quiet_launcher) return;
  if (placed_rank == 0) say("[r0] tide: the launcher ends this rank (signal)\n");
  if (placed_rank == 1) say("[r1] tide: the launcher ends this rank (signal)\n");
}

/* Supervisors signal a process and then its group: one request that arrives twice. */
static bool is_repeat(void)
{
  static struct timespec last;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  double since = (double)(now.tv_sec - last.tv_sec) + 1e-9 * (double)(now.tv_nsec - last.tv_nsec);
  last = now;
  return since < 0.3;
}

/* Ends the prompt as the signal does by default. A program in the background that sets the terminal
 * would be stopped. */
static void end_as_default(int sig)
{
  static const char no_paste[] = "\033[?2004l\r\n";
  if (has_terminal && tcgetpgrp(STDIN_FILENO) == getpgrp()) {
    tcsetattr(STDIN_FILENO, TCSANOW, &terminal);
    ssize_t n = write(STDIN_FILENO, no_paste, sizeof no_paste - 1);
    (void)n;
  }
  signal(sig, SIG_DFL);
  raise(sig);
}

static void act_on(int sig)
{
  if (at_prompt && sig == SIGTERM && placed_rank < 0) {
    end_as_default(sig);
    return;
  }
  if (at_prompt && (sig == SIGINT || sig == SIGUSR1)) {
    cli_interrupt_line();
    return;
  }
  if (is_repeat()) return;
  seen_signal = sig;
  if (++seen_count >= 3) _exit(128 + sig);
  if (placed_rank >= 0) {
    if (seen_count == 1) say_placed();
  } else
    say(seen_count == 1 ? "tide: stopping after this step; once more to stop at the next op\n"
                        : "tide: stopping at the next op; once more to exit at once\n");
  interrupt_all();
}

/* The interrupted call still reads its errno. */
static void on_signal(int sig)
{
  int saved = errno;
  act_on(sig);
  errno = saved;
}

/* Programs that the recipe starts get the default again; an ignored signal stays ignored there. */
static void on_limit(int sig) { (void)sig; }

void cli_watch_signals(void)
{
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, NULL);
  sigaction(SIGTERM, &action, NULL);
  action.sa_handler = on_limit;
  sigaction(SIGXFSZ, &action, NULL);
}

void cli_watch_launcher(void)
{
  struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
  sigemptyset(&action.sa_mask);
  sigaction(SIGUSR1, &action, NULL);
}

void cli_set_running(tide_ctx *ctx, tide_host_ranks *ranks)
{
  running_ctx = ctx;
  running_ranks = ranks;
}

void cli_set_ranks(tide_host_ranks *ranks, cli_board *board)
{
  running_ranks = ranks;
  running_board = board;
}

void cli_set_prompt(void)
{
  has_terminal = tcgetattr(STDIN_FILENO, &terminal) == 0;
  at_prompt = 1;
}

void cli_set_placed(int rank)
{
  quiet_launcher = getenv("OMPI_MCA_orte_execute_quiet") != NULL; /* mpirun --quiet */
  placed_rank = rank;
}

int cli_signal(void) { return (int)seen_signal; }
int cli_signal_count(void) { return (int)seen_count; }
