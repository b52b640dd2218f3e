/* Linear cross entropy: the plan of a call. See linear_loss.h. */
#include "kernels/cpu/linear_loss.h"

#include "kernels/cpu/row.h"

enum {
  CHUNK_BYTES = 112 << 20, /* logits of a chunk, at most (or LL_ROW_STEP rows) */
  CHUNK_ROWS = 384,        /* likewise of f32: adding to dw is 2 to 3 % of the time then */
  WHOLE_BYTES = 8 << 20,   /* logits up to this size are one chunk */
  SPAN_BYTES = 8 << 20,    /* rows of w in a span, at most (or SPAN_STEP classes) */
  SPAN_STEP = LOSS_PIECE,  /* likewise a span of classes */
  FEW_ROWS = 512,          /* bf16: below this many rows in a chunk, by span */
  BY_SPAN_ROWS = 1024,     /* rows at a time then */
  KEEP_BYTES = 112 << 20   /* logits kept in 16 bits, at most */
};

/* Returns floats from one row of logits to the next; not a multiple of 4 KB, whose rows would share
 * cache sets. */
static int64_t row_stride(int64_t nclass)
{
  int64_t stride = i64_round_up(i64_max(nclass, 1), 16);
  return stride % 1024 == 0 ? stride + 16 : stride;
}

int64_t tide__ll_even_chunks(int64_t n, int64_t most)
{
  int64_t nchunk = i64_max(i64_ceil_div(n, most), 1);
  return i64_round_up(i64_max(i64_ceil_div(n, nchunk), 1), LL_ROW_STEP);
}

/* Returns the rows of a chunk: besides CHUNK_BYTES, at most a sixth of what whole logits and their
 * gradient would take in the type of x. */
static int64_t chunk_rows(const ll_plan *p)
{
  int64_t row_bytes = p->stride * (int64_t)sizeof(float);
  int64_t share = p->n * vec_size(p->x->dtype) / 12;
  int64_t most = i64_min(CHUNK_BYTES / row_bytes, i64_round_up(share, LL_ROW_STEP));
  if (p->x->dtype == TIDE_F32) most = i64_min(most, CHUNK_ROWS);
  most = i64_max(most, WHOLE_BYTES / row_bytes) / LL_ROW_STEP * LL_ROW_STEP;
  return tide__ll_even_chunks(p->n, i64_max(most, LL_ROW_STEP));
}

static int64_t span_classes(const ll_plan *p)
{
  int64_t row_bytes = i64_max(p->dim, 1) * vec_size(p->w->dtype);
  int64_t span = SPAN_BYTES / row_bytes / SPAN_STEP * SPAN_STEP;
  return i64_min(i64_max(span, SPAN_STEP), LL_SPAN_MOST);
}

/* ---- the products ---------------------------------------------------------------------------- */

int64_t tide__ll_pieces(const ll_plan *p) { return i64_ceil_div(p->nclass, LOSS_PIECE); }

int tide__ll_wants_grad(const ll_plan *p) { return p->dx || p->dw || p->dbias; }

void *tide__ll_element(const k_tensor *t, int64_t i) { return t->data ? row_at(t, i) : 0; }

static float *ll_offset(float *base, int64_t i) { return base ? base + i : 0; }

float *tide__ll_part_logits(const ll_plan *p, ll_part t)
{
  return ll_offset(p->logits, p->by_span ? 0 : t.first);
}

int64_t tide__ll_part_sums(const ll_plan *p, ll_part t) { return p->by_span ? t.row : 0; }

cpu_gemm tide__ll_logits(const ll_plan *p, ll_part t)
{
  cpu_gemm g = { .m = t.m, .n = t.n, .k = p->dim,
                 .a = tide__ll_element(p->x, t.row * p->x->stride[0]),
                 .a_rs = p->x->stride[0], .a_cs = 1,
                 .b = tide__ll_element(p->w, t.first * p->w->stride[0]), .b_rs = 1,
                 .b_cs = p->w->stride[0], .c = tide__ll_part_logits(p, t), .c_rs = p->stride,
                 .bias = ll_offset(p->bias32, t.first), .ab_dtype = p->x->dtype,
                 .c_dtype = TIDE_F32 };
  return g;
}

const void *tide__ll_grads(const ll_plan *p, int64_t first)
{
  return p->x->dtype == TIDE_F32 ? ll_offset(p->logits, first) : p->grads;
}

int64_t tide__ll_grad_stride(const ll_plan *p)
{
  return p->x->dtype == TIDE_F32 ? p->stride : p->span;
}

cpu_gemm tide__ll_dx(const ll_plan *p, ll_part t)
{
  float *dx = ll_offset(p->dx32, p->by_span ? t.row * p->dim : 0);
  if (p->dx && p->dx->dtype == TIDE_F32) dx = tide__ll_element(p->dx, t.row * p->dim);
  cpu_gemm g = { .m = t.m, .n = p->dim, .k = t.n, .a = tide__ll_grads(p, t.first),
                 .a_rs = tide__ll_grad_stride(p), .a_cs = 1,
                 .b = tide__ll_element(p->w, t.first * p->w->stride[0]), .b_rs = p->w->stride[0],
                 .b_cs = 1, .c = dx, .c_rs = p->dim, .ab_dtype = p->x->dtype,
                 .c_dtype = TIDE_F32, .accumulate = t.first > 0 };
  return g;
}

