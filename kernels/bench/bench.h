/* Timing two ways of doing the same thing on a machine that is shared and noisy.
 *
 * Absolute figures drift with the neighbours, so ours and the peer are run in turn,
 * each between two short calibration slices that measure what the processor gives at that moment.
 * What is reported is the median of the per-pair ratio and the share of the adjacent calibration.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

typedef void (*bench_fn)(void *arg);

/* What a calibration slice runs: f32 multiply-adds, or bf16 tiles. */
enum { BENCH_FMA, BENCH_BF16 };

typedef struct bench_case {
  bench_fn ours, peer; /* peer may be null */
  void    *arg;
  double   flop;       /* operations of one run, for rates; 0: rates and share are not given */
  int      nthread;    /* threads of the calibration slices */
  int      calibrate;  /* BENCH_FMA or BENCH_BF16 */
  int      round;      /* pairs to take; 0: 21 */
  double   sample_ms;  /* repeat runs to fill this much per sample; 0: 2 */
} bench_case;

typedef struct bench_result {
  double ours_s, peer_s;      /* median seconds of one run */
  double ours_best, peer_best;
  double ratio, q1, q3;       /* peer time / our time: median and quartiles; above 1 we are ahead */
  int    quiet;               /* pairs whose calibrations all reached 4/5 of the best seen; if there
                               * are at least five, ratio, quartiles and shares are theirs alone */
  double share, peer_share;   /* median of rate / adjacent calibration rate */
  double limit;               /* median calibration rate, operations per second */
  int64_t steal;              /* clock ticks the hypervisor took meanwhile, -1 if unknown */
} bench_result;

void bench_run(const bench_case *c, bench_result *r);

/* Operations per second over about a millisecond of work that stays in registers and the
 * first-level cache, on nthread threads at once. */
double bench_calibrate(int kind, int nthread);

/* Returns the bytes read and written per second by a copy with stores that bypass the cache, 32 MiB
 * at once. far: the next piece of arrays larger than any cache; else the same 16 MiB again. */
double bench_copy(int far, int nthread);

/* Returns the bytes read per second by sums over the next 64 MiB of an array larger than any
 * cache. */
double bench_read(int nthread);

double  bench_now(void); /* seconds */
double  bench_quantile(double *v, int n, double q); /* sorts v */
int64_t bench_steal(void);

/* Returns 64-aligned memory on huge pages where the system grants them, filled with uniform values
 * in [-1, 1) of the dtype (TIDE_F32, TIDE_BF16, TIDE_F64 or TIDE_F16). Ends the program if it gets
 * no memory. Free it with free. */
void *bench_array(int64_t n, int dtype);
