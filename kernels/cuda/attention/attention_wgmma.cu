/* Attention forward on Hopper's asynchronous tensor cores, f16 and bf16, heads up to 256.
 *
 * A block has 128 queries; two warpgroups own 64 each and have the scores of the next
 * tile of keys made while the values of the last are added and the weights of this one are worked
 * out (FlashAttention-3, Shah et al. 2024, arXiv 2407.08608; without its turns between warpgroups).
 * Queries and keys are multiplied out of shared memory; weights never leave registers. How tiles
 * come is in attention_wgmma.cuh.
 *
 * No chip has run this: kernels/cuda/STATUS.md. Chosen by parameter attention_kernel alone; what it
 * can serve is in the table of attention.cu. Values of unseen keys get weight 0 and must be finite.
 *
 * TIDE_SM90A: the file is compiled for sm_90a. Without it a call is E_UNSUPPORTED.
 */
#include "kernels/cuda/attention/attention_wgmma.cuh"

#ifdef TIDE_SM90A
namespace {

/* Own rows: queries. Stream 0: keys, stream 1: values. */
template <int D> struct shape {
  enum { COLS = D == 256 ? 64 : 128 };
  typedef memory<D, COLS, 1> shared;
};

/* What a block works on: 128 queries of a head. */
struct task { int64_t b, h, i0; };
TIDE_DEVICE task task_of(const tide_attend &p)
{
  int64_t per = (p.tq + ROWS - 1) / ROWS, rest = blockIdx.x / per;
  /* the last queries see most: first, so that the short blocks fill the end */
  return {rest / p.head, rest % p.head, (per - 1 - (int64_t)(blockIdx.x % per)) * ROWS};
}

/* ---- the warp that copies -------------------------------------------------------------------- */

template <int D>
TIDE_DEVICE void produce(const typename shape<D>::shared &m, const tide_attend &p, const task &t,
                         const CUtensorMap *q, const CUtensorMap *k, const CUtensorMap *v)
{
  typedef typename shape<D>::shared M;
  enum { COLS = shape<D>::COLS };
  bool one = threadIdx.x == 0;
  int64_t hk = t.h / p.group;
  tide_walk<false, COLS> walk(p, t.b, t.i0, ROWS);
  place mine[COLS / 32];
  int last = 0;
  for (int n = 0;; n++) { /* keys are needed a tile before their values */
    tide_step x = walk.next();
    int j = x.t;
    places_of<false, COLS>(p, t.b, x, mine);
    if (one) wait_empty(m, 0, n);
    __syncwarp();
    tell(m.about(n), x, mine);
    if (one && j >= 0) {
      if (n == 0) {
        tide_barrier_expect(m.own_full(), M::OWN_TILE);
        fetch<D, ROWS>(m.own(0), q, m.own_full(), t.b, (int)t.i0, t.h);
      }
      tide_barrier_expect(m.full(0, n), M::TILE);
      fetch<D, COLS>(m.tile(0, n), k, m.full(0, n), t.b, j, hk);
    } else if (one) {
      tide_barrier_arrive(m.full(0, n));
    }
    if (one && n > 0) {
      wait_empty(m, 1, n - 1);
      tide_barrier_expect(m.full(1, n - 1), M::TILE);
      fetch<D, COLS>(m.tile(1, n - 1), v, m.full(1, n - 1), t.b, last, hk);
    }
    if (j < 0) return;
    last = j;
  }
}

/* ---- the warpgroups that multiply ------------------------------------------------------------ */

template <int D, bool F16>
TIDE_DEVICE void consume(const typename shape<D>::shared &m, const tide_attend &p, const task &t,
                         const tide_heads &out, const tide_array &lse, int64_t lse_at, int64_t ls2)
{
  enum { COLS = shape<D>::COLS, NT = COLS / 8, NO = D / 8, NW = COLS / 16 };
  int warp = (int)threadIdx.x / 32 - GROUP / 32, g = (int)(threadIdx.x & 31) / 4, n = 0;
  int64_t i0 = t.i0 + warp * 16;      /* of this warp */
  uint32_t q = m.own(0) + warp / 4 * (64 * 128);
  bool plain = plain_scores(p) && p.cap.scale > 0;
  float unit = plain ? p.cap.scale : 1.0f, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, old[2];
  float o[NO][4] = {}, s[NT][4] = {};
  uint32_t w[NW][4];
  tide_span row[2] = {span_at<false>(p, t.b, i0 + g), span_at<false>(p, t.b, i0 + g + 8)};

  /* the weights of tile n, whose scores are there */
  auto weights = [&] {
    const note<COLS> &x = m.about(n);
    if (!plain) cap_scores<NT>(p, s);
    if (!x.whole)
      hide<NT>(s, row, -INFINITY, [&](int i, int e) { return place_at(x, i, e); });
    release(m, 0, n);
    soften<NT>(s, unit * LOG2E, top, sum, old);
  };

  wait_full(m, 0, 0);
  bool some = m.about(0).t >= 0;
  if (some) {
    tide_barrier_wait(m.own_full(), 0);
    tide_hold<NT>(s);
    tide_wgmma_fence();
    start_scores<D, COLS, F16>(s, q, m.tile(0, 0));
    tide_wgmma_wait<0>();
    tide_hold<NT>(s);
    weights();
    pack<F16, NT>(w, s);
  }
  while (some) {
    n++;
    wait_full(m, 0, n);
    if (m.about(n).t < 0) break;
    tide_hold<NT>(s);
    tide_hold<NO>(o);
    tide_hold<NW>(w);
    tide_wgmma_fence();
    start_scores<D, COLS, F16>(s, q, m.tile(0, n));
    wait_full(m, 1, n - 1);
    tide_wgmma_fence();
    add_weighed<D, COLS, F16>(o, w, m.tile(1, n - 1));
    tide_wgmma_commit();
    tide_wgmma_wait<1>();
    tide_hold<NT>(s);
    weights();
    tide_finish(sum[0] + sum[1]);
    tide_wgmma_wait<0>();
    tide_hold<NO>(o);
    tide_hold<NW>(w);
    release(m, 1, n - 1);
    shrink<NO>(o, old);
    pack<F16, NT>(w, s);
  }
  if (some) {
    wait_full(m, 1, n - 1);
    tide_hold<NO>(o);
    tide_hold<NW>(w);
    tide_wgmma_fence();
    add_weighed<D, COLS, F16>(o, w, m.tile(1, n - 1));
    tide_wgmma_commit();
    tide_wgmma_wait<0>();
    tide_hold<NO>(o);
  }

  float factor[2];
  end_rows(lse, lse_at, ls2, i0 + g, p.tq, unit, top, sum, factor);
  write<F16, NO>(o, factor, out, t.b, i0, p.tq, t.h, p.dv);
}

template <int D, bool F16>
__global__ void __launch_bounds__(BLOCK, 1)
forward_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
               const __grid_constant__ CUtensorMap v, tide_attend p, tide_heads out,
               tide_array lse, int64_t ls0, int64_t ls1, int64_t ls2)
{
  TIDE_DYNAMIC_SHARED(raw);
  typedef typename shape<D>::shared M;
  M m = memory_of<M>(raw);
  task t = task_of(p);
  /* 40 * 128 + 232 * 256 is what the block was given, 168 * 384 */
  if (threadIdx.x < GROUP) {
    tide_registers_give<40>();
    if (threadIdx.x < 32) produce<D>(m, p, t, &q, &k, &v);
  } else {
    tide_registers_take<232>();
    consume<D, F16>(m, p, t, out, lse, t.b * ls0 + t.h * ls1, ls2);
  }
}

