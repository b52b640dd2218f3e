/* linear_cross_entropy: the loss of x w^T + bias and its gradients, with only a chunk of rows of
 * logits in memory at a time. For f32 and bf16. (f64 and f16: kernels/ref.)
 *
 * A chunk of rows is walked in spans of classes, twice. The first walk computes the logits of a
 * span, adds them to each row's running logsumexp and leaves their exponentials. The second scales
 * these to gradients in place and consumes them at once, in dx of the rows and dw of the classes.
 * So the result of a product is read back while it is in cache, and no operand is packed whole.
 *
 * With bf16 the gradients of a span are narrowed into a buffer of their own; dx and dw are summed
 * in f32 and rounded once. If a chunk of bf16 logits would have only few rows, both walks visit all
 * rows, a span of classes at a time ("by span"), and neither dw's f32 sums of all classes nor whole
 * rows of f32 logits exist. On matrix units the second walk computes the logits again: one more
 * product costs less than memory. Elsewhere it reads those of the first spans back from 16 bits
 * each (logit16.h), up to KEEP_BYTES, and computes only the others again.
 * Rows whose target is ignored are left out first (counted.h): in fine-tuning they are half of the
 * tokens. Chunks and spans depend on shape and targets alone and sums run in the order of rows and
 * spans, so results do not depend on threads. Row strides of x and w are free.
 */
#include "kernels/cpu/linear_loss.h"
#include "kernels/cpu/row.h"
#include "kernels/ref/loss.h"

enum { GRAIN = 16384 }; /* elements per thread at least */

/* ---- the loops over the rows of a part ------------------------------------------------------- */

typedef struct job { const ll_plan *p; ll_part t; } job;

static void over_rows(const ll_plan *p, ll_part t, tide__pool_fn body)
{
  job j = { p, t };
  tide__pool_for(p->call->nthread, t.m, GRAIN / i64_max(t.n, 1) + 1, body, &j);
}

/* Returns whether the logits of the part's span are kept; kept_at says where those of row i are. */
static int is_kept(const ll_plan *p, ll_part t) { return t.first < p->kept * p->span; }

static int64_t kept_at(const ll_plan *p, ll_part t, int64_t i)
{
  return t.first / p->span * p->n + t.row + i;
}

/* Returns the bases of the exponentials of row i of the part. */
static float *bases_of(const ll_plan *p, ll_part t, int64_t i)
{
  return p->bases + i * tide__ll_pieces(p) + t.first / LOSS_PIECE;
}

static void add_to_sums(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *j = arg;
  const ll_plan *p = j->p;
  int wants_all = p->attrs->label_smoothing != 0;
  int64_t at = tide__ll_part_sums(p, j->t);
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    int64_t target = loss_counted(p->attrs, p->targets, j->t.row + i) - j->t.first;
    float *z = tide__ll_part_logits(p, j->t) + i * p->stride;
    if (target + j->t.first < 0) continue;
    if (j->t.first == 0) p->sums[at + i] = tide__loss_sum_empty();
    if (target >= 0 && target < j->t.n) p->z_target[at + i] = z[target];
    if (p->bases) tide__loss_sum_exp(&p->sums[at + i], z, j->t.n, wants_all, bases_of(p, j->t, i));
    else tide__loss_sum_add(&p->sums[at + i], z, TIDE_F32, j->t.n, wants_all);
    if (!is_kept(p, j->t)) continue;
    int64_t to = kept_at(p, j->t, i);
    p->scales[to] = tide__logit16_write(p->codes + to * p->span, z, j->t.n);
  }
}

static double sum_of_losses(const ll_plan *p, ll_part t)
{
  double loss = 0;
  const loss_sum *sums = p->sums + tide__ll_part_sums(p, t);
  const float *z_target = p->z_target + tide__ll_part_sums(p, t);
  for (int64_t i = 0; i < t.m; i++) {
    if (loss_counted(p->attrs, p->targets, t.row + i) < 0) continue;
    loss += tide__loss_value(z_target[i], tide__loss_sum_norm(&sums[i]), sums[i].all, p->nclass,
                             p->attrs);
  }
  return loss;
}

