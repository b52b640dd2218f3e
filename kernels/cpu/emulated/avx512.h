/* The AVX-512 and AVX512-BF16 instructions that the kernels use, as loops over lanes.
 *
 * A build with TIDE_EMULATE includes this after the header of the compiler and keeps its types.
 * Each loop replaces the intrinsic of the same name, so that the kernels of these levels run,
 * slowly, on a processor with AVX2. An intrinsic without a loop here does not compile: add it.
 *
 * Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2.
 */
#pragma once

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cpu/isa.h"

/* Not inlined: a tile of 28 registers would unroll into thousands of lanes. */
#define EMULATED TIDE_AVX2 __attribute__((unused, noinline)) static

typedef int32_t  lanes_i32 __attribute__((vector_size(64)));
typedef uint32_t lanes_u32 __attribute__((vector_size(64)));
typedef uint64_t lanes_u64 __attribute__((vector_size(64)));
typedef uint16_t lanes_u16 __attribute__((vector_size(64)));

/* Defines the function emulated_NAME, whose lane i is `value`. In it, S, W, H and Q of a register
 * name lane i as an i32, u32, u16 and u64. */
#define EMULATED_LANES(result, name, lanes, params, value) \
  EMULATED result emulated_##name params \
  { \
    lanes r; \
    for (int i = 0; i < (int)(sizeof r / sizeof r[0]); i++) r[i] = value; \
    return (result)r; \
  }
#define EMULATED_F32(name, params, value) EMULATED_LANES(__m512, name, __m512, params, value)
#define EMULATED_U32(name, params, value) EMULATED_LANES(__m512i, name, lanes_u32, params, value)
#define EMULATED_U16(name, params, value) EMULATED_LANES(__m512i, name, lanes_u16, params, value)
#define EMULATED_U64(name, params, value) EMULATED_LANES(__m512i, name, lanes_u64, params, value)
/* Defines a function that returns a mask: bit i is `value`. */
#define EMULATED_MASK(type, name, count, params, value) \
  EMULATED type emulated_##name params \
  { \
    uint32_t r = 0; \
    for (int i = 0; i < count; i++) r |= (uint32_t)!!(value) << i; \
    return (type)r; \
  }
#define S(v) ((lanes_i32)(v))[i]
#define W(v) ((lanes_u32)(v))[i]
#define H(v) ((lanes_u16)(v))[i]
#define Q(v) ((lanes_u64)(v))[i]

/* ---- loads and stores. A lane whose mask bit is 0 touches no memory. ---- */

#define EMULATED_MEMORY(type, load, store) \
  EMULATED type emulated_##load(const void *p) { type v; memcpy(&v, p, sizeof v); return v; } \
  EMULATED void emulated_##store(void *p, type v) { memcpy(p, &v, sizeof v); }
EMULATED_MEMORY(__m512, load_ps, store_ps)
EMULATED_MEMORY(__m512i, load_si512, store_si512)

EMULATED_F32(mask_loadu_ps, (__m512 v, __mmask16 k, const float *p), k >> i & 1 ? p[i] : v[i])
EMULATED_U16(maskz_loadu_epi16, (__mmask32 k, const void *p),
             k >> i & 1 ? ((const uint16_t *)p)[i] : 0)

EMULATED __m256i emulated_low_si256(__m512i v)
{
  __m256i low;
  memcpy(&low, &v, sizeof low);
  return low;
}

EMULATED void emulated_mask_storeu_ps(float *p, __mmask16 k, __m512 v)
{
  for (int i = 0; i < 16; i++)
    if (k >> i & 1) p[i] = v[i];
}

EMULATED void emulated_mask_storeu_epi16(void *p, __mmask32 k, __m512i v)
{
  for (int i = 0; i < 32; i++)
    if (k >> i & 1) ((uint16_t *)p)[i] = H(v);
}

#define _mm512_loadu_ps emulated_load_ps
#define _mm512_load_ps emulated_load_ps
#define _mm512_storeu_ps emulated_store_ps
#define _mm512_store_ps emulated_store_ps
#define _mm512_loadu_si512 emulated_load_si512
#define _mm512_load_si512 emulated_load_si512
#define _mm512_storeu_si512 emulated_store_si512
#define _mm512_store_si512 emulated_store_si512
#define _mm512_stream_si512 emulated_store_si512
#define _mm512_mask_loadu_ps emulated_mask_loadu_ps
#define _mm512_maskz_loadu_ps(k, p) emulated_mask_loadu_ps((__m512){0}, k, p)
#define _mm512_mask_storeu_ps emulated_mask_storeu_ps
#define _mm512_maskz_loadu_epi16 emulated_maskz_loadu_epi16
#define _mm256_maskz_loadu_epi16(k, p) \
  emulated_low_si256(emulated_maskz_loadu_epi16((__mmask16)(k), p))
