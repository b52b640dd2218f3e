/* The interface of a kernel: pointers, sizes, strides and a typed attribute struct, never a tensor.
 *
 * Every kernel of every op has the same signature and takes one k_call, which dispatch fills from
 * tensor handles. A kernel reads its operands, writes its results and returns a status; it
 * allocates nothing (scratch is passed in `work`), does not block and keeps no state. kernels/ref
 * defines what each op means; a faster kernel may differ by rounding only.
 *
 * Includes core/base and the public enums only.
 */
#pragma once

#include "core/base/try.h"
#include "tide/tide.h"

/* One operand. Strides count elements and are never negative; 0 repeats. data points at the first
 * element. An absent optional operand has data null and ndim -1. */
typedef struct k_tensor {
  void   *data;
  int64_t shape[TIDE_MAX_DIM];
  int64_t stride[TIDE_MAX_DIM];
  int32_t ndim;
  int32_t dtype;
} k_tensor;

enum { K_MSG = 192, K_PLAN = 768 };

typedef struct k_call {
  int             op;       /* TIDE_OP_*, for kernels that serve several ops */
  int             nin, nout;
  const k_tensor *in;       /* in-place ops: the target is out[0], its old value is not an input */
  const k_tensor *out;
  const void     *attrs;    /* the op's k_*_attrs below, or null */
  void           *work;     /* scratch, as large as the row's work function said, 64-aligned */
  void           *plan;     /* K_PLAN bytes, 64-aligned, that the work function fills for the
                             * kernel; null where a kernel is called without its work function */
  int             nthread;  /* upper bound on threads */
  void           *stream;   /* device stream; null on the host */
  char           *msg;      /* K_MSG bytes for the reason of a failure */
} k_call;

typedef int     (*k_fn)(const k_call *call);      /* TIDE_OK or a negative status */
typedef int64_t (*k_work_fn)(const k_call *call); /* bytes of scratch; data pointers are not set */

/* What a kernel requires of its operands' strides. Dispatch makes a contiguous copy of an input
 * that does not fit. Freshly allocated outputs are always contiguous. */
enum {
  K_ANY = 0,    /* any strides */
  K_INNER = 1,  /* the last dim has stride 1 (or size <= 1) */
  K_CONTIG = 2, /* row-major contiguous */
  K_ROWS = 3    /* K_INNER, and neighbouring rows do not overlap (an expanded row does): a leading
                   dimension as BLAS takes it */
};

/* Sets of dtypes for kernel rows. */
enum {
  K_F32 = 1 << TIDE_F32, K_F64 = 1 << TIDE_F64, K_BF16 = 1 << TIDE_BF16, K_F16 = 1 << TIDE_F16,
  K_I64 = 1 << TIDE_I64, K_I32 = 1 << TIDE_I32, K_U8 = 1 << TIDE_U8, K_BOOL = 1 << TIDE_BOOL,
  K_FLOAT = K_F32 | K_F64 | K_BF16 | K_F16,
  K_INT = K_I64 | K_I32 | K_U8,
  K_ALL = K_FLOAT | K_INT | K_BOOL
};

static inline int64_t k_numel(const k_tensor *t)
{
  int64_t n = 1;
  for (int d = 0; d < t->ndim; d++) n *= t->shape[d];
  return n;
}
static inline int k_absent(const k_tensor *t) { return t->ndim < 0; }
static inline const k_tensor *k_or_null(const k_tensor *t) { return k_absent(t) ? 0 : t; }

/* Returns the size of the last dim, 1 without dims; the number of rows of that size. */
static inline int64_t k_row_size(const k_tensor *t)
{
  return t->ndim > 0 ? t->shape[t->ndim - 1] : 1;
}
static inline int64_t k_row_count(const k_tensor *t)
{
  int64_t n = 1;
  for (int d = 0; d + 1 < t->ndim; d++) n *= t->shape[d];
  return n;
}

/* Returns the offset of row i, in row-major order of the dims before the last. */
static inline int64_t k_row_offset(const k_tensor *t, int64_t i)
{
  int64_t at = 0;
  for (int d = t->ndim - 2; d >= 0; d--) {
    at += i % t->shape[d] * t->stride[d];
    i /= t->shape[d];
  }
  return at;
}

