/* matmul, linear and linear_act on the CPU: turn operands into products for gemm.c.
 *
 * Dims that step through memory evenly are collapsed into the rows of one product; the rest is a
 * list of independent products. Many small ones are spread over the threads, a few large ones are
 * each cut inside gemm.c. Either way the bits are the same.
 *
 * See kernel.h for operands and what dispatch guarantees of their strides.
 */
#include <stdio.h>

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/vec.h"

/* A product repeated over up to TIDE_MAX_DIM batch dims, strides in elements of each operand. */
typedef struct batch {
  cpu_gemm g; /* the first product; run_batch sets its pointers */
  cpu_gemm_plan plan; /* of each */
  int      ndim;
  int64_t  shape[TIDE_MAX_DIM];
  int64_t  as[TIDE_MAX_DIM], bs[TIDE_MAX_DIM], cs[TIDE_MAX_DIM];
  int64_t  n;        /* number of products */
  int      outer;    /* threads over products */
  int64_t  work_one; /* scratch of one product, a multiple of 64 */
  char    *work;
} batch;

/* Joins neighbouring batch dims that all three operands step through as one. */
static void merge_dims(batch *b)
{
  int n = 0;
  for (int d = 0; d < b->ndim; d++) {
    if (b->shape[d] == 1) continue;
    int64_t s = b->shape[d];
    if (n > 0 && b->as[n - 1] == s * b->as[d] && b->bs[n - 1] == s * b->bs[d] &&
        b->cs[n - 1] == s * b->cs[d]) {
      b->shape[n - 1] *= s;
      n--;
    } else {
      b->shape[n] = s;
    }
    b->as[n] = b->as[d], b->bs[n] = b->bs[d], b->cs[n] = b->cs[d];
    n++;
  }
  b->ndim = n;
}

/* Turns the innermost batch dim into more rows, if B is shared by it and rows of A and C continue
 * evenly into it. */
static void fold_rows(batch *b)
{
  cpu_gemm *g = &b->g;
  while (b->ndim > 0) {
    int d = b->ndim - 1;
    if (b->bs[d] != 0) return;
    if (g->m == 1) g->a_rs = b->as[d], g->c_rs = b->cs[d];
    if (b->as[d] != g->m * g->a_rs || b->cs[d] != g->m * g->c_rs) return;
    g->m *= b->shape[d];
    b->ndim--;
  }
}

/* Decides how the threads are used. Products of a few million operations or more are cut inside,
 * unless there are enough of them to keep every thread busy to the end. */
static void plan_batch(batch *b, int nthread)
{
  b->n = 1;
  for (int d = 0; d < b->ndim; d++) b->n *= b->shape[d];
  double flop = 2.0 * (double)b->g.m * (double)b->g.n * (double)b->g.k;
  int spread = b->n > 1 && nthread > 1 && (b->n >= 4 * (int64_t)nthread || flop < 4e6) &&
               flop * (double)b->n > 4e5;
  b->outer = !spread ? 1 : b->n < nthread ? (int)b->n : nthread;
  tide__cpu_gemm_plan(&b->plan, &b->g, spread ? 1 : nthread);
  b->work_one = i64_round_up(b->plan.bytes, 64);
}

static void run_products(void *arg, int64_t begin, int64_t end, int thread)
{
  const batch *b = arg;
  int64_t in = vec_size(b->g.ab_dtype), out = vec_size(b->g.c_dtype);
  for (int64_t i = begin; i < end; i++) {
    cpu_gemm g = b->g;
    int64_t rest = i, ao = 0, bo = 0, co = 0;
    for (int d = b->ndim - 1; d >= 0; d--) {
      int64_t at = rest % b->shape[d];
      rest /= b->shape[d];
      ao += at * b->as[d], bo += at * b->bs[d], co += at * b->cs[d];
    }
    g.a = (const char *)g.a + ao * in;
    g.b = (const char *)g.b + bo * in;
    g.c = (char *)g.c + co * out;
    tide__cpu_gemm_run(&b->plan, &g, b->work ? b->work + b->work_one * thread : 0);
  }
}

typedef void (*make_fn)(batch *b, const k_call *call);

/* Makes the batch in the call's plan area. Returns its bytes of scratch. */
static int64_t batch_work(const k_call *call, make_fn make)
{
  batch own, *b = call->plan ? call->plan : &own;
  _Static_assert(sizeof own <= K_PLAN, "a batch lies in the plan area");
  make(b, call);
  return b->work_one * b->outer;
}

