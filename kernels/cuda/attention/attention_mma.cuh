/* Tiles of the tensor-core attention: loading, products, scores and weights.
 *
 * A block of THREADS owns OWN rows, 16 a warp; tiles of the other side pass by. A tile in shared
 * memory is [rows][DP + 8] 16-bit numbers, padded so that ldmatrix meets no bank twice, channels
 * and rows beyond the end zero. The padding of a row says what its token is (about).
 *
 * What a pair costs is paid in f32, without memory and without a branch: scale, softcap, bias and
 * mask each have a loop of their own over a thread's pairs, which a tile enters or not.
 */
#pragma once

#include "kernels/cuda/attention/attention_tiles.cuh"
#include "kernels/cuda/mma.cuh"

namespace {

enum { OWN = 64, THREADS = 128 };

/* Blocks of so many bytes of shared memory that a multiprocessor of this chip holds, of `most` at
 * most: the compiler may give them all registers. (CUDA C++ Programming Guide, "Compute
 * Capabilities": shared memory of a multiprocessor; 1 KiB of each block is the system's.) */
constexpr int blocks_of(int bytes, int most)
{
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ / 10 == 90 || __CUDA_ARCH__ / 10 == 100
  const int all = 228 << 10;
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
  const int all = 164 << 10;
#else
  const int all = 100 << 10;
#endif
  const int fit = all / (bytes + 1024);
  return fit < 1 ? 1 : fit < most ? fit : most;
}

/* Returns whether rows may be copied 16 bytes at a time. */
bool vectors(const tide_heads &x, int64_t d)
{
  return d % 8 == 0 && x.b % 8 == 0 && x.t % 8 == 0 && x.h % 8 == 0 && (uintptr_t)x.data % 16 == 0;
}

/* Starts to load rows t0.. of x; complete after tide_copy_wait and a barrier. */
template <int DP, int ROWS>
TIDE_DEVICE void load_tile(uint16_t *to, const tide_heads &x, int64_t b, int64_t t0, int64_t nt,
                           int64_t h, int64_t d, bool aligned)
{
  enum { PIECES = DP / 8, PASS = THREADS / PIECES, LD = DP + 8 };
  const uint16_t *from = static_cast<const uint16_t *>(x.data) + tide_head_at(x, b, t0, h);
  int left = (int)(nt - t0 < ROWS ? nt - t0 : ROWS);
  if (aligned) {
    int r = (int)threadIdx.x / PIECES, k = (int)threadIdx.x % PIECES * 8;
    const uint16_t *at = from + r * x.t + k;
#pragma unroll
    for (int i = 0; i < ROWS; i += PASS, at += PASS * x.t) {
      bool in = i + r < left && k < d;
      tide_copy16(to + (i + r) * LD + k, in ? at : from, in);
    }
    return;
  }
  for (int c = (int)threadIdx.x; c < ROWS * DP; c += THREADS) {
    int r = c / DP, k = c % DP;
    to[r * LD + k] = r < left && k < d ? from[r * x.t + k] : (uint16_t)0;
  }
}

/* What a token of a tile is to the rows. mark: of a query. The last position that a query sees lies
 * in the padding of the second tile (last_of). */
struct alignas(16) about { int document, position; tide_mark<float> mark; };
template <int LD> TIDE_DEVICE about &about_of(uint16_t *tile, int row)
{
  return *reinterpret_cast<about *>(tile + (row + 1) * LD - 8);
}
template <int LD> TIDE_DEVICE const about &about_of(const uint16_t *tile, int row)
{
  return *reinterpret_cast<const about *>(tile + (row + 1) * LD - 8);
}
template <int LD> TIDE_DEVICE int &last_of(uint16_t *tile, int row)
{
  return *reinterpret_cast<int *>(tile + (row + 1) * LD - 8);
}
template <int LD> TIDE_DEVICE int last_of(const uint16_t *tile, int row)
{
  return *reinterpret_cast<const int *>(tile + (row + 1) * LD - 8);
}
/* What hide asks of a token of the other side (tide_span_has). */
struct asked { int document, first, last; };

/* KEYS: the rows are keys, so token t is a query. last: receives the last position that it sees. */
template <bool KEYS>
TIDE_DEVICE about about_token(const tide_attend &p, int64_t b, int64_t t, int *last)
{
  const int32_t *index = KEYS ? p.q_index : p.k_index;
  about x = {t < (KEYS ? p.tq : p.tk) ? 0 : -1, (int)t, {INFINITY, 0.0f}};
  int until = x.position;
  if (index && x.document == 0) {
    const int64_t *stride = KEYS ? p.qi : p.ki;
    index += b * stride[0] + t * stride[1];
    x.document = index[0] < 0 ? -1 : index[0];
    x.position = index[stride[2]];
    until = KEYS && p.q_until ? index[2 * stride[2]] : x.position;
  }
  /* by the rule of tide_last_seen, in 32 bits */
  if (KEYS && !p.causal) until = INT32_MAX;
  if (KEYS && p.window_right >= 0 && x.position + p.window_right < until)
    until = (int)(x.position + p.window_right);
  *last = until;
  return x;
}
template <bool KEYS> TIDE_DEVICE tide_span span_at(const tide_attend &p, int64_t b, int64_t t)
{
  return tide_span_of<KEYS>(p, KEYS ? tide_key(p, b, t) : tide_query(p, b, t));
}
/* Returns the mark of a query. One beyond the end has weights 0, as one that sees no key. */
TIDE_DEVICE tide_mark<float> mark_of(const tide_attend &p, const tide_attention_back &g, int64_t b,
                                     int64_t h, int64_t i)
{
  if (i >= p.tq) return {INFINITY, 0.0f};
  return static_cast<const tide_mark<float> *>(g.marks)[tide_mark_at(p, b, h, i)];
}

/* s[16, 8 NT] += rows[16, d] . cols[8 NT, d]^T. Heads as wide as the kernel's have no loop, so that
 * what the next products need is read in time. */
template <bool F16, int LD, int NT>
TIDE_DEVICE void product(float (*s)[4], const uint16_t *rows, const uint16_t *cols, int d)
{
  int l = (int)threadIdx.x & 31;
  auto add = [&](int k) {
    uint32_t a[4], b[4];
    tide_ldmatrix<false>(a, rows + (l % 16) * LD + k + l / 16 * 8);
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
      tide_ldmatrix<false>(b, cols + (n * 8 + l % 8 + l / 16 * 8) * LD + k + l / 8 % 2 * 8);
      tide_mma<F16>(s[n], a, b[0], b[1]);
      tide_mma<F16>(s[n + 1], a, b[2], b[3]);
    }
  };
  if (d == LD - 8) {
#pragma unroll
    for (int k = 0; k < LD - 8; k += 16) add(k);
  } else {
#pragma unroll 1
    for (int k = 0; k < d; k += 16) add(k);
  }
}

