/* Linear of operands rounded to FP8: their codes, the product of codes, and its derivative.
 *
 * An operand is read once and becomes codes in both directions where both are used: x along K for
 * y = x w^T and along tokens for dw = dy^T x, dy along N for dx = dy w and along tokens for dw.
 * Blocks of w are square, so w^T has the same codes, transposed. The tape keeps those that backward
 * reads, a byte an element, and neither x nor w.
 *
 * With parameter fp8_codes a weight keeps its codes until its storage has another version, or a
 * captured step began, ended or was replayed: a replay writes weights and changes no version.
 */
#include "core/op/derivative.h"
#include "core/op/joined.h"
#include "core/op/op.h"
#include "core/op/product.h"
#include "kernels/fp8.h"

/* Operands of linear_fp8 beyond those of kernels/kernel.h, K_FP8_*: what the tape keeps. */
enum { X_ACROSS = K_FP8_B_SCALE + 1, X_ACROSS_SCALE, W_ACROSS, W_ACROSS_SCALE, NOPERAND };

/* Codes of one operand [rows, cols] and their scale: along its last dim, and across, of its
 * transpose. Null where not wanted. */
typedef struct coded {
  tide_tensor *along, *scale, *across, *across_scale;
} coded;

/* Declares result i of fp8_codes, the codes of [rows, cols], and i + 1, their scale. */
static void declare_codes(tide__call *c, int i, int64_t rows, int64_t cols, int kind, bool wanted)
{
  int64_t codes[2] = {k_fp8_wide(rows), k_fp8_wide(cols)}, scale[2];
  k_fp8_scale_shape(kind, rows, cols, scale);
  tide__result(c, i, TIDE_U8, wanted ? 2 : -1, codes);
  if (kind == K_FP8_TENSOR) tide__result(c, i + 1, TIDE_F32, i == 0 ? 1 : -1, scale);
  else tide__result(c, i + 1, TIDE_F32, wanted ? 2 : -1, scale);
}

static int64_t fp8_rows(const tide_tensor *x)
{
  int64_t n = 1;
  for (int d = 0; d + 1 < x->ndim; d++) n *= x->shape[d];
  return n;
}

/* Rounds x. The codes live as long as v. */
static coded code(tide__temps *v, tide_tensor *x, k_fp8_attrs attrs, bool along, bool across)
{
  tide__call c;
  tide_tensor *y[4] = {NULL};
  if (v->rc < 0) return (coded){0};
  v->rc = tide__begin(&c, TIDE_OP_FP8_CODES, NULL, 1, &x, 0);
  if (v->rc < 0) return (coded){0};
  int64_t cols = x->shape[x->ndim - 1], rows = fp8_rows(x);
  declare_codes(&c, 0, rows, cols, attrs.kind, along);
  declare_codes(&c, 2, cols, rows, attrs.kind, across);
  c.attrs.fp8 = attrs;
  v->rc = tide__dispatch(&c, y, 4);
  for (int i = 0; i < 4 && v->rc >= 0; i++)
    if (y[i]) *tide__temp_slot(v) = y[i], v->n++;
  if (attrs.kind == K_FP8_TENSOR) y[3] = y[1];
  return (coded){y[0], y[1], y[2], y[3]};
}

static k_fp8_attrs attrs_of(int kind, bool e5m2, bool f32_scale)
{
  return (k_fp8_attrs){.kind = kind, .e5m2 = e5m2, .f32_scale = f32_scale};
}

/* Returns the codes that w keeps if they are valid for its bytes and for attrs, else null. */
static const tide__codes *kept_codes(const tide_tensor *w, k_fp8_attrs attrs, bool across)
{
  const tide__codes *k = w->codes;
  bool same = k && k->version == w->storage->version && k->turns == w->ctx->graph_turns &&
              k->kind == attrs.kind && k->f32_scale == attrs.f32_scale && (k->t[2] || !across);
  return same ? k : NULL;
}

