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
  enum { BC = DP == 256 ? 32 : 64, LD = DP + 8, BYTES = (OWN + 4 * BC) * LD * 2 };
};

/* From q.k to the score of each pair of a tile; -inf where unseen. */
template <int NT>
TIDE_DEVICE void judge(const tide_attend &p, int64_t b, int64_t h, int64_t i0, int64_t j0,
                       bool whole, float (*s)[4])
{
  int lane = (int)threadIdx.x & 31, g = lane / 4, t = lane % 4;
  tide_token q[2] = {tide_query(p, b, i0 + g), tide_query(p, b, i0 + g + 8)};
#pragma unroll
  for (int n = 0; n < NT; n++)
#pragma unroll
    for (int e = 0; e < 4; e++) {
      int64_t i = i0 + g + (e & 2 ? 8 : 0), j = j0 + n * 8 + 2 * t + (e & 1);
      float slope;
      bool sees = whole || tide_sees(p, q[e >> 1], tide_key(p, b, j));
      s[n][e] = sees ? tide_score(p, b, h, i, j, s[n][e], &slope) : -INFINITY;
    }
}

template <int DP, bool F16>
__global__ void __launch_bounds__(THREADS)
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
  int lane = (int)threadIdx.x & 31, warp = (int)threadIdx.x >> 5;
  reach seen = reach_of<false>(p, b, i0);
  load_tile<DP, OWN>(qs, p.q, b, i0, p.tq, h, p.d, aligned);
  auto load = [&](int64_t j, int stage) {
    uint16_t *at = tiles + stage * 2 * BC * LD;
    load_tile<DP, BC>(at, p.k, b, j, p.tk, hk, p.d, aligned);
    load_tile<DP, BC>(at + BC * LD, p.v, b, j, p.tk, hk, p.dv, aligned);
  };
  int64_t j = next_tile<false>(p, seen, b, 0, BC, p.tk);
  int stage = 0;
  if (j < p.tk) load(j, stage);
  tide_copy_commit();
  float o[NO][4] = {}, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0};
  while (j < p.tk) {
    int64_t next = next_tile<false>(p, seen, b, j + BC, BC, p.tk);
    if (next < p.tk) load(next, stage ^ 1);
    tide_copy_commit();
    tide_copy_wait<1>();
    __syncthreads();
    const uint16_t *ks = tiles + stage * 2 * BC * LD, *vs = ks + BC * LD;
    float s[NT][4] = {};
    product<F16, LD, NT>(s, qs + warp * 16 * LD, ks, p.d);
    judge<NT>(p, b, h, i0 + warp * 16, j, tile_whole(p, i0, j, BC), s);
    float old[2];
    soften<NT>(s, LOG2E, top, sum, old);
    shrink<NO>(o, old);
    weigh<F16, LD, NT, NO>(o, s, vs, p.dv);
    __syncthreads();
    stage ^= 1;
    j = next;
  }
  tide_copy_wait<0>();
  float factor[2];
  end_rows(lse, b * ls0 + h * ls1, ls2, i0 + warp * 16 + lane / 4, p.tq, 1.0f, top, sum, factor);
  write<F16, NO>(o, factor, out, b, i0 + warp * 16, p.tq, h, p.dv);
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
  return half && p.k.dtype == dtype && p.v.dtype == dtype && p.d <= 256 && p.dv <= 256;
}

int tide_attention_mma(const k_call *call, const tide_attend &p, tide_heads out, tide_array lse,
                       const int64_t *lse_stride)
{
  return p.q.dtype == TIDE_F16 ? by_width<true>(call, p, out, lse, lse_stride)
                               : by_width<false>(call, p, out, lse, lse_stride);
}
