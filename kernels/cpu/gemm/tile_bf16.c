/* The bf16 tile for AVX512_BF16: vdpbf16ps adds the products of two pairs to an f32 sum. See
 * tile_zmm.h.
 *
 * The instruction rounds the sum after each product and counts denormals as zeros.
 */
#if defined(__x86_64__) && defined(__GNUC__)

#define ZMM_K 2
#include "kernels/cpu/gemm/tile_zmm.h"

/* Rounds a finished tile to a bf16 C. */
ZMM static void bf16_to_half(const tile_half *job)
{
  __mmask32 mask = job->cols >= 32 ? 0xffffffffu : (1u << job->cols) - 1;
  for (int i = 0; i < job->rows; i++) {
    const float *src = job->src + i * job->src_rs;
    __m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, src);
    __m512 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), src + 16);
    __m512i h = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
    _mm512_mask_storeu_epi16(job->dst + i * job->dst_rs, mask, h);
  }
}

/* 1,408 bf16 of 14 rows stay in the first-level cache. */
static const tile_kernel kernel = {
  .mr = ZMM_ROWS, .nr = ZMM_COLS, .kr = 2, .esize = 2, .kc = 1408, .cols = 448 << 10,
  .whole = 1 << 20, .own = OWN_BYTES, .half = 1,
  .pack_a = zmm_pack_rows, .pack_b = zmm_pack_cols, .run = zmm_run, .to_half = bf16_to_half
};

const tile_kernel *tide__tile_kernel_bf16(void) { return &kernel; }

#elif !(defined(__aarch64__) && defined(__GNUC__)) /* else tile_neon.c */

#include "kernels/cpu/gemm/tile.h"

const tile_kernel *tide__tile_kernel_bf16(void) { return 0; }

#endif