template <int D, bool F16>
int run(const k_call *call, const tide_attend &p, const tide_heads &out, tide_array lse,
        const int64_t *ls)
{
  enum { COLS = shape<D>::COLS, BYTES = shape<D>::shared::BYTES };
  encoder encode;
  CUtensorMap q, k, v;
  int64_t hk = p.head / p.group;
  int rc = find_encoder(call, &encode);
  if (rc == TIDE_OK) rc = map_of(call, encode, p.q, p.batch, p.tq, p.head, p.d, ROWS, &q);
  if (rc == TIDE_OK) rc = map_of(call, encode, p.k, p.batch, p.tk, hk, p.d, COLS, &k);
  if (rc == TIDE_OK) rc = map_of(call, encode, p.v, p.batch, p.tk, hk, p.dv, COLS, &v);
  if (rc == TIDE_OK)
    rc = tide_cuda_check(call, cudaFuncSetAttribute(
      forward_kernel<D, F16>, cudaFuncAttributeMaxDynamicSharedMemorySize, BYTES));
  if (rc < 0) return rc;
  unsigned n = (unsigned)(p.batch * p.head * ((p.tq + ROWS - 1) / ROWS));
  TIDE_CUDA_LAUNCH(call, (forward_kernel<D, F16>), n, BLOCK, BYTES, q, k, v, p, out, lse, ls[0],
                   ls[1], ls[2]);
  return TIDE_CUDA_LAUNCHED(call);
}

template <bool F16>
int by_width(const k_call *call, const tide_attend &p, const tide_heads &out, tide_array lse,
             const int64_t *ls)
{
  int64_t d = p.d > p.dv ? p.d : p.dv;
  return d <= 64 ? run<64, F16>(call, p, out, lse, ls)
    : d <= 128 ? run<128, F16>(call, p, out, lse, ls) : run<256, F16>(call, p, out, lse, ls);
}

}  // namespace
#endif

bool tide_attention_wgmma_fits(const tide_attend &p)
{
  int64_t hk = p.head / p.group;
  return tide_attention_mma_fits(p) && !p.bias.data && p.tk > 0
    && mappable(p.q, p.batch, p.tq, p.head, p.d) && mappable(p.k, p.batch, p.tk, hk, p.d)
    && mappable(p.v, p.batch, p.tk, hk, p.dv);
}

int tide_attention_wgmma(const k_call *call, const tide_attend &p, tide_heads out, tide_array lse,
                         const int64_t *lse_stride)
{
  int rc = attention_wgmma_here(call);
  if (rc < 0) return rc;
#ifdef TIDE_SM90A
  return p.q.dtype == TIDE_F16 ? by_width<true>(call, p, out, lse, lse_stride)
                               : by_width<false>(call, p, out, lse, lse_stride);
#else
  (void)out, (void)lse, (void)lse_stride;
  return rc;
#endif
}
