/* Ranks as threads, as plain C: see ranks.h. No preprocessor line, so that libtide_host can carry
 * this text (tide_host_abi_text) for LuaJIT's ffi.cdef.
 */

typedef struct tide_host_ranks tide_host_ranks;
typedef struct tide_host_chunks tide_host_chunks;

/* Makes a job. nrank in [1, 1024]. root as in tide_lua_open. NULL: out of memory or a wrong
 * nrank. */
tide_host_ranks *tide_host_ranks_new(int nrank, const char *root);
/* Sets what every rank runs: a chunk (source or bytecode, copied) or a regular file. 0, E_ARG,
 * E_NOMEM. */
int tide_host_ranks_code(tide_host_ranks *r, const char *code, size_t n, const char *name);
int tide_host_ranks_file(tide_host_ranks *r, const char *path);
/* Appends a string argument. */
int tide_host_ranks_arg(tide_host_ranks *r, const char *value);
/* Threads of each context; 0 (default): max(1, cores / nrank). */
int tide_host_ranks_nthread(tide_host_ranks *r, int n);
/* Parameters of each context, as in tide_opts. read_env: TIDE_<PARAM> may override them. */
int tide_host_ranks_params(tide_host_ranks *r, const char *params, int read_env);
/* Seconds that the ranks have to end after one has failed; 30 by default, at least 0. */
int tide_host_ranks_grace(tide_host_ranks *r, double seconds);
/* Gives the job a table of compiled Lua files, which the ranks read and fill: jobs with one table
 * compile a file once. Without it the ranks of a job of several share one of their own. Before the
 * run; 0, E_ARG, E_STATE. The job keeps the table while it needs it. */
int tide_host_ranks_chunks(tide_host_ranks *r, tide_host_chunks *chunks);
/* Runs all ranks and waits. Returns 0, or the status of the first rank that failed. Once per job. A
 * rank that still runs after the grace period (an endless loop without calls of tide) is abandoned:
 * its status is E_TIMEOUT, and its thread keeps its Lua state and context until it ends or the
 * process does. */
int tide_host_ranks_run(tide_host_ranks *r);
/* After the run. A null job has no ranks: E_ARG, 0, "" or NULL. first returns the rank that failed
 * first, -1 if all succeeded. */
int tide_host_ranks_first(const tide_host_ranks *r);
/* Returns the number of abandoned ranks. */
int tide_host_ranks_running(const tide_host_ranks *r);
int tide_host_ranks_status(const tide_host_ranks *r, int rank);
/* Returns message and traceback, "" if the rank succeeded. Borrowed from r. */
const char *tide_host_ranks_message(const tide_host_ranks *r, int rank);
/* Returns the string that the chunk returned, or NULL. Borrowed from r. */
const char *tide_host_ranks_result(const tide_host_ranks *r, int rank, size_t *n);
/* Interrupts every running rank. Thread-safe, also in a signal handler. */
void tide_host_ranks_interrupt(tide_host_ranks *r);
void tide_host_ranks_free(tide_host_ranks *r);
/* Makes a table of compiled Lua files; NULL: out of memory. A file that changes is compiled again:
 * its text is compared at each load. Thread-safe. */
tide_host_chunks *tide_host_chunks_new(void);
/* Returns how many texts have been compiled. */
int tide_host_chunks_compiled(tide_host_chunks *chunks);
void tide_host_chunks_free(tide_host_chunks *chunks);
/* Returns this text. */
const char *tide_host_abi_text(void);
