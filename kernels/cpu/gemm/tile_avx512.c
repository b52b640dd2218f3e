/* The f32 tile for AVX-512, also for operands of 16 bits, which packing widens. See tile_zmm.h. */
#if defined(__x86_64__) && defined(__GNUC__)

#define ZMM_K 1
#include "kernels/cpu/gemm/tile_zmm.h"

/* 704 f32 of 14 rows stay in the first-level cache. */
static const tile_kernel kernel = {
  .mr = ZMM_ROWS, .nr = ZMM_COLS, .kr = 1, .esize = 4, .kc = 704, .cols = 448 << 10,
  .whole = 1 << 20, .own = OWN_BYTES,
  .pack_a = zmm_pack_rows, .pack_b = zmm_pack_cols, .run = zmm_run, .to_half = tide__tile_to_half
};

const tile_kernel *tide__tile_kernel_avx512(void) { return &kernel; }

#else

#include "kernels/cpu/gemm/tile.h"

const tile_kernel *tide__tile_kernel_avx512(void) { return 0; }

#endif
