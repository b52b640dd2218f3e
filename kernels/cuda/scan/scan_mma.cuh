/* The SSD scan on tensor cores: what forward (scan_mma.cu) and backward (scan_mma_bwd.cu)
 * share: decays of a chunk, tiles, products that do not cross documents.
 *
 * Within a chunk of Q tokens the recurrence
 * is a product with the lower triangle S[t, s] = (C_t . B_s) exp(cum_t - cum_s), and the part
 * from before is a product with the state that enters. So the tokens of a chunk and all chunks are
 * worked on at once; only the states follow each other, an element at a time. Kinds of launches:
 *   states  a chunk's own part of the state it leaves   late' B, or of the gradient: (in dy)' C
 *   pass    the recurrence over the chunks, a thread an element of the state
 *   values  y = in (C state') + S u + D x;  backwards du = out (B dstate') + S' dy
 *   keys    (backward) dC = in (dy state) + (decay dy u') B;  dB = out (u dstate) + (..)' C
 * with u = step x, in = exp(cum), out = exp(cum_end - cum), late = out u.
 *
 * Documents: tokens of one document are neighbours, so of two tiles at most one document is in
 * both, unless they are the same tile. A product over tokens takes a tile at once if all is one
 * document; otherwise document by document with the other rows taken out, so that 0 times NaN never
 * happens across a boundary. The order of sums depends on where documents lie, not on what they
 * hold.
 *
 * Operands of products are of x's dtype (in f16, a state or C . B beyond 65504 is infinite there);
 * states, exponents and sums are f32, cumulative sums f64 kept as two floats, so that a difference
 * is as exact as its own size allows.
 *
 * Bytes and multiplications, a token of a head, at Q = 128, P = 64, N = 128, 16-bit x. A state is
 * 4 P N / Q = 256 bytes a token; tiles of 64 tokens read it twice, B and C of the group once a
 * head, from the second-level cache the second time:
 *   forward   states written, passed on (read, written), read: 1,024 bytes; x twice, y: 384 bytes;
 *             multiplications P N (states) + P N (entering) + 80 (N + P) = 32 thousand
 *   backward  1,024 bytes for the gradient of states, 1,024 for both kinds of states where heads
 *             are summed and for their dot; dy four times, x three, dx: 1,024; parts of dB and dC
 *             of 8 heads: 256; multiplications 4 P N + 80 (4 N + 4 P) = 94 thousand
 * At 4.8 TB/s and 790 TFLOP/s in bf16 (H200) the floor of the forward is 0.29 ns by bytes, 0.08 by
 * products, of the backward 0.69 and 0.24: 80 heads and 8,192 tokens take 0.19 and 0.45 ms at best.
 * Bytes decide, and states are most of them: a longer chunk is the way to save some. Nothing of
 * this has been measured.
 *
 * Q is at most CHUNK; rows in shared memory are padded to 16 and 8 more, so that ldmatrix
 * meets no bank twice.
 */
#pragma once

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/scan/scan.cuh"

