/* Attention backward on tensor cores, f16 and bf16, heads up to 256.
 *
 * One kernel serves both halves. Its rows are queries (it makes dq) or keys (dk and
 * dv); the two tiles of its rows stay in shared memory while pairs of tiles of the other side pass:
 *   rows q, dout;  others k, v:      s = q k^T,    dp = dout v^T,    dq += ds k
 *   rows k, v;     others q, dout:   s^T = k q^T,  dp^T = v dout^T,  dk += ds^T q, dv += w^T dout
 * Scores are made twice (seven products instead of five), which costs less than atomics or their
 * order, so the result does not depend on the order of blocks.
 */
#include "kernels/cuda/attention/attention_mma.cuh"

namespace {

template <int DP> struct shape {
  enum { BC = DP == 256 ? 16 : DP == 128 ? 32 : 64, LD = DP + 8,
         BYTES = (2 * OWN + 4 * BC) * LD * 2 };
};

/* s and dp of a tile become the weights and the gradients of q.k. */
template <bool KEYS, int NT>
TIDE_DEVICE void gradients(const tide_attend &p, const tide_attention_back &g, int64_t b, int64_t h,
                           int64_t row0, int64_t col0, bool whole, float (*s)[4], float (*dp)[4])
{
  int lane = (int)threadIdx.x & 31;
  const float *delta = static_cast<const float *>(g.delta) + (b * p.head + h) * p.tq;
  int64_t lse_at = b * g.lse_stride[0] + h * g.lse_stride[1];
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int64_t row = row0 + lane / 4 + (e & 2 ? 8 : 0), col = col0 + n * 8 + lane % 4 * 2 + (e & 1);
      int64_t i = KEYS ? col : row, j = KEYS ? row : col;
      bool sees = whole || tide_sees(p, tide_query(p, b, i), tide_key(p, b, j));
      float w = 0, dqk = 0, slope;
      float lse = sees ? tide_at<float>(g.lse, lse_at + i * g.lse_stride[2]) : -INFINITY;
      if (lse != -INFINITY) {
        float score = tide_score(p, b, h, i, j, s[n][e], &slope);
        w = exp2f((score - lse) * LOG2E);
        if (w != 0) dqk = w * (dp[n][e] - delta[i]) * slope;
      }
      s[n][e] = w;
      dp[n][e] = dqk;
    }
}

