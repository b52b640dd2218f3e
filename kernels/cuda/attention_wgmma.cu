/* Attention forward on Hopper's asynchronous tensor cores, f16 and bf16, heads of 64 and 128.
 *
 * The one idea: a block has 128 queries. One thread of its first warpgroup keeps tiles of 128 keys
 * and values coming by bulk copies; two warpgroups own 64 queries each and have the scores of the
 * next tile made while the values of the last are added and the weights of this one are worked out
 * (FlashAttention-3, Shah et al. 2024, arXiv 2407.08608; without its turns between warpgroups).
 * Queries and keys are multiplied out of shared memory; weights never leave registers.
 *
 *   full[stage]:  the copy has landed          1 arrival and the bytes
 *   empty[stage]: all warps have read it       8 arrivals, one a warp
 *
 * Keys and values have stages and barriers of their own, as they are done with at different times.
 * No chip has run this: kernels/cuda/STATUS.md. Chosen by parameter attention_kernel alone; what it
 * can serve is in the table of attention.cu. Values of unseen keys get weight 0 and must be finite.
 *
 * TIDE_SM90A: the file is compiled for sm_90a. Without it there is no kernel, and a call says so.
 *
 * Layer 2k.
 */
#include "kernels/cuda/attention_mma.cuh"
#include "kernels/cuda/backend.cuh"

#ifdef TIDE_SM90A
#include "kernels/cuda/wgmma.cuh"

