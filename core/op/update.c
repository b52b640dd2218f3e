/* Multi-tensor ops of the optimiser: AdamW, with moments of 8 bits too, SGD, global norm, clip
 * factor, scaling.
 *
 * One launch takes a whole parameter group, so small tensors cost no launch of their own. All write
 * in place and are not recorded.
 */
#include <math.h>

#include "core/op/list.h"
#include "core/op/op.h"
#include "core/op/operand.h"

/* Copies xs (may be null when optional) into dst and checks each against like. */
static int take_list(tide__call *c, tide_tensor **dst, const char *list, int64_t n,
                     tide_tensor *const *xs, tide_tensor *const *like, bool optional)
{
  TIDE_TRY(tide__list_take(c, dst, list, n, xs, optional));
  return like ? tide__list_shapes(c, list, n, dst, "parameter", like) : TIDE_OK;
}

static int end_update(tide__call *c, int rc, int64_t n)
{
  for (int i = 0; rc == TIDE_OK && i < c->nout; i++)
    if (c->out[i]) rc = tide__check_idle(c->out[i], TIDE__NAME(c));
  if (rc == TIDE_OK && n > 0) rc = tide__launch_checked(c);
  for (int i = 0; rc == TIDE_OK && i < c->nout; i++)
    if (c->out[i]) c->out[i]->storage->version++;
  tide__lists_end(c);
  return rc;
}

static int scalar_factor(tide__call *c, tide_tensor *t, const char *arg, bool f64_too)
{
  if (!t) return TIDE_OK;
  TIDE_TRY(tide__check_operand(c, arg, 0, t));
  bool fits = t->dtype == TIDE_F32 || (f64_too && t->dtype == TIDE_F64);
  if (fits && tide__tensor_numel(t) == 1) return TIDE_OK;
  return TIDE__FAIL(c, TIDE_E_SHAPE, "%s: expected one f32%s, got %s", arg,
                    f64_too ? " or f64" : "", TIDE__TEXT(t));
}

/* The other operands of an update follow its gradients: in[n], in[n + 1], in[n + 2]. */
enum { NCONTROL = 3 };

static int controls(tide__call *c, int64_t n, tide_tensor *g_scale,
                    tide_tensor *rates, tide_tensor *found_inf)
{
  c->in[n] = g_scale;
  c->in[n + 1] = rates;
  c->in[n + 2] = found_inf;
  TIDE_TRY(scalar_factor(c, g_scale, "g_scale", true));
  TIDE_TRY(scalar_factor(c, found_inf, "found_inf", false));
  if (!rates) return TIDE_OK;
  TIDE_TRY(tide__check_operand(c, "rates", 0, rates));
  if (rates->dtype == TIDE_F64 && rates->ndim == 1 && rates->shape[0] == 2) return TIDE_OK;
  return TIDE__FAIL(c, TIDE_E_SHAPE, "rates: expected two f64 (lr, step), got %s",
                    TIDE__TEXT(rates));
}

/* Checks that the state is f32 (f64 for f64 parameters). */
static int check_state(tide__call *c, const char *list, int64_t n,
                       tide_tensor *const *p, tide_tensor *const *s)
{
  for (int64_t i = 0; i < n; i++) {
    if (!s[i]) continue;
    int want = p[i]->dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32;
    if (s[i]->dtype != want)
      return TIDE__FAIL(c, TIDE_E_DTYPE, "%s[%lld]: expected %s, got %s", list, (long long)i + 1,
                        tide_dtype_name(want), tide_dtype_name(s[i]->dtype));
  }
  return TIDE_OK;
}

