/* Matrix products against oneDNN: training shapes, small depth, few rows. See bench.h.
 *
 * Usage: bench_matmul [f32|bf16|all] [threads, 0 for 1 and 2] [rounds] [part of a shape's name]
 * Prints one line per shape and thread count. Built without oneDNN's header it prints ours alone.
 * Both sides get the same operands; ours calls gemm.h, the peer dnnl_sgemm or a matmul primitive
 * made once per shape (its set-up is not timed, ours is).
 */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/bench/bench.h"
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/vec.h"
#include "tide/tide.h"

#ifndef TIDE_BENCH_ONEDNN
#define TIDE_BENCH_ONEDNN 0
#endif
#if TIDE_BENCH_ONEDNN
#include "oneapi/dnnl/dnnl.h"
#endif

typedef struct shape {
  const char *name;
  int64_t m, n, k;
  int ta, tb; /* stored transposed */
} shape;

static const shape shapes[] = {
  {"512^3", 512, 512, 512, 0, 0},
  {"1024^3", 1024, 1024, 1024, 0, 0},
  {"2048^3", 2048, 2048, 2048, 0, 0},
  {"2048x1408x512_NT", 2048, 1408, 512, 0, 1},
  {"2048x512x1408_NT", 2048, 512, 1408, 0, 1},
  {"2048x512x1408_NN", 2048, 512, 1408, 0, 0},
  {"2048x1408x512_NN", 2048, 1408, 512, 0, 0},
  {"2048x512x512_NT", 2048, 512, 512, 0, 1},
  {"2048x512x512_NN", 2048, 512, 512, 0, 0},
  {"512x512x2048_TN", 512, 512, 2048, 1, 0},
  {"512x1408x2048_TN", 512, 1408, 2048, 1, 0},
  {"1408x512x2048_TN", 1408, 512, 2048, 1, 0},
  {"2048x4096x512_NT", 2048, 4096, 512, 0, 1},
  {"512x512x64_NT", 512, 512, 64, 0, 1},
  {"512x64x512_NN", 512, 64, 512, 0, 0},
  {"2048x16x512_NT", 2048, 16, 512, 0, 1}, /* adapters of rank 16 */
  {"2048x16x1408_NN", 2048, 16, 1408, 0, 0},
  {"2048x1408x16_NT", 2048, 1408, 16, 0, 1},
  {"2048x512x16_NN", 2048, 512, 16, 0, 0},
  {"1408x16x2048_TN", 1408, 16, 2048, 1, 0},
  {"16x512x2048_TN", 16, 512, 2048, 1, 0},
  {"64x4096x4096_NT", 64, 4096, 4096, 0, 1},
  {"8x4096x4096_NT", 8, 4096, 4096, 0, 1},
  {"8x4096x4096_NN", 8, 4096, 4096, 0, 0},
  {"1x4096x4096_NT", 1, 4096, 4096, 0, 1},
  {"1x4096x4096_NN", 1, 4096, 4096, 0, 0},
};

typedef struct product {
  shape    s;
  cpu_gemm g;
  int      nthread;
  void    *work;
  float   *peer_c;
#if TIDE_BENCH_ONEDNN
  dnnl_primitive_t prim;
  dnnl_stream_t    stream;
  dnnl_exec_arg_t  args[3];
#endif
} product;

static void matmul_run_ours(void *arg)
{
  product *p = arg;
  tide__cpu_gemm(&p->g, p->nthread, p->work);
}

#if TIDE_BENCH_ONEDNN

static void must(int ok, const char *what)
{
  if (ok) return;
  fprintf(stderr, "bench_matmul: oneDNN refused %s\n", what);
  exit(1);
}

static void run_sgemm(void *arg)
{
  product *p = arg;
  const shape *s = &p->s;
  omp_set_num_threads(p->nthread);
  dnnl_sgemm(s->ta ? 'T' : 'N', s->tb ? 'T' : 'N', s->m, s->n, s->k, 1.0f, p->g.a,
             s->ta ? s->m : s->k, p->g.b, s->tb ? s->k : s->n, 0.0f, p->peer_c, s->n);
}

static void run_primitive(void *arg)
{
  product *p = arg;
  omp_set_num_threads(p->nthread);
  dnnl_primitive_execute(p->prim, p->stream, 3, p->args);
  dnnl_stream_wait(p->stream);
}

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t mem_desc;
#define DESC(d) (d)
#define DESC_INIT(d, nd, dims, type, strides) \
  dnnl_memory_desc_create_with_strides(&d, nd, dims, type, strides)
#else
typedef dnnl_memory_desc_t mem_desc;
#define DESC(d) (&(d))
#define DESC_INIT(d, nd, dims, type, strides) \
  dnnl_memory_desc_init_by_strides(&d, nd, dims, type, strides)
#endif

static dnnl_primitive_t make_primitive(dnnl_engine_t eng, const mem_desc d[3])
{
  dnnl_primitive_desc_t pd;
  dnnl_primitive_t prim;
#if DNNL_VERSION_MAJOR >= 3
  must(!dnnl_matmul_primitive_desc_create(&pd, eng, d[0], d[1], 0, d[2], 0), "matmul");
#else
  dnnl_matmul_desc_t desc;
  must(!dnnl_matmul_desc_init(&desc, &d[0], &d[1], 0, &d[2]), "the matmul");
  must(!dnnl_primitive_desc_create(&pd, &desc, 0, eng, 0), "the matmul descriptor");
#endif
  must(!dnnl_primitive_create(&prim, pd), "the matmul primitive");
  dnnl_primitive_desc_destroy(pd);
  return prim;
}

