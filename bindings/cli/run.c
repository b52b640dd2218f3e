/* `tide run`: its command line, restarts, and one rank in the main thread. An attempt is a new
 * context and a new group; its result is an exit code. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "cli.h"

static void describe_job(lua_State *L, const void *user)
{
  const run_options *o = user;
  lua_pushstring(L, o->job);
  lua_setfield(L, -2, "job");
  lua_pushinteger(L, o->restart);
  lua_setfield(L, -2, "restart");
  if (o->timeout == 0) return;
  lua_pushinteger(L, o->timeout);
  lua_setfield(L, -2, "timeout");
}

int cli_describe_job(lua_State *L, const run_options *o)
{
  return o->job || o->timeout ? tide_host_describe(L, describe_job, o) : 0;
}

/* ---- contexts and states --------------------------------------------------------------------- */

int cli_complain(const char *text)
{
  fprintf(stderr, "tide: %s\n", text);
  return EXIT_USAGE;
}

/* Shows warnings of the library: memory that is short, threads that the system refuses, ranks that
 * are late. */
static void show_warning(void *user, int32_t level, const char *text)
{
  (void)user;
  if (level == TIDE_LOG_WARN) fprintf(stderr, "tide: warning: %s\n", text);
}

tide_ctx *cli_open_ctx(const run_options *o, int *code)
{
  tide_opts opts;
  tide_opts_init(&opts);
  opts.nthread = o->nthread;
  opts.params = o->params;
  opts.read_env = 1;
  opts.log = show_warning;
  tide_ctx *ctx = NULL;
  char msg[512] = "";
  int rc = tide_ctx_new(&ctx, &opts, msg, sizeof msg);
  if (rc < 0) fprintf(stderr, "tide: %s\n", msg);
  *code = rc < 0 ? cli_exit_code(rc, msg) : 0;
  return ctx;
}

int cli_open(const run_options *o, tide_ctx **ctx, lua_State **L)
{
  char msg[2048] = "";
  int code;
  *L = NULL;
  *ctx = cli_open_ctx(o, &code);
  if (!*ctx) return code;
  int rc = tide_lua_open(L, *ctx, NULL, msg, sizeof msg);
  if (rc == TIDE_OK) {
    if (cli_close_on_exit(*L) == 0) return 0;
    snprintf(msg, sizeof msg, "no memory for a Lua state");
    lua_close(*L);
  }
  fprintf(stderr, "tide: %s\n", msg);
  tide_ctx_release(*ctx);
  return EXIT_RAISED;
}

/* ---- one rank -------------------------------------------------------------------------------- */

int cli_run_recipe(const run_options *o, lua_State *L)
{
  if (!o->code) return tide_lua_run_file(L, o->recipe, o->narg, o->args);
  return tide_lua_run_string(L, o->code, strlen(o->code), o->recipe, o->narg, o->args);
}

static int run_alone(const run_options *o, lua_State *L)
{
  if (cli_describe_job(L, o) != 0) return TIDE_E_NOMEM;
  int rc = cli_run_recipe(o, L);
  cli_leave_trace(L);
  fflush(stdout);
  if (rc < 0) fprintf(stderr, "tide: %s\n", tide_lua_message(L));
  return rc;
}

/* how->message is the state's. */
static void run_here(const run_options *o, tide_ctx *ctx, lua_State *L, printer *p, place *at,
                     ending *how)
{
  *how = (ending){.message = ""};
  how->code = cli_find_place(L, at);
  if (how->code) return;
  if (at->size > 1 && o->max_restarts > 0) {
    how->code = cli_complain("run: --max-restarts is for ranks of one process; under mpirun or "
                             "srun start the job again with --resume");
    return;
  }
  if (at->size > 1 && o->nthread == 0) cli_share_cores(ctx, at->local_size);
  if (at->size > 1) cli_set_placed(at->rank);
  cli_set_running(ctx, NULL);
  how->status = at->size > 1 ? cli_run_placed(o, L, at, p) : run_alone(o, L);
  how->message = tide_lua_message(L);
  how->code = cli_exit_code(how->status, how->message);
  cli_set_running(NULL, NULL);
}

static int run_one(const run_options *o, int *status)
{
  tide_ctx *ctx;
  lua_State *L;
  line_buffer lines[1][2] = {0};
  printer p = {.lines = lines, .options = o};
  place at;
  ending how;
  *status = TIDE_OK;
  int code = cli_open(o, &ctx, &L);
  if (code) return code;
  pthread_mutex_init(&p.lock, NULL);
  run_here(o, ctx, L, &p, &at, &how);
  *status = how.status;
  char *message = strdup(how.message);
  how.message = message ? message : "out of memory";
  lua_close(L);
  tide_ctx_release(ctx);
  code = cli_end_job(&p, &at, &how);
  for (int stream = 0; stream < 2; stream++) free(lines[0][stream].text);
  free(p.line.text);
  free(message);
  pthread_mutex_destroy(&p.lock);
  return code;
}

