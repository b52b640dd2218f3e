/* The SSD scan on tensor cores: what tokens get along the channels, y or du.
 *
 * Forwards and backwards are one kernel. A block has ROWS tokens of a chunk of one
 * head and WIDTH of its channels, a warp 16 tokens; with (own, other, v, state) that is
 *   y:   rows t of C, earlier s of B, u = step x, the state that enters;      S[t, s] for s <= t
 *   du:  rows s of B, later t of C,   dy,         the gradient of what leaves; S[t, s] for t >= s
 * S lives in registers and is the operand of the second product. du also knows dS = dy u', so it
 * has what the decays lose: sums over later t of S dS, and over the channels of u and
 * out (B dstate').
 *
 * See scan_mma.cuh.
 */
#pragma once

#include "kernels/cuda/scan/scan_mma.cuh"

namespace {

/* What the backward sums by token, [B, H, T] each, later [nn], gone and dstep [np] times; and dD by
 * ROWS of tokens, [B, nchunk, blocks, H, P], or null. See scan_mma_bwd.cu. */
struct back_sums { float *later, *early, *gone, *dstep, *dD; };

struct values {
  view dy;             /* backwards */
  const float *states; /* [B, nchunk, H, P, N]: what enters, or the gradient of what leaves */
  uint16_t *out;       /* y, dx */
  bool last;           /* there is a gradient of the last state */
  back_sums sums;
};

template <bool BACK> int values_bytes(const sizes &z)
{
  return ROWS * (2 * z.ldn + (BACK ? 2 : 1) * z.ldp) * 2;
}

/* Two numbers of a row of n, from column p. */
template <bool F16> TIDE_DEVICE void put_pair(uint16_t *row, int64_t p, int64_t n, float a, float b)
{
  uint32_t pair = tide_pack<F16>(a, b);
  if (p + 1 < n && ((uintptr_t)(row + p) & 3) == 0) {
    *reinterpret_cast<uint32_t *>(row + p) = pair;
    return;
  }
  if (p < n) row[p] = (uint16_t)(pair & 0xffffu);
  if (p + 1 < n) row[p + 1] = (uint16_t)(pair >> 16);
}

/* g = own . other of 16 x 32 pairs becomes S; rows are tokens from r0, columns from j. With ds, the
 * sums of S ds over other tokens than the row's own grow. */
template <bool BACK>
TIDE_DEVICE void weights(float (*g)[4], const float (*ds)[4], float *early, const steps &st, int r0,
                         int j)
{
  int l = (int)threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < STEP / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int row = r0 + l / 4 + (e & 2 ? 8 : 0), col = j + n * 8 + l % 4 * 2 + (e & 1);
      bool sees = BACK ? col >= row && col <= st.end[row] : col <= row && col >= st.start[row];
      float w = sees ? g[n][e] * (BACK ? decay(st, col, row) : decay(st, row, col)) : 0.0f;
      g[n][e] = w;
      if (BACK && sees && col != row) early[e >> 1] += w * ds[n][e];
    }
}

/* acc = in (C state') or out (B dstate') of the warp's rows, 0 where the state does not reach. */
template <bool F16, bool BACK>
TIDE_DEVICE void from_state(float (*acc)[4], const uint16_t *own, const uint16_t *state,
                            const sizes &z, const steps &st, const place &at, int r0)
{
  int g = ((int)threadIdx.x & 31) / 4;
  product<F16, WIDTH / 8>(acc, own, state, z.ldn, z.n16);
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int i = r0 + g + 8 * r;
    float f = BACK ? reach_out(st, at, i) : reach_in(st, i);
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
      for (int e = 2 * r; e < 2 * r + 2; e++) acc[n][e] = f == 0 ? 0.0f : f * acc[n][e];
  }
}

/* y = acc + D x */
template <bool F16>
TIDE_DEVICE void write_y(const float (*acc)[4], const scan &s, const values &k, const place &at,
                         int r0, int64_t p0)
{
  int l = (int)threadIdx.x & 31;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int i = r0 + l / 4 + 8 * r;
    if (i >= at.n) continue;
    int64_t t = at.t0 + i;
    rows x = rows_of(s.x, at.b, t, at.h, s.P);
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++) {
      int64_t p = p0 + n * 8 + l % 4 * 2;
      float v[2] = {acc[n][2 * r], acc[n][2 * r + 1]};
      for (int e = 0; e < 2; e++)
        if (s.D.a.data && p + e < s.P)
          v[e] += skip<float>(s, at.h, p + e) * half_at<F16>(x.data + p + e);
      put_pair<F16>(k.out + ((at.b * s.T + t) * s.H + at.h) * s.P, p, s.P, v[0], v[1]);
    }
  }
}

