/* What the attention kernels share: operands, the mask rule, scores.
 *
 * s(i, j) = cap(scale * q_i . k_j) + bias(i, j) over the keys that query i sees; see
 * kernels/ref/attention.c for the whole definition. Work is O(T) memory: scores live in a tile.
 */
#pragma once

#include "kernels/cuda/block.cuh"

#define LOG2E 1.44269504088896340736f

/* A [B, T, H, D] operand, last stride 1. */
struct tide_heads {
  void *data;
  int dtype;
  int64_t b, t, h;
};
static inline tide_heads tide_heads_of(const k_tensor &t)
{
  return {k_absent(&t) ? nullptr : t.data, t.dtype, t.stride[0], t.stride[1], t.stride[2]};
}
TIDE_DEVICE int64_t tide_head_at(const tide_heads &x, int64_t b, int64_t t, int64_t h)
{
  return b * x.b + t * x.t + h * x.h;
}

/* What makes a score of q.k: scale qk, or softcap tanh(per qk) with per = scale / softcap. */
template <class T> struct tide_cap { T scale, softcap, per; };
template <class T> static inline tide_cap<T> tide_cap_of(double scale, double softcap)
{
  return {(T)scale, (T)softcap, softcap == 0 ? (T)0 : (T)(scale / softcap)};
}

/* Spans of tiles (attention_tiles.cuh), by batch; null without indices. */
struct tide_extent;
struct tide_tiles { const tide_extent *of; int64_t batch; };

struct tide_attend {
  tide_heads q, k, v;
  const int32_t *q_index, *k_index; /* null: documents 0, positions q_start + i and j */
  int64_t qi[3], ki[3];             /* their strides of (batch, token, member) */
  bool q_until, k_until;            /* whether they have a third member */
  tide_array bias;
  int64_t bias_stride[4];
  int64_t batch, head, group, tq, tk, d, dv; /* group: query heads per key head */
  int64_t window_left, window_right, q_start;
  int causal;
  tide_cap<float> cap;    /* of the kernels that compute in f32 */
  tide_cap<double> exact; /* in f64 */
  tide_tiles tiles; /* of the other side */
};
TIDE_DEVICE const tide_cap<float> &tide_cap_in(const tide_attend &p, float) { return p.cap; }
TIDE_DEVICE const tide_cap<double> &tide_cap_in(const tide_attend &p, double) { return p.exact; }

/* What a token is to the mask. A document below 0 is seen by none and sees none. until: of a query,
 * the last position that it may see if causal; of a key, what its index says there. */
struct tide_token { int document; int64_t position, until; };

TIDE_DEVICE tide_token tide_token_at(const int32_t *index, const int64_t *stride, bool until,
                                     int64_t b, int64_t t)
{
  const int32_t *at = index + b * stride[0] + t * stride[1];
  return {at[0], at[stride[2]], at[until ? 2 * stride[2] : stride[2]]};
}
TIDE_DEVICE tide_token tide_query(const tide_attend &p, int64_t b, int64_t i)
{
  if (i >= p.tq) return {-1, 0, 0};
  if (!p.q_index) return {0, p.q_start + i, p.q_start + i};
  return tide_token_at(p.q_index, p.qi, p.q_until, b, i);
}
TIDE_DEVICE tide_token tide_key(const tide_attend &p, int64_t b, int64_t j)
{
  if (j >= p.tk) return {-2, 0, 0};
  if (!p.k_index) return {0, j, j};
  return tide_token_at(p.k_index, p.ki, p.k_until, b, j);
}
TIDE_DEVICE bool tide_sees(const tide_attend &p, const tide_token &q, const tide_token &k)
{
  int64_t dist = q.position - k.position;
  if (q.document < 0 || q.document != k.document) return false;
  if (p.causal && k.position > q.until) return false;
  if (p.window_left >= 0 && dist > p.window_left) return false;
  return p.window_right < 0 || -dist <= p.window_right;
}
/* Returns the last position that a query sees, by the rule of tide_sees. */
TIDE_DEVICE int64_t tide_last_seen(const tide_attend &p, const tide_token &q)
{
  int64_t last = p.causal ? q.until : (int64_t)1 << 61;
  if (p.window_right >= 0 && q.position + p.window_right < last) last = q.position + p.window_right;
  return last;
}

/* The positions of the other side that a token at a position sees; without indices a token of the
 * other side lies at its number in [0, Tk) or [0, Tq). KEYS: the token is a key. */
struct tide_positions { int64_t low, high; };
template <bool KEYS>
TIDE_DEVICE tide_positions tide_positions_of(const tide_attend &p, int64_t position)
{
  const int64_t far = (int64_t)1 << 61;
  int64_t before = p.window_left >= 0 ? p.window_left : far; /* farthest keys of a query */
  int64_t after = p.causal ? 0 : p.window_right >= 0 ? p.window_right : far;
  if (KEYS && !p.q_index) position -= p.q_start;
  return KEYS ? tide_positions{position - after, position + before}
              : tide_positions{position - before, position + after};
}
/* Returns the first and last position of the other side. */
template <bool KEYS> TIDE_DEVICE tide_positions tide_positions_there(const tide_attend &p)
{
  if (p.q_index) return {INT32_MIN, INT32_MAX};
  return {0, (KEYS ? p.tq : p.tk) - 1};
}