namespace {

enum { ROWS = 128, COLS = 128, GROUP = 128, CONSUMERS = 2, BLOCK = GROUP * (1 + CONSUMERS),
       STAGES = 2, WIDTH = 64, TILE = 128 * 128, ALIGN = 1024 };
/* TILE: bytes of 128 rows of WIDTH channels. */

/* Addresses in shared memory. A tile of D channels is D / WIDTH tiles. */
template <int D> struct layout {
  enum { WIDE = D / WIDTH * TILE, STORED = WIDE * (1 + 2 * STAGES), NBARRIER = 1 + 4 * STAGES,
         BYTES = STORED + NBARRIER * 8 + ALIGN };
  uint32_t q; /* then the keys of each stage, then the values, then the barriers */
  TIDE_DEVICE uint32_t k(int stage) const { return q + (1 + stage) * WIDE; }
  TIDE_DEVICE uint32_t v(int stage) const { return q + (1 + STAGES + stage) * WIDE; }
  TIDE_DEVICE uint32_t barrier(int i) const { return q + STORED + i * 8; }
  TIDE_DEVICE uint32_t q_full() const { return barrier(0); }
  TIDE_DEVICE uint32_t k_full(int stage) const { return barrier(1 + stage); }
  TIDE_DEVICE uint32_t v_full(int stage) const { return barrier(1 + STAGES + stage); }
  TIDE_DEVICE uint32_t k_empty(int stage) const { return barrier(1 + 2 * STAGES + stage); }
  TIDE_DEVICE uint32_t v_empty(int stage) const { return barrier(1 + 3 * STAGES + stage); }
};

template <int D> TIDE_DEVICE void start_barriers(const layout<D> &m)
{
  tide_barrier_init(m.q_full(), 1);
  for (int s = 0; s < STAGES; s++) {
    tide_barrier_init(m.k_full(s), 1);
    tide_barrier_init(m.v_full(s), 1);
    tide_barrier_init(m.k_empty(s), CONSUMERS * GROUP / 32);
    tide_barrier_init(m.v_empty(s), CONSUMERS * GROUP / 32);
  }
  tide_barrier_init_fence();
}

/* How many keys query i sees: the first ones. */
TIDE_DEVICE int seen_by(const tide_attend &p, int64_t i)
{
  int64_t n = p.causal ? p.q_start + i + 1 : p.tk;
  return n < 0 ? 0 : (int)(n < p.tk ? n : p.tk);
}

/* What a block works on: 128 queries of a head, and the tiles of keys that some of them see. */
struct task { int64_t b, h, i0; int ntile; };
TIDE_DEVICE task task_of(const tide_attend &p)
{
  int64_t per = (p.tq + ROWS - 1) / ROWS, rest = blockIdx.x / per;
  /* the last queries see most: first, so that the short blocks fill the end */
  task t = {rest / p.head, rest % p.head, (per - 1 - (int64_t)(blockIdx.x % per)) * ROWS, 0};
  int64_t end = t.i0 + ROWS < p.tq ? t.i0 + ROWS : p.tq;
  t.ntile = (seen_by(p, end - 1) + COLS - 1) / COLS;
  return t;
}

/* ---- the thread that copies ------------------------------------------------------------------ */

/* 128 rows from t0 on of one head, all channels. */
template <int D>
TIDE_DEVICE void fetch(uint32_t to, const CUtensorMap *map, uint32_t full, int64_t b, int64_t t0,
                       int64_t h)
{
  tide_barrier_expect(full, layout<D>::WIDE);
#pragma unroll
  for (int c = 0; c < D / WIDTH; c++)
    tide_box_copy(to + c * TILE, map, full, c * WIDTH, (int)h, (int)t0, (int)b);
}

template <int D>
TIDE_DEVICE void produce(const layout<D> &m, const task &t, int64_t hk, const CUtensorMap *q,
                         const CUtensorMap *k, const CUtensorMap *v)
{
  if (t.ntile > 0) fetch<D>(m.q, q, m.q_full(), t.b, t.i0, t.h);
  for (int n = 0; n <= t.ntile; n++) { /* keys are needed a tile before their values */
    int s = n % STAGES, last = (n + STAGES - 1) % STAGES;
    if (n < t.ntile) {
      tide_barrier_wait(m.k_empty(s), (uint32_t)(n / STAGES & 1) ^ 1);
      fetch<D>(m.k(s), k, m.k_full(s), t.b, (int64_t)n * COLS, hk);
    }
    if (n > 0) {
      tide_barrier_wait(m.v_empty(last), (uint32_t)((n - 1) / STAGES & 1) ^ 1);
      fetch<D>(m.v(last), v, m.v_full(last), t.b, (int64_t)(n - 1) * COLS, hk);
    }
  }
}

/* ---- the warpgroups that multiply ------------------------------------------------------------ */

/* s = q k^T of this warpgroup's queries and the keys of a stage; on its way after the commit. */
template <int D, bool F16>
TIDE_DEVICE void start_scores(float (*s)[4], uint32_t q, uint32_t k)
{
  uint64_t a = tide_describe_rows(q), b = tide_describe_rows(k);
#pragma unroll
  for (int i = 0; i < D / 16; i++) {
    uint64_t on = (uint64_t)((i * 16 / WIDTH * TILE + i * 16 % WIDTH * 2) >> 4);
    tide_wgmma_rows<F16>(s, a + on, b + on, i > 0);
  }
  tide_wgmma_commit();
}

/* o += w v. */
template <int D, bool F16>
TIDE_DEVICE void start_values(float (*o)[4], uint32_t (*w)[4], uint32_t v)
{
  uint64_t b = tide_describe_columns(v, TILE);
#pragma unroll
  for (int i = 0; i < COLS / 16; i++)
    tide_wgmma_columns<F16, D>::add(o, w[i], b + (uint64_t)(i * 16 * 128 >> 4));
  tide_wgmma_commit();
}

/* One arrival of this warp: its lanes have waited for the products that read the stage. */
TIDE_DEVICE void release(uint32_t empty)
{
  if ((threadIdx.x & 31) == 0) tide_barrier_arrive(empty);
}

/* Row r of this lane's two sees the first seen[r] keys of the tile. */
TIDE_DEVICE void hide(float (*s)[4], const int *seen)
{
  int t = (int)(threadIdx.x & 3);
#pragma unroll
  for (int n = 0; n < COLS / 8; n++)
#pragma unroll
    for (int e = 0; e < 4; e++)
      if (n * 8 + 2 * t + (e & 1) >= seen[e >> 1]) s[n][e] = -INFINITY;
}

/* Weights as the left operand of the next product. */
template <bool F16> TIDE_DEVICE void pack(uint32_t (*w)[4], const float (*s)[4])
{
#pragma unroll
  for (int i = 0; i < COLS / 16; i++)
#pragma unroll
    for (int r = 0; r < 4; r++)
      w[i][r] = tide_pack<F16>(s[2 * i + r / 2][r % 2 * 2], s[2 * i + r / 2][r % 2 * 2 + 1]);
}

template <int D, bool F16>
TIDE_DEVICE void consume(const layout<D> &m, const tide_attend &p, const task &t,
                         const tide_heads &out, const tide_array &lse, int64_t lse_at, int64_t ls2)
{
  enum { NT = COLS / 8, NO = D / 8, NW = COLS / 16 };
  int warp = (int)threadIdx.x / 32 - GROUP / 32, g = (int)(threadIdx.x & 31) / 4;
  int64_t i0 = t.i0 + warp * 16;      /* of this warp */
  uint32_t q = m.q + warp / 4 * (64 * 128);
  float unit = p.scale * LOG2E, top[2] = {-INFINITY, -INFINITY}, sum[2] = {0, 0}, old[2];
  float o[NO][4] = {}, s[NT][4] = {};
  uint32_t w[NW][4];

  int least = seen_by(p, i0), some[2] = {seen_by(p, i0 + g), seen_by(p, i0 + g + 8)};
  auto weights = [&](int n) {
    int seen[2] = {some[0] - n * COLS, some[1] - n * COLS};
    if (least < (n + 1) * COLS) hide(s, seen);
    soften<NT>(s, unit, top, sum, old);
  };

  if (t.ntile > 0) {
    tide_barrier_wait(m.q_full(), 0);
    tide_barrier_wait(m.k_full(0), 0);
    tide_hold<NT>(s);
    tide_wgmma_fence();
    start_scores<D, F16>(s, q, m.k(0));
    tide_wgmma_wait<0>();
    tide_hold<NT>(s);
    release(m.k_empty(0));
    weights(0);
    pack<F16>(w, s);
  }
  for (int n = 1; n < t.ntile; n++) {
    int now = n % STAGES, last = (n - 1) % STAGES;
    tide_barrier_wait(m.k_full(now), (uint32_t)(n / STAGES & 1));
    tide_hold<NT>(s);
    tide_hold<NO>(o);
    tide_hold<NW>(w);
    tide_wgmma_fence();
    start_scores<D, F16>(s, q, m.k(now));
    tide_barrier_wait(m.v_full(last), (uint32_t)((n - 1) / STAGES & 1));
    tide_wgmma_fence();
    start_values<D, F16>(o, w, m.v(last));
    tide_wgmma_wait<1>();
    tide_hold<NT>(s);
    release(m.k_empty(now));
    weights(n);
    tide_wgmma_wait<0>();
    tide_hold<NO>(o);
    tide_hold<NW>(w);
    release(m.v_empty(last));
    shrink<NO>(o, old);
    pack<F16>(w, s);
  }
  if (t.ntile > 0) {
    int last = t.ntile - 1;
    tide_barrier_wait(m.v_full(last % STAGES), (uint32_t)(last / STAGES & 1));
    tide_hold<NO>(o);
    tide_hold<NW>(w);
    tide_wgmma_fence();
    start_values<D, F16>(o, w, m.v(last % STAGES));
    tide_wgmma_wait<0>();
    tide_hold<NO>(o);
  }

  float factor[2];
  end_rows(lse, lse_at, ls2, i0 + g, p.tq, p.scale, top, sum, factor);
  write<F16, NO>(o, factor, out, t.b, i0, p.tq, t.h, D);
}

template <int D, bool F16>
__global__ void __launch_bounds__(BLOCK, 1)
forward_kernel(const __grid_constant__ CUtensorMap q, const __grid_constant__ CUtensorMap k,
               const __grid_constant__ CUtensorMap v, tide_attend p, tide_heads out,
               tide_array lse, int64_t ls0, int64_t ls1, int64_t ls2)
{
  TIDE_DYNAMIC_SHARED(raw);
  layout<D> m = {(tide_shared_address(raw) + ALIGN - 1) & ~(uint32_t)(ALIGN - 1)};
  task t = task_of(p);
  if (threadIdx.x == 0) start_barriers(m);
  __syncthreads();
  /* 24 * 128 + 240 * 256 is what the block was given, 168 * 384 */
  if (threadIdx.x < GROUP) {
    tide_registers_give<24>();
    if (threadIdx.x == 0) produce(m, t, t.h / p.group, &q, &k, &v);
  } else {
    tide_registers_take<240>();
    consume<D, F16>(m, p, t, out, lse, t.b * ls0 + t.h * ls1, ls2);
  }
}

/* ---- from a call ----------------------------------------------------------------------------- */

typedef decltype(&cuTensorMapEncodeTiled) encoder;

/* The driver's function, found once a context. */
int find_encoder(const k_call *call, encoder *out)
{
  tide_cuda_state *s = tide_cuda_state_of(call->stream);
  if (!s->encode) {
    cudaDriverEntryPointQueryResult found;
    cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &s->encode, 12000,
                                                     cudaEnableDefault, &found);
    if (e != cudaSuccess) return tide_cuda_check(call, e);
    if (found != cudaDriverEntryPointSuccess || !s->encode) {
      s->encode = nullptr;
      snprintf(call->msg, K_MSG, "the CUDA driver has no cuTensorMapEncodeTiled; update it to one "
               "of CUDA 12, or set parameter attention_kernel to 0 (mma)");
      return TIDE_E_UNSUPPORTED;
    }
  }
  *out = reinterpret_cast<encoder>(s->encode);
  return TIDE_OK;
}