/* gone: the sum over these channels of u times the gradient of the state that leaves. */
template <bool F16>
TIDE_DEVICE void sum_gone(const float (*acc)[4], const scan &s, const values &k, const place &at,
                          const steps &st, int r0, int64_t p0)
{
  int l = (int)threadIdx.x & 31;
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int i = r0 + l / 4 + 8 * r;
    float sum = 0;
    if (i < at.n) {
      rows x = rows_of(s.x, at.b, at.t0 + i, at.h, s.P);
#pragma unroll
      for (int n = 0; n < WIDTH / 8; n++)
        for (int e = 0; e < 2; e++) {
          int64_t p = p0 + n * 8 + l % 4 * 2 + e;
          if (p < s.P) sum += half_at<F16>(x.data + p) * acc[n][2 * r + e];
        }
      sum *= st.step[i];
    }
    sum = row_sum(sum);
    if (l % 4 == 0 && i < at.n)
      k.sums.gone[((p0 / WIDTH * s.nb + at.b) * s.H + at.h) * s.T + at.t0 + i] = sum;
  }
}

/* dx = step du + D dy; the sums over channels of x du; of dD the warp's tokens to `down`. */
template <bool F16>
TIDE_DEVICE void write_dx(const float (*acc)[4], const scan &s, const values &k, const place &at,
                          const steps &st, int r0, int64_t p0, float *down)
{
  int l = (int)threadIdx.x & 31;
  float dD[WIDTH / 8][2] = {};
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int i = r0 + l / 4 + 8 * r;
    int64_t t = at.t0 + i;
    bool in = i < at.n;
    rows x = rows_of(s.x, at.b, in ? t : 0, at.h, s.P);
    rows dy = rows_of(k.dy, at.b, in ? t : 0, at.h, s.P);
    float sum = 0;
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++) {
      int64_t p = p0 + n * 8 + l % 4 * 2;
      float v[2] = {0, 0};
      for (int e = 0; e < 2; e++) {
        if (!in || p + e >= s.P) continue;
        float xv = half_at<F16>(x.data + p + e), g = half_at<F16>(dy.data + p + e);
        float du = acc[n][2 * r + e];
        sum += xv * du;
        dD[n][e] += xv * g;
        v[e] = st.step[i] * du + (s.D.a.data ? skip<float>(s, at.h, p + e) * g : 0.0f);
      }
      if (in) put_pair<F16>(k.out + ((at.b * s.T + t) * s.H + at.h) * s.P, p, s.P, v[0], v[1]);
    }
    sum = row_sum(sum);
    if (l % 4 == 0 && in) k.sums.dstep[((p0 / WIDTH * s.nb + at.b) * s.H + at.h) * s.T + t] = sum;
  }
#pragma unroll
  for (int n = 0; n < WIDTH / 8; n++)
    for (int e = 0; e < 2; e++) {
      float v = dD[n][e];
      for (int by = 4; by < 32; by *= 2) v += __shfl_xor_sync(0xffffffffu, v, by);
      if (l < 4) down[n * 8 + l * 2 + e] = v;
    }
}

/* Writes dD of a block's tokens: the sum over the four warps, in order. */
TIDE_DEVICE void put_dD(float (*down)[WIDTH], const scan &s, const sizes &z, const values &k,
                        const place &at, int64_t block, int64_t p0)
{
  int i = (int)threadIdx.x;
  float *to = k.sums.dD + (((at.b * s.nchunk + at.c) * z.blocks + block) * s.H + at.h) * s.P + p0;
  float sum = 0;
  __syncthreads();
  for (int w = 0; w < THREADS / 32; w++) sum += i < WIDTH ? down[w][i] : 0.0f;
  if (i < WIDTH && p0 + i < s.P) to[i] = sum;
}

/* acc of the warp's rows += S v, over the tiles of the chunk that its rows meet. */
template <bool F16, bool BACK>
TIDE_DEVICE void from_tokens(float (*acc)[4], const scan &s, const sizes &z, const values &k,
                             const place &at, const steps &st, uint16_t *own, uint16_t *u, int rr,
                             int64_t p0)
{
  int warp = (int)threadIdx.x >> 5, r0 = rr + warp * 16, row = least(rr + ROWS, at.n) - 1;
  uint16_t *other = own + ROWS * z.ldn, *v = other + ROWS * z.ldn;
  float early[2] = {0, 0};
  bool decays = BACK && p0 == 0;
  for (int j0 = BACK ? rr : 0; BACK ? j0 <= st.end[row] : j0 <= rr; j0 += ROWS) {
    if (!BACK && j0 + ROWS <= st.start[rr]) continue;
    int left = at.n - j0;
    rows cols = rows_of(BACK ? s.C : s.B, at.b, at.t0 + j0, at.h / (s.H / s.G), s.N);
    load_rows<F16>(other, z.ldn, z.n16, ROWS, cols, 0, left, nullptr);
    rows seen = rows_of(BACK ? k.dy : s.x, at.b, at.t0 + j0, at.h, s.P);
    load_rows<F16>(v, z.ldp, z.p16, ROWS, seen, 0, left, BACK ? nullptr : st.step + j0);
    tide_copy_commit();
    tide_copy_wait<0>();
    __syncthreads();
    for (int j = j0; j < j0 + ROWS && j < at.n && r0 < at.n; j += STEP) {
      bool meets = BACK ? j + STEP > r0 && j <= st.end[least(r0 + 15, at.n - 1)]
                        : j <= r0 + 15 && j + STEP > st.start[r0];
      if (!meets) continue;
      float g[STEP / 8][4] = {}, ds[STEP / 8][4] = {};
      product<F16, STEP / 8>(g, own + warp * 16 * z.ldn, other + (j - j0) * z.ldn, z.ldn, z.n16);
      if (decays)
        product<F16, STEP / 8>(ds, u + warp * 16 * z.ldp, v + (j - j0) * z.ldp, z.ldp, z.p16);
      weights<BACK>(g, ds, early, st, r0, j);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int k0 = j + 16 * half;
        if (k0 >= at.n || (BACK ? k0 + 15 < r0 : k0 > r0 + 15)) continue;
        uint32_t a[4];
        as_operand<F16>(a, g + 2 * half);
        add_tokens<F16, WIDTH / 8>(acc, a, v + (k0 - j0) * z.ldp + p0, z.ldp, z.p16 - (int)p0, st,
                                   at.n, r0, k0);
      }
    }
    __syncthreads();
  }
  if (!decays) return;
  for (int r = 0; r < 2; r++) {
    int l = (int)threadIdx.x & 31, i = r0 + l / 4 + 8 * r;
    float sum = row_sum(early[r]);
    if (l % 4 == 0 && i < at.n) k.sums.early[(at.b * s.H + at.h) * s.T + at.t0 + i] = sum;
  }
}