static int check_params(tide__call *c, int64_t n, tide_tensor *const *p, tide_tensor *const *g)
{
  for (int64_t i = 0; i < n; i++) {
    TIDE_TRY(tide__check_float(p[i], TIDE__NAME(c), "p"));
    TIDE_TRY(tide__check_float(g[i], TIDE__NAME(c), "g"));
    if ((p[i]->dtype == TIDE_F64) != (g[i]->dtype == TIDE_F64))
      return TIDE__FAIL(c, TIDE_E_DTYPE, "g[%lld] is %s, its parameter %s", (long long)i + 1,
                        tide_dtype_name(g[i]->dtype), tide_dtype_name(p[i]->dtype));
  }
  return TIDE_OK;
}

void tide_adamw_attrs_init(tide_adamw_attrs *a)
{
  *a = (tide_adamw_attrs){.size = sizeof *a, .lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8,
                          .weight_decay = 0.01, .step = 1, .grad_scale = 1};
}

static int read_adamw(tide__call *c, const tide_adamw_attrs *attrs, int64_t n)
{
  tide_adamw_attrs full, *a = &full;
  tide_adamw_attrs_init(a);
  if (!attrs || !tide__options(a, sizeof *a, attrs))
    return TIDE__FAIL(c, TIDE_E_ARG, "attrs: call tide_adamw_attrs_init");
  bool good = isfinite(a->lr) && a->beta1 >= 0 && a->beta1 < 1 && a->beta2 >= 0 && a->beta2 < 1 &&
              a->eps >= 0 && isfinite(a->weight_decay) && a->step >= 1 && isfinite(a->grad_scale);
  if (!good)
    return TIDE__FAIL(c, TIDE_E_ARG, "expected finite lr and weight_decay, betas in [0, 1), eps >= "
                      "0 and step >= 1, got lr %g, betas %g and %g, eps %g, decay %g, step %lld",
                      a->lr, a->beta1, a->beta2, a->eps, a->weight_decay, (long long)a->step);
  c->attrs.adamw = (k_adamw_attrs){a->lr, a->beta1, a->beta2, a->eps, a->weight_decay,
                                   a->grad_scale, a->step, n, a->maximize};
  return TIDE_OK;
}

/* Takes the attributes and the lists that both forms of AdamW have: gradients as inputs, then
 * parameters and moments as targets. */
static int begin_adamw(tide__call *c, const tide_adamw_attrs *attrs, int64_t n,
                       tide_tensor *const *p, tide_tensor *const *g, tide_tensor *const *m,
                       tide_tensor *const *v)
{
  TIDE_TRY(read_adamw(c, attrs, n));
  TIDE_TRY(take_list(c, c->out, "p", n, p, NULL, false));
  TIDE_TRY(take_list(c, c->in, "g", n, g, p, false));
  TIDE_TRY(check_params(c, n, p, g));
  TIDE_TRY(take_list(c, c->out + n, "m", n, m, p, false));
  return take_list(c, c->out + 2 * n, "v", n, v, p, false);
}

int tide_adamw_(tide_ctx *ctx, int64_t n, tide_tensor *const *p, tide_tensor *const *g,
                tide_tensor *const *m, tide_tensor *const *v, tide_tensor *const *master,
                tide_tensor *g_scale, tide_tensor *rates, tide_tensor *found_inf,
                const tide_adamw_attrs *attrs)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx), TIDE_MAYBE(TENSOR, g_scale), TIDE_MAYBE(TENSOR, rates),
            TIDE_MAYBE(TENSOR, found_inf));
  tide__call c;
  TIDE_TRY(tide__lists_begin(ctx, &c, TIDE_OP_ADAMW_, n, n + NCONTROL, 4 * n));
  tide_tensor **o = c.out;
  int rc = begin_adamw(&c, attrs, n, p, g, m, v);
  if (rc == TIDE_OK) rc = take_list(&c, o + 3 * n, "master", n, master, p, true);
  for (int k = 1; k < 4 && rc == TIDE_OK; k++)
    rc = check_state(&c, k == 1 ? "m" : k == 2 ? "v" : "master", n, p, o + k * n);
  if (rc == TIDE_OK) rc = controls(&c, n, g_scale, rates, found_inf);
  return end_update(&c, rc, n);
}

