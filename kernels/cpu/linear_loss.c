/* linear_cross_entropy: the loss of x w^T + bias and its gradients, with only a chunk of rows of
 * logits in memory at a time. For f32 and bf16. (f64 and f16: kernels/ref.)
 *
 * A chunk of rows is walked in spans of classes, twice. The first walk computes the logits of a
 * span and adds them to each row's running logsumexp; the second turns them into gradients in place
 * and consumes these at once, in dx of the rows and dw of the classes. So the result of a product
 * is read back while it is in cache, and no operand is packed whole.
 *
 * With bf16 the gradients of a span are narrowed into a buffer of their own; dx and dw are summed
 * in f32 and rounded once. If a chunk of bf16 logits would have only few rows, both walks visit all
 * rows, a span of classes at a time ("by span"), and neither dw's f32 sums of all classes nor whole
 * rows of f32 logits exist. On matrix units the second walk computes the logits again: one more
 * product costs less than memory. Elsewhere it reads those of the first spans back from 16 bits
 * each (logit16.h), up to KEEP_BYTES, and computes only the others again.
 * Chunks and spans depend on the shape alone and sums run in the order of rows and spans, so
 * results do not depend on threads. Row strides of x and w are free.
 */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/logit16.h"
#include "kernels/cpu/loss.h"
#include "kernels/cpu/row.h"
#include "kernels/ref/loss.h"

enum {
  CHUNK_BYTES = 112 << 20, /* logits of a chunk, at most (or ROW_STEP rows) */
  WHOLE_BYTES = 8 << 20,   /* logits up to this size are one chunk */
  SPAN_BYTES = 8 << 20,    /* rows of w in a span, at most (or SPAN_STEP classes) */
  ROW_STEP = 32,           /* a chunk is a multiple of this: whole register tiles */
  SPAN_STEP = 512,         /* likewise a span of classes */
  SPAN_MOST = 2048,
  GRAIN = 16384,           /* elements per thread at least */
  FEW_ROWS = 512,          /* bf16: below this many rows in a chunk, by span */
  BY_SPAN_ROWS = 1024,     /* rows at a time then */
  KEEP_BYTES = 112 << 20   /* logits kept in 16 bits, at most */
};

/* The operands and the layout of the scratch. Unused parts are null. */
typedef struct plan {
  const k_call *call;
  const k_tensor *x, *w, *bias, *targets, *dx, *dw, *dbias;
  const k_cross_entropy_attrs *attrs;
  int64_t n, dim, nclass;      /* x [n, dim], w [nclass, dim] */
  int64_t chunk, span, stride; /* rows, classes; floats from one row of logits to the next */
  int by_span;                 /* both walks visit all rows, a span at a time */
  int64_t kept;                /* spans whose logits are kept in 16 bits */
  uint16_t *codes;             /* [kept, n, span] */
  logit16_scale *scales;       /* [kept, n] */
  float *logits;               /* [chunk, stride], of all classes or of a span */
  void *grads;                 /* [chunk, span] of x's dtype, unless that is f32 */
  loss_sum *sums;              /* [chunk], or [n] */
  float *z_target;             /* likewise */
  float *bias32, *dbias32;     /* [nclass] */
  float *dx32, *dw32;          /* [chunk, dim], [nclass, dim], unless dx and dw are f32; by
                                * span [n, dim], and [span, dim] if there are several chunks */
  void *gemm;
  int64_t bytes;
} plan;

/* Returns floats from one row of logits to the next; not a multiple of 4 KB, whose rows would share
 * cache sets. */
static int64_t row_stride(int64_t nclass)
{
  int64_t stride = i64_round_up(i64_max(nclass, 1), 16);
  return stride % 1024 == 0 ? stride + 16 : stride;
}

/* Returns the rows of a chunk: besides CHUNK_BYTES, at most a sixth of what whole logits and their
 * gradient would take in the type of x. */
static int64_t even_chunks(int64_t n, int64_t most)
{
  int64_t nchunk = i64_max((n + most - 1) / most, 1);
  return i64_round_up(i64_max((n + nchunk - 1) / nchunk, 1), ROW_STEP);
}

static int64_t chunk_rows(const plan *p)
{
  int64_t row_bytes = p->stride * (int64_t)sizeof(float);
  int64_t share = p->n * vec_size(p->x->dtype) / 12;
  int64_t most = i64_min(CHUNK_BYTES / row_bytes, i64_round_up(share, ROW_STEP));
  most = i64_max(most, WHOLE_BYTES / row_bytes) / ROW_STEP * ROW_STEP;
  return even_chunks(p->n, i64_max(most, ROW_STEP));
}