/* Lets w keep codes beyond the step's scope. */
static int keep_codes(tide_tensor *w, k_fp8_attrs attrs, const coded *made)
{
  tide__codes *k = tide__alloc(w->ctx, sizeof *k);
  if (!k) return tide__fail(w->ctx, TIDE_E_NOMEM, "linear_fp8", "no host memory");
  *k = (tide__codes){.t = {made->along, made->scale, made->across, made->across_scale},
                     .version = w->storage->version, .turns = w->ctx->graph_turns,
                     .kind = attrs.kind, .f32_scale = attrs.f32_scale};
  for (int i = 0; i < 4; i++) {
    if (!k->t[i]) continue;
    tide_tensor_retain(k->t[i]);
    tide__scope_escape(k->t[i]->storage);
  }
  w->codes = k;
  return TIDE_OK;
}

/* Rounds a weight, or returns what it keeps. */
static coded code_weight(tide__temps *v, tide_tensor *w, k_fp8_attrs attrs, bool across)
{
  const tide__codes *k = w->ctx->params.fp8_codes ? kept_codes(w, attrs, across) : NULL;
  if (k) return (coded){k->t[0], k->t[1], across ? k->t[2] : NULL, across ? k->t[3] : NULL};
  tide__codes_drop(w);
  coded made = code(v, w, attrs, true, across);
  if (w->ctx->params.fp8_codes) TIDE__DO(v, keep_codes(w, attrs, &made));
  return made;
}

static int check_fp8(tide__call *c, tide_tensor *x, tide_tensor *w, tide_tensor *bias, int scaling)
{
  TIDE_TRY(tide__check_linear(c, x, w, bias));
  if (x->dtype == TIDE_F64)
    return TIDE__FAIL(c, TIDE_E_DTYPE, "x: expected f32, bf16 or f16, got f64; use linear");
  if (scaling < TIDE_FP8_TENSOR || scaling > TIDE_FP8_BLOCK_F32)
    return TIDE__FAIL(c, TIDE_E_ARG, "scaling: expected 0 (tensor), 1 (block) or 2 (block, with "
                      "scales of f32), got %d", scaling);
  return TIDE_OK;
}

/* An operand x of products, rounded with one scaling. */
typedef struct left {
  tide_tensor *x;
  coded codes;
  int scaling;
  bool keep_weight; /* the tape keeps w in place of its codes */
} left;

/* Makes the product of a and a weight; c has begun and is checked. */
static int linear_fp8(tide_tensor **out, tide__call *c, const left *a)
{
  tide__temps v = {0};
  tide_tensor *w = c->in_[1];
  bool f32_scale = a->scaling != TIDE_FP8_BLOCK, taped = tide__wants_grad(c);
  bool for_dx = taped && tide__tensor_needs_grad(a->x);
  bool for_dw = taped && tide__tensor_needs_grad(w);
  int w_kind = a->scaling != TIDE_FP8_TENSOR ? K_FP8_SQUARE : K_FP8_TENSOR;
  k_fp8_attrs how = attrs_of(w_kind, false, f32_scale);
  coded b = a->keep_weight ? code(&v, w, how, true, false) : code_weight(&v, w, how, for_dx);
  tide_tensor *kept = for_dx && a->keep_weight ? TIDE__TEMP(&v, tide__tensor_alias, w) : b.across;
  if (v.rc == TIDE_OK) {
    tide_tensor *in[] = {a->x, w, c->in_[2], a->codes.along, a->codes.scale, b.along, b.scale,
                         for_dw ? a->codes.across : NULL, for_dw ? a->codes.across_scale : NULL,
                         kept, for_dx && !a->keep_weight ? b.across_scale : NULL};
    memcpy(c->in_, in, sizeof in);
    c->nin = NOPERAND;
    c->attrs.fp8_product = (k_fp8_product_attrs){
      .m = fp8_rows(a->x), .n = w->shape[0], .k = w->shape[1], .b_kind = w_kind,
      .f32_scale = f32_scale};
    v.rc = tide__dispatch(c, out, 1);
  }
  return tide__temps_end(&v);
}

