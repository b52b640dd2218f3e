/* Transposes 16 x 16 words of 32 bits in sixteen AVX-512 registers: 64 moves and no memory.
 *
 * First pairs and quadruples of rows within 128-bit lanes, then the lanes. The words may be floats
 * or pairs of 16 bits.
 */
#pragma once

#if defined(__x86_64__) && defined(__GNUC__)

#include "kernels/cpu/intrinsics.h"
#include "kernels/cpu/isa.h"

TIDE_AVX512_INLINE void transpose16(__m512i r[16])
{
  __m512i t[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 4) {
    __m512i p0 = _mm512_unpacklo_epi32(r[i], r[i + 1]), p1 = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    __m512i p2 = _mm512_unpacklo_epi32(r[i + 2], r[i + 3]);
    __m512i p3 = _mm512_unpackhi_epi32(r[i + 2], r[i + 3]);
    t[i] = _mm512_unpacklo_epi64(p0, p2);
    t[i + 1] = _mm512_unpackhi_epi64(p0, p2);
    t[i + 2] = _mm512_unpacklo_epi64(p1, p3);
    t[i + 3] = _mm512_unpackhi_epi64(p1, p3);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    __m512i lo = _mm512_shuffle_i32x4(t[i], t[i + 4], 0x88);
    __m512i hi = _mm512_shuffle_i32x4(t[i], t[i + 4], 0xdd);
    __m512i lo2 = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0x88);
    __m512i hi2 = _mm512_shuffle_i32x4(t[i + 8], t[i + 12], 0xdd);
    r[i] = _mm512_shuffle_i32x4(lo, lo2, 0x88);
    r[i + 8] = _mm512_shuffle_i32x4(lo, lo2, 0xdd);
    r[i + 4] = _mm512_shuffle_i32x4(hi, hi2, 0x88);
    r[i + 12] = _mm512_shuffle_i32x4(hi, hi2, 0xdd);
  }
}

TIDE_AVX512_INLINE void transpose16_f32(__m512 r[16])
{
  __m512i words[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) words[i] = _mm512_castps_si512(r[i]);
  transpose16(words);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) r[i] = _mm512_castsi512_ps(words[i]);
}

#endif