enum { BLOCK = 256 }; /* of numbers that share a scale, see kernels/ref/dynamic8.h */

static int64_t blocks_of(const tide_tensor *x)
{
  return (tide__tensor_numel(x) + BLOCK - 1) / BLOCK;
}

static int check_codes(tide__call *c, const char *list, int64_t i, const tide_tensor *codes)
{
  if (codes->dtype == TIDE_U8) return TIDE_OK;
  return TIDE__FAIL(c, TIDE_E_DTYPE, "%s[%lld]: expected u8, got %s", list, (long long)i + 1,
                    tide_dtype_name(codes->dtype));
}

static int check_scale(tide__call *c, const char *list, int64_t i, const tide_tensor *scale,
                       int64_t nblock)
{
  if (scale->dtype == TIDE_F32 && scale->ndim == 1 && scale->shape[0] == nblock) return TIDE_OK;
  return TIDE__FAIL(c, TIDE_E_SHAPE, "%s[%lld]: expected f32 [%lld], one for each 256 elements, "
                    "got %s", list, (long long)i + 1, (long long)nblock, TIDE__TEXT(scale));
}

/* Checks the codes and scales of one moment. */
static int check_moments(tide__call *c, const char *list, int64_t n, tide_tensor *const *p,
                         tide_tensor *const *codes, tide_tensor *const *scale)
{
  for (int64_t i = 0; i < n; i++) {
    TIDE_TRY(check_codes(c, list, i, codes[i]));
    TIDE_TRY(check_scale(c, list[0] == 'm' ? "m_scale" : "v_scale", i, scale[i], blocks_of(p[i])));
    if (p[i]->dtype == TIDE_F64)
      return TIDE__FAIL(c, TIDE_E_DTYPE, "p[%lld] is f64, expected f32, bf16 or f16; adamw_ takes "
                        "f64", (long long)i + 1);
  }
  return TIDE_OK;
}

int tide_adamw8_(tide_ctx *ctx, int64_t n, tide_tensor *const *p, tide_tensor *const *g,
                 tide_tensor *const *m, tide_tensor *const *v, tide_tensor *const *m_scale,
                 tide_tensor *const *v_scale, tide_tensor *const *master, tide_tensor *g_scale,
                 tide_tensor *rates, tide_tensor *found_inf, const tide_adamw_attrs *attrs)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx), TIDE_MAYBE(TENSOR, g_scale), TIDE_MAYBE(TENSOR, rates),
            TIDE_MAYBE(TENSOR, found_inf));
  tide__call c;
  TIDE_TRY(tide__lists_begin(ctx, &c, TIDE_OP_ADAMW8_, n, n + NCONTROL, 6 * n));
  tide_tensor **o = c.out;
  int rc = begin_adamw(&c, attrs, n, p, g, m, v);
  if (rc == TIDE_OK) rc = take_list(&c, o + 3 * n, "m_scale", n, m_scale, NULL, false);
  if (rc == TIDE_OK) rc = take_list(&c, o + 4 * n, "v_scale", n, v_scale, NULL, false);
  if (rc == TIDE_OK) rc = take_list(&c, o + 5 * n, "master", n, master, p, true);
  if (rc == TIDE_OK) rc = check_moments(&c, "m", n, p, o + n, o + 3 * n);
  if (rc == TIDE_OK) rc = check_moments(&c, "v", n, p, o + 2 * n, o + 4 * n);
  if (rc == TIDE_OK) rc = check_state(&c, "master", n, p, o + 5 * n);
  if (rc == TIDE_OK) rc = controls(&c, n, g_scale, rates, found_inf);
  return end_update(&c, rc, n);
}