/* Returns the logits of row i of the part; tmp holds those that were kept. */
static const float *logits_of_row(const ll_plan *p, ll_part t, int64_t i, float *tmp)
{
  if (!is_kept(p, t)) return tide__ll_part_logits(p, t) + i * p->stride;
  int64_t at = kept_at(p, t, i);
  tide__logit16_read(tmp, p->codes + at * p->span, p->scales[at], t.n);
  return tmp;
}

static void logits_to_grads(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *j = arg;
  const ll_plan *p = j->p;
  int dtype = p->x->dtype;
  int64_t size = vec_size(dtype);
  char *base = (char *)tide__ll_grads(p, j->t.first);
  const loss_sum *sums = p->sums + tide__ll_part_sums(p, j->t);
  float tmp[LL_SPAN_MOST];
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    int64_t target = loss_counted(p->attrs, p->targets, j->t.row + i);
    char *grad = base + i * tide__ll_grad_stride(p) * size;
    if (target < 0) {
      memset(grad, 0, (size_t)(j->t.n * size));
      continue;
    }
    loss_slope s = tide__loss_slope(tide__loss_sum_norm(&sums[i]), 1, p->nclass, p->attrs);
    const float *z = logits_of_row(p, j->t, i, tmp);
    target -= j->t.first;
    if (p->bases) tide__loss_grad_of_exp(grad, dtype, z, bases_of(p, j->t, i), j->t.n, target, s);
    else tide__loss_grad(grad, dtype, z, TIDE_F32, j->t.n, target, s, 0, 0);
  }
}

/* ---- one chunk ------------------------------------------------------------------------------- */

static void ll_multiply(const ll_plan *p, cpu_gemm g)
{
  tide__cpu_gemm(&g, p->call->nthread, p->gemm);
}

/* Adds the rows of gradients, in order, to dbias32 of columns [begin, end) of the part. */
static void add_columns(void *arg, int64_t begin, int64_t end, int thread)
{
  const job *j = arg;
  const ll_plan *p = j->p;
  k_tensor grads = { .data = (void *)tide__ll_grads(p, j->t.first), .dtype = p->x->dtype };
  float tmp[LL_SPAN_MOST], *sum = p->dbias32 + j->t.first + begin;
  (void)thread;
  for (int64_t i = 0; i < j->t.m; i++) {
    const float *row = row_read(&grads, i * tide__ll_grad_stride(p) + begin, tmp, end - begin);
    row_add(sum, sum, row, end - begin);
  }
}

static void add_to_dbias(const ll_plan *p, ll_part t)
{
  job j = { p, t };
  tide__pool_for(p->call->nthread, t.n, GRAIN / i64_max(t.m, 1) + 64, add_columns, &j);
}

static void use_grads(const ll_plan *p, ll_part t, int accumulate)
{
  if (p->dx) ll_multiply(p, tide__ll_dx(p, t));
  if (p->dw) ll_multiply(p, tide__ll_dw(p, t, accumulate));
  if (p->dbias) add_to_dbias(p, t);
}

static double ll_run_chunk(const ll_plan *p, ll_part t, int accumulate)
{
  for (t.first = 0; t.first < p->nclass; t.first += p->span) {
    t.n = i64_min(p->span, p->nclass - t.first);
    ll_multiply(p, tide__ll_logits(p, t));
    over_rows(p, t, add_to_sums);
  }
  double loss = sum_of_losses(p, t);
  for (t.first = 0; t.first < p->nclass && tide__ll_wants_grad(p); t.first += p->span) {
    t.n = i64_min(p->span, p->nclass - t.first);
    over_rows(p, t, logits_to_grads);
    use_grads(p, t, accumulate);
  }
  int64_t at = t.row * p->dim, n = t.m * p->dim;
  if (p->dx32) row_narrow(tide__ll_element(p->dx, at), p->dx32, p->dx->dtype, n);
  return loss;
}

