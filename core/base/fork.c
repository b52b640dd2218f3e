/* A word that differs between a forked child and its parent. See fork.h. */
#include "core/base/fork.h"

#include <stddef.h>
#include <sys/mman.h>

enum { PAGE = 4096 };

const uint32_t *tide__fork_mark_new(void)
{
  void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
#ifdef MADV_WIPEONFORK
  madvise(p, PAGE, MADV_WIPEONFORK);
#endif
  *(uint32_t *)p = 1;
  return p;
}

void tide__fork_mark_release(const uint32_t *mark)
{
  if (mark) munmap((void *)mark, PAGE);
}