#define _mm512_mask_storeu_epi16 emulated_mask_storeu_epi16

/* ---- constants and casts ---- */

EMULATED_F32(set1_ps, (float x), x)
EMULATED_U16(set1_epi16, (short x), (uint16_t)x)
EMULATED_U32(set1_epi32, (int x), (uint32_t)x)
EMULATED_U64(set1_epi64, (long long x), (uint64_t)x)
/* The arguments of the intrinsic, the last lane first. */
EMULATED_U16(set_epi16, (const uint16_t *x), x[31 - i])

EMULATED __m512i emulated_widen_si256(__m256i v)
{
  __m512i to = {0};
  memcpy(&to, &v, sizeof v);
  return to;
}

#undef _mm512_set1_ps
#define _mm512_set1_ps emulated_set1_ps
#define _mm512_set1_epi16 emulated_set1_epi16
#define _mm512_set1_epi32 emulated_set1_epi32
#define _mm512_set1_epi64 emulated_set1_epi64
#define _mm512_set_epi16(...) emulated_set_epi16((const uint16_t[32]){ __VA_ARGS__ })
#define _mm512_setzero_ps() ((__m512){0})
#define _mm512_setzero_si512() ((__m512i){0})
#define _mm512_castps_si512(v) ((__m512i)(v))
#define _mm512_castsi512_ps(v) ((__m512)(v))
#define _mm512_castsi256_si512 emulated_widen_si256
#define _mm512_castsi512_si256 emulated_low_si256

/* ---- arithmetic on f32 ---- */

EMULATED_F32(add_ps, (__m512 a, __m512 b), a[i] + b[i])
EMULATED_F32(sub_ps, (__m512 a, __m512 b), a[i] - b[i])
EMULATED_F32(mul_ps, (__m512 a, __m512 b), a[i] * b[i])
EMULATED_F32(max_ps, (__m512 a, __m512 b), a[i] > b[i] ? a[i] : b[i])
EMULATED_F32(fmadd_ps, (__m512 a, __m512 b, __m512 c), __builtin_fmaf(a[i], b[i], c[i]))
EMULATED_F32(fmsub_ps, (__m512 a, __m512 b, __m512 c), __builtin_fmaf(a[i], b[i], -c[i]))
EMULATED_F32(mask_mov_ps, (__m512 v, __mmask16 k, __m512 a), k >> i & 1 ? a[i] : v[i])
EMULATED_F32(permutexvar_ps, (__m512i at, __m512 a), a[W(at) & 15])
/* Rounds to the nearest integer, the form of the immediate that the kernels use. */
EMULATED_F32(round_ps, (__m512 a), __builtin_rintf(a[i]))
/* a * 2^floor(b). Beyond 400 in size the result of any a is the same. */
EMULATED_F32(scalef_ps, (__m512 a, __m512 b),
             b[i] != b[i] ? b[i] : scalbnf(a[i], (int)fmaxf(fminf(floorf(b[i]), 400), -400)))

/* Returns the sum of all lanes, halves first, as the header of the compiler adds them. */
EMULATED float emulated_reduce_add_ps(__m512 v)
{
  for (int half = 8; half; half /= 2)
    for (int i = 0; i < half; i++) v[i] += v[i + half];
  return v[0];
}

#define _mm512_add_ps emulated_add_ps
#define _mm512_sub_ps emulated_sub_ps
#define _mm512_mul_ps emulated_mul_ps
#define _mm512_max_ps emulated_max_ps
#define _mm512_fmadd_ps emulated_fmadd_ps
#define _mm512_fmsub_ps emulated_fmsub_ps
#define _mm512_mask_mov_ps emulated_mask_mov_ps
#define _mm512_maskz_mov_ps(k, a) emulated_mask_mov_ps((__m512){0}, k, a)
#define _mm512_mask_mul_ps(v, k, a, b) emulated_mask_mov_ps(v, k, emulated_mul_ps(a, b))
#define _mm512_maskz_mul_ps(k, a, b) emulated_mask_mov_ps((__m512){0}, k, emulated_mul_ps(a, b))
#define _mm512_permutexvar_ps emulated_permutexvar_ps
#undef _mm512_roundscale_ps
#define _mm512_roundscale_ps(a, how) emulated_round_ps(a)
#define _mm512_scalef_ps emulated_scalef_ps
#define _mm512_reduce_add_ps emulated_reduce_add_ps

