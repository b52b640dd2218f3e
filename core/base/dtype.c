/* Element types: the table of dtype.def, promotion, and the conversions of half floats.
 *
 * The one idea: the table is indexed by the public number of a type; an unknown number is answered
 * with null, 0 or -1, never with a read outside the table.
 *
 * The half conversions avoid f32 denormals as operands, because kernels run with denormals flushed:
 * an f16 subnormal is an ordinary f32 number and must survive.
 *
 * Layer 0.
 */
#include "core/base/dtype.h"

typedef struct dtype_row {
  const char *name;
  int size, rank, is_float;
} dtype_row;

static const dtype_row rows[TIDE_NDTYPE] = {
#define D(id, text, bytes, order, real) [TIDE_##id] = { text, bytes, order, real },
#include "core/base/dtype.def"
#undef D
};

int tide__dtype_valid(int dtype) { return dtype >= 0 && dtype < TIDE_NDTYPE; }

const char *tide_dtype_name(int dtype)
{
  return tide__dtype_valid(dtype) ? rows[dtype].name : NULL;
}

int tide_dtype_size(int dtype) { return tide__dtype_valid(dtype) ? rows[dtype].size : 0; }

int tide__dtype_is_float(int dtype) { return tide__dtype_valid(dtype) && rows[dtype].is_float; }

/* -1 if either is unknown. */
int tide__dtype_promote(int a, int b)
{
  if (!tide__dtype_valid(a) || !tide__dtype_valid(b)) return -1;
  if (a == b) return a;
  if (rows[a].rank == rows[b].rank) return TIDE_F32;
  return rows[a].rank > rows[b].rank ? a : b;
}

static float float_of_bits(uint32_t u)
{
  float f;
  memcpy(&f, &u, 4);
  return f;
}

static uint32_t bits_of_float(float f)
{
  uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

float tide__f16_to_f32(uint16_t h)
{
  uint32_t sign = (uint32_t)(h & 0x8000u) << 16, rest = h & 0x7fffu;
  if (rest >= 0x7c00u) return float_of_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
  if (rest < 0x400u) {
    float magnitude = (float)(int32_t)rest * 0x1p-24f;
    return float_of_bits(sign | bits_of_float(magnitude));
  }
  return float_of_bits(sign | ((rest << 13) + (112u << 23)));
}

uint16_t tide__f32_to_f16(float f)
{
  uint32_t u = bits_of_float(f), sign = u >> 16 & 0x8000u, rest = u & 0x7fffffffu;
  if (rest > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | (rest >> 13 & 0x3ffu));
  if (rest >= 0x477ff000u) return (uint16_t)(sign | 0x7c00u); /* 65520 and above */
  if (rest < 0x38800000u) {
    /* Below 2^-14. The spacing of floats in [0.5, 1) is 2^-24, that of f16 subnormals, so the
     * addition does the rounding. */
    float shifted = float_of_bits(rest) + 0.5f;
    return (uint16_t)(sign | (bits_of_float(shifted) - 0x3f000000u));
  }
  rest += 0xfffu + (rest >> 13 & 1u) - (112u << 23);
  return (uint16_t)(sign | rest >> 13);
}