/* Boxes of 128 rows of 64 channels of one head of x [b, t, h, d]: coordinates (d, h, t, b). */
int map_of(const k_call *call, encoder encode, const tide_heads &x, int64_t b, int64_t t, int64_t h,
           int64_t d, CUtensorMap *map)
{
  int64_t size[4] = {d, h, t, b}, stride[4] = {1, x.h, x.t, x.b};
  cuuint64_t dim[4], bytes[3];
  cuuint32_t box[4] = {WIDTH, 1, 128, 1}, step[4] = {1, 1, 1, 1};
  for (int i = 0; i < 4; i++) {
    dim[i] = (cuuint64_t)size[i];
    /* a dim of 1 has any stride; the map wants one that it could have */
    if (i > 0) bytes[i - 1] = (cuuint64_t)(size[i] == 1 ? d : stride[i]) * 2;
  }
  CUresult e = encode(map, x.dtype == TIDE_F16 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT16
                                               : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                      4, x.data, dim, bytes, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (e == CUDA_SUCCESS) return TIDE_OK;
  snprintf(call->msg, K_MSG, "the CUDA driver refuses a tensor map of [%lld %lld %lld %lld] "
           "(error %d); set parameter attention_kernel to 0 (mma)", (long long)b, (long long)t,
           (long long)h, (long long)d, (int)e);
  return TIDE_E_UNSUPPORTED;
}

template <int D, bool F16>
int run(const k_call *call, const tide_attend &p, const tide_heads &out, tide_array lse,
        const int64_t *ls)
{
  encoder encode;
  CUtensorMap q, k, v;
  int64_t hk = p.head / p.group;
  int rc = find_encoder(call, &encode);
  if (rc == TIDE_OK) rc = map_of(call, encode, p.q, p.batch, p.tq, p.head, D, &q);
  if (rc == TIDE_OK) rc = map_of(call, encode, p.k, p.batch, p.tk, hk, D, &k);
  if (rc == TIDE_OK) rc = map_of(call, encode, p.v, p.batch, p.tk, hk, D, &v);
  if (rc == TIDE_OK)
    rc = tide_cuda_check(call, cudaFuncSetAttribute(
      forward_kernel<D, F16>, cudaFuncAttributeMaxDynamicSharedMemorySize, layout<D>::BYTES));
  if (rc < 0) return rc;
  unsigned n = (unsigned)(p.batch * p.head * ((p.tq + ROWS - 1) / ROWS));
  TIDE_CUDA_LAUNCH(call, (forward_kernel<D, F16>), n, BLOCK, layout<D>::BYTES, q, k, v, p, out, lse,
                   ls[0], ls[1], ls[2]);
  return TIDE_CUDA_LAUNCHED(call);
}

}  // namespace
#endif

