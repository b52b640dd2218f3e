/* The harness of the bench programs. See bench.h.
 *
 * Layer: programs, not part of the library; may print and exit.
 */
#include "kernels/bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#endif

#include "kernels/cpu/isa.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/vec.h"
#include "kernels/cpu/gemm/tile.h"
#include "tide/tide.h"

double bench_now(void)
{
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int bench_compare(const void *a, const void *b)
{
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double bench_quantile(double *v, int n, double q)
{
  if (n == 0) return NAN;
  qsort(v, (size_t)n, sizeof *v, bench_compare);
  double at = q * (n - 1);
  int i = (int)at;
  return i + 1 < n ? v[i] + (at - i) * (v[i + 1] - v[i]) : v[n - 1];
}

int64_t bench_steal(void)
{
  FILE *f = fopen("/proc/stat", "r");
  long long user, nice, sys, idle, wait, irq, soft, steal;
  if (!f) return -1;
  int got = fscanf(f, "cpu %lld %lld %lld %lld %lld %lld %lld %lld", &user, &nice, &sys, &idle,
                   &wait, &irq, &soft, &steal);
  fclose(f);
  return got == 8 ? steal : -1;
}

/* ---- calibration: the library's own tile, over panels that stay in the first-level cache ---- */

typedef struct slice {
  const tile_kernel *kern;
  int64_t k, rep;
  char   *mem; /* per thread: A panel, B panel, C tile */
  int64_t each;
} slice;

static void run_slice(void *arg, int64_t begin, int64_t end, int thread)
{
  (void)thread;
  const slice *s = arg;
  const tile_kernel *kern = s->kern;
  for (int64_t i = begin; i < end; i++) {
    char *a = s->mem + i * s->each, *b = a + kern->mr * s->k * kern->esize;
    char *c = b + kern->nr * s->k * kern->esize;
    tile_job job = {.k = s->k, .a = a, .b = b, .c = c, .c_rs = kern->nr};
    job.rows = kern->mr, job.cols = kern->nr;
    if (kern->begin) kern->begin();
    for (int64_t r = 0; r < s->rep; r++) kern->run(&job);
    if (kern->end) kern->end();
  }
}

double bench_calibrate(int kind, int nthread)
{
  int isa = tide__cpu_isa();
  const tile_kernel *kern = 0;
  if (kind == BENCH_BF16 && (isa & CPU_ISA_AMX)) kern = tide__tile_kernel_amx();
  else if (kind == BENCH_BF16 && (isa & CPU_ISA_BF16)) kern = tide__tile_kernel_bf16();
  if (!kern && (isa & CPU_ISA_AVX512)) kern = tide__tile_kernel_avx512();
  if (!kern) kern = tide__tile_kernel_base(isa, 0);
  slice s = {.kern = kern, .k = 128};
  s.each = (kern->mr + kern->nr) * s.k * kern->esize + kern->mr * kern->nr * 4;
  s.each = (s.each + 4095) / 4096 * 4096 + 64;
  s.mem = aligned_alloc(64, (size_t)(s.each * nthread));
  if (!s.mem) exit(1);
  memset(s.mem, 0, (size_t)(s.each * nthread));
  double flop = 2.0 * kern->mr * kern->nr * (double)s.k, total = 0, took = 0;
  s.rep = 64;
  while (took < 5e-4) {
    double t = bench_now();
    tide__pool_for(nthread, nthread, 1, run_slice, &s);
    t = bench_now() - t;
    total = flop * (double)s.rep * nthread, took = t;
    if (took < 5e-4) s.rep *= took < 1e-4 ? 8 : 2;
  }
  free(s.mem);
  return total / took;
}

/* ---- calibration: a copy ---- */

typedef struct span { char *to; const char *from; } span;

#if defined(__x86_64__) && defined(__GNUC__)

/* Whole units of 64 bytes, both sides aligned to them. */
__attribute__((target("avx512f"))) static void stream_avx512(char *to, const char *from, int64_t n)
{
  for (int64_t i = 0; i < n; i += 64)
    _mm512_stream_si512((void *)(to + i), _mm512_load_si512(from + i));
  _mm_sfence();
}

static void stream(char *to, const char *from, int64_t n)
{
  if (tide__cpu_isa() & CPU_ISA_AVX512) stream_avx512(to, from, n);
  else memcpy(to, from, (size_t)n);
}

#else

static void stream(char *to, const char *from, int64_t n) { memcpy(to, from, (size_t)n); }

#endif

static void run_copy(void *arg, int64_t begin, int64_t end, int thread)
{
  (void)thread;
  const span *s = arg;
  stream(s->to + begin * 4096, s->from + begin * 4096, (end - begin) * 4096);
}

double bench_copy(int far, int nthread)
{
  static char *mem[2]; /* kept for the life of the program: fresh pages are another matter */
  static int64_t at;
  const int64_t piece = (int64_t)16 << 20, all = 16 * piece;
  for (int i = 0; i < 2; i++)
    if (!mem[i]) mem[i] = bench_array(all / 4, TIDE_F32);
  double start = bench_now();
  for (int i = 0; i < 2; i++) {
    if (far) at = (at + piece) % all;
    else at = 0;
    span s = {mem[0] + at, mem[1] + at};
    tide__pool_for(nthread, piece / 4096, 1, run_copy, &s);
  }
  return 4.0 * (double)piece / (bench_now() - start);
}

/* ---- calibration: reading ---- */

#if defined(__x86_64__) && defined(__GNUC__)

/* Whole units of 512 bytes. */
__attribute__((target("avx512f"))) static float sum_avx512(const char *from, int64_t n)
{
  __m512 sum[8];
  for (int u = 0; u < 8; u++) sum[u] = _mm512_setzero_ps();
  for (int64_t i = 0; i < n; i += 512)
#pragma GCC unroll 8
    for (int u = 0; u < 8; u++) {
      _mm_prefetch(from + i + 64 * u + 2048, _MM_HINT_T0);
      sum[u] = _mm512_add_ps(sum[u], _mm512_load_ps(from + i + 64 * u));
    }
  for (int u = 1; u < 8; u++) sum[0] = _mm512_add_ps(sum[0], sum[u]);
  return _mm512_reduce_add_ps(sum[0]);
}

#endif

static float sum_of(const char *from, int64_t n)
{
#if defined(__x86_64__) && defined(__GNUC__)
  if (tide__cpu_isa() & CPU_ISA_AVX512) return sum_avx512(from, n);
#endif
  uint64_t sum[8] = {0};
  for (int64_t i = 0; i < n; i += 64)
    for (int u = 0; u < 8; u++) sum[u] += ((const uint64_t *)(from + i))[u];
  for (int u = 1; u < 8; u++) sum[0] += sum[u];
  return (float)sum[0];
}

static void run_read(void *arg, int64_t begin, int64_t end, int thread)
{
  const span *s = arg;
  const float sum = sum_of(s->from + begin * 4096, (end - begin) * 4096);
  (void)thread;
  __asm__ volatile("" : : "g"(sum)); /* the sum counts as used */
}

double bench_read(int nthread)
{
  static char *mem;
  static int64_t at;
  const int64_t piece = (int64_t)64 << 20, all = 8 * piece;
  if (!mem) mem = bench_array(all / 4, TIDE_F32);
  at = (at + piece) % all;
  const span s = {0, mem + at};
  double start = bench_now();
  tide__pool_for(nthread, piece / 4096, 1, run_read, (void *)&s);
  return (double)piece / (bench_now() - start);
}

/* ---- pairs ---- */

typedef struct samples {
  double ours[256], peer[256], ratio[256], share[256], peer_share[256], limit[256];
  double lowest[256]; /* of the pair's three calibrations */
} samples;

static double time_runs(bench_fn fn, void *arg, int64_t rep)
{
  double t = bench_now();
  for (int64_t i = 0; i < rep; i++) fn(arg);
  return (bench_now() - t) / (double)rep;
}

static int64_t repeats(const bench_case *c, bench_fn fn)
{
  double want = 1e-3 * (c->sample_ms > 0 ? c->sample_ms : 2);
  fn(c->arg);
  double t = time_runs(fn, c->arg, 1);
  return t >= want ? 1 : (int64_t)(want / (t > 1e-8 ? t : 1e-8)) + 1;
}

static void take_pair(const bench_case *c, samples *s, int i, const int64_t rep[2])
{
  double before = bench_calibrate(c->calibrate, c->nthread), middle, after;
  int ours_first = i % 2 == 0 || !c->peer;
  s->ours[i] = s->peer[i] = NAN;
  if (ours_first) s->ours[i] = time_runs(c->ours, c->arg, rep[0]);
  else s->peer[i] = time_runs(c->peer, c->arg, rep[1]);
  middle = bench_calibrate(c->calibrate, c->nthread);
  if (!ours_first) s->ours[i] = time_runs(c->ours, c->arg, rep[0]);
  else if (c->peer) s->peer[i] = time_runs(c->peer, c->arg, rep[1]);
  after = bench_calibrate(c->calibrate, c->nthread);
  double first = 0.5 * (before + middle), second = 0.5 * (middle + after);
  s->ratio[i] = s->peer[i] / s->ours[i];
  s->share[i] = c->flop / s->ours[i] / (ours_first ? first : second);
  s->peer_share[i] = c->flop / s->peer[i] / (ours_first ? second : first);
  s->limit[i] = middle;
  s->lowest[i] = before < middle ? before : middle;
  if (after < s->lowest[i]) s->lowest[i] = after;
}

/* Moves the quiet pairs' ratios and shares to the front; returns how many count. */
static int keep_quiet(samples *s, int n, int *quiet)
{
  double best = 0;
  for (int i = 0; i < n; i++) best = s->limit[i] > best ? s->limit[i] : best;
  *quiet = 0;
  for (int i = 0; i < n; i++) *quiet += s->lowest[i] >= 0.8 * best;
  if (*quiet < 5) return n;
  int to = 0;
  for (int i = 0; i < n; i++) {
    if (s->lowest[i] < 0.8 * best) continue;
    s->ratio[to] = s->ratio[i], s->share[to] = s->share[i];
    s->peer_share[to++] = s->peer_share[i];
  }
  return to;
}

void bench_run(const bench_case *c, bench_result *r)
{
  static samples s; /* one bench runs at a time; too large for some stacks */
  int n = c->round > 0 ? c->round : 21;
  if (n > 256) n = 256;
  int64_t steal = bench_steal(), rep[2] = {repeats(c, c->ours), 1};
  if (c->peer) rep[1] = repeats(c, c->peer);
  for (int i = 0; i < n; i++) take_pair(c, &s, i, rep);
  r->steal = steal < 0 ? -1 : bench_steal() - steal;
  r->ours_s = bench_quantile(s.ours, n, 0.5), r->ours_best = s.ours[0];
  r->peer_s = bench_quantile(s.peer, n, 0.5), r->peer_best = s.peer[0];
  int kept = keep_quiet(&s, n, &r->quiet);
  r->ratio = bench_quantile(s.ratio, kept, 0.5);
  r->q1 = bench_quantile(s.ratio, kept, 0.25), r->q3 = bench_quantile(s.ratio, kept, 0.75);
  r->share = bench_quantile(s.share, kept, 0.5);
  r->peer_share = bench_quantile(s.peer_share, kept, 0.5);
  r->limit = bench_quantile(s.limit, n, 0.5);
}

/* ---- arrays ---- */

void *bench_array(int64_t n, int dtype)
{
  size_t size = dtype == TIDE_F64 ? 8 : dtype == TIDE_F32 ? 4 : 2, huge = (size_t)2 << 20;
  size_t bytes = ((size_t)(n > 0 ? n : 1) * size + huge - 1) / huge * huge;
  void *p = aligned_alloc(huge, bytes);
  if (!p) {
    fprintf(stderr, "bench: no memory for %lld elements\n", (long long)n);
    exit(1);
  }
#ifdef MADV_HUGEPAGE
  madvise(p, bytes, MADV_HUGEPAGE);
#endif
  uint64_t x = 88172645463325252u + (uint64_t)n;
  for (int64_t i = 0; i < n; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    double v = (double)(int64_t)(x >> 11) * 0x1p-52 - 1.0;
    if (dtype == TIDE_F64) ((double *)p)[i] = v;
    else if (dtype == TIDE_F32) ((float *)p)[i] = (float)v;
    else if (dtype == TIDE_BF16) ((uint16_t *)p)[i] = tide__f32_to_bf16((float)v);
    else ((uint16_t *)p)[i] = tide__f32_to_f16((float)v);
  }
  return p;
}