/* ---- the command ----------------------------------------------------------------------------- */

static bool parse_count(const char *text, int lo, int hi, int *value)
{
  char *end;
  long v = text ? strtol(text, &end, 10) : 0;
  if (!text || *end || end == text || v < lo || v > hi) return false;
  *value = (int)v;
  return true;
}

/* Takes the value (null: missing) of an option. lo and hi bound a number; a text has at least lo
 * bytes. */
int cli_parse_option(const char *command, const char *name, const char *value, run_options *o)
{
  const struct { const char *name, *needs; int lo, hi, *number; const char **text; } known[] = {
    {"-n", "a number of ranks in [1, 1024]", 1, 1024, &o->nrank, NULL},
    {"--procs", "a number of processes in [1, 1024]", 1, 1024, &o->nproc, NULL},
    {"-t", "a number of threads in [1, 1024]", 1, 1024, &o->nthread, NULL},
    {"--max-restarts", "a number in [0, 1000000]", 0, 1000000, &o->max_restarts, NULL},
    {"--grace", "a number of seconds in [0, 1000000]", 0, 1000000, &o->grace, NULL},
    {"--timeout", "a number of seconds in [1, 100000000]", 1, 100000000, &o->timeout, NULL},
    {"-p", "parameters, e.g. \"check=1\"; see `tide params`", 0, 0, NULL, &o->params},
    {"--trace", "a folder for the ranks' files", 1, 0, NULL, &o->trace},
    {"--device", "a device, e.g. cuda", 1, 0, NULL, &o->device},
  };
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
    bool repl = strcmp(command, "repl") == 0, for_repl = known[i].text == &o->device;
    bool is_other = for_repl ? !repl : known[i].number == &o->nproc && repl;
    if (strcmp(name, known[i].name) != 0 || is_other) continue;
    bool good = known[i].number ? parse_count(value, known[i].lo, known[i].hi, known[i].number)
                                : value && strlen(value) >= (size_t)known[i].lo;
    if (!good) fprintf(stderr, "tide: %s: %s needs %s\n", command, name, known[i].needs);
    if (good && known[i].text) *known[i].text = value;
    return good ? 0 : EXIT_USAGE;
  }
  fprintf(stderr, "tide: %s: unknown option '%s'; see `tide help %s`\n", command, name, command);
  return EXIT_USAGE;
}

/* Returns whether a word is an option of ranks: all that begin with '-' where a recipe follows,
 * else those that a command of the library leaves to the program. */
static bool is_for_ranks(const char *word, const char *code)
{
  static const char *const shared[] = {"-n", "-t", "-p", "--procs", "--timeout", "--trace",
                                       "--traceback"};
  bool found = !code && word[0] == '-' && word[1];
  for (size_t i = 0; i < sizeof shared / sizeof shared[0]; i++)
    found = found || strcmp(word, shared[i]) == 0;
  return found;
}

/* Fills o->code and o->recipe before. */
static int parse_run(const char *command, int argc, char **argv, run_options *o)
{
  int i = 0;
  while (i < argc && is_for_ranks(argv[i], o->code)) {
    const char *name = argv[i++];
    int rc = 0;
    if (strcmp(name, "--traceback") == 0) setenv("TIDE_TRACEBACK", "1", 1);
    else rc = cli_parse_option(command, name, i < argc ? argv[i++] : NULL, o);
    if (rc) return rc;
  }
  if (i >= argc && !o->code)
    return cli_complain("run: a recipe is missing; see `tide help run`");
  if (!o->code) o->recipe = argv[i++];
  o->narg = argc - i;
  o->args = (const char *const *)argv + i;
  return 0;
}

/* Refuses a pipe as the recipe of several ranks or attempts: it is empty for the second one. */
static int check_read_once(const run_options *o, mode_t mode)
{
  bool often = o->nrank > 1 || o->nproc > 0 || o->max_restarts > 0 || cli_is_placed();
  if (!often || S_ISREG(mode)) return 0;
  fprintf(stderr, "tide: run: '%s' is no regular file, and several ranks or attempts would read "
          "it; write the recipe to a file\n", o->recipe);
  return EXIT_USAGE;
}

