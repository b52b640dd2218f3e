/* `tide run --procs N`: N processes of one rank each, started by mpirun with the same words.
 *
 * mpirun exits with 1 after a signal, whatever the ranks return. So this process waits for mpirun,
 * passes signals on and returns 128 + signal itself. A terminal signals its whole process group.
 * Without a terminal mpirun gets a group of its own, so a signal to this group reaches it once.
 *
 * The mutable statics are the state of the signal handler, which can get no argument.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

/* Settings of Open MPI that mean what `tide run -n` does: root may start a job, ranks may be more
 * than cores, and no rank is bound to one core. Other launchers ignore them; what the user has set
 * stays. */
static void set_launcher(void)
{
  static const char *const settings[][2] = {
    {"OMPI_ALLOW_RUN_AS_ROOT", "1"}, {"OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1"},
    {"OMPI_MCA_rmaps_base_oversubscribe", "1"}, {"OMPI_MCA_hwloc_base_binding_policy", "none"},
    {"PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe"},
    {"PRTE_MCA_hwloc_default_binding_policy", "none"},
  };
  for (size_t i = 0; i < sizeof settings / sizeof settings[0]; i++)
    setenv(settings[i][0], settings[i][1], 0);
}

/* Returns why processes cannot run with these options, or NULL. */
static const char *refusal(const run_options *o)
{
  if (o->nrank > 1)
    return "run: -n are ranks as threads of one process, --procs processes of one rank each; give "
           "one of them";
  if (o->max_restarts > 0)
    return "run: --max-restarts is for ranks of one process; start the job of --procs again with "
           "--resume";
  if (cli_is_placed())
    return "run: --procs inside the job of a launcher; let that start all processes";
  return NULL;
}

/* ---- the launcher ---------------------------------------------------------------------------- */

static volatile sig_atomic_t launcher; /* process id of mpirun */
static volatile sig_atomic_t ended_by; /* the first signal that ends the job, or 0 */
static volatile sig_atomic_t is_apart; /* whether mpirun has a process group of its own */

/* Returns whether a signal repeats the last one: supervisors signal a process and then its group.
 * At a second signal within 5 s Open MPI exits without ending its ranks. */
static bool is_echo(int sig)
{
  static struct timespec last;
  static int of;
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  double since = (double)(now.tv_sec - last.tv_sec) + 1e-9 * (double)(now.tv_nsec - last.tv_nsec);
  bool is = of == sig && since < 0.3;
  last = now;
  of = sig;
  return is;
}

/* Passes a signal on to mpirun, except one of a terminal, which mpirun gets by itself. */
static void forward_signal(int sig, siginfo_t *info, void *context)
{
  (void)context;
  int saved = errno;
  if (!ended_by && (sig == SIGTERM || sig == SIGINT)) ended_by = sig;
  if ((is_apart || info->si_code <= 0) && !is_echo(sig)) kill((pid_t)launcher, sig);
  errno = saved;
}

static void forward_signals(void)
{
  static const int passed[] = {SIGTERM, SIGINT, SIGUSR1, SIGUSR2};
  struct sigaction action = {.sa_sigaction = forward_signal, .sa_flags = SA_RESTART | SA_SIGINFO};
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < sizeof passed / sizeof passed[0]; i++)
    sigaction(passed[i], &action, NULL);
}

/* Executes mpirun in this process, which ends when its parent ends. mask: blocked signals. */
static _Noreturn void become_launcher(char **words, const char *command, pid_t parent,
                                      const sigset_t *mask)
{
  if (is_apart) setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  sigprocmask(SIG_SETMASK, mask, NULL);
  if (getppid() != parent) _exit(EXIT_USAGE); /* the parent ended before prctl */
  execvp(words[0], words);
  fprintf(stderr, "tide: %s: --procs needs mpirun (Open MPI or MPICH): %s\n", command,
          strerror(errno));
  _exit(EXIT_USAGE);
}

static bool has_terminal(void)
{
  int fd = open("/dev/tty", O_RDONLY | O_NOCTTY | O_CLOEXEC);
  if (fd >= 0) close(fd);
  return fd >= 0;
}

/* Runs mpirun with its words. Returns the exit code of the job. */
static int run_launcher(char **words, const char *command)
{
  sigset_t all, before;
  int status;
  pid_t parent = getpid();
  is_apart = !has_terminal();
  signal(SIGCHLD, SIG_DFL); /* if a parent left it ignored, waitpid would get no exit code */
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before); /* until mpirun can get them */
  pid_t child = fork();
  if (child == 0) become_launcher(words, command, parent, &before);
  launcher = child;
  if (child > 0) forward_signals();
  sigprocmask(SIG_SETMASK, &before, NULL);
  if (child < 0)
    return cli_complain("run: --procs: no process could be made; free memory or processes, or give "
                        "-n for ranks as threads");
  while (waitpid(child, &status, 0) < 0)
    if (errno != EINTR) return cli_complain("run: --procs: mpirun ended without an exit code");
  if (ended_by) return 128 + ended_by;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int cli_run_processes(const run_options *o, const char *command, int argc, char **argv)
{
  char self[4096], number[16];
  const char *why = refusal(o);
  if (why) return cli_complain(why);
  ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
  char **words = calloc((size_t)argc + 6, sizeof *words);
  if (n < 0 || !words) {
    free(words);
    return cli_complain("run: --procs: the program does not find itself (/proc/self/exe)");
  }
  self[n] = '\0';
  snprintf(number, sizeof number, "%d", o->nproc);
  char *head[] = {"mpirun", "-np", number, self, (char *)command};
  int at = 0;
  for (size_t i = 0; i < sizeof head / sizeof head[0]; i++) words[at++] = head[i];
  bool before = true; /* the recipe; what follows it is the recipe's */
  for (int i = 0; i < argc; i++) {
    before = before && argv + i < (char **)o->args;
    if (before && strcmp(argv[i], "--procs") == 0) i++;
    else words[at++] = argv[i];
  }
  set_launcher();
  fflush(NULL);
  int code = run_launcher(words, command);
  free(words);
  return code;
}
