/* Attention backward on Hopper's asynchronous tensor cores, f16 and bf16, heads up to 128.
 *
 * As in attention_mma_bwd.cu one kernel serves both halves, its rows queries (it
 * makes dq) or keys (dk and dv), and scores are made twice rather than added to by many:
 *   rows q, dout;  others k, v:      s = q k^T,    dp = dout v^T,    dq += ds k
 *   rows k, v;     others q, dout:   s^T = k q^T,  dp^T = v dout^T,  dk += ds^T q, dv += w^T dout
 * So every product is one of two kinds that the forward has: both operands along their rows in
 * shared memory, or weights in registers times a tile down its columns; nothing is transposed or
 * leaves the chip's registers on the way. Sums follow the heads of a group and the tiles in order.
 *
 * Registers of a thread at heads of 128: 64 for each sum (two where rows are keys), 32 for s, 32
 * for dp, 16 for each of them packed. How tiles come is in attention_wgmma.cuh. The formulas are
 * those of FlashAttention-2 (Dao 2023, arXiv 2307.08691); that one warp copies and others multiply
 * is of FlashAttention-3 (Shah et al. 2024, arXiv 2407.08608).
 *
 * No chip has run this: kernels/cuda/STATUS.md. Chosen and refused as attention_wgmma.cu says.
 */
#include "kernels/cuda/attention/attention_wgmma.cuh"