/* ---- arithmetic on integers ---- */

EMULATED_U16(add_epi16, (__m512i a, __m512i b), (uint16_t)(H(a) + H(b)))
EMULATED_U32(add_epi32, (__m512i a, __m512i b), W(a) + W(b))
EMULATED_U16(max_epu16, (__m512i a, __m512i b), H(a) > H(b) ? H(a) : H(b))
EMULATED_U16(slli_epi16, (__m512i a, unsigned n), (uint16_t)(n < 16 ? H(a) << n : 0))
EMULATED_U32(slli_epi32, (__m512i a, unsigned n), n < 32 ? W(a) << n : 0)
EMULATED_U32(srli_epi32, (__m512i a, unsigned n), n < 32 ? W(a) >> n : 0)
EMULATED_U32(srlv_epi32, (__m512i a, __m512i n), W(n) < 32 ? W(a) >> W(n) : 0)
EMULATED_U64(slli_epi64, (__m512i a, unsigned n), n < 64 ? Q(a) << n : 0)

#define _mm512_add_epi16 emulated_add_epi16
#define _mm512_add_epi32 emulated_add_epi32
#define _mm512_max_epu16 emulated_max_epu16
#define _mm512_and_si512(a, b) ((a) & (b))
#define _mm512_or_si512(a, b) ((a) | (b))
#undef _mm512_slli_epi16
#define _mm512_slli_epi16 emulated_slli_epi16
#undef _mm512_slli_epi32
#define _mm512_slli_epi32 emulated_slli_epi32
#undef _mm512_srli_epi32
#define _mm512_srli_epi32 emulated_srli_epi32
#define _mm512_srlv_epi32 emulated_srlv_epi32
#undef _mm512_slli_epi64
#define _mm512_slli_epi64 emulated_slli_epi64

/* ---- comparisons ---- */

EMULATED_MASK(__mmask16, compare_ps, 16, (__m512 a, __m512 b, int how),
              how == _CMP_NEQ_UQ ? a[i] != b[i]
              : how == _CMP_EQ_OQ ? a[i] == b[i]
              : how == _CMP_GT_OQ ? a[i] > b[i]
                                  : a[i] == a[i] && b[i] == b[i])
EMULATED_MASK(__mmask16, cmpeq_epi32_mask, 16, (__m512i a, __m512i b), S(a) == S(b))
EMULATED_MASK(__mmask16, cmple_epi32_mask, 16, (__m512i a, __m512i b), S(a) <= S(b))
EMULATED_MASK(__mmask16, cmpge_epi32_mask, 16, (__m512i a, __m512i b), S(a) >= S(b))
EMULATED_MASK(__mmask32, cmpge_epu16_mask, 32, (__m512i a, __m512i b), H(a) >= H(b))

#undef _mm512_cmp_ps_mask
#define _mm512_cmp_ps_mask(a, b, how) \
  ({ \
    _Static_assert((how) == _CMP_NEQ_UQ || (how) == _CMP_EQ_OQ || (how) == _CMP_GT_OQ || \
                   (how) == _CMP_ORD_Q, "add the comparison to compare_ps"); \
    emulated_compare_ps(a, b, how); \
  })
#define _mm512_cmpeq_epi32_mask emulated_cmpeq_epi32_mask
#define _mm512_mask_cmple_epi32_mask(k, a, b) ((__mmask16)((k) & emulated_cmple_epi32_mask(a, b)))
#define _mm512_mask_cmpge_epi32_mask(k, a, b) ((__mmask16)((k) & emulated_cmpge_epi32_mask(a, b)))
#define _mm512_cmpge_epu16_mask emulated_cmpge_epu16_mask

/* ---- moves between lanes ---- */

/* Word i of the interleaved words of a and b, within each group of four words; `high` takes the
 * upper two of the group. */
#define FROM_GROUP(a, b, high) \
  ((lanes_u32)(i & 1 ? b : a))[(i & ~3) + ((i & 3) >> 1) + 2 * (high)]
EMULATED_U32(unpacklo_epi32, (__m512i a, __m512i b), FROM_GROUP(a, b, 0))
EMULATED_U32(unpackhi_epi32, (__m512i a, __m512i b), FROM_GROUP(a, b, 1))
EMULATED_U64(unpacklo_epi64, (__m512i a, __m512i b), ((lanes_u64)(i & 1 ? b : a))[i & ~1])
EMULATED_U64(unpackhi_epi64, (__m512i a, __m512i b), ((lanes_u64)(i & 1 ? b : a))[i | 1])
EMULATED_U32(shuffle_i32x4, (__m512i a, __m512i b, int how),
             ((lanes_u32)(i < 8 ? a : b))[4 * (how >> i / 4 * 2 & 3) + (i & 3)])