static int64_t span_classes(const plan *p)
{
  int64_t row_bytes = i64_max(p->dim, 1) * vec_size(p->w->dtype);
  int64_t span = SPAN_BYTES / row_bytes / SPAN_STEP * SPAN_STEP;
  return i64_min(i64_max(span, SPAN_STEP), SPAN_MOST);
}

/* ---- the products of m rows from `row` on and n classes from `class` on ---------------------- */

typedef struct part { int64_t row, m, first, n; } part;

static int wants_grad(const plan *p) { return p->dx || p->dw || p->dbias; }

static void *ll_element(const k_tensor *t, int64_t i) { return t->data ? row_at(t, i) : 0; }

static float *ll_offset(float *base, int64_t i) { return base ? base + i : 0; }

/* Returns the logits of the part's classes, first row; part_sums the sums of its rows. */
static float *part_logits(const plan *p, part t)
{
  return ll_offset(p->logits, p->by_span ? 0 : t.first);
}

static int64_t part_sums(const plan *p, part t) { return p->by_span ? t.row : 0; }

/* logits = x w^T + bias */
static cpu_gemm logits_product(const plan *p, part t)
{
  cpu_gemm g = { .m = t.m, .n = t.n, .k = p->dim, .a = ll_element(p->x, t.row * p->x->stride[0]),
                 .a_rs = p->x->stride[0], .a_cs = 1,
                 .b = ll_element(p->w, t.first * p->w->stride[0]), .b_rs = 1,
                 .b_cs = p->w->stride[0], .c = part_logits(p, t), .c_rs = p->stride,
                 .bias = ll_offset(p->bias32, t.first), .ab_dtype = p->x->dtype,
                 .c_dtype = TIDE_F32 };
  return g;
}

/* Returns the gradients of a span; grad_stride the distance of their rows. */
static const void *span_grads(const plan *p, int64_t first)
{
  return p->x->dtype == TIDE_F32 ? ll_offset(p->logits, first) : p->grads;
}

static int64_t grad_stride(const plan *p) { return p->x->dtype == TIDE_F32 ? p->stride : p->span; }

/* dx (+)= grad w */
static cpu_gemm dx_product(const plan *p, part t)
{
  float *dx = ll_offset(p->dx32, p->by_span ? t.row * p->dim : 0);
  if (p->dx && p->dx->dtype == TIDE_F32) dx = ll_element(p->dx, t.row * p->dim);
  cpu_gemm g = { .m = t.m, .n = p->dim, .k = t.n, .a = span_grads(p, t.first),
                 .a_rs = grad_stride(p), .a_cs = 1,
                 .b = ll_element(p->w, t.first * p->w->stride[0]), .b_rs = p->w->stride[0],
                 .b_cs = 1, .c = dx, .c_rs = p->dim, .ab_dtype = p->x->dtype,
                 .c_dtype = TIDE_F32, .accumulate = t.first > 0 };
  return g;
}

/* dw (+)= grad^T x */
static cpu_gemm dw_product(const plan *p, part t, int accumulate)
{
  cpu_gemm g = { .m = t.n, .n = p->dim, .k = t.m, .a = span_grads(p, t.first), .a_rs = 1,
                 .a_cs = grad_stride(p), .b = ll_element(p->x, t.row * p->x->stride[0]),
                 .b_rs = p->x->stride[0], .b_cs = 1, .c_rs = p->dim,
                 .ab_dtype = p->x->dtype, .c_dtype = TIDE_F32, .accumulate = accumulate };
  g.c = ll_offset(p->dw32, p->by_span ? 0 : t.first * p->dim);
  if (p->by_span && p->chunk >= p->n) {
    g.c = ll_element(p->dw, t.first * p->dim);
    g.c_dtype = p->dw->dtype;
  }
  return g;
}

static int64_t gemm_bytes(const plan *p, part t)
{
  cpu_gemm g[4] = { logits_product(p, t), dw_product(p, t, 0), dw_product(p, t, 1) };
  int64_t most = 0, ng = p->dw ? 3 : 1;
  if (p->dx) g[ng++] = dx_product(p, t);
  for (int64_t i = 0; i < ng; i++)
    most = i64_max(most, tide__cpu_gemm_work(&g[i], p->call->nthread));
  return most;
}