#ifdef TIDE_SM90A
namespace {

enum { COLS = 64, NT = COLS / 8, NW = COLS / 16 };

/* Own rows: q and dout, or k and v. Streams 0 and 1: the others, in that order; both are done with
 * at once, so the empty barriers of stream 0 serve the pair. */
template <int D> struct shape {
  typedef memory<D, COLS, 2> shared;
};

/* What a block works on: 128 rows of a head, which meets query heads h0 to h0 + nh - 1. */
struct task { int64_t b, h, t0, h0, nh; };
template <bool KEYS> TIDE_DEVICE task task_of(const tide_attend &p)
{
  int64_t per = ((KEYS ? p.tk : p.tq) + ROWS - 1) / ROWS, heads = KEYS ? p.head / p.group : p.head;
  int64_t at = (int64_t)(blockIdx.x % per), rest = blockIdx.x / per, h = rest % heads;
  /* the first keys and the last queries meet most: first */
  return {rest / heads, h, (KEYS ? at : per - 1 - at) * ROWS, KEYS ? h * p.group : h,
          KEYS ? p.group : 1};
}

/* ---- the warp that copies -------------------------------------------------------------------- */

struct maps { const CUtensorMap *own[2], *other[2]; };

template <int D, bool KEYS>
TIDE_DEVICE void produce(const typename shape<D>::shared &m, const tide_attend &p,
                         const tide_attention_back &g, const task &t, const maps &of)
{
  typedef typename shape<D>::shared M;
  int lane = (int)threadIdx.x & 31, h = (int)t.h0;
  tide_walk<KEYS, COLS> walk(p, t.b, t.t0, ROWS);
  place mine[COLS / 32];
  for (int n = 0;; n++) {
    tide_step x = walk.next();
    if (x.t < 0 && n > 0 && ++h < t.h0 + t.nh) { /* every head of a group sees the same tiles */
      walk.begin();
      x = walk.next();
    }
    int at = x.t;
    places_of<KEYS, COLS>(p, t.b, x, mine);
    if (lane == 0) wait_empty(m, 0, n);
    __syncwarp();
    for (int c = lane; KEYS && at >= 0 && c < COLS; c += 32)
      m.about(n).marks[c / 2].of[c % 2] = mark_of(p, g, t.b, h, at + c);
    tell(m.about(n), x, mine);
    if (lane == 0 && at < 0) tide_barrier_arrive(m.full(0, n));
    if (at < 0) return;
    if (lane != 0) continue;
    if (n == 0) {
      tide_barrier_expect(m.own_full(), 2 * M::OWN_TILE);
      for (int i = 0; i < 2; i++)
        fetch<D, ROWS>(m.own(i), of.own[i], m.own_full(), t.b, (int)t.t0, t.h);
    }
    for (int i = 0; i < 2; i++) {
      tide_barrier_expect(m.full(i, n), M::TILE);
      fetch<D, COLS>(m.tile(i, n), of.other[i], m.full(i, n), t.b, at, KEYS ? h : t.h / p.group);
    }
  }
}

/* ---- the warpgroups that multiply ------------------------------------------------------------ */

/* What a lane knows of its two rows, 8 apart: spans in shared memory, as most tiles are whole and
 * registers are few; marks if the rows are queries. */
struct own_rows { const tide_span *spans; mark marks[2]; };

template <bool KEYS>
TIDE_DEVICE mark mark_at(const own_rows &r, const note<COLS> &x, int n, int e)
{
  return KEYS ? x.marks[n * 4 + (int)(threadIdx.x & 3)].of[e & 1] : r.marks[e >> 1];
}

/* s becomes the weights. unit: log2(e) in what it is told in. */
template <bool KEYS>
TIDE_DEVICE void weigh_tile(const own_rows &r, const note<COLS> &x, float unit, float (*s)[4])
{
  weights_of<NT>(s, unit, [&](int n, int e) { return mark_at<KEYS>(r, x, n, e); });
  if (x.whole) return;
  tide_span span[2] = {r.spans[0], r.spans[8]};
  hide<NT>(s, span, 0.0f, [&](int n, int e) { return place_at(x, n, e); });
}

template <int D, bool F16, bool KEYS>
TIDE_DEVICE void consume(const typename shape<D>::shared &m, const tide_attend &p,
                         const tide_attention_back &g, const task &t)
{
  enum { NO = D / 8, NO2 = KEYS ? NO : 1 };
  int warp = (int)threadIdx.x / 32 - GROUP / 32, lane = (int)threadIdx.x & 31;
  uint32_t mine = warp / 4 * (64 * 128), w[NW][4], ds[NW][4];
  bool plain = plain_scores(p);
  int64_t t0 = t.t0 + warp * 16; /* of this warp */
  __shared__ tide_span spans[ROWS]; /* a warp asks for its own alone */
  if (lane < 16) spans[warp * 16 + lane] = span_at<KEYS>(p, t.b, t0 + lane);
  __syncwarp();
  own_rows r = {spans + warp * 16 + lane / 4, {}};
  for (int i = 0; i < 2; i++)
    if (!KEYS) r.marks[i] = mark_of(p, g, t.b, t.h, t0 + lane / 4 + 8 * i);
  float a1[NO][4] = {}, a2[NO2][4] = {}, s[NT][4] = {}, dp[NT][4] = {};
  for (int n = 0;; n++) {
    wait_full(m, 0, n);
    const note<COLS> &x = m.about(n);
    if (x.t < 0) break;
    if (n == 0) tide_barrier_wait(m.own_full(), 0);
    tide_hold<NT>(s);
    tide_hold<NT>(dp);
    tide_wgmma_fence();
    start_scores<D, COLS, F16>(s, m.own(0) + mine, m.tile(0, n));
    wait_full(m, 1, n);
    tide_wgmma_fence();
    start_scores<D, COLS, F16>(dp, m.own(1) + mine, m.tile(1, n));
    tide_wgmma_wait<1>();
    tide_hold<NT>(s);
    if (plain) weigh_tile<KEYS>(r, x, p.cap.scale * LOG2E, s);
    tide_wgmma_wait<0>();
    tide_hold<NT>(dp);
    less_delta<NT>(dp, [&](int i, int e) { return mark_at<KEYS>(r, x, i, e); });
    if (!plain) {
      cap_slopes<NT>(p, s, dp);
      weigh_tile<KEYS>(r, x, LOG2E, s);
    }
    times_weight<NT>(s, dp);
    if (KEYS) pack<F16, NT>(w, s);
    pack<F16, NT>(ds, dp);
    if (KEYS) tide_hold<NW>(w), tide_hold<NO2>(a2);
    tide_hold<NW>(ds);
    tide_hold<NO>(a1);
    tide_wgmma_fence();
    if constexpr (KEYS) add_weighed<D, COLS, F16>(a2, w, m.tile(1, n));
    add_weighed<D, COLS, F16>(a1, ds, m.tile(0, n));
    tide_wgmma_commit();
    tide_wgmma_wait<0>();
    tide_hold<NO>(a1);
    if (KEYS) tide_hold<NO2>(a2);
    release(m, 0, n);
  }
  float one[2] = {1, 1}, factor[2] = {p.cap.scale, p.cap.scale};
  int64_t rows = KEYS ? p.tk : p.tq;
  write<F16, NO>(a1, factor, KEYS ? g.dk : g.dq, t.b, t0, rows, t.h, p.d);
  if constexpr (KEYS) write<F16, NO>(a2, one, g.dv, t.b, t0, rows, t.h, p.dv);
}

template <int D, bool F16, bool KEYS>
__global__ void __launch_bounds__(BLOCK, 1)
backward_kernel(const __grid_constant__ CUtensorMap x1, const __grid_constant__ CUtensorMap x2,
                const __grid_constant__ CUtensorMap y1, const __grid_constant__ CUtensorMap y2,
                tide_attend p, tide_attention_back g)
{
  TIDE_DYNAMIC_SHARED(raw);
  typedef typename shape<D>::shared M;
  M m = memory_of<M>(raw);
  task t = task_of<KEYS>(p);
  /* 40 * 128 + 232 * 256 is what the block was given, 168 * 384 */
  if (threadIdx.x < GROUP) {
    tide_registers_give<40>();
    if (threadIdx.x < 32) produce<D, KEYS>(m, p, g, t, {{&x1, &x2}, {&y1, &y2}});
  } else {
    tide_registers_take<232>();
    consume<D, F16, KEYS>(m, p, g, t);
  }
}

template <int D, bool F16, bool KEYS>
int run(const k_call *call, tide_attend p, const tide_attention_back &g)
{
  enum { BYTES = shape<D>::shared::BYTES };
  int own = ROWS, other = COLS, queries = KEYS ? other : own, keys = KEYS ? own : other;
  encoder encode;
  CUtensorMap q, k, v, dout;
  int64_t hk = p.head / p.group;
  p.tiles = KEYS ? g.q_tiles : g.k_tiles;
  int rc = find_encoder(call, &encode);
  if (rc == TIDE_OK) rc = map_of(call, encode, p.q, p.batch, p.tq, p.head, p.d, queries, &q);
  if (rc == TIDE_OK)
    rc = map_of(call, encode, g.dout, p.batch, p.tq, p.head, p.dv, queries, &dout);
  if (rc == TIDE_OK) rc = map_of(call, encode, p.k, p.batch, p.tk, hk, p.d, keys, &k);
  if (rc == TIDE_OK) rc = map_of(call, encode, p.v, p.batch, p.tk, hk, p.dv, keys, &v);
  if (rc == TIDE_OK)
    rc = tide_cuda_check(call, cudaFuncSetAttribute(
      backward_kernel<D, F16, KEYS>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
  if (rc < 0) return rc;
  int64_t rows = KEYS ? p.tk : p.tq, heads = KEYS ? hk : p.head;
  unsigned n = (unsigned)(p.batch * heads * ((rows + ROWS - 1) / ROWS));
  TIDE_CUDA_LAUNCH(call, (backward_kernel<D, F16, KEYS>), n, BLOCK, BYTES, KEYS ? k : q,
                   KEYS ? v : dout, KEYS ? q : k, KEYS ? dout : v, p, g);
  return TIDE_CUDA_LAUNCHED(call);
}

template <bool F16, bool KEYS>
int by_width(const k_call *call, const tide_attend &p, const tide_attention_back &g)
{
  return p.d <= 64 && p.dv <= 64 ? run<64, F16, KEYS>(call, p, g)
                                 : run<128, F16, KEYS>(call, p, g);
}

}  // namespace
#endif

bool tide_attention_wgmma_bwd_fits(const tide_attend &p, const tide_attention_back &g)
{
  return tide_attention_wgmma_fits(p) && p.d <= 128 && p.dv <= 128
    && mappable(g.dout, p.batch, p.tq, p.head, p.dv);
}

int tide_attention_wgmma_bwd(const k_call *call, const tide_attend &p, const tide_attention_back &g)
{
  int rc = attention_wgmma_here(call);
  if (rc < 0) return rc;
#ifdef TIDE_SM90A
  bool f16 = p.q.dtype == TIDE_F16;
  rc = f16 ? by_width<true, false>(call, p, g) : by_width<false, false>(call, p, g);
  if (rc < 0) return rc;
  return f16 ? by_width<true, true>(call, p, g) : by_width<false, true>(call, p, g);
#else
  return rc;
#endif
}