/* Returns the dims [first, end) of t as a tensor of its own, which begins at t's first element. */
static inline k_tensor k_dims(const k_tensor *t, int first, int end)
{
  k_tensor v = *t;
  v.ndim = end > first ? end - first : 0;
  for (int d = 0; d < v.ndim; d++) {
    v.shape[d] = t->shape[first + d];
    v.stride[d] = t->stride[first + d];
  }
  return v;
}

/* ---- attributes, by op ------------------------------------------------------------------------
 * Operand order is written as  op: in[0], in[1], ... -> out[0], out[1], ...
 * "f32*" means f32, or f64 when x is f64.
 */

/* affine: x -> y = x * mul + add.  pow_scalar uses mul as exponent.  clamp: mul = lo, add = hi.
 * fill_: -> t (value in add).  scale_: -> t *= mul.  copy_: src -> t with conversion, same shape.
 * axpy_: src, factor? -> t += mul * factor * src (src broadcast already expanded to t's shape, its
 * dtype may differ; factor: one f32*, with a floating t). */
typedef struct k_scalar_attrs { double mul, add; } k_scalar_attrs;

/* foreach_copy_: src[0..n) -> dst[0..n): copy_ for each.  foreach_add_: the same, dst[i] += src[i];
 * a floating dst takes any src, an integer one integers and bool. dtypes may differ from pair to
 * pair, sizes may be 0, and no element of a dst is one of another dst or of a src, so the order is
 * the kernel's choice. No attrs; the dtype of the row is that of dst[0]. */

/* sum mean prod amax amin any all: x -> y. Dispatch has permuted x so that the reduced dims come
 * last: in[0] has nkeep leading kept dims, then the reduced ones; y is [kept...] contiguous.
 * argmax argmin: the same with one reduced dim -> i64.
 * cumsum: x -> y, the dim has been moved last, nkeep = ndim - 1. from_end (of cumsum only): sums
 * run from the last element to the first. */
typedef struct k_reduce_attrs { int32_t nkeep, from_end; } k_reduce_attrs;

/* topk: x -> index, i64 [.., k] and contiguous, the dim has been moved last; k is index's last dim,
 * at most the size of x's. The positions of the first k elements in the order from the largest down
 * or, smallest, from the smallest up. NaN counts as larger than every number; of equals the first
 * is first. */
typedef struct k_topk_attrs { int32_t smallest; } k_topk_attrs;

/* softmax log_softmax: x -> y;  softmax_bwd log_softmax_bwd: dy, y -> dx. Over the last dim.
 * cat: in[i] are the pieces, in order, -> y; dim below.
 * gather: x, index -> y.  scatter_add: index, src -> t (in place, t already holds x).
 * index_select: x, index -> y.  index_add: index, src -> t (in place; an f32 t takes 16-bit src).
 * one_hot: ids -> y (no attrs; class count is y's last dim). */
typedef struct k_dim_attrs { int32_t dim; } k_dim_attrs;

/* pad: x -> y; y[i] = x[i - before[d]] inside, value outside; before may be negative (crop). */
typedef struct k_pad_attrs { int64_t before[TIDE_MAX_DIM]; double value; } k_pad_attrs;
/* roll: x -> y; y[(i + shift) mod n] = x[i] along dim. */
typedef struct k_roll_attrs { int32_t dim; int32_t pad; int64_t shift; } k_roll_attrs;
/* arange: -> y. */
typedef struct k_arange_attrs { double start, step; } k_arange_attrs;

/* embedding: weight_VD, ids[...] -> y[..., D] (no attrs).
 * embedding_bwd: dy[..., D], ids -> dweight_VD, overwritten (or f32); sums in token order. */

/* matmul: a[batch..., M, K], b[batch..., K, N] -> y[batch..., M, N]. Same number of dims, batch
 * dims broadcast by stride 0. a and b may be transposed views: either of their last two strides
 * is 1 (dispatch copies otherwise). No attrs.
 * addmm_: a_MK, b_KN -> t_MN += a b, rounded once. a and b as for matmul; t has a last stride of 1,
 * and a's dtype, or f32 where a and b have 16 bits.
 * linear: x[..., K] , w_NK, bias_N or absent -> y[..., N]. x, w K_INNER. No attrs.
 * Accumulation is f32 for f32/bf16/f16 (one rounding at the end), f64 for f64. */

/* group_rows: ids -> rows, place, offsets: ids [n] or [n, k]; rows i64 [n k]; place i64, of the
 * shape of ids; offsets i64 [groups + 1]. Slots are sorted by group, and within a group in the
 * order of ids: rows[place[i, j]] = i, and group g has the slots offsets[g] up to offsets[g + 1].
 * An id outside [0, groups) is in no group; its slot follows the last group. No attrs. */

