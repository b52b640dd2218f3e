/* The `tide` program: run, repl, score, trace, export, runs, plot, version, params, help.
 *
 * A thin shell over tide_lua (one rank, in the main thread) and ranks (several, as threads). Only
 * this folder prints, handles signals and exits.
 *
 * Exit codes: 0 done, 1 the recipe raised, 2 wrong command line, here or in the recipe's options
 * (E_ARG, E_DEVICE or E_UNSUPPORTED without a stack trace), the argument of os.exit, 128 + signal
 * after a signal.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <luajit.h>

#include "cli.h"

/* Runs a chunk with arguments in a state of its own, and prints its error in one line.
 * Returns the exit code, which is not 0 if the chunk returns another number than 0. */
static int run_lua(const char *lua, const char *name, int argc, char **argv)
{
  run_options o = {0};
  tide_ctx *ctx;
  lua_State *L;
  int code = cli_open(&o, &ctx, &L);
  if (code) return code;
  cli_set_running(ctx, NULL);
  int rc = tide_lua_run_string(L, lua, strlen(lua), name, argc, (const char *const *)argv);
  cli_set_running(NULL, NULL);
  fflush(stdout);
  const char *message = tide_lua_message(L), *result = tide_lua_result(L, NULL);
  if (rc < 0) fprintf(stderr, "tide: %.*s\n", (int)strcspn(message, "\n"), message);
  code = cli_exit_code(rc, message);
  if (code == 0 && result && strcmp(result, "0") != 0) code = EXIT_RAISED;
  lua_close(L);
  tide_ctx_release(ctx);
  return code;
}

static int command_trace(int argc, char **argv)
{
  static const char lua[] = "return require('tide.debug.trace').command(...)";
  if (argc != 1) return cli_complain("trace: expected one folder; see `tide help run`");
  int code = run_lua(lua, "=trace", argc, argv);
  return code == EXIT_USAGE ? EXIT_RAISED : code;
}

/* Writes a checkpoint as a published folder; its words are read in Lua. */
static int command_export(int argc, char **argv)
{
  static const char lua[] = "return require('tide.pretrained.command')(...)";
  return run_lua(lua, "=export", argc, argv);
}

/* Shows what runs have written, as a table (runs) or curves (plot); the words are read in Lua. */
static int command_watch(const char *command, int argc, char **argv)
{
  bool plot = strcmp(command, "plot") == 0;
  const char *lua = plot ? "return require('tide.train.watch').plot(...)"
                         : "return require('tide.train.watch').runs(...)";
  return run_lua(lua, plot ? "=plot" : "=runs", argc, argv);
}

/* Scores text or answers questions, on one rank or several; its words are read in Lua. */
static int command_score(int argc, char **argv)
{
  return cli_run("score", "return require('tide.train.score_command')('score', ...)", argc, argv);
}

static int command_version(void)
{
  printf("%s%s\n", tide_build_info(), LUAJIT_VERSION);
  return 0;
}

static int command_params(void)
{
  run_options o = {0};
  int code;
  tide_ctx *ctx = cli_open_ctx(&o, &code);
  if (!ctx) return code;
  printf("Set with -p \"name=value ...\", tide.open{ params = ... }, or TIDE_<NAME>.\n\n");
  for (int i = 0; i < tide_param_count(); i++) {
    const char *name = tide_param_name(i), *value = tide_param_get(ctx, name);
    printf("  %-16s %-14s %s\n", name, value ? value : "", tide_param_doc(i));
  }
  tide_ctx_release(ctx);
  return 0;
}

static int help_errors(void)
{
  printf("An error raised by tide is a table { code, status, name, op, message, where }.\n\n");
  for (int status = -1; strcmp(tide_status_name(status), "E_UNKNOWN") != 0; status--)
    printf("  %-14s %s\n", tide_status_name(status), tide_status_text(status));
  return 0;
}

static int help_ops(void)
{
  for (int i = 0; i < tide_op_count(); i++) {
    int flags = tide_op_flags(i);
    printf("  %-22s%s%s%s%s\n", tide_op_name(i), flags & TIDE_OPF_VIEW ? " view" : "",
           flags & TIDE_OPF_INPLACE ? " in-place" : "", flags & TIDE_OPF_RANDOM ? " random" : "",
           flags & TIDE_OPF_BACKWARD ? " backward" : "");
  }
  return 0;
}

static bool asks_for_help(const char *word)
{
  return strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0;
}

