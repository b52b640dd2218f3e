/* Hopper's asynchronous units: products of a warpgroup out of shared memory, bulk copies of boxes
 * of a tensor into it, and the barriers that copies complete on.
 *
 * As in mma.cuh, small functions hold all inline assembly, and spec/cuda/emulate has
 * a twin of each, made of what the PTX ISA documents. Shared memory is named by its 32-bit address.
 *
 * A tile in shared memory is rows of 128 bytes (64 numbers of 16 bits); of row r, the 16-byte piece
 * c lies at place c ^ (r % 8). Copies write it so, products read it so, hence tiles begin at
 * multiples of 1024 bytes. Wider tiles are several such, one after another.
 *
 * Fragments, with w the warp of the warpgroup (rows 16 w .. 16 w + 15), are those of mma.cuh:
 *   a[16 rows, 16 k] four registers;  d[16 rows, N] is N / 8 pieces c0 .. c3
 *
 * Source: PTX ISA, wgmma, mbarrier, cp.async.bulk.tensor, setmaxnreg. Needs sm_90a.
 */
#pragma once

#include <cuda.h>

#include "kernels/cuda/cuda.cuh"

#ifdef TIDE_EMULATED
#include <wgmma_emulated.h>
#else

TIDE_DEVICE uint32_t tide_shared_address(const void *p)
{
  return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- barriers of arrivals and bytes ---------------------------------------------------------- */

/* A phase ends with the last of `count` arrivals, if the bytes expected have come by then. */
TIDE_DEVICE void tide_barrier_init(uint32_t barrier, uint32_t count)
{
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
/* By the thread that has initialised, before others or copies use the barriers. */
TIDE_DEVICE void tide_barrier_init_fence()
{
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
/* Arrives, and lets the phase wait for so many bytes more. */
TIDE_DEVICE void tide_barrier_expect(uint32_t barrier, uint32_t bytes)
{
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
TIDE_DEVICE void tide_barrier_arrive(uint32_t barrier)
{
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/* Until the phase of this parity has ended: 0 is the first phase; 1, asked of a fresh barrier, has
 * ended already. */
TIDE_DEVICE void tide_barrier_wait(uint32_t barrier, uint32_t parity)
{
  uint32_t done;
  do {
    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(barrier), "r"(parity) : "memory");
  } while (!done);
}

/* Starts to copy the box at (c0, c1, c2, c3) of a tensor map; its bytes count on the barrier. What
 * lies outside the tensor is zeros. */
TIDE_DEVICE void tide_box_copy(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0,
                               int c1, int c2, int c3)
{
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
               "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(c0),
               "r"(c1), "r"(c2), "r"(c3) : "memory");
}

/* ---- products of a warpgroup ----------------------------------------------------------------- */

/* Registers are as the products that follow must find them. */
TIDE_DEVICE void tide_wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TIDE_DEVICE void tide_wgmma_commit()
{
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/* Waits for all groups but the last n. */
template <int N> TIDE_DEVICE void tide_wgmma_wait()
{
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
/* The compiler may not move reads or writes of these registers across: it does not know that the
 * products are asynchronous. */
template <int N> TIDE_DEVICE void tide_hold(float (*d)[4])
{
#pragma unroll
  for (int n = 0; n < N; n++)
    asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}
template <int N> TIDE_DEVICE void tide_hold(uint32_t (*a)[4])
{
#pragma unroll
  for (int n = 0; n < N; n++)
    asm volatile("" : "+r"(a[n][0]), "+r"(a[n][1]), "+r"(a[n][2]), "+r"(a[n][3])::"memory");
}

/* Ends no sooner than x is there; x is not -1. The assembler may otherwise move the arithmetic that
 * makes x behind a wait for products, with which it is to overlap. */
TIDE_DEVICE void tide_finish(float x)
{
  asm volatile("{\n.reg .pred p;\nsetp.eq.f32 p, %0, 0fBF800000;\n@p nanosleep.u32 1;\n}"
               ::"f"(x) : "memory");
}

#define TIDE_D32                                                     \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"          \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"
#define TIDE_D64                                                     \
  "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"          \
  "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31," \
  "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47," \
  "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}"
#define TIDE_PIECE(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define TIDE_PIECES(n)                                                                   \
  TIDE_PIECE(n), TIDE_PIECE(n + 1), TIDE_PIECE(n + 2), TIDE_PIECE(n + 3), TIDE_PIECE(n + 4), \
    TIDE_PIECE(n + 5), TIDE_PIECE(n + 6), TIDE_PIECE(n + 7)

/* d[64, N] = a b^T, added to d if `add`; a[64, 16], b[N, 16], both by tide_describe_rows. */
#define TIDE_WGMMA_ROWS_64(type)                                                      \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"                           \
               "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "        \
               TIDE_D32 ", %32, %33, p, 1, 1, 0, 0;\n}"                               \
               : TIDE_PIECES(0) : "l"(a), "l"(b), "r"((int)add))
#define TIDE_WGMMA_ROWS_128(type)                                                     \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"                           \
               "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "       \
               TIDE_D64 ", %64, %65, p, 1, 1, 0, 0;\n}"                               \
               : TIDE_PIECES(0), TIDE_PIECES(8) : "l"(a), "l"(b), "r"((int)add))
template <bool F16, int N>
TIDE_DEVICE void tide_wgmma_rows(float (*d)[4], uint64_t a, uint64_t b, bool add)
{
  static_assert(N == 64 || N == 128, "no other shape has been written");
  if constexpr (N == 64) {
    if (F16) TIDE_WGMMA_ROWS_64("f16");
    else TIDE_WGMMA_ROWS_64("bf16");
  } else {
    if (F16) TIDE_WGMMA_ROWS_128("f16");
    else TIDE_WGMMA_ROWS_128("bf16");
  }
}

/* d[64, N] += a b; a[64, 16] in registers, b[16, N] by tide_describe_columns. */
#define TIDE_WGMMA_COLUMNS_64(type)                                                   \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " "        \
               TIDE_D32 ", {%32,%33,%34,%35}, %36, 1, 1, 1, 1;"                       \
               : TIDE_PIECES(0)                                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define TIDE_WGMMA_COLUMNS_128(type)                                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " "       \
               TIDE_D64 ", {%64,%65,%66,%67}, %68, 1, 1, 1, 1;"                       \
               : TIDE_PIECES(0), TIDE_PIECES(8)                                       \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
template <bool F16, int N>
TIDE_DEVICE void tide_wgmma_columns(float (*d)[4], const uint32_t *a, uint64_t b)
{
  static_assert(N == 64 || N == 128, "no other shape has been written");
  if constexpr (N == 64) {
    if (F16) TIDE_WGMMA_COLUMNS_64("f16");
    else TIDE_WGMMA_COLUMNS_64("bf16");
  } else {
    if (F16) TIDE_WGMMA_COLUMNS_128("f16");
    else TIDE_WGMMA_COLUMNS_128("bf16");
  }
}

/* Registers a thread, of all threads of a warpgroup: some give so that others may take. */
template <int N> TIDE_DEVICE void tide_registers_give()
{
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}
template <int N> TIDE_DEVICE void tide_registers_take()
{
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

#endif

/* ---- where a product finds a tile ------------------------------------------------------------ */

/* Fields of a matrix descriptor: start, the two offsets, in units of 16 bytes; 128-byte swizzle. */
TIDE_DEVICE uint64_t tide_descriptor(uint32_t at, uint32_t leading, uint32_t stride)
{
  return (uint64_t)(at >> 4 & 0x3fff) | (uint64_t)(leading >> 4 & 0x3fff) << 16
    | (uint64_t)(stride >> 4 & 0x3fff) << 32 | (uint64_t)1 << 62;
}
/* Contraction along the rows of the tile (K-major): groups of 8 rows are 1024 bytes apart, the
 * leading offset has no meaning. The next 16 of the contraction are 32 bytes on. */
TIDE_DEVICE uint64_t tide_describe_rows(uint32_t at) { return tide_descriptor(at, 16, 1024); }
/* Contraction down its columns (MN-major): groups of 8 rows are 1024 bytes apart, the next 64
 * columns a whole tile. The next 16 of the contraction are 2048 bytes on. */
TIDE_DEVICE uint64_t tide_describe_columns(uint32_t at, uint32_t tile)
{
  return tide_descriptor(at, tile, 1024);
}