/* grouped_linear: x[rows, K], w[groups, N, K], offsets i64/i32 [groups + 1] -> y[rows, N]: row r of
 * group g, offsets[g] <= r < offsets[g + 1], is x[r] w[g]'; a row in no group is 0. Each of x and w
 * has a stride of 1 in one of its last two dims. Offsets go up from 0 or more to `rows` or less:
 * else TIDE_E_ARG.
 * grouped_linear_bwd: a[rows, M], b[rows, N], offsets -> y[groups, M, N]: y[g] = a_g' b_g of the
 * group's rows, 0 without rows.  grouped_addmm_: the same added to t, rounded once; t has a last
 * stride of 1. Results may be f32 where a and b have 16 bits. No attrs. */

/* linear_act: x[..., K], w_NK, bias_N or absent -> y[..., N], pre[..., N] or absent: pre is what
 * linear gives, y = act(pre), of pre as it is before or after it is rounded. x, w K_INNER. */
enum { K_ACT_RELU = 0, K_ACT_GELU_TANH = 1 };
typedef struct k_linear_act_attrs { int32_t act; } k_linear_act_attrs;

/* fp8_codes: x[..., C] of R rows -> codes u8, scale f32, across u8, across_scale f32; or absent.
 * codes [wide(R), wide(C)] are x in e4m3, or e5m2: with s the factor of a number's block, a code is
 * x * s, taken in f32 and rounded once. scale has 1 / s, so that a number is code * scale. Blocks:
 *   TENSOR  all of x; scale [1], which is wanted, serves both directions and across_scale is absent
 *   ROWS    128 neighbours of a row; scale [blocks(C), wide(R)]
 *   SQUARE  128 rows and columns; scale [blocks(R), blocks(C) in steps of 4]
 * across: codes and scale of x', [wide(C), wide(R)]. wide: in steps of 16, with codes of 0 and
 * scales of 1 behind. s: kernels/fp8.h; f32_scale: not rounded to a power of two. */
enum { K_FP8_TENSOR, K_FP8_ROWS, K_FP8_SQUARE };
typedef struct k_fp8_attrs { int32_t kind, e5m2, f32_scale; } k_fp8_attrs;

/* linear_fp8: x, w (not read; null in a derivative), bias_N or absent, a (codes of [m, k]), its
 * scale, b (codes of [n, k]), its scale, up to four that the derivative reads -> y[..., n] of m
 * rows: the sum of a b' within a block of k, times both scales, summed over blocks, + bias; rounded
 * once. a has blocks of b_kind, ROWS for SQUARE; b is e4m3.
 * fp8_add_product_: a, its scale, b, its scale -> t_MN += a b', rounded once; t has a last stride
 * of 1. f32_scale: as of the codes. */
enum { K_FP8_BIAS = 2, K_FP8_A, K_FP8_A_SCALE, K_FP8_B, K_FP8_B_SCALE };
enum { K_FP8_ADDED = 4 }; /* inputs of fp8_add_product_, of which the first is K_FP8_A */
typedef struct k_fp8_product_attrs {
  int64_t m, n, k;
  int32_t b_kind, a_e5m2, f32_scale;
} k_fp8_product_attrs;

/* quantize_nf4: x -> codes u8, scale f32 (kernels/ref/nf4.h). dequantize_nf4: those -> f32 [n].
 * linear_nf4: x[..., K], codes, scale, bias_N or absent -> y[..., N] of the weight [rows, cols] =
 * [N, K], read in x's dtype, as linear; transposed: x[..., rows] -> y[..., cols] = x w.
 * Number c of row r is number first + r * stride + c of what quantize_nf4 has coded. row_blocks:
 * codes of magnitudes a row; 0 where rows follow each other (cols = stride) and share blocks.
 * dequantize_nf4_part, linear_nf4_part: the same kernels.
 * grouped_linear_nf4: x[rows, K], codes[groups, bytes], scale[groups, ..], offsets -> y[rows, N]:
 * linear_nf4 of the rows of each group, with rows of codes and scale; else as grouped_linear. */
typedef struct k_nf4_attrs {
  int64_t rows, cols, first, stride, row_blocks;
  int32_t transposed;
} k_nf4_attrs;

