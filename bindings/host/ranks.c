/* Ranks as threads: a job, its code, and its results. rank_run.c runs it. */
#include <stdlib.h>
#include <string.h>

#include "chunks.h"
#include "ranks_job.h"

enum { MAX_RANK = 1024, MAX_ARG = 4096, GRACE = 30 };

/* ---- the job --------------------------------------------------------------------------------- */

char *rank_copy_bytes(const char *from, size_t n)
{
  char *to = malloc(n + 1);
  if (to) {
    memcpy(to, from, n);
    to[n] = 0;
  }
  return to;
}

static int set_text(char **to, const char *from)
{
  char *copy = from ? rank_copy_bytes(from, strlen(from)) : NULL;
  if (from && !copy) return TIDE_E_NOMEM;
  free(*to);
  *to = copy;
  return TIDE_OK;
}

static void init_lock(tide_host_ranks *r)
{
  pthread_condattr_t attr;
  pthread_mutex_init(&r->lock, NULL);
  pthread_condattr_init(&attr);
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(&r->changed, &attr);
  pthread_condattr_destroy(&attr);
}

tide_host_ranks *tide_host_ranks_new(int nrank, const char *root)
{
  if (nrank < 1 || nrank > MAX_RANK) return NULL;
  tide_host_ranks *r = calloc(1, sizeof *r);
  if (!r) return NULL;
  r->rows = calloc((size_t)nrank, sizeof *r->rows);
  r->nrank = nrank;
  r->refs = 1;
  r->grace = GRACE;
  atomic_init(&r->first, -1);
  atomic_init(&r->over, false);
  init_lock(r);
  if (!r->rows || set_text(&r->root, root) < 0) {
    tide_host_ranks_free(r);
    return NULL;
  }
  for (int i = 0; i < nrank; i++) r->rows[i] = (rank_row){.all = r, .index = i};
  return r;
}

static void free_job(tide_host_ranks *r)
{
  for (int i = 0; r->rows && i < r->nrank; i++) {
    free(r->rows[i].message);
    free(r->rows[i].result);
  }
  for (int i = 0; i < r->narg; i++) free(r->args[i]);
  free(r->args);
  free(r->rows);
  free(r->root);
  free(r->path);
  free(r->code);
  free(r->name);
  free(r->params);
  tide_host_chunks_free(r->chunks);
  tide_group_release(r->group);
  pthread_mutex_destroy(&r->lock);
  pthread_cond_destroy(&r->changed);
  free(r);
}

void rank_job_unref(tide_host_ranks *r)
{
  pthread_mutex_lock(&r->lock);
  bool last = --r->refs == 0;
  pthread_mutex_unlock(&r->lock);
  if (last) free_job(r);
}

void tide_host_ranks_free(tide_host_ranks *r)
{
  if (r) rank_job_unref(r);
}

int tide_host_ranks_code(tide_host_ranks *r, const char *code, size_t n, const char *name)
{
  if (!r || !code) return TIDE_E_ARG;
  char *copy = rank_copy_bytes(code, n);
  if (!copy) return TIDE_E_NOMEM;
  free(r->code);
  r->code = copy;
  r->ncode = n;
  set_text(&r->path, NULL);
  return set_text(&r->name, name ? name : "=rank");
}

int tide_host_ranks_file(tide_host_ranks *r, const char *path)
{
  return r && path ? set_text(&r->path, path) : TIDE_E_ARG;
}

int tide_host_ranks_arg(tide_host_ranks *r, const char *value)
{
  if (!r || !value || r->narg >= MAX_ARG) return TIDE_E_ARG;
  char **more = realloc(r->args, (size_t)(r->narg + 1) * sizeof *more);
  if (!more) return TIDE_E_NOMEM;
  r->args = more;
  r->args[r->narg] = rank_copy_bytes(value, strlen(value));
  if (!r->args[r->narg]) return TIDE_E_NOMEM;
  r->narg++;
  return TIDE_OK;
}

int tide_host_ranks_nthread(tide_host_ranks *r, int n)
{
  if (!r || n < 0) return TIDE_E_ARG;
  r->nthread = n;
  return TIDE_OK;
}

int tide_host_ranks_params(tide_host_ranks *r, const char *params, int read_env)
{
  if (!r) return TIDE_E_ARG;
  r->read_env = read_env != 0;
  return set_text(&r->params, params);
}

int tide_host_ranks_grace(tide_host_ranks *r, double seconds)
{
  if (!r || !(seconds >= 0 && seconds < 1e9)) return TIDE_E_ARG;
  r->grace = seconds;
  return TIDE_OK;
}

int tide_host_ranks_chunks(tide_host_ranks *r, tide_host_chunks *chunks)
{
  if (!r) return TIDE_E_ARG;
  if (r->ran) return TIDE_E_STATE;
  tide_host_chunks_free(r->chunks);
  r->chunks = chunks_retain(chunks);
  return TIDE_OK;
}

void tide_host_ranks_set_hooks(tide_host_ranks *r, const tide_host_ranks_hooks *hooks)
{
  if (r) r->hooks = hooks ? *hooks : (tide_host_ranks_hooks){0};
}

/* ---- results --------------------------------------------------------------------------------- */

int tide_host_ranks_first(const tide_host_ranks *r)
{
  return r ? atomic_load(&r->first) : -1;
}

static const rank_row *ranks_row_of(const tide_host_ranks *r, int rank)
{
  return r && rank >= 0 && rank < r->nrank ? &r->rows[rank] : NULL;
}

int tide_host_ranks_status(const tide_host_ranks *r, int rank)
{
  const rank_row *row = ranks_row_of(r, rank);
  return row ? row->status : TIDE_E_ARG;
}

int tide_host_ranks_running(const tide_host_ranks *r)
{
  int n = 0;
  for (int i = 0; r && i < r->nrank; i++) n += r->rows[i].abandoned;
  return n;
}

const char *tide_host_ranks_message(const tide_host_ranks *r, int rank)
{
  const rank_row *row = ranks_row_of(r, rank);
  return row && row->message ? row->message : "";
}

const char *tide_host_ranks_result(const tide_host_ranks *r, int rank, size_t *n)
{
  const rank_row *row = ranks_row_of(r, rank);
  if (n) *n = row ? row->nresult : 0;
  return row ? row->result : NULL;
}
