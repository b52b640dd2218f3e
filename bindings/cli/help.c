/* The texts of `tide help`. */
#include "cli.h"

const char cli_help_text[] =
  "tide: train large models in parallel, from Lua\n"
  "\n"
  "  tide run [-n RANKS] [-t THREADS] [-p PARAMS] [--max-restarts K]\n"
  "           [--trace FOLDER] [--traceback] recipe.lua [options]\n"
  "  tide trace FOLDER         what a traced run shows: where ranks part, who came last\n"
  "  tide repl                 a prompt with tide loaded\n"
  "  tide params               every parameter with its value and meaning\n"
  "  tide version              version and what this build found\n"
  "  tide help [run|repl|params|errors|ops]\n";

const char cli_help_run[] =
  "tide run [-n RANKS] [-t THREADS] [-p PARAMS] [--max-restarts K] [--trace FOLDER]\n"
  "         [--traceback] recipe.lua [recipe options]\n"
  "mpirun -np RANKS tide run [-t THREADS] [-p PARAMS] [--trace FOLDER] [--traceback]\n"
  "         recipe.lua [recipe options]\n"
  "\n"
  "  -n RANKS    ranks, as threads of this process (1)\n"
  "  -t THREADS  threads of each rank (all cores, or cores / RANKS)\n"
  "  -p PARAMS   parameters of each context, e.g. \"check=1 trace=1\"; see tide params\n"
  "  --traceback say where a mistake on the command line was noticed (also TIDE_TRACEBACK=1)\n"
  "  --trace F   each rank leaves its spans and last collectives in folder F, however it ends;\n"
  "              tide trace F merges them (F/trace.json, for Perfetto) and reports. A folder\n"
  "              holds one run\n"
  "  --max-restarts K\n"
  "              start a failed run again, up to K times, in new contexts and a new group;\n"
  "              training goes on from the newest checkpoint that this run has written\n"
  "\n"
  "Under mpirun or srun each process is a rank. The environment is believed in this order: RANK\n"
  "and WORLD_SIZE, Open MPI's variables, PMI's, Slurm's (in a step only). MPI is opened when the\n"
  "recipe asks for its ranks. TIDE_MPI_LIBRARY names another libmpi. When a host is cut off the\n"
  "ranks end by their timeout, but Open MPI's mpirun waits for its daemon there until the system\n"
  "gives up the connection, some 15 minutes unless sysctl net.ipv4.tcp_retries2 is less (8:\n"
  "100 s).\n"
  "\n"
  "What follows the recipe is for the recipe (global `arg`). With several ranks, each line of\n"
  "output starts with [rK]. The first Ctrl-C or SIGTERM asks the recipe to stop after its step,\n"
  "the second stops it at the next op, the third ends it at once.\n"
  "Exit code: 0 done, 1 the recipe raised, 2 wrong command line or environment, wrong option of\n"
  "the recipe or one that this machine cannot serve (a device that is absent), that of os.exit\n"
  "(1 for multiples of 256), 128 + signal. A job of several ranks has the code of the rank that\n"
  "failed first.\n";

const char cli_help_repl[] =
  "tide repl\n"
  "\n"
  "A prompt with tide loaded: statements run, expressions print, `?name` shows help on a name\n"
  "(`?tide.matmul`, `?tide.nn`), Tab completes; exit, quit or Ctrl-D leave. Lines from a pipe are\n"
  "run without prompts; the exit code is 1 where one of them failed.\n"
  "Ctrl-C interrupts a running op; a loop that calls nothing of tide does not notice it: three\n"
  "within two seconds leave. Lines are kept in ~/.tide_history.\n";