/* layer_norm: x[..., D], weight or absent, bias or absent -> y, mean[...] f32*, rstd[...] f32*
 * layer_norm_bwd: dy, x, weight or absent, mean, rstd -> dx, dweight or absent, dbias or absent
 * rms_norm: x, weight or absent -> y, rstd[...] f32*
 * rms_norm_bwd: dy, x, weight or absent, rstd, dsum or absent -> dx (+= dsum), dweight or absent
 * add_rms_norm: x, residual, weight or absent -> y, sum, rstd[...] f32*
 * dweight, dbias have weight's dtype (x's if the weight is absent) and are overwritten.
 * Row order of the dweight sum must not depend on the number of threads. */
typedef struct k_row_norm_attrs { double eps, weight_offset; } k_row_norm_attrs;

/* rope: x_BTHD, positions [B or 1, T] i64/i32, inv_freq f32/f64 [R/2] -> y. Angles in f64 or f32
 * with exact range reduction: positions up to 2^24 must keep 1e-5. */
typedef struct k_rope_attrs { int32_t interleaved, inverse; } k_rope_attrs;

/* unary x_bwd rows: tanh_bwd sigmoid_bwd relu_bwd: dy, y -> dx;
 * silu_bwd gelu_bwd gelu_tanh_bwd softplus_bwd: dy, x -> dx. No attrs.
 * clamp_bwd: dy, x -> dx, zero unless lo < x < hi (k_scalar_attrs).
 * swiglu: gate, up -> y;  swiglu_bwd: dy, gate, up -> dgate, dup.
 * swiglu_clamped and its backward: the same of y = (u + 1) g sigmoid(alpha g), g = min(gate,
 * limit), u = up clamped to [-limit, limit]; no gradient from the limits on, NaN stays. */
typedef struct k_swiglu_attrs { double limit, alpha; } k_swiglu_attrs;

/* attention: q_BTHD, k, v, bias or absent [B,H,Tq,Tk] (expanded by stride 0), q_index, k_index
 * (both or neither; i32 [B or 1, T, 2] of (document, position), or [.., 3] with until, which is
 * read of queries alone; batch stride 0 when 1), q_tiles, k_tiles (each or absent, contiguous:
 * attention_tiles of its index, which a kernel need not read), sinks or absent (which kernels do
 * not read: attention_sinks_ follows) -> out [B,Tq,H,Dv], lse f32* [B,H,Tq].
 * attention_bwd: dout, q, k, v, out, lse, bias, q_index, k_index, dlse or absent [B,H,Tq] f32*,
 * q_tiles, k_tiles -> dq, dk, dv, dbias or absent [B,H,Tq,Tk] f32*. Mask rules:
 * tide_attention_attrs in the public header. All operands K_INNER (heads may be strided). window
 * -1: no limit. scale is filled in; it and softcap are f32 values unless the operands are f64.
 * Results must not depend on the number of threads.
 * attention_merge_: part [B,T,H,D], part_lse f32* [B,H,T] -> out f32* [B,T,H,D], lse f32* in place:
 *   l = log(e^lse + e^part_lse), out = out e^(lse - l) + part e^(part_lse - l), lse = l;
 * a weight of 0 (lse -inf) takes no part whatever its values, and two of them give out 0.
 * attention_sinks_: sinks [H] of any float dtype -> out [B,T,H,D], lse f32* [B,H,T] in place:
 *   l = log(e^lse + e^sink), out = out e^(lse - l), lse = l; out = 0 where lse is -inf.
 * attention_sinks_backward: dout, out, lse (those of attention_sinks_), sinks, dlse or absent
 * [B,H,T] f32* -> dsinks [H], of the dtype of sinks: the sum of e^(sink - lse) (dlse - dout . out).
 * attention_tiles: index i32 [B,T,2 or 3] -> i32 [B, ceil(T / K_TILE), 4], of each K_TILE tokens
 * the least and greatest document and the least and greatest position, over the tokens that have a
 * document (>= 0); until counts as one more position. The least document is complemented where
 * some token has none; a tile without any document is {~INT32_MAX, -1, INT32_MAX, INT32_MIN}. */
enum { K_TILE = 64 };
typedef struct k_attention_attrs {
  int64_t window_left, window_right, q_start;
  int32_t causal;
  double  scale, softcap;
} k_attention_attrs;