static int any_counts(const ll_plan *p, ll_part t)
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
static void finish_sums(const ll_plan *p, int any)
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
static double run_chunks(const ll_plan *p, int *any)
{
  double loss = 0;
  for (ll_part t = { 0, 0, 0, 0 }; t.row < p->n; t.row += p->chunk) {
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
static void run_span(const ll_plan *p, ll_part t, int grads)
{
  int added = 0;
  for (t.row = 0; t.row < p->n; t.row += p->chunk) {
    t.m = i64_min(p->chunk, p->n - t.row);
    if (!any_counts(p, t)) continue;
    if (!grads || !is_kept(p, t)) ll_multiply(p, tide__ll_logits(p, t));
    over_rows(p, t, grads ? logits_to_grads : add_to_sums);
    if (grads) use_grads(p, t, added);
    added = 1;
  }
  if (!grads || !p->dw32) return;
  rounding r = { p->dw, p->dw32, t.first * p->dim };
  tide__pool_for(p->call->nthread, t.n * p->dim, GRAIN, round_elements, &r);
}

static double run_spans(const ll_plan *p, int *any)
{
  ll_part all = { 0, p->n, 0, p->nclass };
  *any = any_counts(p, all);
  if (!*any && p->dx) ll_zero(p->dx, 0, p->n * p->dim);
  if (!*any) return 0;
  for (int grads = 0; grads <= tide__ll_wants_grad(p); grads++) {
    for (ll_part t = { 0, 0, 0, 0 }; t.first < p->nclass; t.first += p->span) {
      t.n = i64_min(p->span, p->nclass - t.first);
      run_span(p, t, grads);
    }
  }
  for (ll_part t = { 0, 0, 0, 0 }; t.row < p->n && p->dx32; t.row += p->chunk) {
    t.m = i64_min(p->chunk, p->n - t.row);
    int64_t at = t.row * p->dim, n = t.m * p->dim;
    if (any_counts(p, t)) row_narrow(tide__ll_element(p->dx, at), p->dx32 + at, p->dx->dtype, n);
    else ll_zero(p->dx, at, n);
  }
  return sum_of_losses(p, all);
}

/* Gathers the rows that count, unless all do or none. */
static void gather_counted(ll_plan *p)
{
  counted_rows *rows = &p->rows;
  rows->counted = tide__counted_find(rows->index, p->attrs, p->targets);
  if (rows->counted == 0 || rows->counted == p->n) return;
  /* Of 16 bits, whole tiles of matrix units; rows of f32 need no company. */
  int64_t step = p->x->dtype == TIDE_F32 ? 1 : LL_ROW_STEP;
  rows->n = i64_min(i64_round_up(rows->counted, step), p->n);
  k_tensor x = { .data = p->dense_x.data, .shape = { rows->n, p->dim }, .stride = { p->dim, 1 },
                 .ndim = 2, .dtype = p->x->dtype };
  k_tensor targets = { .data = p->dense_targets.data, .shape = { rows->n }, .stride = { 1 },
                       .ndim = 1, .dtype = TIDE_I64 };
  tide__counted_gather(rows, p->call, p->x, x.data, p->targets, targets.data);
  p->dense_x = x;
  p->dense_targets = targets;
  p->x = &p->dense_x;
  p->targets = &p->dense_targets;
  p->n = rows->n;
  p->chunk = tide__ll_even_chunks(p->n, p->chunk);
}

int k_cpu_linear_cross_entropy(const k_call *call)
{
  ll_plan p = tide__ll_plan(call);
  int status = loss_check_targets(call, p.targets, p.nclass), any = 0;
  if (status < 0) return status;
  if (p.w->dtype != p.x->dtype) {
    return ref_fail(call, TIDE_E_DTYPE, "x is %s and w is %s, expected one dtype",
                    tide_dtype_name(p.x->dtype), tide_dtype_name(p.w->dtype));
  }
  gather_counted(&p);
  if (p.bias) row_widen(p.bias32, p.bias->data, p.bias->dtype, p.nclass);
  if (p.dbias) memset(p.dbias32, 0, (size_t)p.nclass * 4);
  double loss = p.by_span ? run_spans(&p, &any) : run_chunks(&p, &any);
  *(float *)call->out[0].data = (float)loss;
  finish_sums(&p, any);
  if (p.rows.n && p.dx)
    tide__counted_spread(&p.rows, p.dx->data, call->in[0].shape[0], p.dim * vec_size(p.dx->dtype));
  return TIDE_OK;
}
