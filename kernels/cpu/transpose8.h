/* Transposes 8 x 8 words held in registers: for packing and for tiles. Needs AVX2. */
#pragma once

#include "kernels/cpu/vec.h"

#if defined(__x86_64__) && defined(__GNUC__)

/* Transposes 8 x 8: r[i], the i-th row, becomes the i-th column. */
TIDE_AVX2_INLINE void transpose8_f32(__m256 r[8])
{
  __m256 t[8];
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) { /* pairs of rows: words 0 4 1 5 .. of each half */
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; i++) { /* fours of rows; r[4 i + j] has columns j and j + 4 */
    const __m256 *from = t + 4 * i;
    r[4 * i] = _mm256_shuffle_ps(from[0], from[2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(from[0], from[2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(from[1], from[3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(from[1], from[3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; i++) {
    t[i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x20);
    t[4 + i] = _mm256_permute2f128_ps(r[i], r[4 + i], 0x31);
  }
  memcpy(r, t, sizeof t);
}

#endif