/* gated_rms_norm: x[..., D], z, weight_D or absent -> y, rstd[..., D / group] f32*
 * gated_rms_norm_bwd: dy, x, z, weight or absent, rstd -> dx, dz, dweight or absent.
 * The mean of squares runs over each `group` neighbouring channels, of u = x * silu(z), y = norm(u)
 * * weight; with gate_last of u = x, y = norm(u) * weight * silu(z). rstd is contiguous. */
typedef struct k_gated_norm_attrs {
  double  eps;
  int64_t group;
  int32_t gate_last;
} k_gated_norm_attrs;

/* conv1d: x_BTC, w_CK, bias_C or absent, initial [B, K-1, C] or absent, sequence i32/i64 [B or 1,
 * T] (batch stride 0 when 1) or absent -> y_BTC, final [B, K-1, C] or absent.
 * conv1d_bwd: dy, x, w, bias, initial, sequence, dfinal or absent -> dx, dw, dbias or absent,
 * dinitial or absent.
 * y[t] = act(bias + sum_k w[k] x[t - (K-1) + k]); rows before 0 are those of initial, which belong
 * to the sequence of token 0; a row of another sequence than token t counts as zero. final holds
 * the last K-1 rows of initial and x, zero where they are of another sequence than the last token.
 * Sequence numbers must not be negative nor decrease: TIDE_E_ARG. All K_INNER. */
typedef struct k_conv1d_attrs { int32_t silu; } k_conv1d_attrs;

/* ssd_scan: x_BTHP, dt_BTH, A_H, B_BTGN, C_BTGN, D [H] or [H, P] or absent, dt_bias_H or absent,
 *   initial [B, H, P, N] or absent, sequence [B or 1, T] or absent
 *   -> y_BTHP, final f32* [B, H, P, N] or absent, states f32* [B, ceil(T / chunk), H, P, N] or
 *   absent: the state that enters each chunk.
 * ssd_scan_bwd: dy, x, dt, A, B, C, D, dt_bias, initial, sequence, states, dfinal or absent
 *   -> dx, ddt, dA, dB, dC, dD or absent, ddt_bias or absent, dinitial or absent, each in the dtype
 *   of its operand.
 * With s_t = dt_t + dt_bias, d_t = clamp(softplus(s_t) or s_t, dt_min, dt_max):
 *   h_t = exp(d_t A) h_{t-1} + d_t x_t B_t',  y_t = h_t C_t + D x_t
 * and h_{t-1} counts as zero where token t is of another sequence than t - 1. Head h reads group
 * h / (H / G). chunk >= 1 is the grain of states; it changes results by rounding only. */
typedef struct k_ssd_attrs {
  double  dt_min, dt_max;
  int64_t chunk;
  int32_t softplus;
} k_ssd_attrs;

/* gated_delta: q, k [B, T, Hk, Dk], v [B, T, Hv, Dv], g, beta [B, T, Hv], initial [B, Hv, Dk, Dv]
 *   or absent, sequence [B or 1, T] or absent
 *   -> o [B, T, Hv, Dv], final f32* [B, Hv, Dk, Dv] or absent, states f32* [B, ceil(T / chunk), Hv,
 *   Dk, Dv] or absent: the state that enters each chunk.
 * gated_delta_bwd: do, q, k, v, g, beta, initial, sequence, states, dfinal or absent
 *   -> dq, dk, dv, dg, dbeta, dinitial or absent, each in the dtype of its operand.
 * Value head h reads head h / (Hv / Hk) of q and k. With rows q_t and k_t, which l2norm divides by
 * sqrt(sum of squares + eps):
 *   R_t = exp(g_t) S_{t-1},  u_t = beta_t (v_t - R_t' k_t),  S_t = R_t + k_t u_t',
 *   o_t = scale S_t' q_t
 * and S_{t-1} counts as zero where token t is of another sequence than t - 1. chunk >= 1 is the
 * grain of states; it changes results by rounding only. */
typedef struct k_gated_delta_attrs {
  double  scale, eps;
  int64_t chunk;
  int32_t l2norm;
} k_gated_delta_attrs;