/* Returns scratch for the largest of full and last chunks and spans. */
static int64_t all_gemm_bytes(const plan *p)
{
  int64_t m[2] = { i64_min(p->chunk, p->n), p->n % p->chunk };
  int64_t n[2] = { i64_min(p->span, p->nclass), p->nclass % p->span }, most = 0;
  for (int i = 0; i < 4; i++) {
    part t = { 0, m[i % 2], 0, n[i / 2] };
    if (t.m > 0 && t.n > 0) most = i64_max(most, gemm_bytes(p, t));
  }
  return most;
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void *ll_take(plan *p, int64_t nbytes)
{
  char *base = p->call->work;
  int64_t at = p->bytes;
  p->bytes += i64_round_up(nbytes, 64);
  return base ? base + at : 0;
}

static void plan_scratch(plan *p)
{
  p->logits = ll_take(p, p->chunk * p->stride * 4);
  int64_t nsum = p->by_span ? p->n : p->chunk;
  p->sums = ll_take(p, nsum * (int64_t)sizeof(loss_sum));
  p->z_target = ll_take(p, nsum * 4);
  p->codes = ll_take(p, p->kept * p->n * p->span * 2);
  p->scales = ll_take(p, p->kept * p->n * (int64_t)sizeof(logit16_scale));
  if (p->bias) p->bias32 = ll_take(p, p->nclass * 4);
  if (p->dbias) p->dbias32 = ll_take(p, p->nclass * 4);
  if (wants_grad(p) && p->x->dtype != TIDE_F32) p->grads = ll_take(p, p->chunk * p->span * 2);
  if (p->dx && p->dx->dtype != TIDE_F32) p->dx32 = ll_take(p, nsum * p->dim * 4);
  if (p->dw && p->by_span) p->dw32 = p->chunk < p->n ? ll_take(p, p->span * p->dim * 4) : 0;
  else if (p->dw && p->dw->dtype == TIDE_F32) p->dw32 = p->dw->data;
  else if (p->dw) p->dw32 = ll_take(p, p->nclass * p->dim * 4);
  p->gemm = ll_take(p, all_gemm_bytes(p));
}

/* Returns the spans whose logits are kept. */
static int64_t kept_spans(const plan *p)
{
  int again = !wants_grad(p) || (tide__cpu_isa() & CPU_ISA_AMX);
  int64_t span_bytes = p->n * p->span * (int64_t)sizeof(uint16_t);
  int64_t nspan = (p->nclass + p->span - 1) / p->span;
  return again ? 0 : i64_min(KEEP_BYTES / span_bytes, nspan);
}

static plan plan_of(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  plan p = { .call = call, .x = &in[0], .w = &in[1], .bias = k_or_null(&in[2]), .targets = &in[3],
             .dx = k_or_null(&out[1]), .dw = k_or_null(&out[2]), .dbias = k_or_null(&out[3]),
             .attrs = call->attrs, .n = in[0].shape[0], .dim = in[0].shape[1],
             .nclass = in[1].shape[0] };
  p.stride = row_stride(p.nclass);
  p.chunk = chunk_rows(&p);
  p.span = span_classes(&p);
  p.by_span = p.x->dtype == TIDE_BF16 && p.chunk < FEW_ROWS && p.chunk < p.n;
  if (p.by_span) {
    p.stride = row_stride(p.span);
    p.chunk = even_chunks(p.n, BY_SPAN_ROWS);
    p.kept = kept_spans(&p);
  }
  plan_scratch(&p);
  return p;
}

int64_t k_cpu_linear_cross_entropy_work(const k_call *call)
{
  k_call ask = *call;
  ask.work = 0;
  return plan_of(&ask).bytes;
}

/* ---- the loops over the rows of a part ------------------------------------------------------- */

typedef struct job { const plan *p; part t; } job;

static void over_rows(const plan *p, part t, tide__pool_fn body)
{
  job j = { p, t };
  tide__pool_for(p->call->nthread, t.m, GRAIN / i64_max(t.n, 1) + 1, body, &j);
}

/* Returns whether the logits of the part's span are kept; kept_at says where those of row i are. */
static int is_kept(const plan *p, part t) { return t.first < p->kept * p->span; }

static int64_t kept_at(const plan *p, part t, int64_t i)
{
  return t.first / p->span * p->n + t.row + i;
}

static void add_to_sums(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *j = arg;
  const plan *p = j->p;
  int wants_all = p->attrs->label_smoothing != 0;
  int64_t at = part_sums(p, j->t);
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    int64_t target = loss_counted(p->attrs, p->targets, j->t.row + i) - j->t.first;
    const float *z = part_logits(p, j->t) + i * p->stride;
    if (target + j->t.first < 0) continue;
    if (j->t.first == 0) p->sums[at + i] = tide__loss_sum_empty();
    tide__loss_sum_add(&p->sums[at + i], z, TIDE_F32, j->t.n, wants_all);
    if (target >= 0 && target < j->t.n) p->z_target[at + i] = z[target];
    if (!is_kept(p, j->t)) continue;
    int64_t to = kept_at(p, j->t, i);
    p->scales[to] = tide__logit16_write(p->codes + to * p->span, z, j->t.n);
  }
}