template <int DP, bool F16, bool KEYS>
__global__ void __launch_bounds__(THREADS)
backward_kernel(tide_attend p, tide_attention_back g, bool aligned)
{
  using S = shape<DP>;
  enum { BC = S::BC, LD = S::LD, NT = BC / 8, NO = DP / 8, TILE = BC * LD };
  TIDE_DYNAMIC_SHARED(raw);
  uint16_t *own = reinterpret_cast<uint16_t *>(raw), *tiles = own + 2 * OWN * LD;
  const tide_heads &x1 = KEYS ? p.k : p.q, &x2 = KEYS ? p.v : g.dout;
  const tide_heads &y1 = KEYS ? p.q : p.k, &y2 = KEYS ? g.dout : p.v;
  int64_t nx = KEYS ? p.tk : p.tq, ny = KEYS ? p.tq : p.tk;
  int64_t heads = KEYS ? p.head / p.group : p.head, per = (nx + OWN - 1) / OWN;
  int64_t rest = blockIdx.x / per, b = rest / heads, hx = rest % heads;
  int64_t t0 = (int64_t)(blockIdx.x % per) * OWN;
  int warp = (int)threadIdx.x >> 5;
  reach seen = reach_of<KEYS>(p, b, t0);
  load_tile<DP, OWN>(own, x1, b, t0, nx, hx, p.d, aligned);
  load_tile<DP, OWN>(own + OWN * LD, x2, b, t0, nx, hx, p.dv, aligned);
  tide_copy_commit();
  float a1[NO][4] = {}, a2[KEYS ? NO : 1][4] = {};
  int64_t h0 = KEYS ? hx * p.group : hx, nh = KEYS ? p.group : 1;
  for (int64_t h = h0; h < h0 + nh; h++) {
    int64_t hy = KEYS ? h : h / p.group;
    auto load = [&](int64_t t, int stage) {
      load_tile<DP, BC>(tiles + stage * 2 * TILE, y1, b, t, ny, hy, p.d, aligned);
      load_tile<DP, BC>(tiles + (stage * 2 + 1) * TILE, y2, b, t, ny, hy, p.dv, aligned);
    };
    int64_t t = next_tile<KEYS>(p, seen, b, 0, BC, ny);
    int stage = 0;
    if (t < ny) load(t, stage);
    tide_copy_commit();
    while (t < ny) {
      int64_t next = next_tile<KEYS>(p, seen, b, t + BC, BC, ny);
      if (next < ny) load(next, stage ^ 1);
      tide_copy_commit();
      tide_copy_wait<1>();
      __syncthreads();
      const uint16_t *c1 = tiles + stage * 2 * TILE, *c2 = c1 + TILE;
      float s[NT][4] = {}, dp[NT][4] = {};
      product<F16, LD, NT>(s, own + warp * 16 * LD, c1, p.d);
      product<F16, LD, NT>(dp, own + (OWN + warp * 16) * LD, c2, p.dv);
      bool whole = !KEYS && tile_whole(p, t0, t, BC);
      gradients<KEYS, NT>(p, g, b, h, t0 + warp * 16, t, whole, s, dp);
      weigh<F16, LD, NT, NO>(a1, dp, c1, p.d);
      if (KEYS) weigh<F16, LD, NT, NO>(a2, s, c2, p.dv);
      __syncthreads();
      stage ^= 1;
      t = next;
    }
  }
  tide_copy_wait<0>();
  float one[2] = {1, 1};
  write<F16, NO>(a1, one, KEYS ? g.dk : g.dq, b, t0 + warp * 16, nx, hx, p.d);
  if (KEYS) write<F16, NO>(a2, one, g.dv, b, t0 + warp * 16, nx, hx, p.dv);
}

template <int DP, bool F16, bool KEYS>
int run(const k_call *call, const tide_attend &p, const tide_attention_back &g)
{
  bool aligned = vectors(p.q, p.d) && vectors(p.k, p.d) && vectors(p.v, p.dv)
    && vectors(g.dout, p.dv);
  int bytes = shape<DP>::BYTES;
  int rc = tide_cuda_check(call, cudaFuncSetAttribute(
    backward_kernel<DP, F16, KEYS>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  int64_t rows = KEYS ? p.tk : p.tq, heads = KEYS ? p.head / p.group : p.head;
  unsigned n = (unsigned)(p.batch * heads * ((rows + OWN - 1) / OWN));
  if (rc < 0 || n == 0) return rc;
  TIDE_CUDA_LAUNCH(call, (backward_kernel<DP, F16, KEYS>), n, THREADS, bytes, p, g, aligned);
  return TIDE_CUDA_LAUNCHED(call);
}

template <bool F16, bool KEYS>
int by_width(const k_call *call, const tide_attend &p, const tide_attention_back &g)
{
  int64_t d = p.d > p.dv ? p.d : p.dv;
  return d <= 64 ? run<64, F16, KEYS>(call, p, g)
    : d <= 128 ? run<128, F16, KEYS>(call, p, g) : run<256, F16, KEYS>(call, p, g);
}

}  // namespace

int tide_attention_mma_bwd(const k_call *call, const tide_attend &p, const tide_attention_back &g)
{
  bool f16 = p.q.dtype == TIDE_F16;
  int rc = f16 ? by_width<true, false>(call, p, g) : by_width<false, false>(call, p, g);
  if (rc < 0) return rc;
  return f16 ? by_width<true, true>(call, p, g) : by_width<false, true>(call, p, g);
}