static int command_help(const char *topic)
{
  if (!topic) {
    if (fputs(cli_help_text, stdout) < 0) return EXIT_RAISED;
    cli_print_shipped();
    return 0;
  }
  if (strcmp(topic, "run") == 0) return fputs(cli_help_run, stdout) < 0;
  if (strcmp(topic, "repl") == 0) return fputs(cli_help_repl, stdout) < 0;
  if (strcmp(topic, "params") == 0) return command_params();
  if (strcmp(topic, "errors") == 0) return help_errors();
  if (strcmp(topic, "ops") == 0) return help_ops();
  fprintf(stderr, "tide: help: no topic '%s'; topics: run, repl, params, errors, ops\n", topic);
  return EXIT_USAGE;
}

/* Bounds the spinning of OpenMP threads between two loops. It lasts milliseconds by default, which
 * halts everything when other processes share the cores. The runtime reads its environment before
 * main, so the program restarts itself with a bound, unless the user has chosen one. */
static void bound_spinning(char **argv)
{
  char path[4096];
  if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
  if (setenv("GOMP_SPINCOUNT", "2000", 1) != 0) return;
  ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
  path[n > 0 ? n : 0] = 0;
  execv(path, argv); /* by its name, which ps shows */
  execv("/proc/self/exe", argv);
}

static int run_command(int argc, char **argv)
{
  const char *command = argc > 1 ? argv[1] : "help";
  if (strcmp(command, "-h") == 0) command = "help";
  bool is_command = strcmp(command, "run") == 0 || strcmp(command, "repl") == 0 ||
                    strcmp(command, "params") == 0 || strcmp(command, "trace") == 0;
  bool is_export = strcmp(command, "export") == 0;
  bool is_score = strcmp(command, "score") == 0;
  bool is_watch = strcmp(command, "runs") == 0 || strcmp(command, "plot") == 0;
  if (argc == 3 && is_command && asks_for_help(argv[2])) /* trace: see run */
    return command_help(strcmp(command, "trace") == 0 ? "run" : command);
  cli_watch_signals();
  if (is_command || is_export || is_watch || is_score) cli_check_environment();
  if (is_score) return command_score(argc - 2, argv + 2);
  if (is_export) return command_export(argc - 2, argv + 2);
  if (is_watch) return command_watch(command, argc - 2, argv + 2);
  if (strcmp(command, "run") == 0) return cli_run(command, NULL, argc - 2, argv + 2);
  if (strcmp(command, "repl") == 0) return cli_prompt(argc - 2, argv + 2);
  if (strcmp(command, "trace") == 0) return command_trace(argc - 2, argv + 2);
  bool version = strcmp(command, "version") == 0 || strcmp(command, "--version") == 0;
  if (argc > 2 && (version || strcmp(command, "params") == 0)) {
    fprintf(stderr, "tide: %s: unexpected argument '%s'\n", command, argv[2]);
    return EXIT_USAGE;
  }
  if (version) return command_version();
  if (strcmp(command, "params") == 0) return command_params();
  if (argc > 3) return cli_complain("help: expected one topic: run, repl, params, errors, ops");
  if (strcmp(command, "help") == 0 || strcmp(command, "--help") == 0)
    return command_help(argc > 2 ? argv[2] : NULL);
  fprintf(stderr, "tide: unknown command '%s'\n\n%s", command, cli_help_text);
  return EXIT_USAGE;
}

/* Raises the soft limit of open files, often 1024: each rank opens every .bin file of its data. It
 * stays moderate, as some programs that it starts close every number one by one. */
static void raise_open_files(void)
{
  enum { MOST_FILES = 65536 };
  struct rlimit r;
  if (getrlimit(RLIMIT_NOFILE, &r) < 0 || r.rlim_cur >= MOST_FILES) return;
  r.rlim_cur = r.rlim_max < MOST_FILES ? r.rlim_max : MOST_FILES;
  setrlimit(RLIMIT_NOFILE, &r); /* a refusal leaves the limit as it is */
}

/* Keeps the numbers of standard files that are closed: a file of the recipe would get one, and then
 * what is printed. Reading and writing there fail as before. */
static void hold_standard_files(void)
{
  for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) < 0)
      return; /* no more files: the recipe cannot open one either */
}

int main(int argc, char **argv)
{
  hold_standard_files();
  raise_open_files();
  bound_spinning(argv);
  return cli_end_output(run_command(argc, argv));
}