static int check_recipe(const run_options *o)
{
  struct stat what;
  const char *path = o->recipe;
  if (stat(path, &what) == 0 && access(path, R_OK) == 0 && !S_ISDIR(what.st_mode))
    return check_read_once(o, what.st_mode);
  bool is_there = access(path, F_OK) == 0, readable = access(path, R_OK) == 0;
  fprintf(stderr, "tide: run: cannot read '%s'%s", path, readable ? ": it is a folder" : "");
  if (!is_there) cli_suggest_recipe(path);
  fputc('\n', stderr);
  return EXIT_USAGE;
}

/* ---- the folder of --trace ------------------------------------------------------------------- */

/* Makes the folder and its parents. */
static bool make_folder(const char *path)
{
  char part[4096];
  size_t n = strlen(path);
  if (n >= sizeof part) {
    errno = ENAMETOOLONG;
    return false;
  }
  for (size_t i = 1; i <= n; i++) {
    if (path[i] != '/' && i < n) continue;
    snprintf(part, i + 1, "%s", path);
    if (mkdir(part, 0777) != 0 && errno != EEXIST) return false;
  }
  return true;
}

/* Returns whether the folder has a rank's file; name receives its name. */
static bool holds_trace(const char *folder, char *name, size_t n)
{
  DIR *dir = opendir(folder);
  bool found = false;
  for (struct dirent *e; dir && !found && (e = readdir(dir));) {
    int rank, used = 0;
    found = sscanf(e->d_name, "rank%d.json%n", &rank, &used) == 1 && used > 0 && !e->d_name[used];
    if (found) snprintf(name, n, "%s", e->d_name);
  }
  if (dir) closedir(dir);
  return found;
}

/* Checks before the run that the files can be written. The ranks of a launcher's job start one
 * after another, so only a process of its own can distinguish another run's files from its own. */
static int prepare_trace(const run_options *o, bool alone)
{
  char probe[4200], name[256], run[64];
  if (!o->trace) return 0;
  snprintf(probe, sizeof probe, "%s/.probe-%ld", o->trace, (long)getpid());
  int fd = make_folder(o->trace) ? open(probe, O_CREAT | O_EXCL | O_WRONLY, 0600) : -1;
  if (fd < 0) {
    fprintf(stderr, "tide: run: --trace: cannot write to '%s': %s\n", o->trace, strerror(errno));
    return EXIT_USAGE;
  }
  close(fd);
  unlink(probe);
  if (alone && holds_trace(o->trace, name, sizeof name)) {
    fprintf(stderr, "tide: run: --trace: '%s' holds the trace of another run (%s); name another "
            "folder or remove its rank*.json\n", o->trace, name);
    return EXIT_USAGE;
  }
  snprintf(run, sizeof run, "%ld-%ld", (long)time(NULL), (long)getpid());
  setenv("TIDE_TRACE_RUN", run, 1);
  setenv("TIDE_TRACE_DIR", o->trace, 1);
  setenv("TIDE_TRACE", "1", 1);
  return 0;
}

/* ---- attempts -------------------------------------------------------------------------------- */

/* Repeats a failed run up to max_restarts times. Signals and wrong command lines end it. */
static int run_attempts(run_options *o)
{
  char job[64];
  int status, code;
  snprintf(job, sizeof job, "%ld-%ld", (long)time(NULL), (long)getpid());
  if (o->max_restarts > 0) o->job = job;
  for (;; o->restart++) {
    code = o->nrank == 1 ? run_one(o, &status) : cli_run_threads(o, &status);
    bool final = status == TIDE_OK || cli_signal() || code == EXIT_USAGE;
    if (final || o->restart >= o->max_restarts) return code;
    fprintf(stderr, "tide: starting again (restart %d of %d)\n", o->restart + 1,
            o->max_restarts);
  }
}

int cli_run(const char *command, const char *code, int argc, char **argv)
{
  char name[32];
  snprintf(name, sizeof name, "=%s", command);
  run_options o = {.nrank = 1, .grace = -1, .code = code, .recipe = name};
  int rc = parse_run(command, argc, argv, &o);
  if (!rc && !code) rc = check_recipe(&o);
  if (rc) return rc;
  const char *world = o.nrank > 1 ? getenv("OMPI_COMM_WORLD_SIZE") : NULL;
  if (world && atoi(world) > 1) {
    fprintf(stderr, "tide: %s: -n %d inside a job of %s processes; let mpirun start all ranks\n",
            command, o.nrank, world);
    return EXIT_USAGE;
  }
  rc = prepare_trace(&o, !cli_is_placed());
  if (!rc && o.nproc > 0) return cli_run_processes(&o, command, argc, argv);
  return rc ? rc : run_attempts(&o);
}