static double sum_of_losses(const plan *p, part t)
{
  double loss = 0;
  const loss_sum *sums = p->sums + part_sums(p, t);
  const float *z_target = p->z_target + part_sums(p, t);
  for (int64_t i = 0; i < t.m; i++) {
    if (loss_counted(p->attrs, p->targets, t.row + i) < 0) continue;
    loss += tide__loss_value(z_target[i], tide__loss_sum_norm(&sums[i]), sums[i].all, p->nclass,
                             p->attrs);
  }
  return loss;
}

/* Returns the logits of row i of the part; tmp holds those that were kept. */
static const float *logits_of_row(const plan *p, part t, int64_t i, float *tmp)
{
  if (!is_kept(p, t)) return part_logits(p, t) + i * p->stride;
  int64_t at = kept_at(p, t, i);
  tide__logit16_read(tmp, p->codes + at * p->span, p->scales[at], t.n);
  return tmp;
}

static void logits_to_grads(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *j = arg;
  const plan *p = j->p;
  int dtype = p->x->dtype;
  int64_t size = vec_size(dtype);
  char *base = (char *)span_grads(p, j->t.first);
  const loss_sum *sums = p->sums + part_sums(p, j->t);
  float tmp[SPAN_MOST];
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    int64_t target = loss_counted(p->attrs, p->targets, j->t.row + i);
    char *grad = base + i * grad_stride(p) * size;
    if (target < 0) {
      memset(grad, 0, (size_t)(j->t.n * size));
      continue;
    }
    loss_slope s = tide__loss_slope(tide__loss_sum_norm(&sums[i]), 1, p->nclass, p->attrs);
    tide__loss_grad(grad, dtype, logits_of_row(p, j->t, i, tmp), TIDE_F32, j->t.n,
                    target - j->t.first, s, 0, 0);
  }
}

/* ---- one chunk ------------------------------------------------------------------------------- */

static void ll_multiply(const plan *p, cpu_gemm g)
{
  tide__cpu_gemm(&g, p->call->nthread, p->gemm);
}

/* dbias32 of columns [begin, end) of the part: adds the rows of gradients in order. */
static void add_columns(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *j = arg;
  const plan *p = j->p;
  k_tensor grads = { .data = (void *)span_grads(p, j->t.first), .dtype = p->x->dtype };
  float tmp[SPAN_MOST], *sum = p->dbias32 + j->t.first + begin;
  (void)thread;
  for (int64_t i = 0; i < j->t.m; i++) {
    const float *row = row_read(&grads, i * grad_stride(p) + begin, tmp, end - begin);
    row_add(sum, sum, row, end - begin);
  }
}

static void add_to_dbias(const plan *p, part t)
{
  job j = { p, t };
  tide__pool_for(p->call->nthread, t.n, GRAIN / i64_max(t.m, 1) + 64, add_columns, &j);
}

static void use_grads(const plan *p, part t, int accumulate)
{
  if (p->dx) ll_multiply(p, dx_product(p, t));
  if (p->dw) ll_multiply(p, dw_product(p, t, accumulate));
  if (p->dbias) add_to_dbias(p, t);
}

static double ll_run_chunk(const plan *p, part t, int accumulate)
{
  for (t.first = 0; t.first < p->nclass; t.first += p->span) {
    t.n = i64_min(p->span, p->nclass - t.first);
    ll_multiply(p, logits_product(p, t));
    over_rows(p, t, add_to_sums);
  }
  double loss = sum_of_losses(p, t);
  for (t.first = 0; t.first < p->nclass && wants_grad(p); t.first += p->span) {
    t.n = i64_min(p->span, p->nclass - t.first);
    over_rows(p, t, logits_to_grads);
    use_grads(p, t, accumulate);
  }
  if (p->dx32) row_narrow(ll_element(p->dx, t.row * p->dim), p->dx32, p->dx->dtype, t.m * p->dim);
  return loss;
}

static int any_counts(const plan *p, part t)
{
  for (int64_t i = 0; i < t.m; i++) {
    if (loss_counted(p->attrs, p->targets, t.row + i) >= 0) return 1;
  }
  return 0;
}