/* Computes the batch that batch_work has made, or makes it where the call has no plan area. */
static void run_batch(const k_call *call, make_fn make, int accumulate)
{
  batch own, *b = call->plan ? call->plan : &own;
  if (!call->plan) make(b, call);
  b->g.a = call->in[0].data;
  b->g.b = call->in[1].data;
  b->g.c = call->out[0].data;
  b->g.bias = call->nin > 2 && !k_absent(&call->in[2]) ? call->in[2].data : 0;
  b->g.accumulate = accumulate;
  b->work = call->work;
  if (b->n <= 0 || b->g.m <= 0 || b->g.n <= 0) return;
  if (b->outer > 1) {
    int64_t chunk = b->n / (b->outer * 8);
    tide__pool_tasks(b->outer, b->n, chunk < 1 ? 1 : chunk, run_products, b);
  } else {
    run_products(b, 0, b->n, 0);
  }
}

static int check_dtype(const k_call *call, const char *name)
{
  int dtype = call->in[0].dtype;
  if (K_FLOAT & (1 << dtype)) return TIDE_OK;
  snprintf(call->msg, K_MSG, "%s: this kernel takes float dtypes, got dtype %d; use ref", name,
           dtype);
  return TIDE_E_DTYPE;
}

/* ---- matmul ---- */

static void make_matmul(batch *b, const k_call *call)
{
  const k_tensor *a = &call->in[0], *w = &call->in[1], *y = &call->out[0];
  int nb = y->ndim - 2;
  *b = (batch){.ndim = nb};
  cpu_gemm *g = &b->g;
  g->m = y->shape[nb], g->n = y->shape[nb + 1], g->k = a->shape[nb + 1];
  g->a_rs = a->stride[nb], g->a_cs = a->stride[nb + 1];
  g->b_rs = w->stride[nb], g->b_cs = w->stride[nb + 1];
  g->c_rs = y->stride[nb];
  g->ab_dtype = a->dtype, g->c_dtype = y->dtype;
  for (int d = 0; d < nb; d++) {
    b->shape[d] = y->shape[d];
    b->as[d] = a->stride[d], b->bs[d] = w->stride[d], b->cs[d] = y->stride[d];
  }
  merge_dims(b);
  fold_rows(b);
  plan_batch(b, call->nthread);
}

int64_t k_cpu_matmul_work(const k_call *call) { return batch_work(call, make_matmul); }

int k_cpu_matmul(const k_call *call)
{
  TIDE_TRY(check_dtype(call, "matmul"));
  run_batch(call, make_matmul, 0);
  return TIDE_OK;
}

int k_cpu_addmm_(const k_call *call)
{
  TIDE_TRY(check_dtype(call, "addmm_"));
  run_batch(call, make_matmul, 1);
  return TIDE_OK;
}

/* ---- linear ---- */

static void make_linear(batch *b, const k_call *call)
{
  const k_tensor *x = &call->in[0], *w = &call->in[1], *y = &call->out[0];
  int nl = x->ndim - 1;
  *b = (batch){.ndim = nl};
  cpu_gemm *g = &b->g;
  g->m = 1, g->n = w->shape[0], g->k = x->shape[nl];
  g->a_rs = g->k, g->a_cs = x->stride[nl];
  g->b_rs = w->stride[1], g->b_cs = w->stride[0];
  g->c_rs = g->n;
  g->ab_dtype = x->dtype, g->c_dtype = y->dtype;
  for (int d = 0; d < nl; d++) {
    b->shape[d] = x->shape[d];
    b->as[d] = x->stride[d], b->cs[d] = y->stride[d];
  }
  merge_dims(b);
  if (b->ndim > 0) { /* the innermost dim left becomes the rows */
    int d = --b->ndim;
    g->m = b->shape[d], g->a_rs = b->as[d], g->c_rs = b->cs[d];
  }
  plan_batch(b, call->nthread);
}

int64_t k_cpu_linear_work(const k_call *call) { return batch_work(call, make_linear); }

int k_cpu_linear(const k_call *call)
{
  TIDE_TRY(check_dtype(call, "linear"));
  run_batch(call, make_linear, 0);
  return TIDE_OK;
}

/* Computes the product, then its activation in a second pass over y, which is cheap beside it. */
int k_cpu_linear_act(const k_call *call)
{
  const k_tensor *pre = k_absent(&call->out[1]) ? &call->out[0] : &call->out[1];
  k_call product = *call, act = *call;
  product.out = act.in = pre;
  product.nout = act.nout = act.nin = 1;
  TIDE_TRY(k_cpu_linear(&product));
  bool relu = ((const k_linear_act_attrs *)call->attrs)->act == K_ACT_RELU;
  return relu ? k_cpu_relu(&act) : k_cpu_gelu_tanh(&act);
}
