/* Shared by ranks.c and rank_run.c: a job of ranks.
 *
 * The calling thread writes the job before the first rank starts. From then on each rank owns its
 * context, its Lua state and its row; `lock` guards what several threads read or write: the rows'
 * results, `first`, and which ranks have ended. The job is freed when the caller has released it
 * and the last thread has ended.
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

#include "ranks.h"

typedef struct rank_row {
  tide_host_ranks *all;
  tide_ctx *ctx;
  pthread_t thread;
  int index;
  bool started;
  /* under lock */
  bool ended;             /* its thread no longer touches row or hooks */
  bool hooked;            /* a hook of the host runs */
  bool abandoned;         /* no longer awaited; its thread releases what it owns */
  int status;
  char *message, *result; /* owned, or null */
  size_t nresult;
} rank_row;

struct tide_host_ranks {
  int nrank, nthread, narg, read_env;
  bool ran;
  char *root, *path, *code, *name, *params; /* owned copies; null: absent */
  size_t ncode;
  char **args;
  double grace;           /* seconds */
  tide_host_ranks_hooks hooks;
  tide_host_chunks *chunks; /* null: each rank compiles for itself */
  tide_group *group;      /* the group of the ranks' communicators */
  rank_row *rows;
  pthread_mutex_t lock;
  pthread_cond_t changed; /* a rank has failed or ended */
  struct timespec deadline; /* under lock: end of the grace period, once a rank has failed */
  int refs;               /* under lock: the caller's, and one for each thread */
  atomic_int first;       /* written under lock; -1: no rank has failed */
  atomic_bool over;       /* the run has returned */
};

/* Drops a reference; the last one frees the job. */
void rank_job_unref(tide_host_ranks *r);
/* Copies n bytes and a final zero; NULL without memory. */
char *rank_copy_bytes(const char *from, size_t n);