/* Computes the products of x and n weights, for which x is rounded once. */
static int each_fp8(tide_tensor **outs, tide_tensor *x, int n, tide_tensor *const *ws,
                    tide_tensor *const *biases, int scaling, bool keep_weight)
{
  tide__call calls[TIDE_MAX_JOINED];
  tide__temps v = {0};
  left a = {.x = x, .scaling = scaling, .keep_weight = keep_weight};
  bool for_dw = false;
  for (int i = 0; i < n; i++) {
    tide_tensor *in[] = {x, ws[i], biases ? biases[i] : NULL};
    TIDE_TRY(tide__begin(&calls[i], TIDE_OP_LINEAR_FP8, &outs[i], 3, in, 4));
    TIDE_TRY(check_fp8(&calls[i], x, ws[i], in[2], scaling));
    for_dw = for_dw || (tide__wants_grad(&calls[i]) && tide__tensor_needs_grad(ws[i]));
  }
  int kind = scaling != TIDE_FP8_TENSOR ? K_FP8_ROWS : K_FP8_TENSOR;
  a.codes = code(&v, x, attrs_of(kind, false, scaling != TIDE_FP8_BLOCK), true, for_dw);
  for (int i = 0; i < n; i++) TIDE__DO(&v, linear_fp8(&outs[i], &calls[i], &a));
  int rc = tide__temps_end(&v);
  if (rc < 0) tide__release_all(n, outs);
  return rc;
}

int tide_linear_fp8(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias)
{
  return each_fp8(out, x, 1, &w, &bias, TIDE_FP8_TENSOR, false);
}

int tide_linear_fp8_scaled(tide_tensor **out, tide_tensor *x, tide_tensor *w, tide_tensor *bias,
                           int scaling, bool keep_weight)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(TENSOR, x), TIDE_OBJECT(TENSOR, w), TIDE_MAYBE(TENSOR, bias));
  return each_fp8(out, x, 1, &w, &bias, scaling, keep_weight);
}

int tide_linear_fp8_joined(tide_tensor **outs, tide_tensor *x, int n, tide_tensor *const *ws,
                           tide_tensor *const *biases, int scaling, bool keep_weight)
{
  tide__no_results(outs, n);
  TIDE_DOOR(TIDE_OBJECT(TENSOR, x));
  TIDE_TRY(tide__check_joined(x->ctx, "linear_fp8_joined", "ws", n, ws));
  int rc = each_fp8(outs, x, n, ws, biases, scaling, keep_weight);
  return tide__relabel(x->ctx, rc, "linear_fp8_joined");
}

/* ---- derivative ------------------------------------------------------------------------------ */

/* a b' of codes. */
typedef struct fp8_product {
  k_fp8_product_attrs attrs;
  tide_tensor *a, *a_scale, *b, *b_scale;
} fp8_product;

/* Makes the product as *out, in the shape of input i. */
static int make_fp8(tide_tensor **out, const tide__grad_call *g, int i, const fp8_product *p)
{
  tide__call c;
  const tide__meta *m = &g->meta[i];
  tide_tensor *in[] = {NULL, NULL, NULL, p->a, p->a_scale, p->b, p->b_scale};
  TIDE_TRY(tide__begin(&c, TIDE_OP_LINEAR_FP8, out, X_ACROSS, in, 7));
  c.attrs.fp8_product = p->attrs;
  return tide__dispatch_one(&c, out, g->sum ? g->sum_dtype[i] : m->dtype, m->ndim, m->shape);
}

