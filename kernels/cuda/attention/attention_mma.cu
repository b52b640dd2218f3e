/* Attention forward on tensor cores, f16 and bf16, heads up to 256.
 *
 * A warp owns 16 queries and keeps their output in registers while tiles of keys and
 * values pass through shared memory, the next on its way while one is worked on (FlashAttention-2,
 * arXiv 2307.08691). Tiles that no query of the block can see are not loaded; tiles seen whole
 * are not masked. Values of unseen keys get weight 0 and must be finite.
 */
#include "kernels/cuda/attention/attention_mma.cuh"

namespace {

template <int DP> struct forward_shape {
  enum { BC = DP == 256 ? 32 : 64, LD = DP + 8, BYTES = (OWN + 4 * BC) * LD * 2,
         BLOCKS = blocks_of(BYTES, 4) };
};

template <int DP, bool F16>
__global__ void __launch_bounds__(THREADS, forward_shape<DP>::BLOCKS)
forward_kernel(tide_attend p, tide_heads out, tide_array lse, int64_t ls0, int64_t ls1, int64_t ls2,
               bool aligned)
{
  using S = forward_shape<DP>;
  enum { BC = S::BC, LD = S::LD, NT = BC / 8, NO = DP / 8 };
  TIDE_DYNAMIC_SHARED(raw);
  uint16_t *qs = reinterpret_cast<uint16_t *>(raw), *tiles = qs + OWN * LD;
  int64_t per = (p.tq + OWN - 1) / OWN, rest = blockIdx.x / per;
  /* the last queries see most: first, so that the short blocks fill the end */
  int64_t i0 = (per - 1 - (int64_t)(blockIdx.x % per)) * OWN, b = rest / p.head, h = rest % p.head;
  int64_t hk = h / p.group;
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5, mine = (int)threadIdx.x;
  int64_t w0 = i0 + warp * 16; /* of this warp */
  bool plain = plain_scores(p) && p.cap.scale > 0;
  float unit = plain ? p.cap.scale : 1.0f;
  tide_span row[2] = {span_at<false>(p, b, w0 + lane / 4), span_at<false>(p, b, w0 + lane / 4 + 8)};
  tide_walk<false, BC> walk(p, b, i0, OWN);
  load_tile<DP, OWN>(qs, p.q, b, i0, p.tq, h, p.d, aligned);
  /* mask data of keys is loaded with a tile and kept after the work on the tile before */
  about key = {};
  auto load = [&](const tide_step &x, int stage) {
    uint16_t *at = tiles + stage * 2 * BC * LD;
    load_tile<DP, BC>(at, p.k, b, x.t, p.tk, hk, p.d, aligned);
    load_tile<DP, BC>(at + BC * LD, p.v, b, x.t, p.tk, hk, p.dv, aligned);
    int last;
    if (!x.whole && mine < BC) key = about_token<false>(p, b, x.t + mine, &last);
  };
  auto keep = [&](int stage) {
    if (mine < BC) about_of<LD>(tiles + stage * 2 * BC * LD, mine) = key;
  };
  tide_step now = walk.next();
  int stage = 0;
  if (now.t >= 0) {
    load(now, stage);
    keep(stage);
  }
  tide_copy_commit();
  float o[NO][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  while (now.t >= 0) {
    tide_step next = walk.next();
    if (next.t >= 0) load(next, stage ^ 1);
    tide_copy_commit();
    tide_copy_wait<1>();
    __syncthreads();
    const uint16_t *ks = tiles + stage * 2 * BC * LD, *vs = ks + BC * LD;
    float s[NT][4] = {}, old[2];
    product<F16, LD, NT>(s, qs + warp * 16 * LD, ks, (int)p.d);
    if (!plain) cap_scores<NT>(p, s);
    if (p.bias.data) add_bias<false, NT>(p, b, h, w0, now.t, s);
    if (!now.whole)
      hide<NT>(s, row, -INFINITY, [&](int n, int e) {
        const about &x = about_of<LD>(ks, n * 8 + lane % 4 * 2 + e);
        return asked{x.document, x.position, x.position};
      });
    soften<NT>(s, unit * LOG2E, top, sum, old);
    shrink<NO>(o, old);
    weigh<F16, LD, NT, NO>(o, s, vs, (int)p.dv);
    keep(stage ^ 1);
    __syncthreads();
    stage ^= 1;
    now = next;
  }
  tide_copy_wait<0>();
  float factor[2];
  end_rows(lse, b * ls0 + h * ls1, ls2, w0 + lane / 4, p.tq, unit, top, sum, factor);
  write<F16, NO>(o, factor, out, b, w0, p.tq, h, p.dv);
}

template <int DP, bool F16>
int run(const k_call *call, const tide_attend &p, const tide_heads &out, tide_array lse,
        const int64_t *ls)
{
  bool aligned = vectors(p.q, p.d) && vectors(p.k, p.d) && vectors(p.v, p.dv);
  int bytes = forward_shape<DP>::BYTES;
  int rc = tide_cuda_check(call, cudaFuncSetAttribute(
    forward_kernel<DP, F16>, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes));
  if (rc < 0) return rc;
  unsigned n = (unsigned)(p.batch * p.head * ((p.tq + OWN - 1) / OWN));
  TIDE_CUDA_LAUNCH(call, (forward_kernel<DP, F16>), n, THREADS, bytes, p, out, lse, ls[0], ls[1],
                   ls[2], aligned);
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

bool tide_attention_mma_fits(const tide_attend &p)
{
  int dtype = p.q.dtype;
  bool half = dtype == TIDE_BF16 || dtype == TIDE_F16;
  return half && p.k.dtype == dtype && p.v.dtype == dtype && p.d <= 256 && p.dv <= 256
    && p.tq <= TIDE_MOST_TOKENS && p.tk <= TIDE_MOST_TOKENS;
}

int tide_attention_mma(const k_call *call, const tide_attend &p, tide_heads out, tide_array lse,
                       const int64_t *lse_stride)
{
  return p.q.dtype == TIDE_F16 ? by_width<true>(call, p, out, lse, lse_stride)
                               : by_width<false>(call, p, out, lse, lse_stride);
}