/* o[16, d] += w[16, 8 NT] . cols[8 NT, d], 32 channels at a time */
template <bool F16, int LD, int NT, int NO>
TIDE_DEVICE void weigh(float (*o)[4], const float (*w)[4], const uint16_t *cols, int d)
{
  int l = (int)threadIdx.x & 31;
  uint32_t a[NT / 2][4];
#pragma unroll
  for (int k = 0; k < NT; k++)
#pragma unroll
    for (int r = 0; r < 2; r++)
      a[k / 2][k % 2 * 2 + r] = tide_pack<F16>(w[k][2 * r], w[k][2 * r + 1]);
#pragma unroll
  for (int n0 = 0; n0 < NO; n0 += 4) {
    if (n0 * 8 >= d) break;
#pragma unroll
    for (int k = 0; k < NT; k += 2)
#pragma unroll
      for (int n = n0; n < n0 + 4; n += 2) {
        uint32_t b[4];
        tide_ldmatrix<true>(b, cols + (k * 8 + l % 16) * LD + n * 8 + l / 16 * 8);
        tide_mma<F16>(o[n], a[k / 2], b[0], b[1]);
        tide_mma<F16>(o[n + 1], a[k / 2], b[2], b[3]);
      }
  }
}

/* ---- from q.k to scores ---------------------------------------------------------------------- */

/* Over a thread's pairs of a tile of NT pieces. */
#define TIDE_EACH(n, e)                          \
  _Pragma("unroll") for (int n = 0; n < NT; n++) \
    _Pragma("unroll") for (int e = 0; e < 4; e++)

/* Is a score q.k times a factor? Then the factor waits for the exponential, if it is above 0 or no
 * maximum is looked for. */
TIDE_DEVICE bool plain_scores(const tide_attend &p)
{
  return p.cap.softcap == 0 && !p.bias.data;
}

/* Returns tanh x within some 1e-7, which is enough next to the maximum of a row. */
TIDE_DEVICE float tanh_near(float x)
{
  return 1.0f - 2.0f * tide_reciprocal(1.0f + tide_exp2(2.0f * LOG2E * x));
}
template <int NT> TIDE_DEVICE void cap_scores(const tide_attend &p, float (*s)[4])
{
  if (p.cap.softcap == 0) {
    TIDE_EACH(n, e) s[n][e] *= p.cap.scale;
  } else {
    TIDE_EACH(n, e) s[n][e] = p.cap.softcap * tanh_near(s[n][e] * p.cap.per);
  }
}
/* dp, the gradient of a score, is multiplied by ds / d(scale q.k) too. */
template <int NT>
TIDE_DEVICE void cap_slopes(const tide_attend &p, float (*s)[4], float (*dp)[4])
{
  if (p.cap.softcap == 0) return cap_scores<NT>(p, s);
  TIDE_EACH(n, e) {
    float th = tanh_near(s[n][e] * p.cap.per);
    s[n][e] = p.cap.softcap * th;
    dp[n][e] *= 1.0f - th * th;
  }
}

/* Pairs of the tile at (row0, col0) of a warp; what lies beyond the end gets the bias of its
 * neighbour. KEYS: the rows are keys. */
