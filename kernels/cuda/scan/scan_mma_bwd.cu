/* The SSD scan backward on tensor cores, f16 and bf16. See scan_mma.cuh.
 *
 * Only the gradient of the state is handed from chunk to chunk; all the rest of a
 * chunk follows from the states on its two sides. dB and dC are sums over the heads of a group: a
 * block takes HEADS of them one after another into the same registers, so what goes through memory
 * is an eighth; those parts are added in order. No sum depends on the order of blocks.
 *
 * The decays' gradient follows from K[t, s] = S dS, t > s: what token t gains as later of a pair
 * (later: and by the state that entered), loses as the earlier (early) and, of what its u left in
 * the state, to the end of the chunk (gone). With a_j = step_j A,
 *   da_j = sum of later - early over i >= j  +  sum of gone over i < j  +  whole <state, dstate>
 * over the tokens of j's document in the chunk. Those sums run in f64; K is made of the same f32
 * numbers on both sides, so what must cancel does.
 */
#include "kernels/cuda/scan/scan_values.cuh"

namespace {

enum { HEADS = 8 };

struct keys {
  view dy;
  const float *states; /* what enters; UPPER: the gradient of what leaves */
  float *part;         /* [B, G, lists, T, N], a list of HEADS heads */
  float *later;        /* [nn][B, H, T] */
  int64_t lists;
  bool last;
};

/* acc += f (own . state) of the warp's rows, document apart: f[r] is 0 where the state does not
 * reach. UPPER or not, later grows by what a row gets times its C. */
template <bool F16, bool UPPER>
TIDE_DEVICE void keys_from_state(float (*acc)[4], float *later, const float *f, const uint16_t *own,
                                 const uint16_t *state, const uint16_t *c, const sizes &z, int n0)
{
  enum { LD = KEYS + 8 };
  int l = (int)threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < KEYS / 8; n += 2) {
    if (n0 + n * 8 >= z.n16) continue;
    float part[2][4] = {};
    for (int k = 0; k < z.p16; k += 16) {
      uint32_t a[4], b[4];
      tide_ldmatrix<false>(a, own + l % 16 * z.ldp + l / 16 * 8 + k);
      tide_ldmatrix<true>(b, state + (k + l % 16) * LD + l / 16 * 8 + n * 8);
      tide_mma<F16>(part[0], a, b[0], b[1]);
      tide_mma<F16>(part[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int e = 0; e < 8; e++) {
      int r = e / 2 % 2, col = n0 + (n + e / 4) * 8 + l % 4 * 2 + e % 2;
      float v = f[r] == 0 ? 0.0f : f[r] * part[e / 4][e % 4];
      acc[n + e / 4][e % 4] += v;
      if (!UPPER && f[r] != 0) later[r] += v * half_at<F16>(c + (l / 4 + 8 * r) * z.ldn + col);
    }
  }
}

/* ds = dy . u of 16 x 32 pairs becomes d(C B'), 0 where a pair does not see each other. With
 * g = C . B, later grows by S dS over earlier tokens. */
template <bool UPPER>
TIDE_DEVICE void key_weights(float (*ds)[4], const float (*g)[4], float *later, const steps &st,
                             int n, int r0, int j)
{
  int l = (int)threadIdx.x & 31;
#pragma unroll
  for (int c = 0; c < STEP / 8; c++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int row = r0 + l / 4 + (e & 2 ? 8 : 0), col = j + c * 8 + l % 4 * 2 + (e & 1);
      bool sees = UPPER ? col >= row && col <= st.end[row] : col <= row && col >= st.start[row];
      sees = sees && row < n;
      float d = sees ? UPPER ? decay(st, col, row) : decay(st, row, col) : 0.0f;
      if (!UPPER && sees && col != row) later[e >> 1] += g[c][e] * d * ds[c][e];
      ds[c][e] = sees ? d * ds[c][e] : 0.0f;
    }
}

/* acc of the warp's rows += d(C B') v, over the tiles of the chunk that its rows meet: later tokens
 * if UPPER (v is C, other dy), else earlier ones (v is B, other u). */
template <bool F16, bool UPPER>
TIDE_DEVICE void keys_from_tokens(float (*acc)[4], float *later, const scan &s, const sizes &z,
                                  const keys &k, const place &at, const steps &st, uint16_t *own,
                                  int rr, int n0)
{
  int warp = (int)threadIdx.x >> 5, r0 = rr + warp * 16, row = least(rr + ROWS, at.n) - 1;
  uint16_t *other = own + ROWS * z.ldp, *c = other + ROWS * z.ldp;
  uint16_t *v = UPPER ? c : c + ROWS * z.ldn;
  int64_t group = at.h / (s.H / s.G);
  for (int j0 = UPPER ? rr : 0; UPPER ? j0 <= st.end[row] : j0 <= rr; j0 += ROWS) {
    if (!UPPER && j0 + ROWS <= st.start[rr]) continue;
    int64_t t = at.t0 + j0;
    int left = at.n - j0;
    load_rows<F16>(other, z.ldp, z.p16, ROWS, rows_of(UPPER ? k.dy : s.x, at.b, t, at.h, s.P), 0,
                   left, UPPER ? nullptr : st.step + j0);
    load_rows<F16>(v, z.ldn, z.n16, ROWS, rows_of(UPPER ? s.C : s.B, at.b, t, group, s.N), 0, left,
                   nullptr);
    tide_copy_commit();
    tide_copy_wait<0>();
    __syncthreads();
    for (int j = j0; j < j0 + ROWS && j < at.n && r0 < at.n; j += STEP) {
      bool meets = UPPER ? j + STEP > r0 && j <= st.end[least(r0 + 15, at.n - 1)]
                         : j <= r0 + 15 && j + STEP > st.start[r0];
      if (!meets) continue;
      float g[STEP / 8][4] = {}, ds[STEP / 8][4] = {};
      if (!UPPER && n0 == 0)
        product<F16, STEP / 8>(g, c + warp * 16 * z.ldn, v + (j - j0) * z.ldn, z.ldn, z.n16);
      product<F16, STEP / 8>(ds, own + warp * 16 * z.ldp, other + (j - j0) * z.ldp, z.ldp, z.p16);
      key_weights<UPPER>(ds, g, later, st, at.n, r0, j);
#pragma unroll
      for (int half = 0; half < 2; half++) {
        int k0 = j + 16 * half;
        if (k0 >= at.n || (UPPER ? k0 + 15 < r0 : k0 > r0 + 15)) continue;
        uint32_t a[4];
        as_operand<F16>(a, ds + 2 * half);
        add_tokens<F16, KEYS / 8>(acc, a, v + (k0 - j0) * z.ldn + n0, z.ldn, z.n16 - n0, st, at.n,
                                  r0, k0);
      }
    }
    __syncthreads();
  }
}

/* Adds one head of a block's tokens. */
template <bool F16, bool UPPER>
TIDE_DEVICE void keys_of_head(float (*acc)[4], const scan &s, const sizes &z, const keys &k,
                              const place &at, steps *st, uint16_t *own, int rr, int n0)
{
  int l = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, r0 = rr + warp * 16;
  uint16_t *c = own + 2 * ROWS * z.ldp, *v = UPPER ? c : c + ROWS * z.ldn;
  make_steps(s, at, st);
  int row = least(rr + ROWS, at.n) - 1;
  bool reached = UPPER ? at.used && st->start[row] == st->start[at.n - 1]
                       : at.seen && st->start[rr] == 0;
  load_rows<F16>(own, z.ldp, z.p16, ROWS,
                 rows_of(UPPER ? s.x : k.dy, at.b, at.t0 + rr, at.h, s.P), 0, at.n - rr,
                 UPPER ? st->step + rr : nullptr);
  if (reached)
    load_state<F16>(v, KEYS + 8, KEYS, z.p16,
                    k.states + ((at.b * s.nchunk + at.c) * s.H + at.h) * s.P * s.N + n0, s.N,
                    (int)s.P, (int)s.N - n0);
  tide_copy_commit();
  tide_copy_wait<0>();
  __syncthreads();
  float later[2] = {0, 0};
  if (reached && r0 < at.n) {
    float f[2];
    for (int r = 0; r < 2; r++) {
      int i = r0 + l / 4 + 8 * r;
      f[r] = i >= at.n ? 0.0f : UPPER ? reach_out(*st, at, i) : reach_in(*st, i);
    }
    keys_from_state<F16, UPPER>(acc, later, f, own + warp * 16 * z.ldp, v, c + warp * 16 * z.ldn, z,
                                n0);
  }
  __syncthreads();
  keys_from_tokens<F16, UPPER>(acc, later, s, z, k, at, *st, own, rr, n0);
  for (int r = 0; !UPPER && r < 2; r++) {
    int i = r0 + l / 4 + 8 * r;
    float sum = row_sum(later[r]);
    if (l % 4 == 0 && i < at.n)
      k.later[((n0 / KEYS * s.nb + at.b) * s.H + at.h) * s.T + at.t0 + i] = sum;
  }
}

/* dC (UPPER: dB) of ROWS tokens, KEYS states, up to HEADS heads. Blocks: slices of states, lists of
 * heads, groups, ROWS of tokens, chunks, batches. */
template <bool F16, bool UPPER>
__global__ void __launch_bounds__(THREADS) keys_kernel(scan s, sizes z, keys k)
{
  __shared__ steps st;
  TIDE_DYNAMIC_SHARED(raw);
  uint16_t *own = reinterpret_cast<uint16_t *>(raw), *c = own + 2 * ROWS * z.ldp;
  int n0 = (int)(blockIdx.x % z.nn) * KEYS;
  int64_t rest = blockIdx.x / z.nn, list = rest % k.lists, group = rest / k.lists % s.G;
  int64_t piece = rest / k.lists / s.G, chunk = piece / z.blocks, heads = s.H / s.G;
  int rr = (int)(piece % z.blocks) * ROWS, l = (int)threadIdx.x & 31;
  int64_t h0 = list * HEADS, h1 = h0 + HEADS < heads ? h0 + HEADS : heads;
  place at = place_of(s, chunk / s.nchunk, chunk % s.nchunk, group * heads + h0, k.last);
  if (rr >= at.n) return;
  if (!UPPER)
    load_rows<F16>(c, z.ldn, z.n16, ROWS, rows_of(s.C, at.b, at.t0 + rr, group, s.N), 0, at.n - rr,
                   nullptr);
  float acc[KEYS / 8][4] = {};
  for (int64_t h = h0; h < h1; h++) {
    at.h = group * heads + h;
    keys_of_head<F16, UPPER>(acc, s, z, k, at, &st, own, rr, n0);
  }
  int64_t to = ((at.b * s.G + group) * k.lists + list) * s.T + at.t0;
#pragma unroll
  for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int row = rr + ((int)threadIdx.x >> 5) * 16 + l / 4 + (e & 2 ? 8 : 0);
      int64_t col = n0 + n * 8 + l % 4 * 2 + (e & 1);
      if (row < at.n && col < s.N) k.part[(to + row) * s.N + col] = acc[n][e];
    }
}

/* out[b, t, g, n] = the sum over the lists of heads. */
__global__ void lists_kernel(scan s, int64_t lists, const float *part, tide_array out)
{
  TIDE_GRID_LOOP(i, s.nb * s.T * s.G * s.N) {
    int64_t n = i % s.N, g = i / s.N % s.G, t = i / s.N / s.G % s.T, b = i / s.N / s.G / s.T;
    float sum = 0;
    for (int64_t k = 0; k < lists; k++)
      sum += part[(((b * s.G + g) * lists + k) * s.T + t) * s.N + n];
    tide_put<float>(out, i, sum);
  }
}

/* ---- gradients of the decays ----------------------------------------------------------------- */

struct tokens {
  back_sums sums;
  const float *states, *dstates; /* that enter; gradients of those that leave */
  tide_array ddt;
  double *dA, *dbias;            /* [B, nchunk, H] */
  bool last;
};

/* whole <state, dstate>, if the chunk is one document and both its sides are wanted. */
TIDE_DEVICE double crossing(const scan &s, const tokens &k, const place &at, const steps &st)
{
  float whole = st.start[at.n - 1] == 0 && at.seen && at.used ? decay_in(st, at.n - 1) : 0.0f;
  if (whole == 0) return 0;
  int64_t from = ((at.b * s.nchunk + at.c) * s.H + at.h) * s.P * s.N;
  float sum = 0;
  TIDE_LANE_LOOP(i, s.P * s.N) sum += k.states[from + i] * k.dstates[from + i];
  return whole * tide_block_sum((double)sum);
}

/* Blocks: heads, chunks, batches; a thread a token. */
__global__ void __launch_bounds__(THREADS) tokens_kernel(scan s, sizes z, tokens k)
{
  __shared__ steps st;
  __shared__ double total[CHUNK];
  int64_t h = blockIdx.x % s.H, rest = blockIdx.x / s.H, size = s.nb * s.H * s.T;
  place at = place_of(s, rest / s.nchunk, rest % s.nchunk, h, k.last);
  int i = (int)threadIdx.x;
  bool in = i < at.n;
  float slope = make_steps(s, at, &st), dstep = 0;
  double change = 0, gone = 0, edge = crossing(s, k, at, st);
  int64_t from = (at.b * s.H + h) * s.T + at.t0 + i;
  if (in) {
    for (int64_t n = 0; n < z.nn; n++) change += k.sums.later[n * size + from];
    change -= k.sums.early[from];
    for (int64_t p = 0; p < z.np; p++) dstep += k.sums.dstep[p * size + from];
    if (at.used && st.start[i] == st.start[at.n - 1])
      for (int64_t p = 0; p < z.np; p++) gone += k.sums.gone[p * size + from];
  }
  double so_far = sum_up(change, st.start[i]), left = sum_up(gone, st.start[i]) - gone;
  total[i] = so_far;
  __syncthreads();
  float da = 0, draw = 0;
  if (in) {
    double v = total[st.end[i]] - so_far + change + left;
    da = (float)(st.start[i] == 0 && st.end[i] == at.n - 1 ? v + edge : v);
    draw = (da * get<float>(s.A, h, 0, 0, 0) + dstep) * slope;
    tide_put<float>(k.ddt, (at.b * s.T + at.t0 + i) * s.H + h, draw);
  }
  double dA = tide_block_sum(in ? (double)da * st.step[i] : 0.0);
  double dbias = tide_block_sum((double)draw);
  if (i == 0) k.dA[blockIdx.x] = dA, k.dbias[blockIdx.x] = dbias;
}

/* out[j] = sum over r and the `fold` numbers of part[r, j, ...]; a block an element. */
template <class T>
__global__ void __launch_bounds__(THREADS)
total_kernel(int64_t nr, int64_t fold, const T *part, tide_array out)
{
  int64_t j = blockIdx.x, n = gridDim.x;
  T sum = 0;
  TIDE_LANE_LOOP(i, nr * fold) sum += part[(i / fold * n + j) * fold + i % fold];
  sum = tide_block_sum(sum);
  if (threadIdx.x == 0) tide_put<T>(out, j, sum);
}

/* ---- from a call ----------------------------------------------------------------------------- */

struct scratch {
  float *whole, *dstates, *parts[2]; /* of dB, dC */
  back_sums sums;
  double *dA, *dbias;
  int64_t lists, bytes;
};

scratch scratch_of(const k_call *call, const scan &s, const sizes &z)
{
  room r = {static_cast<char *>(call->work), 0};
  int64_t all = s.nb * s.nchunk * s.H, tokens = s.nb * s.H * s.T;
  scratch w = {};
  w.lists = (s.H / s.G + HEADS - 1) / HEADS;
  w.whole = r.take<float>(all);
  w.dstates = r.take<float>(all * s.P * s.N);
  for (float *&p : w.parts) p = r.take<float>(s.nb * s.G * w.lists * s.T * s.N);
  w.sums.later = r.take<float>(tokens * z.nn);
  w.sums.early = r.take<float>(tokens);
  w.sums.gone = r.take<float>(tokens * z.np);
  w.sums.dstep = r.take<float>(tokens * z.np);
  if (!k_absent(&call->out[OUT_D])) w.sums.dD = r.take<float>(all * z.blocks * s.P);
  w.dA = r.take<double>(all);
  w.dbias = r.take<double>(all);
  w.bytes = r.used;
  return w;
}

/* dC of the states that enter, dB of the gradients of those that leave. */
template <bool F16, bool UPPER>
int run_keys(const k_call *call, const scan &s, const sizes &z, const keys &k, tide_array out)
{
  int bytes = keys_bytes<UPPER>(z);
  int rc = tide_cuda_check(call, cudaFuncSetAttribute(
    keys_kernel<F16, UPPER>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  int64_t n = s.nb * s.nchunk * z.blocks * s.G * k.lists * z.nn;
  if (rc < 0 || n == 0) return rc;
  TIDE_CUDA_LAUNCH(call, (keys_kernel<F16, UPPER>), (unsigned)n, THREADS, bytes, s, z, k);
  TIDE_LAUNCH(lists_kernel, s.nb * s.T * s.G * s.N, call, s, k.lists, k.part, out);
  return TIDE_CUDA_LAUNCHED(call);
}

/* Sums dA, dD and ddt_bias over chunks and batches, in order. */
int run_sums(const k_call *call, const scan &s, const sizes &z, const scratch &w)
{
  const k_tensor *out = call->out;
  int64_t chunks = s.nb * s.nchunk, one = 1;
  unsigned n = (unsigned)s.H;
  TIDE_CUDA_LAUNCH(call, total_kernel<double>, n, THREADS, 0, chunks, one, w.dA,
                   tide_array_of(out[OUT_A]));
  if (!k_absent(&out[OUT_BIAS]))
    TIDE_CUDA_LAUNCH(call, total_kernel<double>, n, THREADS, 0, chunks, one, w.dbias,
                     tide_array_of(out[OUT_BIAS]));
  if (s.wide_d) n = (unsigned)(s.H * s.P);
  if (!k_absent(&out[OUT_D]))
    TIDE_CUDA_LAUNCH(call, total_kernel<float>, n, THREADS, 0, chunks * z.blocks,
                     s.wide_d ? one : s.P, w.sums.dD, tide_array_of(out[OUT_D]));
  return TIDE_CUDA_LAUNCHED(call);
}

template <bool F16> int run(const k_call *call, const scan &s)
{
  const k_tensor *in = call->in, *out = call->out;
  sizes z = sizes_of(s);
  scratch w = scratch_of(call, s, z);
  view dy = view_of(in[IN_DY]), dlast = view_of(in[IN_DLAST]);
  bool last = dlast.a.data != nullptr;
  const float *states = static_cast<const float *>(in[IN_STATES].data);
  int rc = run_states<F16, true>(call, s, z, dy, w.dstates, w.whole, dlast,
                                 tide_array_of(out[OUT_INITIAL]));
  values v = {dy, w.dstates, static_cast<uint16_t *>(out[OUT_X].data), last, w.sums};
  if (rc == TIDE_OK) rc = run_values<F16, true>(call, s, z, v);
  keys dB = {dy, w.dstates, w.parts[0], nullptr, w.lists, last};
  keys dC = {dy, states, w.parts[1], w.sums.later, w.lists, last};
  if (rc == TIDE_OK) rc = run_keys<F16, true>(call, s, z, dB, tide_array_of(out[OUT_B]));
  if (rc == TIDE_OK) rc = run_keys<F16, false>(call, s, z, dC, tide_array_of(out[OUT_C]));
  if (rc < 0) return rc;
  int64_t n = s.nb * s.nchunk * s.H;
  tokens k = {w.sums, states, w.dstates, tide_array_of(out[OUT_DT]), w.dA, w.dbias, last};
  if (n > 0) TIDE_CUDA_LAUNCH(call, tokens_kernel, (unsigned)n, THREADS, 0, s, z, k);
  return run_sums(call, s, z, w);
}

}  // namespace

int64_t tide_scan_mma_bwd_work(const k_call *call)
{
  scan s = scan_of(call, call->in + IN_X);
  return scratch_of(call, s, sizes_of(s)).bytes;
}

int tide_scan_mma_bwd(const k_call *call)
{
  scan s = scan_of(call, call->in + IN_X);
  return call->in[IN_X].dtype == TIDE_F16 ? run<true>(call, s) : run<false>(call, s);
}