static void prepare_primitive(product *p)
{
  const shape *s = &p->s;
  dnnl_engine_t eng;
  omp_set_num_threads(p->nthread);
  must(!dnnl_engine_create(&eng, dnnl_cpu, 0), "the engine");
  must(!dnnl_stream_create(&p->stream, eng, dnnl_stream_default_flags), "the stream");
  dnnl_dims_t dims[3] = {{s->m, s->k}, {s->k, s->n}, {s->m, s->n}};
  dnnl_dims_t strides[3] = {{p->g.a_rs, p->g.a_cs}, {p->g.b_rs, p->g.b_cs}, {s->n, 1}};
  dnnl_data_type_t out = p->g.c_dtype == TIDE_F32 ? dnnl_f32 : dnnl_bf16;
  void *data[3] = {(void *)p->g.a, (void *)p->g.b, p->peer_c};
  static const int slot[3] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST};
  mem_desc d[3];
  for (int i = 0; i < 3; i++) {
    must(!DESC_INIT(d[i], 2, dims[i], i < 2 ? dnnl_bf16 : out, strides[i]), "a shape");
    p->args[i].arg = slot[i];
    must(!dnnl_memory_create(&p->args[i].memory, DESC(d[i]), eng, data[i]), "memory");
  }
  p->prim = make_primitive(eng, d);
  dnnl_engine_destroy(eng);
}

static void drop_primitive(product *p)
{
  for (int i = 0; i < 3; i++) dnnl_memory_destroy(p->args[i].memory);
  dnnl_primitive_destroy(p->prim);
  dnnl_stream_destroy(p->stream);
}

static double value(const void *p, int64_t i, int dtype)
{
  return dtype == TIDE_F32 ? ((const float *)p)[i] : tide__bf16_to_f32(((const uint16_t *)p)[i]);
}

/* Returns the largest difference between the two results, in units of sqrt(k). */
static double difference(const product *p)
{
  double worst = 0;
  for (int64_t i = 0; i < p->s.m * p->s.n; i++) {
    double d = fabs(value(p->g.c, i, p->g.c_dtype) - value(p->peer_c, i, p->g.c_dtype));
    if (!(d <= worst)) worst = d;
  }
  return worst / sqrt((double)p->s.k);
}

#endif

static void matmul_prepare(product *p, const shape *s, int ab, int out, int nthread)
{
  *p = (product){.s = *s, .nthread = nthread};
  cpu_gemm *g = &p->g;
  g->m = s->m, g->n = s->n, g->k = s->k;
  g->a = bench_array(s->m * s->k, ab), g->b = bench_array(s->k * s->n, ab);
  g->c = bench_array(s->m * s->n, out), p->peer_c = bench_array(s->m * s->n, out);
  g->a_rs = s->ta ? 1 : s->k, g->a_cs = s->ta ? s->m : 1;
  g->b_rs = s->tb ? 1 : s->n, g->b_cs = s->tb ? s->k : 1;
  g->c_rs = s->n;
  g->ab_dtype = ab, g->c_dtype = out;
  p->work = bench_array(tide__cpu_gemm_work(g, nthread) / 4 + 1, TIDE_F32);
}

static void drop(product *p)
{
  free((void *)p->g.a);
  free((void *)p->g.b);
  free(p->g.c);
  free(p->peer_c);
  free(p->work);
}

static void bench_shape(const shape *s, int ab, int out, int nthread, int round)
{
  product p;
  matmul_prepare(&p, s, ab, out, nthread);
  bench_case c = {.ours = matmul_run_ours, .arg = &p, .nthread = nthread, .round = round};
  c.flop = 2.0 * (double)s->m * (double)s->n * (double)s->k;
  c.calibrate = ab == TIDE_BF16 ? BENCH_BF16 : BENCH_FMA;
  matmul_run_ours(&p);
  double diff = 0;
#if TIDE_BENCH_ONEDNN
  if (ab == TIDE_BF16) prepare_primitive(&p);
  c.peer = ab == TIDE_BF16 ? run_primitive : run_sgemm;
  c.peer(&p);
  diff = difference(&p);
#endif
  bench_result r;
  bench_run(&c, &r);
  printf("%-4s %-4s %-18s T%d  ours %8.1f GF/s (%3.0f%%)  peer %8.1f (%3.0f%%)  ratio %5.2f "
         "[%4.2f %4.2f]  best %8.1f %8.1f  diff %.1e  quiet %d  steal %lld\n",
         ab == TIDE_F32 ? "f32" : "bf16", out == TIDE_F32 ? "f32" : "bf16", s->name, nthread,
         c.flop / r.ours_s * 1e-9, 100 * r.share, c.flop / r.peer_s * 1e-9, 100 * r.peer_share,
         r.ratio, r.q1, r.q3, c.flop / r.ours_best * 1e-9, c.flop / r.peer_best * 1e-9, diff,
         r.quiet, (long long)r.steal);
  fflush(stdout);
#if TIDE_BENCH_ONEDNN
  if (ab == TIDE_BF16) drop_primitive(&p);
#endif
  drop(&p);
}

int main(int argc, char **argv)
{
  const char *type = argc > 1 ? argv[1] : "all", *part = argc > 4 ? argv[4] : "";
  int only = argc > 2 ? atoi(argv[2]) : 0, round = argc > 3 ? atoi(argv[3]) : 0;
  printf("isa %s; share is of the adjacent calibration slice\n",
         tide__cpu_isa_name(tide__cpu_isa()));
  for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
    const shape *s = &shapes[i];
    if (!strstr(s->name, part)) continue;
    for (int t = 1; t <= 2; t++) {
      if (only && t != only) continue;
      if (strcmp(type, "bf16")) bench_shape(s, TIDE_F32, TIDE_F32, t, round);
      if (!strcmp(type, "f32")) continue;
      bench_shape(s, TIDE_BF16, TIDE_BF16, t, round);
    }
  }
  return 0;
}
