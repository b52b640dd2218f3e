/* CPU memory: aligned host blocks, huge pages for large ones.
 *
 * First touch runs at about 2 GB/s with 4 KB pages and at three times that with 2 MB pages, so
 * blocks of a few megabytes and more are mappings of their own with huge pages requested, and are
 * unmapped when freed. ref and cpu share this memory: they differ by their kernels alone.
 */
#include <stdlib.h>
#include <sys/mman.h>

#include "core/device/backend.h"
#include "kernels/cpu/isa.h"
#include "kernels/flush.h"
#include "kernels/reduce_ranks.h"

enum { ALIGN = 64, PAGE = 4096, HUGE = 2 << 20, BIG = 4 << 20 };

/* Maps memory on a boundary of huge pages: maps one more than needed and unmaps both ends. */
static void *map_aligned(size_t size)
{
  char *p = mmap(NULL, size + HUGE, PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) return NULL;
  size_t front = (HUGE - (uintptr_t)p % HUGE) % HUGE;
  if (front) munmap(p, front);
  munmap(p + front + size, HUGE - front);
#ifdef MADV_HUGEPAGE
  madvise(p + front, size, MADV_HUGEPAGE);
#endif
  return p + front;
}

static size_t mapped(size_t size) { return (size + PAGE - 1) / PAGE * PAGE; }

/* Makes no state. Refuses an instruction set that the machine does not have. */
static int cpu_open(void **state, const struct tide__params *params, char *msg)
{
  (void)state, (void)params;
  return tide__cpu_isa_check(msg, TIDE__OPEN_MSG);
}

static void *cpu_alloc(void *state, size_t size)
{
  void *p = NULL;
  (void)state;
  if (size >= BIG) return map_aligned(mapped(size));
  return posix_memalign(&p, ALIGN, size ? size : 1) ? NULL : p;
}

static void cpu_free(void *state, void *ptr, size_t size)
{
  (void)state;
  if (size >= BIG) munmap(ptr, mapped(size));
  else free(ptr);
}

static void cpu_discard(void *state, void *ptr, size_t size)
{
  uintptr_t first = ((uintptr_t)ptr + PAGE - 1) / PAGE * PAGE;
  uintptr_t end = ((uintptr_t)ptr + size) / PAGE * PAGE;
  (void)state;
  if (first < end) madvise((void *)first, end - first, MADV_DONTNEED);
}

static int cpu_copy(void *state, void *stream, void *dst, const void *src, size_t size)
{
  (void)state, (void)stream;
  k_cpu_copy_bytes(dst, src, size);
  return TIDE_OK;
}

static int cpu_reduce(void *state, void *stream, void *const *dst, int ndst,
                      const void *const *src, int nsrc, int64_t n, int dtype, int op)
{
  (void)state, (void)stream;
  k_cpu_reduce_ranks(dst, ndst, src, nsrc, n, dtype, op);
  return TIDE_OK;
}

const tide__backend tide__backend_cpu = {
  .device = TIDE_DEV_CPU, .host = true, .has_bytes = true, .alloc = cpu_alloc, .free = cpu_free,
  .discard = cpu_discard, .lazy = true, .open = cpu_open, .copy = cpu_copy, .reduce = cpu_reduce,
  .with_modes = k_cpu_flushed,
};

const tide__backend tide__backend_ref = {
  .device = TIDE_DEV_REF, .host = true, .has_bytes = true, .alloc = cpu_alloc, .free = cpu_free,
  .discard = cpu_discard, .lazy = true, .copy = cpu_copy, .reduce = cpu_reduce,
  .with_modes = k_cpu_flushed,
};