cpu_gemm tide__ll_dw(const ll_plan *p, ll_part t, int accumulate)
{
  cpu_gemm g = { .m = t.n, .n = p->dim, .k = t.m, .a = tide__ll_grads(p, t.first), .a_rs = 1,
                 .a_cs = tide__ll_grad_stride(p),
                 .b = tide__ll_element(p->x, t.row * p->x->stride[0]),
                 .b_rs = p->x->stride[0], .b_cs = 1, .c_rs = p->dim,
                 .ab_dtype = p->x->dtype, .c_dtype = TIDE_F32, .accumulate = accumulate };
  g.c = ll_offset(p->dw32, p->by_span ? 0 : t.first * p->dim);
  if (p->dw_whole) {
    g.c = tide__ll_element(p->dw, t.first * p->dim);
    g.c_dtype = p->dw->dtype;
  }
  return g;
}

/* Returns scratch for the products of any chunk with a full and the last span. Rows that count are
 * gathered, and may be of any number. */
static int64_t all_gemm_bytes(const ll_plan *p)
{
  int64_t most = 0, m = i64_min(p->chunk, p->n);
  int64_t n[2] = { i64_min(p->span, p->nclass), p->nclass % p->span };
  for (int i = 0; i < 2 && m > 0 && n[i] > 0; i++) {
    ll_part t = { 0, m, 0, n[i] };
    cpu_gemm g[3] = { tide__ll_logits(p, t) };
    int ng = 1;
    if (p->dx) g[ng++] = tide__ll_dx(p, t);
    if (p->dw) g[ng++] = tide__ll_dw(p, t, 1);
    for (int j = 0; j < ng; j++)
      most = i64_max(most, tide__cpu_gemm_most(&g[j], p->call->nthread));
  }
  return most;
}

/* ---- the plan -------------------------------------------------------------------------------- */

static void *ll_take(ll_plan *p, int64_t nbytes)
{
  char *base = p->call->work;
  int64_t at = p->bytes;
  p->bytes += i64_round_up(nbytes, 64);
  return base ? base + at : 0;
}

static void plan_scratch(ll_plan *p)
{
  p->logits = ll_take(p, p->chunk * p->stride * 4);
  if (tide__ll_wants_grad(p) && !p->by_span)
    p->bases = ll_take(p, p->chunk * tide__ll_pieces(p) * 4);
  int64_t nsum = p->by_span ? p->n : p->chunk;
  p->sums = ll_take(p, nsum * (int64_t)sizeof(loss_sum));
  p->z_target = ll_take(p, nsum * 4);
  p->rows.index = ll_take(p, p->n * (int64_t)sizeof(int64_t));
  p->dense_targets.data = ll_take(p, p->n * (int64_t)sizeof(int64_t));
  p->dense_x.data = ll_take(p, p->n * p->dim * vec_size(p->x->dtype));
  p->codes = ll_take(p, p->kept * p->n * p->span * 2);
  p->scales = ll_take(p, p->kept * p->n * (int64_t)sizeof(logit16_scale));
  if (p->bias) p->bias32 = ll_take(p, p->nclass * 4);
  if (p->dbias) p->dbias32 = ll_take(p, p->nclass * 4);
  if (tide__ll_wants_grad(p) && p->x->dtype != TIDE_F32)
    p->grads = ll_take(p, p->chunk * p->span * 2);
  if (p->dx && p->dx->dtype != TIDE_F32) p->dx32 = ll_take(p, nsum * p->dim * 4);
  if (p->dw && p->by_span) p->dw32 = p->dw_whole ? 0 : ll_take(p, p->span * p->dim * 4);
  else if (p->dw && p->dw->dtype == TIDE_F32) p->dw32 = p->dw->data;
  else if (p->dw) p->dw32 = ll_take(p, p->nclass * p->dim * 4);
  p->gemm = ll_take(p, all_gemm_bytes(p));
}

/* Returns the spans whose logits are kept. */
static int64_t kept_spans(const ll_plan *p)
{
  int again = !tide__ll_wants_grad(p) || (tide__cpu_isa() & CPU_ISA_AMX);
  int64_t span_bytes = p->n * p->span * (int64_t)sizeof(uint16_t);
  int64_t nspan = (p->nclass + p->span - 1) / p->span;
  return again ? 0 : i64_min(KEEP_BYTES / span_bytes, nspan);
}

ll_plan tide__ll_plan(const k_call *call)
{
  const k_tensor *in = call->in, *out = call->out;
  ll_plan p = { .call = call, .attrs = call->attrs, .n = in[0].shape[0], .dim = in[0].shape[1],
                .nclass = in[1].shape[0], .x = &in[0], .w = &in[1], .bias = k_or_null(&in[2]),
                .targets = &in[3], .dx = k_or_null(&out[1]), .dw = k_or_null(&out[2]),
                .dbias = k_or_null(&out[3]) };
  p.stride = row_stride(p.nclass);
  p.chunk = chunk_rows(&p);
  p.span = span_classes(&p);
  p.by_span = p.x->dtype == TIDE_BF16 && p.chunk < FEW_ROWS && p.chunk < p.n;
  if (p.by_span) {
    p.stride = row_stride(p.span);
    p.chunk = tide__ll_even_chunks(p.n, BY_SPAN_ROWS);
    p.kept = kept_spans(&p);
    p.dw_whole = p.chunk >= p.n;
  }
  plan_scratch(&p);
  return p;
}

int64_t k_cpu_linear_cross_entropy_work(const k_call *call)
{
  k_call ask = *call;
  ask.work = 0;
  return tide__ll_plan(&ask).bytes;
}