/* What bulk copies ask of [b, t, h, d]: rows at multiples of 16 bytes, strides that go up. */
static bool mappable(const tide_heads &x, int64_t b, int64_t t, int64_t h, int64_t d)
{
  return vectors(x, d) && t <= INT32_MAX - 2 * OWN && (b == 1 || x.b > 0) && (t == 1 || x.t > 0)
    && (h == 1 || x.h > 0);
}

bool tide_attention_wgmma_fits(const tide_attend &p)
{
  int64_t hk = p.head / p.group;
  bool plain = !p.q_index && !p.bias.data && p.window_left < 0 && p.window_right < 0
    && p.softcap == 0 && p.scale > 0;
  return plain && tide_attention_mma_fits(p) && (p.d == 64 || p.d == 128) && p.d == p.dv
    && p.tk > 0 && mappable(p.q, p.batch, p.tq, p.head, p.d)
    && mappable(p.k, p.batch, p.tk, hk, p.d) && mappable(p.v, p.batch, p.tk, hk, p.d);
}

int tide_attention_wgmma(const k_call *call, const tide_attend &p, tide_heads out, tide_array lse,
                         const int64_t *lse_stride)
{
  int capability = tide_cuda_state_of(call->stream)->capability;
  if (capability != 90) {
    snprintf(call->msg, K_MSG, "parameter attention_kernel is 1 (wgmma), which needs compute "
             "capability 9.0; this device has %d.%d; set it to 0 (mma)", capability / 10,
             capability % 10);
    return TIDE_E_UNSUPPORTED;
  }
#ifdef TIDE_SM90A
  if (p.d == 64)
    return p.q.dtype == TIDE_F16 ? run<64, true>(call, p, out, lse, lse_stride)
                                 : run<64, false>(call, p, out, lse, lse_stride);
  return p.q.dtype == TIDE_F16 ? run<128, true>(call, p, out, lse, lse_stride)
                               : run<128, false>(call, p, out, lse, lse_stride);
#else
  (void)p, (void)out, (void)lse, (void)lse_stride;
  snprintf(call->msg, K_MSG, "parameter attention_kernel is 1 (wgmma), which is not built in this "
           "libtide_cuda.so; build it with 90 in TIDE_CUDA_ARCHITECTURES, or set it to 0 (mma)");
  return TIDE_E_UNSUPPORTED;
#endif
}