template <bool KEYS, int NT, int DTYPE>
TIDE_DEVICE void add_bias_as(const tide_attend &p, int64_t at, int64_t row0, int64_t col0,
                             float (*s)[4])
{
  int lane = (int)threadIdx.x & 31;
  int64_t nx = KEYS ? p.tk : p.tq, ny = KEYS ? p.tq : p.tk;
  int64_t by_row = p.bias_stride[KEYS ? 3 : 2], by_col = p.bias_stride[KEYS ? 2 : 3];
  int64_t row = row0 + lane / 4, col = col0 + lane % 4 * 2, from[2];
#pragma unroll
  for (int r = 0; r < 2; r++, row += 8) from[r] = at + (row < nx ? row : nx - 1) * by_row;
  TIDE_EACH(n, e) {
    int64_t j = col + n * 8 + (e & 1);
    s[n][e] += tide_load<float>(p.bias.data, from[e >> 1] + (j < ny ? j : ny - 1) * by_col, DTYPE);
  }
}
template <bool KEYS, int NT>
TIDE_DEVICE void add_bias(const tide_attend &p, int64_t b, int64_t h, int64_t row0, int64_t col0,
                          float (*s)[4])
{
  int64_t at = b * p.bias_stride[0] + h * p.bias_stride[1];
  switch (p.bias.dtype) {
    case TIDE_F32: return add_bias_as<KEYS, NT, TIDE_F32>(p, at, row0, col0, s);
    case TIDE_BF16: return add_bias_as<KEYS, NT, TIDE_BF16>(p, at, row0, col0, s);
    case TIDE_F16: return add_bias_as<KEYS, NT, TIDE_F16>(p, at, row0, col0, s);
    default: return add_bias_as<KEYS, NT, TIDE_F64>(p, at, row0, col0, s);
  }
}

/* s is `value` where this lane's two rows do not see a token: place(n, e) returns its numbers, as
 * `asked`. */
template <int NT, class P>
TIDE_DEVICE void hide(float (*s)[4], const tide_span *row, float value, P place)
{
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int e = 0; e < 2; e++) {
      asked x = place(n, e);
#pragma unroll
      for (int r = 0; r < 2; r++) {
        bool sees = tide_span_has(row[r], x.document, x.first, x.last);
        s[n][2 * r + e] = sees ? s[n][2 * r + e] : value;
      }
    }
}

/* ---- from scores to weights and back --------------------------------------------------------- */

/* Makes scores the backward's weights; mark(n, e): of the query. unit: log2(e) in the unit of the
 * scores. */
template <int NT, class M> TIDE_DEVICE void weights_of(float (*s)[4], float unit, M mark)
{
  TIDE_EACH(n, e) s[n][e] = tide_exp2(s[n][e] * unit - mark(n, e).lse);
}
template <int NT, class M> TIDE_DEVICE void less_delta(float (*dp)[4], M mark)
{
  TIDE_EACH(n, e) dp[n][e] -= mark(n, e).delta;
}
/* dp becomes the gradient of a score. A weight of 0 has none, whatever dp. */
template <int NT> TIDE_DEVICE void times_weight(const float (*w)[4], float (*dp)[4])
{
  TIDE_EACH(n, e) dp[n][e] = w[n][e] == 0 ? 0.0f : w[n][e] * dp[n][e];
}

/* Updates the running maximum and sum of two rows; s becomes the weights, and what was made with
 * earlier weights is multiplied by old. unit: log2(e) in the unit of the scores; more than 0. */
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

/* Ends rows i and i + 8 of n: factor divides by their sums, over the four lanes that share
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

/* Writes rows t0.. of this warp, times factor (by row: g and g + 8). */
template <bool F16, int NO>
TIDE_DEVICE void write(const float (*o)[4], const float *factor, const tide_heads &y, int64_t b,
                       int64_t t0, int64_t nt, int64_t h, int64_t d)
{
  int lane = (int)threadIdx.x & 31, g = lane / 4, t = lane % 4, left = (int)d - 2 * t;
  bool pairs = d % 2 == 0 && y.b % 2 == 0 && y.t % 2 == 0 && y.h % 2 == 0
    && (uintptr_t)y.data % 4 == 0;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int64_t row = t0 + g + 8 * r;
    if (row >= nt) continue;
    uint16_t *to = static_cast<uint16_t *>(y.data) + tide_head_at(y, b, row, h) + 2 * t;
    auto at = [&](int n) {
      return tide_pack<F16>(o[n][2 * r] * factor[r], o[n][2 * r + 1] * factor[r]);
    };
    if (pairs) {
#pragma unroll
      for (int n = 0; n < NO; n++)
        if (n * 8 < left) *reinterpret_cast<uint32_t *>(to + n * 8) = at(n);
      continue;
    }
#pragma unroll
    for (int n = 0; n < NO; n++) {
      if (n * 8 < left) to[n * 8] = (uint16_t)(at(n) & 0xffffu);
      if (n * 8 + 1 < left) to[n * 8 + 1] = (uint16_t)(at(n) >> 16);
    }
  }
}

}  // namespace
