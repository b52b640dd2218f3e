/* Products of groups of rows on the CPU: one product of gemm.c a group.
 *
 * Many small groups are spread over the threads, large ones are each cut inside gemm.c; either way
 * the bits are the same. How many rows a group has is data, so scratch is for the most that any
 * number of rows may need.
 *
 * See kernel.h for operands.
 */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/vec.h"
#include "kernels/ref/grouped.h"

/* Groups are spread where a product on one thread needs at most so much scratch. */
enum { SPREAD_BYTES = 8 << 20 };

/* The products of a call. */
typedef struct grouped {
  const k_call *call;
  cpu_gemm g;      /* of all rows as one group, without pointers */
  int along;       /* the rows are those of C; else they are summed over */
  int64_t one;     /* scratch of a product on one thread, a multiple of 64 */
  int64_t all;     /* on all threads */
} grouped;

static grouped grouped_of(const k_call *call, int along, int accumulate)
{
  const k_tensor *a = &call->in[0], *b = &call->in[1], *y = &call->out[0];
  grouped p = {.call = call, .along = along};
  cpu_gemm *g = &p.g;
  g->ab_dtype = a->dtype, g->c_dtype = y->dtype, g->accumulate = accumulate;
  if (along) {
    g->m = a->shape[0], g->n = b->shape[1], g->k = a->shape[1];
    g->a_rs = a->stride[0], g->a_cs = a->stride[1];
    g->b_rs = b->stride[2], g->b_cs = b->stride[1];
    g->c_rs = y->stride[0];
  } else {
    g->m = a->shape[1], g->n = b->shape[1], g->k = a->shape[0];
    g->a_rs = a->stride[1], g->a_cs = a->stride[0];
    g->b_rs = b->stride[0], g->b_cs = b->stride[1];
    g->c_rs = y->stride[1];
  }
  p.one = i64_round_up(tide__cpu_gemm_most(g, 1), 64);
  p.all = i64_round_up(tide__cpu_gemm_most(g, call->nthread), 64);
  return p;
}

static int64_t grouped_bytes(const grouped *p)
{
  int64_t spread = p->one <= SPREAD_BYTES ? p->one * p->call->nthread : 0;
  return i64_max(spread, p->all);
}

static void run_group(const grouped *p, int64_t i, int nthread, char *work)
{
  const k_tensor *a = &p->call->in[0], *b = &p->call->in[1], *y = &p->call->out[0];
  const k_tensor *offsets = &p->call->in[2];
  int64_t first = ref_offset_of(offsets, i), n = ref_offset_of(offsets, i + 1) - first;
  int64_t in = vec_size(a->dtype), out = vec_size(y->dtype);
  cpu_gemm g = p->g;
  g.a = (const char *)a->data + first * a->stride[0] * in;
  if (p->along) {
    g.m = n;
    g.b = (const char *)b->data + i * b->stride[0] * in;
    g.c = (char *)y->data + first * y->stride[0] * out;
  } else {
    g.k = n;
    g.b = (const char *)b->data + first * b->stride[0] * in;
    g.c = (char *)y->data + i * y->stride[0] * out;
  }
  tide__cpu_gemm(&g, nthread, work);
}

static void run_groups(void *arg, int64_t begin, int64_t end, int thread)
{
  const grouped *p = arg;
  for (int64_t i = begin; i < end; i++)
    run_group(p, i, 1, (char *)p->call->work + p->one * thread);
}

/* Returns whether the threads take groups, not parts of one: small ones, or enough of them that
 * the largest does not keep the other threads waiting. */
static int groups_apart(const grouped *p, int64_t groups)
{
  const k_tensor *offsets = &p->call->in[2];
  int64_t rows = ref_offset_of(offsets, groups) - ref_offset_of(offsets, 0), most = 0;
  for (int64_t i = 0; i < groups; i++)
    most = i64_max(most, ref_offset_of(offsets, i + 1) - ref_offset_of(offsets, i));
  double flop = 2.0 * (double)p->g.n * (double)(p->along ? p->g.k : p->g.m);
  if (p->one > SPREAD_BYTES || p->call->nthread < 2 || flop * (double)rows < 4e5) return 0;
  return flop * (double)most < 4e6 || 2 * most * p->call->nthread <= rows;
}

static void run_grouped(const grouped *p)
{
  int64_t groups = p->call->in[2].shape[0] - 1;
  if (groups_apart(p, groups)) {
    tide__pool_tasks(p->call->nthread, groups, 1, run_groups, (void *)p);
    return;
  }
  for (int64_t i = 0; i < groups; i++) run_group(p, i, p->call->nthread, p->call->work);
}

/* Clears rows [begin, end) of y, which are in no group. */
static void clear_rows(const k_tensor *y, int64_t begin, int64_t end)
{
  int64_t row = y->stride[0] * vec_size(y->dtype);
  memset((char *)y->data + begin * row, 0, (size_t)((end - begin) * row));
}

int64_t k_cpu_grouped_linear_work(const k_call *call)
{
  grouped p = grouped_of(call, 1, 0);
  return grouped_bytes(&p);
}

int k_cpu_grouped_linear(const k_call *call)
{
  const k_tensor *offsets = &call->in[2], *y = &call->out[0];
  int64_t rows = y->shape[0], groups = offsets->shape[0] - 1;
  TIDE_TRY(ref_check_offsets(call, offsets, rows));
  grouped p = grouped_of(call, 1, 0);
  clear_rows(y, 0, ref_offset_of(offsets, 0));
  run_grouped(&p);
  clear_rows(y, ref_offset_of(offsets, groups), rows);
  return TIDE_OK;
}

static int run_outer(const k_call *call, int accumulate)
{
  TIDE_TRY(ref_check_offsets(call, &call->in[2], call->in[0].shape[0]));
  grouped p = grouped_of(call, 0, accumulate);
  run_grouped(&p);
  return TIDE_OK;
}

int64_t k_cpu_grouped_outer_work(const k_call *call)
{
  grouped p = grouped_of(call, 0, 0);
  return grouped_bytes(&p);
}

int k_cpu_grouped_linear_bwd(const k_call *call) { return run_outer(call, 0); }
int k_cpu_grouped_addmm_(const k_call *call) { return run_outer(call, 1); }
