/* What the machine gives at this moment: a helper that the benchmark driver keeps on a pipe.
 *
 * Reads a line "KIND THREADS MILLISECONDS [cpu]" at a time and answers with a rate per second, with
 * cpu per second that the threads were really running:
 * fma   f32 operations of the library's own tile in the first-level cache
 * bf16  the same of its bf16 tile (fma where the processor has none)
 * copy  bytes read and written by a copy past the cache, over arrays larger than any cache
 * near  the same over arrays of 16 MiB
 * read  bytes read by a sum over an array larger than any cache
 * A slice is repeated until the time is filled; the rate is the mean over it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/bench/bench.h"

static const char *const kinds[] = {"fma", "bf16", "copy", "near", "read"};

static double slice(int kind, int nthread)
{
  if (kind < 2) return bench_calibrate(kind ? BENCH_BF16 : BENCH_FMA, nthread);
  return kind == 4 ? bench_read(nthread) : bench_copy(kind == 2, nthread);
}

static double cpu_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double rate_of(int kind, int nthread, double seconds, int cpu)
{
  slice(kind, nthread); /* memory and threads are there from now on */
  double inverse = 0, start = bench_now(), cpu_start = cpu_now(), took;
  int n = 0;
  do {
    inverse += 1 / slice(kind, nthread), n++;
    took = bench_now() - start;
  } while (took < seconds);
  double rate = n / inverse, share = (cpu_now() - cpu_start) / (took * nthread);
  return cpu && share < 1 ? rate / share : rate;
}

int main(void)
{
  char line[128], name[16], word[8];
  while (fgets(line, sizeof line, stdin)) {
    int nthread = 1, kind = -1;
    double ms = 1;
    int got = sscanf(line, "%15s %d %lf %7s", name, &nthread, &ms, word);
    if (got < 1) continue;
    for (int i = 0; i < 5; i++) kind = strcmp(name, kinds[i]) ? kind : i;
    if (kind < 0 || nthread < 1) printf("error expected KIND THREADS MILLISECONDS, got %s", line);
    else printf("%.6g\n", rate_of(kind, nthread, 1e-3 * ms, got == 4));
    fflush(stdout);
  }
  return 0;
}