int tide_quantize8(tide_tensor **codes, tide_tensor **scale, tide_tensor *x, bool is_signed)
{
  tide__call c;
  tide_tensor *y[2] = {NULL, NULL};
  *codes = *scale = NULL;
  TIDE_TRY(tide__begin(&c, TIDE_OP_QUANTIZE8, NULL, 1, &x, 0));
  if (x->dtype != TIDE_F32)
    return TIDE__FAIL(&c, TIDE_E_DTYPE, "x: expected f32, got %s", tide_dtype_name(x->dtype));
  int64_t nblock = blocks_of(x);
  c.attrs.dyn8 = (k_dyn8_attrs){is_signed};
  tide__result(&c, 0, TIDE_U8, x->ndim, x->shape);
  tide__result(&c, 1, TIDE_F32, 1, &nblock);
  TIDE_TRY(tide__dispatch(&c, y, 2));
  *codes = y[0];
  *scale = y[1];
  return TIDE_OK;
}

int tide_dequantize8(tide_tensor **out, tide_tensor *codes, tide_tensor *scale, bool is_signed)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_DEQUANTIZE8, out, 2, (tide_tensor *[]){codes, scale}, 0));
  TIDE_TRY(check_codes(&c, "codes", 0, codes));
  TIDE_TRY(check_scale(&c, "scale", 0, scale, blocks_of(codes)));
  c.attrs.dyn8 = (k_dyn8_attrs){is_signed};
  return tide__dispatch_one(&c, out, TIDE_F32, codes->ndim, codes->shape);
}

void tide_sgd_attrs_init(tide_sgd_attrs *a)
{
  *a = (tide_sgd_attrs){.size = sizeof *a, .lr = 1e-2, .first = 1, .grad_scale = 1};
}

static int read_sgd(tide__call *c, const tide_sgd_attrs *attrs, int64_t n)
{
  tide_sgd_attrs full, *a = &full;
  tide_sgd_attrs_init(a);
  if (!attrs || !tide__options(a, sizeof *a, attrs))
    return TIDE__FAIL(c, TIDE_E_ARG, "attrs: call tide_sgd_attrs_init");
  bool good = isfinite(a->lr) && a->momentum >= 0 && isfinite(a->momentum) &&
              isfinite(a->dampening) && isfinite(a->weight_decay) && isfinite(a->grad_scale) &&
              !(a->nesterov && (a->momentum == 0 || a->dampening != 0));
  if (!good)
    return TIDE__FAIL(c, TIDE_E_ARG, "expected finite values, momentum >= 0, and for nesterov "
                      "momentum > 0 without dampening; got lr %g, momentum %g, dampening %g, decay "
                      "%g", a->lr, a->momentum, a->dampening, a->weight_decay);
  c->attrs.sgd = (k_sgd_attrs){a->lr, a->momentum, a->dampening, a->weight_decay, a->grad_scale, n,
                               a->nesterov, a->maximize, a->first};
  return TIDE_OK;
}

int tide_sgd_(tide_ctx *ctx, int64_t n, tide_tensor *const *p, tide_tensor *const *g,
              tide_tensor *const *buf, tide_tensor *const *master, tide_tensor *g_scale,
              tide_tensor *rates, tide_tensor *found_inf, const tide_sgd_attrs *attrs)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx), TIDE_MAYBE(TENSOR, g_scale), TIDE_MAYBE(TENSOR, rates),
            TIDE_MAYBE(TENSOR, found_inf));
  tide__call c;
  TIDE_TRY(tide__lists_begin(ctx, &c, TIDE_OP_SGD_, n, n + NCONTROL, 3 * n));
  tide_tensor **o = c.out;
  int rc = read_sgd(&c, attrs, n);
  bool plain = rc == TIDE_OK && attrs->momentum == 0;
  if (rc == TIDE_OK) rc = take_list(&c, o, "p", n, p, NULL, false);
  if (rc == TIDE_OK) rc = take_list(&c, c.in, "g", n, g, p, false);
  if (rc == TIDE_OK) rc = check_params(&c, n, p, g);
  if (rc == TIDE_OK) rc = take_list(&c, o + n, "buf", n, plain ? NULL : buf, p, plain);
  if (rc == TIDE_OK) rc = take_list(&c, o + 2 * n, "master", n, master, p, true);
  if (rc == TIDE_OK) rc = check_state(&c, "buf", n, p, o + n);
  if (rc == TIDE_OK) rc = check_state(&c, "master", n, p, o + 2 * n);
  if (rc == TIDE_OK) rc = controls(&c, n, g_scale, rates, found_inf);
  return end_update(&c, rc, n);
}

