/* What the attention kernels of Hopper share: how a block is laid out, which tiles pass by it, the
 * products of whole tiles, tensor maps.
 *
 * A block owns 128 rows. One warp finds the tiles of the other side that its rows see
 * and issues bulk copies of pairs of them, each with a record (note) of which tile it is;
 * two warpgroups own 64 rows each and read. So only one place decides which tiles matter, and a
 * tile seen whole is never judged.
 *
 *   full[stream][stage]:  the copy has landed, its note is written   1 arrival and the bytes
 *   empty[stream][stage]: all warps have read it                     8 arrivals, one a warp
 *
 * The two streams (keys and values, or queries and dout) have barriers of their own, as they are
 * done with at different times. Stream 0 carries the note of a pair; one without a tile ends.
 *
 * For attention_wgmma.cu and attention_wgmma_bwd.cu.
 */
#pragma once

#include "kernels/cuda/attention/attention_mma.cuh"
#include "kernels/cuda/backend.cuh"

#ifdef TIDE_SM90A
#include "kernels/cuda/wgmma.cuh"

namespace {

enum { ROWS = 128, GROUP = 128, CONSUMERS = 2, BLOCK = GROUP * (1 + CONSUMERS), STAGES = 2,
       WIDTH = 64, ALIGN = 1024 };
/* WIDTH: channels of a slab, which is the rows of a tile 128 bytes wide. */

/* ---- shared memory --------------------------------------------------------------------------- */

typedef asked place; /* of a token of the other side */
typedef tide_mark<float> mark;
template <class T> struct alignas(16) pair { T of[2]; };

/* What a tile of the other side is: its first token, or -1 after the last. places: unless whole. */
template <int COLS> struct alignas(16) note {
  int t;
  bool whole;
  pair<place> places[COLS / 2];
  pair<mark> marks[COLS / 2]; /* if the other side are queries */
};

/* Tiles of the block's own rows, then those of both streams by stage, the barriers, the notes. */
template <int D, int COLS, int OWNED> struct memory {
  enum { OWN_SLAB = ROWS * 128, SLAB = COLS * 128, OWN_TILE = D / WIDTH * OWN_SLAB,
         TILE = D / WIDTH * SLAB, STORED = OWNED * OWN_TILE + 2 * STAGES * TILE,
         NBARRIER = 1 + 4 * STAGES, NOTES = STORED + (NBARRIER * 8 + 15) / 16 * 16,
         BYTES = NOTES + STAGES * (int)sizeof(note<COLS>) + ALIGN };
  uint32_t at;
  unsigned char *bytes; /* what lies there */
  TIDE_DEVICE uint32_t own(int i) const { return at + i * OWN_TILE; }
  TIDE_DEVICE uint32_t tile(int stream, int n) const
  {
    return at + OWNED * OWN_TILE + (stream * STAGES + n % STAGES) * TILE;
  }
  TIDE_DEVICE uint32_t own_full() const { return at + STORED; }
  TIDE_DEVICE uint32_t full(int stream, int n) const
  {
    return at + STORED + (1 + stream * STAGES + n % STAGES) * 8;
  }
  TIDE_DEVICE uint32_t empty(int stream, int n) const
  {
    return full(stream, n) + 2 * STAGES * 8;
  }
  TIDE_DEVICE note<COLS> &about(int n) const
  {
    return reinterpret_cast<note<COLS> *>(bytes + NOTES)[n % STAGES];
  }
};

/* By the whole block, at its start. */
template <class M> TIDE_DEVICE M memory_of(unsigned char *raw)
{
  uint32_t start = tide_shared_address(raw), at = (start + ALIGN - 1) & ~(uint32_t)(ALIGN - 1);
  M m = {at, raw + (at - start)};
  if (threadIdx.x == 0) {
    tide_barrier_init(m.own_full(), 1);
    for (int i = 0; i < 2 * STAGES; i++) {
      tide_barrier_init(m.full(i / STAGES, i), 1);
      tide_barrier_init(m.empty(i / STAGES, i), CONSUMERS * GROUP / 32);
    }
    tide_barrier_init_fence();
  }
  __syncthreads();
  return m;
}

/* Wait until tile n of a stream is there; until its stage may be written. One thread of the warp
 * that copies calls the latter: another could sleep through the phase that the first ends. */
template <class M> TIDE_DEVICE void wait_full(const M &m, int stream, int n)
{
  tide_barrier_wait(m.full(stream, n), (uint32_t)(n / STAGES & 1));
}
template <class M> TIDE_DEVICE void wait_empty(const M &m, int stream, int n)
{
  tide_barrier_wait(m.empty(stream, n), (uint32_t)(n / STAGES & 1) ^ 1);
}
/* One arrival of this warp, all lanes of which have waited for the products and read the note. */
template <class M> TIDE_DEVICE void release(const M &m, int stream, int n)
{
  __syncwarp();
  if ((threadIdx.x & 31) == 0) tide_barrier_arrive(m.empty(stream, n));
}

/* ---- the warp that copies -------------------------------------------------------------------- */

/* Fills the places of a tile that is not whole: lane l has tokens l, l + 32 and so on. */
template <bool KEYS, int COLS>
TIDE_DEVICE void places_of(const tide_attend &p, int64_t b, const tide_step &x, place *mine)
{
  if (x.t < 0 || x.whole) return;
#pragma unroll
  for (int c = 0; c < COLS / 32; c++) {
    int last;
    about y = about_token<KEYS>(p, b, x.t + c * 32 + (int)(threadIdx.x & 31), &last);
    mine[c] = {y.document, y.position, last};
  }
}

/* Writes the note of a stage that is empty; the lanes have written when it returns. */
template <int COLS>
TIDE_DEVICE void tell(note<COLS> &to, const tide_step &x, const place *mine)
{
  int lane = (int)threadIdx.x & 31;
  if (lane == 0) to.t = x.t, to.whole = x.whole;
#pragma unroll
  for (int c = 0; c < COLS / 32; c++) {
    int at = c * 32 + lane;
    if (x.t >= 0 && !x.whole) to.places[at / 2].of[at % 2] = mine[c];
  }
  __syncwarp();
}

/* Starts to copy TILE_ROWS rows from t0 on of one head, D channels. By one thread. */
template <int D, int TILE_ROWS>
TIDE_DEVICE void fetch(uint32_t to, const CUtensorMap *map, uint32_t full, int64_t b, int t0,
                       int64_t h)
{
#pragma unroll
  for (int c = 0; c < D / WIDTH; c++)
    tide_box_copy(to + c * TILE_ROWS * 128, map, full, c * WIDTH, (int)h, t0, (int)b);
}

/* ---- tiles: the warpgroups that multiply ----------------------------------------------------- */

/* Returns the bytes to the next 16 of the contraction, as a descriptor counts them. */
TIDE_DEVICE uint64_t along(int i, int slab)
{
  return (uint64_t)((i * 16 / WIDTH * slab + i * 16 % WIDTH * 2) >> 4);
}

/* s = rows cols^T, this warpgroup's 64 rows of an own tile and the COLS of a stage. */
template <int D, int COLS, bool F16>
TIDE_DEVICE void start_scores(float (*s)[4], uint32_t rows, uint32_t cols)
{
  uint64_t a = tide_describe_rows(rows), b = tide_describe_rows(cols);
#pragma unroll
  for (int i = 0; i < D / 16; i++)
    tide_wgmma_rows<F16, COLS>(s, a + along(i, ROWS * 128), b + along(i, COLS * 128), i > 0);
  tide_wgmma_commit();
}

/* o += w cols; not committed. */
template <int D, int COLS, bool F16>
TIDE_DEVICE void add_weighed(float (*o)[4], uint32_t (*w)[4], uint32_t cols)
{
  enum { N = D < 128 ? D : 128, SLAB = COLS * 128 };
  uint64_t b = tide_describe_columns(cols, SLAB);
#pragma unroll
  for (int i = 0; i < COLS / 16; i++)
#pragma unroll
    for (int c = 0; c < D / N; c++)
      tide_wgmma_columns<F16, N>(o + c * N / 8, w[i],
                                 b + (uint64_t)((c * N / WIDTH * SLAB + i * 16 * 128) >> 4));
}

/* Weights as the left operand of the next product. */
template <bool F16, int NT> TIDE_DEVICE void pack(uint32_t (*w)[4], const float (*s)[4])
{
#pragma unroll
  for (int i = 0; i < NT / 2; i++)
#pragma unroll
    for (int r = 0; r < 4; r++)
      w[i][r] = tide_pack<F16>(s[2 * i + r / 2][r % 2 * 2], s[2 * i + r / 2][r % 2 * 2 + 1]);
}

/* Returns the place of a column, as hide takes it. */
template <int COLS> TIDE_DEVICE place place_at(const note<COLS> &x, int n, int e)
{
  return x.places[n * 4 + (int)(threadIdx.x & 3)].of[e];
}

/* ---- from a call ----------------------------------------------------------------------------- */

typedef decltype(&cuTensorMapEncodeTiled) encoder;

/* Returns the driver's function, found once a context. */
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

/* Boxes of `rows` rows of 64 channels of one head of x [b, t, h, d]: coordinates (d, h, t, b).
 * Channels and rows beyond the end are zeros. */
int map_of(const k_call *call, encoder encode, const tide_heads &x, int64_t b, int64_t t, int64_t h,
           int64_t d, int rows, CUtensorMap *map)
{
  int64_t size[4] = {d, h, t, b}, stride[4] = {1, x.h, x.t, x.b};
  cuuint64_t dim[4], bytes[3];
  cuuint32_t box[4] = {WIDTH, 1, (cuuint32_t)rows, 1}, step[4] = {1, 1, 1, 1};
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

}  // namespace
#endif

/* E_UNSUPPORTED, with a sentence, where the kernels cannot run. */
static inline int attention_wgmma_here(const k_call *call)
{
  int capability = tide_cuda_state_of(call->stream)->capability;
  if (capability != 90) {
    snprintf(call->msg, K_MSG, "parameter attention_kernel is 1 (wgmma), which needs compute "
             "capability 9.0; this device has %d.%d; set it to 0 (mma)", capability / 10,
             capability % 10);
    return TIDE_E_UNSUPPORTED;
  }
#ifdef TIDE_SM90A
  return TIDE_OK;
#else
  snprintf(call->msg, K_MSG, "parameter attention_kernel is 1 (wgmma), which is not built in this "
           "libtide_cuda.so; build it with 90 in TIDE_CUDA_ARCHITECTURES, or set it to 0 (mma)");
  return TIDE_E_UNSUPPORTED;
#endif
}

/* Returns whether bulk copies take [b, t, h, d]: rows at multiples of 16 bytes, rising strides. */
static inline bool mappable(const tide_heads &x, int64_t b, int64_t t, int64_t h, int64_t d)
{
  return vectors(x, d) && d > 0 && (b == 1 || x.b > 0) && (t == 1 || x.t > 0)
    && (h == 1 || x.h > 0);
}