static void ll_zero(const k_tensor *t, int64_t i, int64_t n)
{
  if (n > 0) memset(row_at(t, i), 0, (size_t)(n * vec_size(t->dtype)));
}

/* ---- the op ---------------------------------------------------------------------------------- */

/* from[0] is rounded into element `first` of to. */
typedef struct rounding { const k_tensor *to; const float *from; int64_t first; } rounding;

static void round_elements(void *arg, int64_t begin, int64_t end, int thread)
{
  const rounding *r = arg;
  (void)thread;
  row_narrow(row_at(r->to, r->first + begin), r->from + begin, r->to->dtype, end - begin);
}

/* Rounds dw and dbias from their sums; `any`: at least one token counts. */
static void finish_sums(const plan *p, int any)
{
  rounding r = { p->dw, p->dw32, 0 };
  int64_t nw = p->nclass * p->dim;
  if (p->dw && !any) ll_zero(p->dw, 0, nw);
  else if (p->dw && p->dw->dtype != TIDE_F32 && !p->by_span) {
    tide__pool_for(p->call->nthread, nw, GRAIN, round_elements, &r);
  }
  if (p->dbias) row_narrow(p->dbias->data, p->dbias32, p->dbias->dtype, p->nclass);
}

/* Returns the loss; *any receives whether a token counts. */
static double run_chunks(const plan *p, int *any)
{
  double loss = 0;
  for (part t = { 0, 0, 0, 0 }; t.row < p->n; t.row += p->chunk) {
    t.m = i64_min(p->chunk, p->n - t.row);
    if (any_counts(p, t)) {
      loss += ll_run_chunk(p, t, *any);
      *any = 1;
    } else if (p->dx) {
      ll_zero(p->dx, t.row * p->dim, t.m * p->dim);
    }
  }
  return loss;
}

/* ---- by span: both walks visit all rows, a span of classes at a time ------------------------- */

/* Computes the sums of the rows, or with grads the gradients, of the span of t. */
static void run_span(const plan *p, part t, int grads)
{
  int added = 0;
  for (t.row = 0; t.row < p->n; t.row += p->chunk) {
    t.m = i64_min(p->chunk, p->n - t.row);
    if (!any_counts(p, t)) continue;
    if (!grads || !is_kept(p, t)) ll_multiply(p, logits_product(p, t));
    over_rows(p, t, grads ? logits_to_grads : add_to_sums);
    if (grads) use_grads(p, t, added);
    added = 1;
  }
  if (!grads || !p->dw32) return;
  rounding r = { p->dw, p->dw32, t.first * p->dim };
  tide__pool_for(p->call->nthread, t.n * p->dim, GRAIN, round_elements, &r);
}

static double run_spans(const plan *p, int *any)
{
  part all = { 0, p->n, 0, p->nclass };
  *any = any_counts(p, all);
  if (!*any && p->dx) ll_zero(p->dx, 0, p->n * p->dim);
  if (!*any) return 0;
  for (int grads = 0; grads <= wants_grad(p); grads++) {
    for (part t = { 0, 0, 0, 0 }; t.first < p->nclass; t.first += p->span) {
      t.n = i64_min(p->span, p->nclass - t.first);
      run_span(p, t, grads);
    }
  }
  for (part t = { 0, 0, 0, 0 }; t.row < p->n && p->dx32; t.row += p->chunk) {
    t.m = i64_min(p->chunk, p->n - t.row);
    int64_t at = t.row * p->dim, n = t.m * p->dim;
    if (any_counts(p, t)) row_narrow(ll_element(p->dx, at), p->dx32 + at, p->dx->dtype, n);
    else ll_zero(p->dx, at, n);
  }
  return sum_of_losses(p, all);
}

int k_cpu_linear_cross_entropy(const k_call *call)
{
  plan p = plan_of(call);
  int status = loss_check_targets(call, p.targets, p.nclass), any = 0;
  if (status < 0) return status;
  if (p.w->dtype != p.x->dtype) {
    return ref_fail(call, TIDE_E_DTYPE, "x is %s and w is %s, expected one dtype",
                    tide_dtype_name(p.x->dtype), tide_dtype_name(p.w->dtype));
  }
  if (p.bias) row_widen(p.bias32, p.bias->data, p.bias->dtype, p.nclass);
  if (p.dbias) memset(p.dbias32, 0, (size_t)p.nclass * 4);
  double loss = p.by_span ? run_spans(&p, &any) : run_chunks(&p, &any);
  *(float *)call->out[0].data = (float)loss;
  finish_sums(&p, any);
  return TIDE_OK;
}