namespace {

enum { THREADS = 128, CHUNK = 128, ROWS = 64, STEP = 32, WIDTH = 64, KEYS = 128,
       MOST_BYTES = 96 << 10 };

TIDE_DEVICE int least(int a, int b) { return a < b ? a : b; }

/* ---- a chunk --------------------------------------------------------------------------------- */

/* Tokens of a chunk as one head sees them. Beyond n: of the last document, decays of 1. */
struct steps {
  float step[CHUNK], hi[CHUNK], lo[CHUNK]; /* cum = hi + lo, from where the document begins */
  int start[CHUNK], end[CHUNK];            /* first and last token of the document, in the chunk */
};

/* Where a block is. */
struct place {
  int64_t b, c, h, t0; /* t0: the chunk's first token */
  int n;               /* its tokens */
  bool seen, used;     /* a state enters it; the state it leaves is used */
};

TIDE_DEVICE place place_of(const scan &s, int64_t b, int64_t c, int64_t h, bool last)
{
  place at = {b, c, h, c * s.chunk, 0, false, false};
  at.n = (int)(s.T - at.t0 < s.chunk ? s.T - at.t0 : s.chunk);
  at.seen = c == 0 ? s.initial.a.data != nullptr : goes_on(s, b, at.t0);
  at.used = at.t0 + at.n == s.T ? last : goes_on(s, b, at.t0 + at.n);
  return at;
}

/* Returns the sum of v over the tokens of a document up to mine; token is thread, start where mine
 * begins. All threads call. */
TIDE_DEVICE double sum_up(double v, int start)
{
  __shared__ double tail[THREADS / 32];
  int i = (int)threadIdx.x, lane = i & 31, warp = i >> 5;
  for (int d = 1; d < 32; d *= 2) {
    double before = __shfl_up_sync(0xffffffffu, v, (unsigned)d);
    if (lane >= d && i - d >= start) v += before;
  }
  __syncthreads(); /* the sum before this one has read tail */
  if (lane == 31) tail[warp] = v;
  __syncthreads();
  for (int w = start / 32; w < warp; w++) v += tail[w];
  return v;
}

/* Fills st; the slope of the thread's token. A decay below exp(-1e5) is 0 in any case. */
TIDE_DEVICE float make_steps(const scan &s, const place &at, steps *st)
{
  __shared__ unsigned begins[THREADS / 32];
  int i = (int)threadIdx.x, lane = i & 31, warp = i >> 5, w = warp;
  bool in = i < at.n;
  step_pair<float> k = {0, 0};
  if (in) k = step_at<float>(s, at.b, at.t0 + i, at.h);
  unsigned m = __ballot_sync(0xffffffffu, in && (i == 0 || !goes_on(s, at.b, at.t0 + i)));
  if (lane == 0) begins[warp] = m;
  __syncthreads();
  unsigned before = begins[w] & (0xffffffffu >> (31 - lane)); /* token 0 always begins one */
  while (!before) before = begins[--w];
  int start = 32 * w + 31 - __clz((int)before);
  unsigned after = begins[warp] & (0xfffffffeu << lane);
  for (w = warp; !after && w < THREADS / 32 - 1;) after = begins[++w];
  double a = in ? (double)k.step * get<float>(s.A, at.h, 0, 0, 0) : 0.0;
  double sum = sum_up(a < -1e5 ? -1e5 : a, start);
  st->step[i] = k.step;
  st->hi[i] = (float)sum;
  st->lo[i] = (float)(sum - (float)sum);
  st->start[i] = start;
  st->end[i] = after ? 32 * w + __ffs((int)after) - 2 : at.n - 1;
  __syncthreads();
  return k.slope;
}

/* From after token i to after token t of the same document; from where the document begins. */
TIDE_DEVICE float decay(const steps &st, int t, int i)
{
  return tide_exp((st.hi[t] - st.hi[i]) + (st.lo[t] - st.lo[i]));
}
TIDE_DEVICE float decay_in(const steps &st, int t) { return tide_exp(st.hi[t] + st.lo[t]); }

/* Return the decay from the state that enters the chunk to token i, and from token i to the state
 * that leaves; 0 where another document lies between. */
TIDE_DEVICE float reach_in(const steps &st, int i)
{
  return st.start[i] == 0 ? decay_in(st, i) : 0.0f;
}
TIDE_DEVICE float reach_out(const steps &st, const place &at, int i)
{
  return st.start[i] == st.start[at.n - 1] ? decay(st, at.n - 1, i) : 0.0f;
}

/* ---- tiles ----------------------------------------------------------------------------------- */

template <bool F16> TIDE_DEVICE float half_at(const uint16_t *p)
{
  if (F16) {
    __half v;
    memcpy(&v, p, 2);
    return __half2float(v);
  }
  __nv_bfloat16 v;
  memcpy(&v, p, 2);
  return __bfloat162float(v);
}

/* Rows of 16-bit numbers in memory; vec: 16 bytes at a time. */
struct rows {
  const uint16_t *data;
  int64_t stride;
  int cols;
  bool vec;
};

/* x, dy: rows are tokens of head h from token t on. B, C: of group h. */
TIDE_DEVICE rows rows_of(const view &v, int64_t b, int64_t t, int64_t h, int64_t cols)
{
  rows r = {static_cast<const uint16_t *>(v.a.data) + b * v.s[0] + t * v.s[1] + h * v.s[2], v.s[1],
            (int)cols, false};
  r.vec = cols % 8 == 0 && v.s[1] % 8 == 0 && (uintptr_t)r.data % 16 == 0;
  return r;
}

/* Returns 8 numbers of a row from column k, times f; 0 where not in. */
template <bool F16>
TIDE_DEVICE uint4 scaled8(const rows &x, const uint16_t *row, int k, bool in, float f)
{
  uint4 q = make_uint4(0, 0, 0, 0);
  uint16_t raw[8];
  if (in && x.vec) q = *reinterpret_cast<const uint4 *>(row + k);
  memcpy(raw, &q, 16);
  for (int e = 0; e < 8; e++)
    if (in && !x.vec && k + e < x.cols) raw[e] = row[k + e];
  uint32_t r[4];
#pragma unroll
  for (int e = 0; e < 4; e++)
    r[e] = tide_pack<F16>(f * half_at<F16>(raw + 2 * e), f * half_at<F16>(raw + 2 * e + 1));
  return make_uint4(r[0], r[1], r[2], r[3]);
}

/* Starts to load n rows of x, `width` columns (a multiple of 16), into rows of ld; those outside
 * [from, to) and columns beyond the end are 0. factor: of each row, or null. Complete after
 * tide_copy_wait<0> and a barrier. */
template <bool F16>
TIDE_DEVICE void load_rows(uint16_t *tile, int ld, int width, int n, const rows &x, int from,
                           int to, const float *factor)
{
  int per = width / 8;
  for (int c = (int)threadIdx.x; c < n * per; c += THREADS) {
    int r = c / per, k = c % per * 8;
    bool in = r >= from && r < to && k < x.cols;
    const uint16_t *row = x.data + (in ? r * x.stride : 0);
    uint16_t *at = tile + r * ld + k;
    if (x.vec && !factor) {
      tide_copy16(at, in ? row + k : x.data, in);
    } else if (factor) {
      *reinterpret_cast<uint4 *>(at) = scaled8<F16>(x, row, k, in, in ? factor[r] : 0.0f);
    } else {
      for (int e = 0; e < 8; e++) at[e] = in && k + e < x.cols ? row[k + e] : (uint16_t)0;
    }
  }
}

/* Loads n rows of f32 numbers, `stride` apart, as operands; nrow and ncol of them are there. */
template <bool F16>
TIDE_DEVICE void load_state(uint16_t *tile, int ld, int width, int n, const float *x,
                            int64_t stride, int nrow, int ncol)
{
  int per = width / 4;
  bool vec = stride % 4 == 0 && ncol % 4 == 0 && (uintptr_t)x % 16 == 0;
  for (int c = (int)threadIdx.x; c < n * per; c += THREADS) {
    int r = c / per, k = c % per * 4;
    const float *row = x + r * stride + k;
    float4 v = make_float4(0, 0, 0, 0);
    if (r < nrow && vec && k < ncol) v = *reinterpret_cast<const float4 *>(row);
    else if (r < nrow) {
      if (k < ncol) v.x = row[0];
      if (k + 1 < ncol) v.y = row[1];
      if (k + 2 < ncol) v.z = row[2];
      if (k + 3 < ncol) v.w = row[3];
    }
    *reinterpret_cast<uint2 *>(tile + r * ld + k) =
      make_uint2(tide_pack<F16>(v.x, v.y), tide_pack<F16>(v.z, v.w));
  }
}

/* ---- products -------------------------------------------------------------------------------- */

/* s[16, 8 NT] += own[16, k] . cols[8 NT, k]^T */
template <bool F16, int NT>
TIDE_DEVICE void product(float (*s)[4], const uint16_t *own, const uint16_t *cols, int ld, int k)
{
  int l = (int)threadIdx.x & 31;
  own += l % 16 * ld + l / 16 * 8;
  cols += (l % 8 + l / 16 * 8) * ld + l / 8 % 2 * 8;
#pragma unroll 2
  for (int i = 0; i < k; i += 16) {
    uint32_t a[4], b[4];
    tide_ldmatrix<false>(a, own + i);
#pragma unroll
    for (int n = 0; n < NT; n += 2) {
      tide_ldmatrix<false>(b, cols + n * 8 * ld + i);
      tide_mma<F16>(s[n], a, b[0], b[1]);
      tide_mma<F16>(s[n + 1], a, b[2], b[3]);
    }
  }
}

/* w[16, 16] as an operand. */
template <bool F16> TIDE_DEVICE void as_operand(uint32_t *a, const float (*w)[4])
{
  a[0] = tide_pack<F16>(w[0][0], w[0][1]), a[1] = tide_pack<F16>(w[0][2], w[0][3]);
  a[2] = tide_pack<F16>(w[1][0], w[1][1]), a[3] = tide_pack<F16>(w[1][2], w[1][3]);
}

/* Returns a mask of the halves of a pair of rows k, k + 1 that lie in [from, to). */
TIDE_DEVICE uint32_t half_mask(int k, int from, int to)
{
  return (k >= from && k < to ? 0xffffu : 0) | (k + 1 >= from && k + 1 < to ? 0xffff0000u : 0);
}

/* o[16, cols] += a[16, 16] . v[16, cols], a of tokens r0.. by tokens k0.. (the rows of v): a token
 * takes from those of its own document only, whatever the others hold. a is 0 elsewhere. */
template <bool F16, int NO>
TIDE_DEVICE void add_tokens(float (*o)[4], const uint32_t *a, const uint16_t *v, int ld, int cols,
                            const steps &st, int n, int r0, int k0)
{
  int l = (int)threadIdx.x & 31, g = l / 4, t = l % 4, doc = st.start[k0];
  v += l % 16 * ld + l / 16 * 8;
  if (doc == st.start[k0 + 15] && doc == st.start[r0] && doc == st.start[r0 + 15]) {
#pragma unroll
    for (int c = 0; c < NO; c += 2) {
      if (c * 8 >= cols) continue;
      uint32_t b[4];
      tide_ldmatrix<true>(b, v + c * 8);
      tide_mma<F16>(o[c], a, b[0], b[1]);
      tide_mma<F16>(o[c + 1], a, b[2], b[3]);
    }
    return;
  }
  for (int from = k0, to; from < least(k0 + 16, n); from = to) {
    doc = st.start[from], to = least(st.end[from] + 1, k0 + 16);
    if (doc < st.start[r0] || doc > st.start[r0 + 15]) continue;
    uint32_t m0 = half_mask(k0 + 2 * t, from, to), m1 = half_mask(k0 + 2 * t + 8, from, to);
    bool mine[2] = {st.start[r0 + g] == doc, st.start[r0 + g + 8] == doc};
#pragma unroll
    for (int c = 0; c < NO; c += 2) {
      if (c * 8 >= cols) continue;
      float part[2][4] = {};
      uint32_t b[4];
      tide_ldmatrix<true>(b, v + c * 8);
      tide_mma<F16>(part[0], a, b[0] & m0, b[1] & m1);
      tide_mma<F16>(part[1], a, b[2] & m0, b[3] & m1);
#pragma unroll
      for (int e = 0; e < 8; e++)
        if (mine[e / 2 % 2]) o[c + e / 4][e % 4] += part[e / 4][e % 4];
    }
  }
}

/* Returns the sum over the four lanes that share a row. */
TIDE_DEVICE float row_sum(float v)
{
  v += __shfl_xor_sync(0xffffffffu, v, 1);
  return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

/* ---- from a call ----------------------------------------------------------------------------- */

/* Where things are in scratch; a null base measures. */
struct room {
  char *base;
  int64_t used;
  template <class T> T *take(int64_t n)
  {
    T *p = reinterpret_cast<T *>(base + used);
    used += (n * (int64_t)sizeof(T) + 255) / 256 * 256;
    return p;
  }
};

/* Sizes of tiles. */
struct sizes {
  int p16, n16, ldp, ldn;       /* padded channels and states; rows in shared memory */
  int64_t np, nn, blocks;       /* slices of WIDTH channels and KEYS states; ROWS a chunk */
};
sizes sizes_of(const scan &s)
{
  sizes z = {};
  z.p16 = (int)((s.P + 15) / 16 * 16), z.n16 = (int)((s.N + 15) / 16 * 16);
  z.ldp = z.p16 + 8, z.ldn = z.n16 + 8;
  z.np = (s.P + WIDTH - 1) / WIDTH, z.nn = (s.N + KEYS - 1) / KEYS;
  int64_t q = s.chunk < s.T ? s.chunk : s.T;
  z.blocks = (q + ROWS - 1) / ROWS;
  return z;
}

/* Shared memory: of the tiles of tokens and of states that pass by in keys_kernel
 * (scan_mma_bwd.cu), the larger. */
int keys_slot(const sizes &z)
{
  int tokens = ROWS * z.ldn, state = z.p16 * (KEYS + 8);
  return tokens > state ? tokens : state;
}
template <bool UPPER> int keys_bytes(const sizes &z)
{
  return (2 * ROWS * z.ldp + (UPPER ? 0 : ROWS * z.ldn) + keys_slot(z)) * 2;
}

/* ---- states and their recurrence ------------------------------------------------------------- */

int states_bytes(const sizes &z) { return CHUNK * (WIDTH + 8 + z.ldn) * 2; }

/* own[b, c, h] [P, N] = late' B of the tokens that the state which leaves still holds; BACK:
 * (in dy)' C of those that see the one that enters. whole[b, c, h]: the decay over the chunk, 0 if
 * a document begins in it. */
template <bool F16, bool BACK>
__global__ void __launch_bounds__(THREADS)
states_kernel(scan s, sizes z, view x, float *own, float *whole)
{
  __shared__ steps st;
  __shared__ float factor[CHUNK];
  TIDE_DYNAMIC_SHARED(raw);
  enum { LD = WIDTH + 8 };
  uint16_t *xs = reinterpret_cast<uint16_t *>(raw), *vs = xs + CHUNK * LD;
  int64_t p0 = blockIdx.x % z.np * WIDTH, rest = blockIdx.x / z.np, pair = rest;
  int64_t h = rest % s.H, c = rest / s.H % s.nchunk, b = rest / s.H / s.nchunk;
  int i = (int)threadIdx.x, l = i & 31, warp = i >> 5;
  place at = place_of(s, b, c, h, false);
  make_steps(s, at, &st);
  int last = at.n - 1, from = BACK ? 0 : st.start[last];
  int to = !BACK ? at.n : at.seen ? st.end[0] + 1 : 0;
  if (i < at.n) factor[i] = BACK ? reach_in(st, i) : reach_out(st, at, i) * st.step[i];
  if (i == 0 && p0 == 0)
    whole[pair] = st.start[last] == 0 && goes_on(s, b, at.t0) ? decay_in(st, last) : 0.0f;
  __syncthreads();
  rows xr = rows_of(x, b, at.t0, h, s.P), vr = rows_of(BACK ? s.C : s.B, b, at.t0, h / (s.H / s.G),
                                                      s.N);
  xr.data += p0, xr.cols -= (int)p0;
  int q16 = (at.n + 15) / 16 * 16;
  load_rows<F16>(xs, LD, WIDTH, q16, xr, from, to, factor);
  load_rows<F16>(vs, z.ldn, z.n16, q16, vr, from, to, nullptr);
  tide_copy_commit();
  tide_copy_wait<0>();
  __syncthreads();
  int64_t p = p0 + warp * 16 + l / 4;
  if (p0 + warp * 16 >= s.P) return;
  const uint16_t *as = xs + (l / 16 * 8 + l % 8) * LD + warp * 16 + l / 8 % 2 * 8;
  const uint16_t *bs = vs + l % 16 * z.ldn + l / 16 * 8;
  for (int n0 = 0; n0 < z.n16; n0 += WIDTH) {
    float acc[WIDTH / 8][4] = {};
    for (int k = from / 16 * 16; k < to; k += 16) {
      uint32_t a[4], bf[4];
      tide_ldmatrix<true>(a, as + k * LD);
#pragma unroll
      for (int n = 0; n < WIDTH / 8; n += 2) {
        if (n0 + n * 8 >= z.n16) continue;
        tide_ldmatrix<true>(bf, bs + k * z.ldn + n0 + n * 8);
        tide_mma<F16>(acc[n], a, bf[0], bf[1]);
        tide_mma<F16>(acc[n + 1], a, bf[2], bf[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < WIDTH / 8; n++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        int64_t row = p + (e & 2 ? 8 : 0), col = n0 + n * 8 + l % 4 * 2 + (e & 1);
        if (row < s.P && col < s.N) own[(pair * s.P + row) * s.N + col] = acc[n][e];
      }
  }
}

/* Turns each chunk's own part into what enters it (BACK: the gradient of what leaves it), from
 * `first`; what is left at the end goes to `end`. Eight chunks are read before the first is
 * needed. */
template <bool BACK>
__global__ void pass_kernel(scan s, float *own, const float *whole, view first, tide_array end)
{
  enum { AHEAD = 8 };
  int64_t size = s.P * s.N, step = s.H * size;
  TIDE_GRID_LOOP(i, s.nb * step) {
    int64_t e = i % size, h = i / size % s.H, b = i / step;
    float v = first.a.data ? get<float>(first, b, h, e / s.N, e % s.N) : 0.0f;
    for (int64_t k0 = 0; k0 < s.nchunk; k0 += AHEAD) {
      float add[AHEAD], keep[AHEAD];
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        int64_t c = BACK ? s.nchunk - 1 - (k0 + k) : k0 + k, pair = (b * s.nchunk + c) * s.H + h;
        if (k0 + k >= s.nchunk) continue;
        add[k] = own[pair * size + e];
        keep[k] = whole[pair];
      }
#pragma unroll
      for (int k = 0; k < AHEAD; k++) {
        int64_t c = BACK ? s.nchunk - 1 - (k0 + k) : k0 + k, pair = (b * s.nchunk + c) * s.H + h;
        if (k0 + k >= s.nchunk) continue;
        own[pair * size + e] = v;
        v = (keep[k] == 0 ? 0.0f : keep[k] * v) + add[k];
      }
    }
    if (end.data) tide_put<float>(end, i, v);
  }
}

/* Launches states and pass: own has what enters each chunk, or the gradient of what leaves it. */
template <bool F16, bool BACK>
int run_states(const k_call *call, const scan &s, const sizes &z, const view &x, float *own,
               float *whole, const view &first, tide_array end)
{
  int bytes = states_bytes(z);
  int rc = tide_cuda_check(call, cudaFuncSetAttribute(
    states_kernel<F16, BACK>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  int64_t n = s.nb * s.nchunk * s.H * z.np;
  if (rc < 0) return rc;
  if (n > 0)
    TIDE_CUDA_LAUNCH(call, (states_kernel<F16, BACK>), (unsigned)n, THREADS, bytes, s, z, x, own,
                     whole);
  TIDE_LAUNCH(pass_kernel<BACK>, s.nb * s.H * s.P * s.N, call, s, own, whole, first, end);
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace
