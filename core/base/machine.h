/* What this machine grants the process: cores, and memory within the limits of its cgroup; and
 * whether the process is a fork. */
#pragma once

#include <stdint.h>

typedef struct tide__memory {
  int64_t total;     /* RAM and swap, or the cgroup's limit where that is lower; 0: unknown */
  int64_t available; /* bytes of it that can be taken without ending another process; 0: unknown */
} tide__memory;

/* Returns the memory of this machine as seen now. Reads a few files below root ("" for the real
 * ones; specs give a folder): some 50 us. Thread-safe. */
tide__memory tide__machine_memory(const char *root);

/* Returns the number of cores that this process may run on, at least 1. Thread-safe. */
int tide__machine_cores(void);

/* A word that differs between a forked child and its parent. A child has the parent's memory but
 * none of its threads: waiting for one would block forever. */

/* Returns a word that is 1 in this process and 0 in every child it forks, or NULL without memory.
 * The kernel clears the page at fork (MADV_WIPEONFORK, Linux 4.14). Owned. Thread-safe. */
const uint32_t *tide__fork_mark_new(void);
/* Frees the word; NULL is allowed. Thread-safe. */
void tide__fork_mark_release(const uint32_t *mark);
