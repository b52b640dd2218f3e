/* Tiles of the tensor-core attention: loading, products, which tiles matter.
 *
 * A block of THREADS owns OWN rows, 16 a warp; tiles of the other side pass by. A tile in shared
 * memory is [rows][DP + 8] 16-bit numbers, padded so that ldmatrix meets no bank twice, channels
 * and rows beyond the end zero.
 */
#pragma once

#include "kernels/cuda/attention/attention.cuh"
#include "kernels/cuda/mma.cuh"

namespace {

enum { OWN = 64, THREADS = 128 };
#define LOG2E 1.44269504088896340736f

/* May rows be copied 16 bytes at a time? */
bool vectors(const tide_heads &x, int64_t d)
{
  return d % 8 == 0 && x.b % 8 == 0 && x.t % 8 == 0 && x.h % 8 == 0 && (uintptr_t)x.data % 16 == 0;
}

/* Starts to load rows t0.. of x; complete after tide_copy_wait and a barrier. */
template <int DP, int ROWS>
TIDE_DEVICE void load_tile(uint16_t *to, const tide_heads &x, int64_t b, int64_t t0, int64_t nt,
                           int64_t h, int64_t d, bool aligned)
{
  const uint16_t *from = static_cast<const uint16_t *>(x.data);
  if (aligned) {
    for (int c = (int)threadIdx.x; c < ROWS * (DP / 8); c += THREADS) {
      int r = c / (DP / 8), k = c % (DP / 8) * 8;
      bool in = t0 + r < nt && k < d;
      tide_copy16(to + r * (DP + 8) + k, in ? from + tide_head_at(x, b, t0 + r, h) + k : from, in);
    }
    return;
  }
  for (int c = (int)threadIdx.x; c < ROWS * DP; c += THREADS) {
    int r = c / DP, k = c % DP;
    bool in = t0 + r < nt && k < d;
    to[r * (DP + 8) + k] = in ? from[tide_head_at(x, b, t0 + r, h) + k] : (uint16_t)0;
  }
}

/* s[16, 8 NT] += rows[16, d] . cols[8 NT, d]^T */
template <bool F16, int LD, int NT>
TIDE_DEVICE void product(float (*s)[4], const uint16_t *rows, const uint16_t *cols, int64_t d)
{
  int l = (int)threadIdx.x & 31;
#pragma unroll 2
  for (int k = 0; k < d; k += 16) {
    uint32_t a[4], b[4];
    tide_ldmatrix<false>(a, rows + (l % 16) * LD + k + l / 16 * 8);
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
      tide_ldmatrix<false>(b, cols + (n * 8 + l % 8 + l / 16 * 8) * LD + k + l / 8 % 2 * 8);
      tide_mma<F16>(s[n], a, b[0], b[1]);
      tide_mma<F16>(s[n + 1], a, b[2], b[3]);
    }
  }
}

/* o[16, d] += w[16, 8 NT] . cols[8 NT, d] */
template <bool F16, int LD, int NT, int NO>
TIDE_DEVICE void weigh(float (*o)[4], const float (*w)[4], const uint16_t *cols, int64_t d)
{
  int l = (int)threadIdx.x & 31;
#pragma unroll
  for (int k = 0; k < NT; k += 2) {
    uint32_t a[4] = {tide_pack<F16>(w[k][0], w[k][1]), tide_pack<F16>(w[k][2], w[k][3]),
                     tide_pack<F16>(w[k + 1][0], w[k + 1][1]),
                     tide_pack<F16>(w[k + 1][2], w[k + 1][3])};
#pragma unroll
    for (int n = 0; n < NO; n += 2) {
      if (n * 8 >= d) continue;
      uint32_t b[4];
      tide_ldmatrix<true>(b, cols + (k * 8 + l % 16) * LD + n * 8 + l / 16 * 8);
      tide_mma<F16>(o[n], a, b[0], b[1]);
      tide_mma<F16>(o[n + 1], a, b[2], b[3]);
    }
  }
}

/* The running maximum and sum of two rows; s becomes the weights, and what was made with earlier
 * weights is to be multiplied by old. unit: log2(e) in what a score is told in; more than 0. */
template <int NT>
TIDE_DEVICE void soften(float (*s)[4], float unit, float *top, float *sum, float *old)
{
#pragma unroll
  for (int r = 0; r < 2; r++) {
    float high = top[r];
#pragma unroll
    for (int n = 0; n < NT; n++) high = fmaxf(high, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 1));
    high = fmaxf(high, __shfl_xor_sync(0xffffffffu, high, 2));
    float base = high == -INFINITY ? 0.0f : high * unit, add = 0;
    old[r] = tide_exp2(top[r] * unit - base);
#pragma unroll
    for (int n = 0; n < NT; n++)
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float w = tide_exp2(s[n][2 * r + e] * unit - base);
        s[n][2 * r + e] = w;
        add += w;
      }
    sum[r] = sum[r] * old[r] + add;
    top[r] = high;
  }
}

/* What rows i and i + 8 of n end with: factor divides by their sums, over the four lanes that share
 * a row; the log-sum-exp goes to lse[at + row * stride]. unit: of top, in natural logarithms. */
