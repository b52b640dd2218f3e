/* A word that differs between a forked child and its parent. A child has the parent's memory but
 * none of its threads: waiting for one would block forever. */
#ifndef TIDE_BASE_FORK_H
#define TIDE_BASE_FORK_H

#include <stdint.h>

/* Returns a word that is 1 in this process and 0 in every child it forks, or NULL without memory.
 * The kernel clears the page at fork (MADV_WIPEONFORK, Linux 4.14). Owned. Thread-safe. */
const uint32_t *tide__fork_mark_new(void);
/* Frees the word; NULL is allowed. Thread-safe. */
void tide__fork_mark_release(const uint32_t *mark);

#endif