/* Adds the product to a matrix. */
static int add_fp8(tide_tensor *sum, const fp8_product *p)
{
  tide__call c;
  tide_tensor *in[] = {p->a, p->a_scale, p->b, p->b_scale};
  TIDE_TRY(tide__begin(&c, TIDE_OP_FP8_ADD_PRODUCT_, NULL, 4, in, 0));
  c.attrs.fp8_product = p->attrs;
  c.nout = 1;
  c.out_[0] = sum;
  int rc = tide__launch_checked(&c);
  sum->storage->version++;
  return rc;
}

/* Adds the product to the sum of gradient i, or makes that gradient. */
static int grad_product_fp8(const tide__grad_call *g, int i, const fp8_product *p)
{
  tide__temps v = {0};
  tide_tensor *sum = g->sum ? g->sum[i] : NULL;
  if (!sum) return make_fp8(&g->gin[i], g, i, p);
  sum = TIDE__TEMP(&v, tide__rows_of, sum);
  if (sum && (sum->stride[1] == 1 || sum->shape[1] <= 1)) {
    TIDE__DO(&v, add_fp8(sum, p));
  } else {
    tide_tensor *y = TIDE__TEMP(&v, make_fp8, g, i, p);
    TIDE__DO(&v, tide_axpy_(g->sum[i], y, 1));
  }
  return tide__temps_end(&v);
}

/* Computes dx = dy w. The tape holds codes of w^T, or w itself. */
static int grad_x_fp8(const tide__grad_call *g, const coded *dy, bool dy_e5m2)
{
  tide__temps v = {0};
  const k_fp8_product_attrs *y = &g->attrs->fp8_product;
  coded w = {.across = g->in[W_ACROSS], .across_scale = g->in[W_ACROSS_SCALE]};
  if (w.across->dtype != TIDE_U8)
    w = code(&v, w.across, attrs_of(y->b_kind, false, y->f32_scale), false, true);
  fp8_product p = {{.m = y->m, .n = y->k, .k = y->n, .b_kind = y->b_kind, .a_e5m2 = dy_e5m2,
                    .f32_scale = y->f32_scale}, dy->along, dy->scale, w.across, w.across_scale};
  TIDE__DO(&v, grad_product_fp8(g, 0, &p));
  return tide__temps_end(&v);
}

/* Computes dw = dy^T x. */
static int grad_w_fp8(const tide__grad_call *g, const coded *dy, bool dy_e5m2)
{
  const k_fp8_product_attrs *y = &g->attrs->fp8_product;
  int kind = y->b_kind == K_FP8_TENSOR ? K_FP8_TENSOR : K_FP8_ROWS;
  fp8_product p = {{.m = y->n, .n = y->k, .k = y->m, .b_kind = kind, .a_e5m2 = dy_e5m2,
                    .f32_scale = y->f32_scale},
                   dy->across, dy->across_scale, g->in[X_ACROSS], g->in[X_ACROSS_SCALE]};
  return grad_product_fp8(g, 1, &p);
}

int tide__grad_linear_fp8(const tide__grad_call *g)
{
  int32_t first = 0;
  tide__temps v = {0};
  bool tensor = g->attrs->fp8_product.b_kind == K_FP8_TENSOR;
  k_fp8_attrs how = attrs_of(tensor ? K_FP8_TENSOR : K_FP8_ROWS, tensor,
                             g->attrs->fp8_product.f32_scale);
  tide_tensor *dy = TIDE__TEMP(&v, tide__rows_of, g->gout[0]);
  if (v.rc == TIDE_OK && (g->need[0] || g->need[1])) {
    coded q = code(&v, dy, how, g->need[0], g->need[1]);
    if (g->need[0]) TIDE__DO(&v, grad_x_fp8(g, &q, tensor));
    if (g->need[1]) TIDE__DO(&v, grad_w_fp8(g, &q, tensor));
  }
  if (g->need[2]) TIDE__DO(&v, tide_sum(&g->gin[2], dy, 1, &first, false));
  return tide__temps_end(&v);
}
