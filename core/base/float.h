/* The 16-bit floating-point types: conversions from and to f32, f64 and i64.
 *
 * Every conversion rounds once, to nearest with ties to even. Values beyond the largest number
 * become infinity; a NaN stays a NaN of its sign and is quiet. From f64 and i64, which would round
 * twice by way of f32 or f64, the first step rounds to odd: it truncates and sets the last bit if
 * it dropped a non-zero part, so the second step rounds correctly.
 *
 * All are branch-free, so loops over them vectorise. They hold with denormals flushed, as in
 * kernels/cpu: an f16 denormal is a normal f32 number at every step.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#define TIDE_FLOAT_FN static inline __attribute__((always_inline, unused))

TIDE_FLOAT_FN uint32_t tide__f32_bits(float x)
{
  uint32_t u;
  memcpy(&u, &x, 4);
  return u;
}

TIDE_FLOAT_FN float tide__bits_f32(uint32_t u)
{
  float x;
  memcpy(&x, &u, 4);
  return x;
}

/* ---- from 16 bits: exact ---- */

TIDE_FLOAT_FN float tide__bf16_to_f32(uint16_t h) { return tide__bits_f32((uint32_t)h << 16); }

TIDE_FLOAT_FN float tide__f16_to_f32(uint16_t h)
{
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, m = h & 0x7fffu;
  uint32_t normal = (m << 13) + (112u << 23);
  uint32_t special = (m << 13) | 0x7f800000u;
  /* A denormal is an integer multiple of 2^-24. */
  uint32_t small = tide__f32_bits((float)(int32_t)m * 5.9604644775390625e-8f);
  uint32_t quiet = m > 0x7c00u ? 0x400000u : 0u;
  uint32_t r = m < 0x400u ? small : normal;
  r = m >= 0x7c00u ? special | quiet : r;
  return tide__bits_f32(r | sign);
}

/* ---- from f32 ---- */

TIDE_FLOAT_FN uint16_t tide__f32_to_bf16(float f)
{
  uint32_t u = tide__f32_bits(f), r = u + 0x7fffu + ((u >> 16) & 1u);
  return (uint16_t)((f != f ? u | 0x400000u : r) >> 16);
}

TIDE_FLOAT_FN uint16_t tide__f32_to_f16(float f)
{
  uint32_t u = tide__f32_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  uint32_t normal = (a - (112u << 23) + 0xfffu + ((a >> 13) & 1u)) >> 13;
  /* Below 2^-14: floats in [0.5, 1) are spaced as f16 denormals, so the addition rounds. */
  uint32_t small = tide__f32_bits(tide__bits_f32(a) + 0.5f) - 0x3f000000u;
  uint32_t nan = 0x7e00u | ((a >> 13) & 0x1ffu);
  uint32_t r = a < 0x38800000u ? small : normal;
  r = a >= 0x477ff000u ? 0x7c00u : r; /* halfway to the first value that is too large, and above */
  r = a > 0x7f800000u ? nan : r;
  return (uint16_t)(r | sign);
}

/* ---- from f64 and i64 ---- */

/* Rounds v to odd: truncates, and sets the last bit unless v is an f32 number. */
TIDE_FLOAT_FN float tide__f64_to_f32_odd(double v)
{
  float f = (float)v;
  double back = f;
  uint32_t away = (back < 0 ? -back : back) > (v < 0 ? -v : v);
  return tide__bits_f32((tide__f32_bits(f) - away) | (back != v));
}

TIDE_FLOAT_FN uint16_t tide__f64_to_bf16(double v)
{
  return tide__f32_to_bf16(tide__f64_to_f32_odd(v));
}

TIDE_FLOAT_FN uint16_t tide__f64_to_f16(double v)
{
  return tide__f32_to_f16(tide__f64_to_f32_odd(v));
}

/* Returns v itself below 2^53; beyond, v truncated to at most 53 bits, the last of them set if a
 * non-zero part was dropped. */
TIDE_FLOAT_FN double tide__i64_to_f64_odd(int64_t v)
{
  uint64_t u = v < 0 ? 0 - (uint64_t)v : (uint64_t)v, low = u & 0x7ffu;
  u = u >> 53 ? (u - low) | (uint64_t)(low != 0) << 11 : u;
  double size = __builtin_fabs((double)(int64_t)u); /* 2^63 is negative as an int64_t */
  return v < 0 ? -size : size;
}

TIDE_FLOAT_FN uint16_t tide__i64_to_bf16(int64_t v)
{
  return tide__f64_to_bf16(tide__i64_to_f64_odd(v));
}

TIDE_FLOAT_FN uint16_t tide__i64_to_f16(int64_t v)
{
  return tide__f64_to_f16(tide__i64_to_f64_odd(v));
}