/* cross_entropy: logits_NV (K_INNER), targets_N i64/i32 -> loss_N f32*, logsum_N f32*
 * cross_entropy_bwd: dloss_N f32*, logits, targets, logsum -> dlogits
 * linear_cross_entropy: x_ND, w_VD, bias_V or absent, targets_N -> loss f32* scalar (sum),
 *   dx or absent, dw or absent, dbias or absent (gradients; dtype the operand's, dw, dbias or f32).
 * With max = max_v z[v], logsum = log(sum_v exp(z[v] - max)), lse = max + logsum and
 * eps = label_smoothing, the loss of a counted token is
 *   (1 - eps) * (lse - z[target]) + eps * (lse - mean_v z[v]) + z_loss * lse^2,
 * and 0 (and logsum 0) for target == ignore_index. A number added to all logits of a row must not
 * cost accuracy: lse is never rounded before z is taken off it, so loss has (max - z) + logsum and
 * the backward, which finds max again, exp((z - max) - logsum). If no logit is above -inf, max
 * counts as 0. Another target outside [0, V) is TIDE_E_ARG. */
typedef struct k_cross_entropy_attrs {
  int64_t ignore_index;
  double  label_smoothing, z_loss;
} k_cross_entropy_attrs;

/* uniform_ normal_ trunc_normal_: place -> t.  dropout: x, place -> y (also its own backward).
 * place (i64 [3], or absent) holds a seed, stream and offset to add to those of the attributes.
 * Element i in row-major order has global index g = start + sum coord[d] * gstride[d] (ndim 0:
 * start + i) and random word tide__philox_word(seed, stream, offset + g), see core/base/rng.h.
 * uniform: a = lo, b = hi. normal: a = mean, b = std. trunc_normal: and lo, hi in units of std.
 * dropout: a = p; kept iff tide__philox_unit(word) >= p. */
typedef struct k_random_attrs {
  uint64_t seed, stream, offset;
  double   a, b, lo, hi;
  int64_t  start, gstride[TIDE_MAX_DIM];
  int32_t  ndim;
} k_random_attrs;

/* adamw_: in = g[0..n), then g_scale, rates, found_inf (may be absent); out = p[0..n), m[0..n),
 * v[0..n), master[0..n) (may be absent). All contiguous. In f32 arithmetic (f64 for f64 p):
 *   g *= grad_scale * g_scale; w = master or p; w -= lr * weight_decay * w;
 *   m = m + (1-beta1)(g - m); v = v + (1-beta2)(g*g - v);
 *   w -= lr/bias1 * m / (sqrt(v)/sqrt(bias2) + eps), bias_i = 1 - beta_i^step.
 * rates: f64 {lr, step} instead of those of the attributes. found_inf: unless it is 0, nothing is
 * written. */
typedef struct k_adamw_attrs {
  double  lr, beta1, beta2, eps, weight_decay, grad_scale;
  int64_t step, n;
  int32_t maximize;
} k_adamw_attrs;
/* adamw8_: as adamw_ in f32 arithmetic; m and v are u8 codes of kernels/ref/dynamic8.h (m signed, v
 * not), in blocks of 256 elements of each tensor, and out has m_scale[0..n), v_scale[0..n), f32
 * [blocks], before master. The weight is updated from the moments before they are coded.
 * sgd_: in as above; out = p[0..n), buf[0..n), master[0..n) (may be absent).
 *   g = g*scale + weight_decay*w; buf = first ? g : momentum*buf + (1-dampening)*g;
 *   g = nesterov ? g + momentum*buf : buf (if momentum); w -= lr*g.
 * With rates the step is the first where its number is 1. */
typedef struct k_sgd_attrs {
  double  lr, momentum, dampening, weight_decay, grad_scale;
  int64_t n;
  int32_t nesterov, maximize, first;
} k_sgd_attrs;
/* norm: in = x[0..n) -> f32 scalar. p is 2, 1 or infinity. squared: leave out the root. Sums in
 * f64 in an order that does not depend on the number of threads.
 * clip_factor: norm -> f32 scalar min(1, max_norm / (norm + 1e-6)); p holds max_norm.
 * scale_all_: factor -> out = x[0..n) scaled in place. */
typedef struct k_norm_all_attrs { double p; int64_t n; int32_t squared; } k_norm_all_attrs;

/* quantize8: x f32 -> codes u8, scale f32 [blocks of 256]. dequantize8: codes, scale -> f32. */
typedef struct k_dyn8_attrs { int32_t is_signed; } k_dyn8_attrs;

/* ---- prototypes: every kernel and work function of kernel.def --------------------------------*/

#ifndef __cplusplus
#define K(op, device, fn, dtypes, layout) int fn(const k_call *call);
#define KW(op, device, fn, work, dtypes, layout) \
  int fn(const k_call *call);                    \
  int64_t work(const k_call *call);
#include "kernels/kernel.def"
#undef K
#undef KW
#endif
