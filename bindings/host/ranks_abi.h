/* Ranks as threads, as plain C: see ranks.h. No preprocessor line, so that libtide_host can carry
 * this text (tide_host_abi_text) for LuaJIT's ffi.cdef.
 */

typedef struct tide_host_ranks tide_host_ranks;

/* nrank in [1, 1024]. root as in tide_lua_open. Null: out of memory or a wrong nrank. */
tide_host_ranks *tide_host_ranks_new(int nrank, const char *root);
/* What every rank runs: a chunk (source or bytecode, copied) or a file. 0, E_ARG, E_NOMEM. */
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
/* Runs all ranks and waits. 0, or the status of the first rank that failed. Once a job. A rank that
 * runs on after the grace period (an endless loop that calls nothing of tide) is abandoned: its
 * status is E_TIMEOUT, and its thread goes on with its Lua state and context until it ends or the
 * process does. */
int tide_host_ranks_run(tide_host_ranks *r);
/* After the run. first: the rank that failed first, -1 if none did. */
int tide_host_ranks_first(const tide_host_ranks *r);
/* How many ranks were abandoned. */
int tide_host_ranks_running(const tide_host_ranks *r);
int tide_host_ranks_status(const tide_host_ranks *r, int rank);
/* Message and traceback, "" if the rank went well. Borrowed from r. */
const char *tide_host_ranks_message(const tide_host_ranks *r, int rank);
/* The string the chunk returned, or null. Borrowed from r. */
const char *tide_host_ranks_result(const tide_host_ranks *r, int rank, size_t *n);
/* Interrupts every running rank. Any thread, also a signal handler. */
void tide_host_ranks_interrupt(tide_host_ranks *r);
void tide_host_ranks_free(tide_host_ranks *r);
/* This text. */
const char *tide_host_abi_text(void);