EMULATED_U16(permutexvar_epi16, (__m512i at, __m512i a), ((lanes_u16)a)[H(at) & 31])
EMULATED_U16(permutex2var_epi16, (__m512i a, __m512i at, __m512i b),
             ((lanes_u16)(H(at) & 32 ? b : a))[H(at) & 31])

#define _mm512_unpacklo_epi32 emulated_unpacklo_epi32
#define _mm512_unpackhi_epi32 emulated_unpackhi_epi32
#define _mm512_unpacklo_epi64 emulated_unpacklo_epi64
#define _mm512_unpackhi_epi64 emulated_unpackhi_epi64
#undef _mm512_shuffle_i32x4
#define _mm512_shuffle_i32x4 emulated_shuffle_i32x4
#define _mm512_permutexvar_epi16 emulated_permutexvar_epi16
#define _mm512_permutex2var_epi16 emulated_permutex2var_epi16

/* ---- conversions ---- */

EMULATED_U32(cvtepu16_epi32, (__m256i a), ((lanes_u16)emulated_widen_si256(a))[i])

EMULATED __m512i emulated_cvtepu8_epi32(__m128i a)
{
  return emulated_cvtepu16_epi32(_mm256_cvtepu8_epi16(a));
}

EMULATED_U64(cvtepu8_epi64, (__m128i a), ((const uint8_t *)&a)[i])

EMULATED __m256i emulated_cvtps_ph(__m512 v)
{
  __m256 half[2];
  memcpy(half, &v, sizeof v);
  return _mm256_set_m128i(_mm256_cvtps_ph(half[1], _MM_FROUND_TO_NEAREST_INT),
                          _mm256_cvtps_ph(half[0], _MM_FROUND_TO_NEAREST_INT));
}

EMULATED __m512 emulated_cvtph_ps(__m256i v)
{
  __m512 to;
  __m256 half[2] = { _mm256_cvtph_ps(_mm256_castsi256_si128(v)),
                     _mm256_cvtph_ps(_mm256_extracti128_si256(v, 1)) };
  memcpy(&to, half, sizeof to);
  return to;
}

#define _mm512_cvtepu8_epi32 emulated_cvtepu8_epi32
#define _mm512_cvtepu8_epi64 emulated_cvtepu8_epi64
#define _mm512_cvtepu16_epi32 emulated_cvtepu16_epi32
#undef _mm512_cvtps_ph
#define _mm512_cvtps_ph(v, how) emulated_cvtps_ph(v)
#define _mm512_cvtph_ps emulated_cvtph_ps

/* ---- bf16. These instructions count denormals, read or made, as zeros. ---- */

EMULATED float emulated_flush(float x)
{
  return fabsf(x) < FLT_MIN ? copysignf(0.0f, x) : x;
}

EMULATED float emulated_widen(uint16_t h)
{
  const uint32_t bits = (uint32_t)h << 16;
  float x;
  memcpy(&x, &bits, sizeof x);
  return emulated_flush(x);
}

/* Rounds to nearest even; a NaN keeps its upper bits and becomes quiet. */
EMULATED uint16_t emulated_narrow(float x)
{
  uint32_t bits;
  x = emulated_flush(x);
  memcpy(&bits, &x, sizeof bits);
  if (x != x) return (uint16_t)(bits >> 16 | 0x40);
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Each sum takes two products of pairs, each fused and rounded: the upper element first. */
EMULATED float emulated_dot_pair(float sum, uint32_t a, uint32_t b)
{
  for (int shift = 16; shift >= 0; shift -= 16)
    sum = emulated_flush(__builtin_fmaf(emulated_widen((uint16_t)(a >> shift)),
                                        emulated_widen((uint16_t)(b >> shift)),
                                        emulated_flush(sum)));
  return sum;
}

EMULATED_F32(dpbf16_ps, (__m512 sum, __m512i a, __m512i b), emulated_dot_pair(sum[i], W(a), W(b)))
/* The lower half of the result is b. */
EMULATED_U16(cvtne2ps_pbh, (__m512 a, __m512 b), emulated_narrow(i < 16 ? b[i & 15] : a[i & 15]))

#define _mm512_dpbf16_ps(sum, a, b) emulated_dpbf16_ps(sum, (__m512i)(a), (__m512i)(b))
#define _mm512_cvtne2ps_pbh emulated_cvtne2ps_pbh

#undef S
#undef W
#undef H
#undef Q
#undef FROM_GROUP
