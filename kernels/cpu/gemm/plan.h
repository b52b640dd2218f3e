/* How a product is planned, for gemm.c and plan.c.
 */
#pragma once

#include "kernels/cpu/gemm/tile.h"
#include "kernels/cpu/vec.h"

enum { GEMM_NO_ELEMENTS, GEMM_NO_SUM, GEMM_SKINNY, GEMM_THIN, GEMM_TILES }; /* methods */
enum { GEMM_LINE = 64 }; /* bytes of a cache line */

/* Returns where part i of `parts` of n rows or columns begins, in whole panels of `unit`; n for i =
 * parts. The parts differ by a panel at most. */
static inline int64_t gemm_part_begin(int64_t n, int64_t unit, int64_t parts, int64_t i)
{
  return i64_min(n, i64_ceil_div(n, unit) * i / parts * unit);
}

/* Returns the scratch of one thread. */
static inline int64_t gemm_thread_bytes(const cpu_gemm_plan *p)
{
  return p->a_bytes + p->stage_bytes + (p->own ? p->b_bytes : 0);
}

/* Returns the transposed product C', in f32 at the front of the scratch. */
static inline cpu_gemm gemm_transposed(const cpu_gemm *g, void *work)
{
  cpu_gemm t = {.m = g->n, .n = g->m, .k = g->k, .a = g->b, .a_rs = g->b_cs, .a_cs = g->b_rs,
                .b = g->a, .b_rs = g->a_cs, .b_cs = g->a_rs, .c = work, .c_rs = g->m,
                .ab_dtype = g->ab_dtype, .c_dtype = TIDE_F32};
  return t;
}

static inline int64_t gemm_transposed_bytes(const cpu_gemm *g)
{
  return i64_round_up(g->m * g->n * 4, GEMM_LINE);
}
