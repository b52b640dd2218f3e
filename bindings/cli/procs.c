/* `tide run --procs N`: N processes of one rank each, started by mpirun with the same words. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
  execvp(words[0], words);
  fprintf(stderr, "tide: %s: --procs needs mpirun (Open MPI or MPICH): %s\n", command,
          strerror(errno));
  free(words);
  return EXIT_USAGE;
}