/* Returns f64 where a tensor of the list is f64, else f32. */
static int norm_dtype(int64_t n, tide_tensor *const *xs)
{
  for (int64_t i = 0; i < n; i++)
    if (xs[i] && xs[i]->dtype == TIDE_F64) return TIDE_F64;
  return TIDE_F32;
}

int tide_norm(tide_tensor **out, tide_ctx *ctx, int64_t n, tide_tensor *const *xs, double p,
              bool squared)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  tide__call c;
  TIDE_TRY(tide__lists_begin(ctx, &c, TIDE_OP_NORM, n, n, 1));
  int rc = TIDE_OK;
  if (p != 1 && p != 2 && !(isinf(p) && p > 0))
    rc = tide__fail(ctx, TIDE_E_ARG, "norm", "p: expected 1, 2 or infinity, got %g", p);
  if (rc == TIDE_OK) rc = take_list(&c, c.in, "xs", n, xs, NULL, false);
  for (int64_t i = 0; i < n && rc == TIDE_OK; i++) rc = tide__check_float(xs[i], "norm", "xs");
  int dtype = rc == TIDE_OK ? norm_dtype(n, xs) : TIDE_F32;
  if (n == 0 && rc == TIDE_OK) rc = tide_full(&c.out[0], ctx, TIDE_DEV_CPU, dtype, 0, NULL, 0);
  else if (rc == TIDE_OK) rc = tide__tensor_new(&c.out[0], ctx, c.device, dtype, 0, NULL, "norm");
  tide_tensor *y = c.out[0];
  c.attrs.norm_all = (k_norm_all_attrs){p, n, squared};
  rc = end_update(&c, rc, n);
  if (rc < 0) tide_tensor_release(y);
  else *out = y;
  return rc;
}

int tide_clip_factor(tide_tensor **out, tide_tensor *norm, double max_norm)
{
  tide__call c;
  TIDE_TRY(tide__begin(&c, TIDE_OP_CLIP_FACTOR, out, 1, &norm, 0));
  TIDE_TRY(scalar_factor(&c, norm, "norm", true));
  if (!(max_norm > 0))
    return TIDE__FAIL(&c, TIDE_E_ARG, "max_norm: expected a number > 0, got %g", max_norm);
  c.attrs.norm_all = (k_norm_all_attrs){max_norm, 1, 0};
  return tide__dispatch_one(&c, out, norm->dtype, 0, NULL);
}

int tide_scale_all_(tide_ctx *ctx, int64_t n, tide_tensor *const *xs, tide_tensor *factor)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx), TIDE_OBJECT(TENSOR, factor));
  tide__call c;
  TIDE_TRY(tide__lists_begin(ctx, &c, TIDE_OP_SCALE_ALL_, n, 1, n));
  int rc = take_list(&c, c.out, "xs", n, xs, NULL, false);
  for (int64_t i = 0; i < n && rc == TIDE_OK; i++)
    rc = tide__check_float(xs[i], "scale_all_", "xs");
  if (rc == TIDE_OK) rc = take_list(&c, c.in, "factor", 1, &factor, NULL, false);
  if (rc == TIDE_OK) rc = scalar_factor(&c, factor, "factor", true);
  c.attrs.norm_all = (k_norm_all_attrs){0, n, 0};
  return end_update(&c, rc, n);
}