TIDE_DEVICE int tide_as_int(int64_t x)
{
  return (int)(x < INT32_MIN ? INT32_MIN : x > INT32_MAX ? INT32_MAX : x);
}

/* What a row sees of the other side, by the rule of tide_sees asked once for a row: tokens of its
 * document whose first number is at most high and whose last is at least low. Both numbers of a key
 * are its position; those of a query are its position and the last one that it sees. Document -2:
 * the row sees none; tokens without a document have -1 here. */
struct tide_span { int document, low, high; };
template <bool KEYS> TIDE_DEVICE tide_span tide_span_of(const tide_attend &p, const tide_token &x)
{
  tide_positions r = tide_positions_of<KEYS>(p, x.position), there = tide_positions_there<KEYS>(p);
  if (KEYS) {
    r.low = p.q_index ? x.position : x.position - p.q_start; /* a query's last must reach it */
    if (x.document < 0) return {-2, 1, 0};
    return {x.document, tide_as_int(r.low), tide_as_int(r.high)};
  }
  r.high = tide_last_seen(p, x);
  if (x.document < 0 || r.low > there.high || r.high < there.low) return {-2, 1, 0};
  return {x.document, (int)(r.low > there.low ? r.low : there.low),
          (int)(r.high < there.high ? r.high : there.high)};
}
TIDE_DEVICE bool tide_span_has(const tide_span &s, int document, int first, int last)
{
  return document == s.document && last >= s.low && first <= s.high;
}

/* Can any of the keys [j0, j1) be seen by any of the queries [i0, i1)? Exact without indices;
 * with them the tokens decide, so yes. */
TIDE_DEVICE bool tide_tile_seen(const tide_attend &p, int64_t i0, int64_t i1, int64_t j0,
                                int64_t j1)
{
  if (p.q_index) return true;
  int64_t most = p.q_start + i1 - 1 - j0, least = p.q_start + i0 - (j1 - 1); /* of dist */
  if (p.causal && most < 0) return false;
  if (p.window_left >= 0 && least > p.window_left) return false;
  return p.window_right < 0 || -most <= p.window_right;
}

TIDE_DEVICE float tide_tanh(float x) { return tanhf(x); }
TIDE_DEVICE double tide_tanh(double x) { return tanh(x); }

/* From q.k to s without a bias; *slope is ds / d(q.k). */
template <class T> TIDE_DEVICE T tide_capped(const tide_attend &p, T qk, T *slope)
{
  const tide_cap<T> &c = tide_cap_in(p, T());
  *slope = c.scale;
  if (c.softcap == (T)0) return qk * c.scale;
  T th = tide_tanh(qk * c.per);
  *slope *= (T)1 - th * th;
  return c.softcap * th;
}
template <class T>
TIDE_DEVICE T tide_score(const tide_attend &p, int64_t b, int64_t h, int64_t i, int64_t j, T qk,
                         T *slope)
{
  T s = tide_capped(p, qk, slope);
  if (p.bias.data)
    s += tide_at<T>(p.bias, b * p.bias_stride[0] + h * p.bias_stride[1] + i * p.bias_stride[2]
                    + j * p.bias_stride[3]);
  return s;
}

/* What the backward needs of a query: lse, +inf if the query sees no key, and delta = dout . out -
 * dlse. lse is in base 2 for the tensor-core kernels. */
template <class T> struct alignas(2 * sizeof(T)) tide_mark { T lse, delta; };

/* The operands of the backward. */
struct tide_attention_back {
  tide_heads dout, out, dq, dk, dv;
  tide_array lse, dlse, dbias; /* lse, dlse with strides; dbias contiguous [B, H, Tq, Tk] */
  int64_t lse_stride[3], dlse_stride[3];
  void *marks; /* scratch: tide_mark of f32 or f64 [B, H, Tq] */
  tide_tiles q_tiles, k_tiles;
};
TIDE_DEVICE int64_t tide_mark_at(const tide_attend &p, int64_t b, int64_t h, int64_t i)
{
  return (b * p.head + h) * p.tq + i;
}
/* attention_marks.cu: writes g.marks, times unit for lse. T: float, or double for f64. */
template <class T>
void tide_attention_marks(const k_call *call, const tide_attend &p, const tide_attention_back &g,
                          T unit);

/* attention_mma.cu: tensor cores; TIDE_E_UNSUPPORTED where they cannot serve. */
bool tide_attention_mma_fits(const tide_attend &p);
bool tide_attention_mma_bwd_fits(const tide_attend &p, const tide_attention_back &g);
int tide_attention_mma(const k_call *call, const tide_attend &p, tide_heads out, tide_array lse,
                       const int64_t *lse_stride);
int tide_attention_mma_bwd(const k_call *call, const tide_attend &p,
                           const tide_attention_back &g);
/* attention_wgmma.cu and attention_wgmma_bwd.cu: Hopper; E_UNSUPPORTED, with a
 * sentence, where the chip is another or the library was built without it. fits: whether it knows
 * these operands. */
bool tide_attention_wgmma_fits(const tide_attend &p);
int tide_attention_wgmma(const k_call *call, const tide_attend &p, tide_heads out, tide_array lse,
                         const int64_t *lse_stride);
bool tide_attention_wgmma_bwd_fits(const tide_attend &p, const tide_attention_back &g);
int tide_attention_wgmma_bwd(const k_call *call, const tide_attend &p,
                             const tide_attention_back &g);