TIDE_DEVICE void end_rows(const tide_array &lse, int64_t at, int64_t stride, int64_t i, int64_t n,
                          float unit, const float *top, float *sum, float *factor)
{
#pragma unroll
  for (int r = 0; r < 2; r++) {
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    factor[r] = sum[r] == 0 ? 0.0f : 1.0f / sum[r];
    int64_t row = i + 8 * r;
    if ((threadIdx.x & 3) == 0 && row < n)
      tide_put<float>(lse, at + row * stride,
                      sum[r] == 0 ? -INFINITY : top[r] * unit + logf(sum[r]));
  }
}

template <int NO> TIDE_DEVICE void shrink(float (*o)[4], const float *old)
{
#pragma unroll
  for (int n = 0; n < NO; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) o[n][e] *= old[e >> 1];
}

/* Rows t0.. of this warp, times factor (by row: g and g + 8). */
template <bool F16, int NO>
TIDE_DEVICE void write(const float (*o)[4], const float *factor, const tide_heads &y, int64_t b,
                       int64_t t0, int64_t nt, int64_t h, int64_t d)
{
  int lane = (int)threadIdx.x & 31, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int64_t row = t0 + g + 8 * r;
    if (row >= nt) continue;
    uint16_t *to = static_cast<uint16_t *>(y.data) + tide_head_at(y, b, row, h);
#pragma unroll
    for (int n = 0; n < NO; n++) {
      int64_t ch = n * 8 + 2 * t;
      uint32_t pair = tide_pack<F16>(o[n][2 * r] * factor[r], o[n][2 * r + 1] * factor[r]);
      if (ch + 1 < d && ((uintptr_t)(to + ch) & 3) == 0) {
        *reinterpret_cast<uint32_t *>(to + ch) = pair;
        continue;
      }
      if (ch < d) to[ch] = (uint16_t)(pair & 0xffffu);
      if (ch + 1 < d) to[ch + 1] = (uint16_t)(pair >> 16);
    }
  }
}

/* ---- which tiles matter ---------------------------------------------------------------------- */

/* What the rows of a block span: documents and positions. */
struct reach {
  int64_t first; /* row */
  int document[2];
  int64_t position[2];
};

/* KEYS: the rows are keys. Every thread works it out for itself. */
template <bool KEYS> TIDE_DEVICE reach reach_of(const tide_attend &p, int64_t b, int64_t t0)
{
  reach r = {t0, {INT32_MAX, -1}, {INT64_MAX, INT64_MIN}};
  if (!p.q_index) return r;
  for (int i = 0; i < OWN; i++) {
    tide_token x = KEYS ? tide_key(p, b, t0 + i) : tide_query(p, b, t0 + i);
    if (x.document < 0) continue;
    if (x.document < r.document[0]) r.document[0] = x.document;
    if (x.document > r.document[1]) r.document[1] = x.document;
    if (x.position < r.position[0]) r.position[0] = x.position;
    if (x.position > r.position[1]) r.position[1] = x.position;
  }
  return r;
}

/* Can a token of the other side meet any of the rows? Errs on the side of yes. */
template <bool KEYS>
TIDE_DEVICE bool reaches(const tide_attend &p, const reach &r, const tide_token &x)
{
  if (x.document < r.document[0] || x.document > r.document[1]) return false;
  /* the largest and smallest distance query - key */
  int64_t most = KEYS ? x.position - r.position[0] : r.position[1] - x.position;
  int64_t least = KEYS ? x.position - r.position[1] : r.position[0] - x.position;
  if (p.causal && most < 0) return false;
  if (p.window_left >= 0 && least > p.window_left) return false;
  return p.window_right < 0 || -most <= p.window_right;
}

/* The first tile at or after t that matters, of `width` tokens of the other side; n if none. All
 * threads of the block must ask. */
template <bool KEYS>
TIDE_DEVICE int64_t next_tile(const tide_attend &p, const reach &r, int64_t b, int64_t t,
                              int64_t width, int64_t n)
{
  for (; t < n; t += width) {
    bool some;
    if (!p.q_index) {
      some = KEYS ? tide_tile_seen(p, t, t + width, r.first, r.first + OWN)
                  : tide_tile_seen(p, r.first, r.first + OWN, t, t + width);
    } else {
      int64_t mine = t + threadIdx.x;
      bool in = (int)threadIdx.x < width && mine < n;
      tide_token x = {-1, 0};
      if (in) x = KEYS ? tide_query(p, b, mine) : tide_key(p, b, mine);
      some = __syncthreads_or(in && x.document >= 0 && reaches<KEYS>(p, r, x)) != 0;
    }
    if (some) return t;
  }
  return n;
}

/* Does every query of [i0, i0 + OWN) see every key of [j0, j0 + width)? Never with indices. */
TIDE_DEVICE bool tile_whole(const tide_attend &p, int64_t i0, int64_t j0, int64_t width)
{
  if (p.q_index || p.bias.data || j0 + width > p.tk || i0 + OWN > p.tq) return false;
  int64_t least = p.q_start + i0 - (j0 + width - 1), most = p.q_start + i0 + OWN - 1 - j0;
  if (p.causal && least < 0) return false;
  if (p.window_left >= 0 && most > p.window_left) return false;
  return p.window_right < 0 || -least <= p.window_right;
}

}  // namespace