/* Blocks: slices of channels, heads (they share B and C), ROWS of tokens, chunks, batches. */
template <bool F16, bool BACK>
__global__ void __launch_bounds__(THREADS) values_kernel(scan s, sizes z, values k)
{
  __shared__ steps st;
  __shared__ float down[THREADS / 32][WIDTH];
  TIDE_DYNAMIC_SHARED(raw);
  uint16_t *own = reinterpret_cast<uint16_t *>(raw), *other = own + ROWS * z.ldn;
  uint16_t *u = other + ROWS * z.ldn + ROWS * z.ldp;
  int64_t p0 = blockIdx.x % z.np * WIDTH, rest = blockIdx.x / z.np, h = rest % s.H;
  int64_t block = rest / s.H % z.blocks, list = rest / s.H / z.blocks;
  place at = place_of(s, list / s.nchunk, list % s.nchunk, h, k.last);
  int rr = (int)block * ROWS, warp = (int)threadIdx.x >> 5, r0 = rr + warp * 16;
  float acc[WIDTH / 8][4] = {};
  if (BACK && k.sums.dD)
    for (int i = (int)threadIdx.x; i < THREADS / 32 * WIDTH; i += THREADS)
      down[i / WIDTH][i % WIDTH] = 0;
  if (rr >= at.n) {
    if (BACK && k.sums.dD) put_dD(down, s, z, k, at, block, p0);
    return;
  }
  make_steps(s, at, &st);
  int row = least(rr + ROWS, at.n) - 1;
  bool reached = BACK ? at.used && st.start[row] == st.start[at.n - 1]
                      : at.seen && st.start[rr] == 0;
  rows from = rows_of(BACK ? s.B : s.C, at.b, at.t0 + rr, h / (s.H / s.G), s.N);
  load_rows<F16>(own, z.ldn, z.n16, ROWS, from, 0, at.n - rr, nullptr);
  if (BACK && p0 == 0)
    load_rows<F16>(u, z.ldp, z.p16, ROWS, rows_of(s.x, at.b, at.t0 + rr, h, s.P), 0, at.n - rr,
                   st.step + rr);
  if (reached)
    load_state<F16>(other, z.ldn, z.n16, WIDTH,
                    k.states + (((at.b * s.nchunk + at.c) * s.H + h) * s.P + p0) * s.N, s.N,
                    (int)(s.P - p0), (int)s.N);
  tide_copy_commit();
  tide_copy_wait<0>();
  __syncthreads();
  if (reached && r0 < at.n)
    from_state<F16, BACK>(acc, own + warp * 16 * z.ldn, other, z, st, at, r0);
  if (BACK) sum_gone<F16>(acc, s, k, at, st, r0, p0);
  __syncthreads();
  from_tokens<F16, BACK>(acc, s, z, k, at, st, own, u, rr, p0);
  if (!BACK) return write_y<F16>(acc, s, k, at, r0, p0);
  write_dx<F16>(acc, s, k, at, st, r0, p0, down[warp]);
  if (k.sums.dD) put_dD(down, s, z, k, at, block, p0);
}

template <bool F16, bool BACK>
int run_values(const k_call *call, const scan &s, const sizes &z, const values &k)
{
  int bytes = values_bytes<BACK>(z);
  int rc = tide_cuda_check(call, cudaFuncSetAttribute(
    values_kernel<F16, BACK>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  int64_t n = s.nb * s.nchunk * z.blocks * s.H * z.np;
  if (rc < 0 || n == 0) return rc;
  TIDE_CUDA_LAUNCH(call, (values_kernel<F16, BACK>), (unsigned)n, THREADS, bytes, s, z, k);
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace
