/* Attention backward on tensor cores, f16 and bf16, heads up to 256.
 *
 * One kernel serves both halves. Its rows are queries (it makes dq) or keys (dk and dv, in turn
 * where registers do not hold both); the two tiles of its rows stay in shared memory while pairs of
 * tiles of the other side pass:
 *   rows q, dout;  others k, v:      s = q k^T,    dp = dout v^T,    dq += ds k
 *   rows k, v;     others q, dout:   s^T = k q^T,  dp^T = v dout^T,  dk += ds^T q, dv += w^T dout
 * Scores are made twice (seven products instead of five), which costs less than atomics or their
 * order, so the result does not depend on the order of blocks.
 */
#include "kernels/cuda/attention/attention_mma.cuh"

namespace {

/* What a kernel makes. */
enum { DQ = 1, DK = 2, DV = 4 };

template <int DP> struct shape {
  enum { BC = DP == 256 ? 16 : DP == 128 ? 32 : 64, LD = DP + 8,
         BYTES = (2 * OWN + 4 * BC) * LD * 2 };
};

/* What a warp knows of its rows; marks are of queries. */
struct own_rows { tide_span span[2]; tide_mark<float> mark[2]; };

/* s and dp of a tile become the weights and the gradients of scale q.k. cols: the two tiles of the
 * other side with their tokens; (row0, col0): the first pair of this warp. */
template <bool KEYS, int NT, int LD>
TIDE_DEVICE void gradients(const tide_attend &p, int64_t b, int64_t h, int64_t row0, int64_t col0,
                           const own_rows &row, const uint16_t *cols, bool whole, float (*s)[4],
                           float (*dp)[4])
{
  int t = (int)threadIdx.x % 4 * 2;
  auto col = [&](int n, int e) { return about_of<LD>(cols, n * 8 + t + e); };
  auto mark = [&](int n, int e) { return KEYS ? col(n, e & 1).mark : row.mark[e >> 1]; };
  bool plain = plain_scores(p);
  less_delta<NT>(dp, mark);
  if (!plain) cap_slopes<NT>(p, s, dp);
  if (p.bias.data) add_bias<KEYS, NT>(p, b, h, row0, col0, s);
  weights_of<NT>(s, plain ? p.cap.scale * LOG2E : LOG2E, mark);
  /* one bound at a time where the rows are keys: registers are few */
  if (!whole && KEYS)
    hide<NT>(s, row.span, 0.0f, [&](int n, int e) {
      return asked{about_of<LD>(cols, n * 8 + t + e).document, INT32_MIN,
                   last_of<LD>(cols + NT * 8 * LD, n * 8 + t + e)};
    });
  if (!whole && (!KEYS || p.window_left >= 0))
    hide<NT>(s, row.span, 0.0f, [&](int n, int e) {
      const about &x = about_of<LD>(cols, n * 8 + t + e);
      return asked{x.document, x.position, KEYS ? INT32_MAX : x.position};
    });
  times_weight<NT>(s, dp);
}

template <int DP, bool F16, int MAKES>
__global__ void __launch_bounds__(THREADS, blocks_of(shape<DP>::BYTES, MAKES == DQ ? 3 : 2))
backward_kernel(tide_attend p, tide_attention_back g, bool aligned)
{
  using S = shape<DP>;
  enum { BC = S::BC, LD = S::LD, NT = BC / 8, NO = DP / 8, TILE = BC * LD };
  constexpr bool KEYS = MAKES != DQ, DX = (MAKES & (DQ | DK)) != 0, VALUES = (MAKES & DV) != 0;
  TIDE_DYNAMIC_SHARED(raw);
  uint16_t *own = reinterpret_cast<uint16_t *>(raw), *tiles = own + 2 * OWN * LD;
  const tide_heads &x1 = KEYS ? p.k : p.q, &x2 = KEYS ? p.v : g.dout;
  const tide_heads &y1 = KEYS ? p.q : p.k, &y2 = KEYS ? g.dout : p.v;
  int64_t nx = KEYS ? p.tk : p.tq, ny = KEYS ? p.tq : p.tk;
  int64_t heads = KEYS ? p.head / p.group : p.head, per = (nx + OWN - 1) / OWN;
  int64_t rest = blockIdx.x / per, b = rest / heads, hx = rest % heads;
  /* the first keys and the last queries meet most: first */
  int64_t t0 = (int64_t)(blockIdx.x % per) * OWN;
  if (!KEYS) t0 = (per - 1) * OWN - t0;
  int warp = (int)threadIdx.x >> 5, mine = (int)threadIdx.x;
  int64_t w0 = t0 + warp * 16; /* of this warp */
  own_rows row = {};
#pragma unroll
  for (int r = 0; r < 2; r++) {
    int64_t t = w0 + mine % 32 / 4 + 8 * r;
    row.span[r] = span_at<KEYS>(p, b, t);
    if (!KEYS) row.mark[r] = mark_of(p, g, b, hx, t);
  }
  tide_walk<KEYS, BC> walk(p, b, t0, OWN);
  load_tile<DP, OWN>(own, x1, b, t0, nx, hx, p.d, aligned);
  if (DX) load_tile<DP, OWN>(own + OWN * LD, x2, b, t0, nx, hx, p.dv, aligned);
  tide_copy_commit();
  float a1[DX ? NO : 1][4] = {}, a2[VALUES ? NO : 1][4] = {};
  int64_t h0 = KEYS ? hx * p.group : hx, nh = KEYS ? p.group : 1;
  for (int64_t h = h0; h < h0 + nh; h++) {
    int64_t hy = KEYS ? h : h / p.group;
    /* mask data of tokens is loaded with a tile and kept after the work on the tile before */
    about other = {};
    auto load = [&](const tide_step &x, int stage) {
      load_tile<DP, BC>(tiles + stage * 2 * TILE, y1, b, x.t, ny, hy, p.d, aligned);
      load_tile<DP, BC>(tiles + (stage * 2 + 1) * TILE, y2, b, x.t, ny, hy, p.dv, aligned);
      if (mine >= BC) return;
      if (!x.whole) {
        int last;
        other = about_token<KEYS>(p, b, x.t + mine, &last);
        /* not kept: registers are few, and the tile before lies elsewhere */
        if (KEYS) last_of<LD>(tiles + (stage * 2 + 1) * TILE, mine) = last;
      }
      if (KEYS) other.mark = mark_of(p, g, b, h, x.t + mine);
    };
    auto keep = [&](int stage) {
      if (mine < BC) about_of<LD>(tiles + stage * 2 * TILE, mine) = other;
    };
    walk.begin();
    tide_step now = walk.next();
    int stage = 0;
    if (now.t >= 0) {
      load(now, stage);
      keep(stage);
    }
    tide_copy_commit();
    while (now.t >= 0) {
      tide_step next = walk.next();
      if (next.t >= 0) load(next, stage ^ 1);
      tide_copy_commit();
      tide_copy_wait<1>();
      __syncthreads();
      const uint16_t *c1 = tiles + stage * 2 * TILE, *c2 = c1 + TILE;
      float s[NT][4] = {}, dp[NT][4] = {};
      product<F16, LD, NT>(s, own + warp * 16 * LD, c1, (int)p.d);
      if (DX) product<F16, LD, NT>(dp, own + (OWN + warp * 16) * LD, c2, (int)p.dv);
      gradients<KEYS, NT, LD>(p, b, h, w0, now.t, row, c1, now.whole, s, dp);
      if constexpr (DX) weigh<F16, LD, NT, NO>(a1, dp, c1, (int)p.d);
      if constexpr (VALUES) weigh<F16, LD, NT, NO>(a2, s, c2, (int)p.dv);
      keep(stage ^ 1);
      __syncthreads();
      stage ^= 1;
      now = next;
    }
  }
  tide_copy_wait<0>();
  float one[2] = {1, 1}, scale[2] = {p.cap.scale, p.cap.scale};
  if constexpr (DX) write<F16, NO>(a1, scale, KEYS ? g.dk : g.dq, b, w0, nx, hx, p.d);
  if constexpr (VALUES) write<F16, NO>(a2, one, g.dv, b, w0, nx, hx, p.dv);
}

template <int DP, bool F16, int MAKES>
int run(const k_call *call, tide_attend p, const tide_attention_back &g)
{
  constexpr bool KEYS = MAKES != DQ;
  p.tiles = KEYS ? g.q_tiles : g.k_tiles;
  bool aligned = vectors(p.q, p.d) && vectors(p.k, p.d) && vectors(p.v, p.dv)
    && vectors(g.dout, p.dv);
  int bytes = shape<DP>::BYTES;
  int rc = tide_cuda_check(call, cudaFuncSetAttribute(
    backward_kernel<DP, F16, MAKES>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  int64_t rows = KEYS ? p.tk : p.tq, heads = KEYS ? p.head / p.group : p.head;
  unsigned n = (unsigned)(p.batch * heads * ((rows + OWN - 1) / OWN));
  if (rc < 0 || n == 0) return rc;
  TIDE_CUDA_LAUNCH(call, (backward_kernel<DP, F16, MAKES>), n, THREADS, bytes, p, g, aligned);
  return TIDE_CUDA_LAUNCHED(call);
}

template <bool F16>
int by_width(const k_call *call, const tide_attend &p, const tide_attention_back &g)
{
  int64_t d = p.d > p.dv ? p.d : p.dv;
  int rc = d <= 64 ? run<64, F16, DQ>(call, p, g)
    : d <= 128 ? run<128, F16, DQ>(call, p, g) : run<256, F16, DQ>(call, p, g);
  if (rc < 0) return rc;
  if (d <= 64) return run<64, F16, DK | DV>(call, p, g);
  if (d <= 128) return run<128, F16, DK | DV>(call, p, g);
  rc = run<256, F16, DK>(call, p, g);
  return rc < 0 ? rc : run<256, F16, DV>(call, p, g);
}

}  // namespace

bool tide_attention_mma_bwd_fits(const tide_attend &p, const tide_attention_back &g)
{
  return tide_attention_mma_fits(p) && g.dout.dtype == p.q.dtype && !g.dbias.data;
}

int tide_attention_mma_bwd(const k_call *call, const tide_attend &p, const tide_attention_back &g)
{
  return p.q.dtype == TIDE_F16 ? by_width<true>(call, p, g) : by_width<false>(call, p, g);
}
