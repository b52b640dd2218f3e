/* Element types: the table of dtype.def, promotion, and the conversions of half and FP8 floats.
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

/* ---- FP8: sign, exponent, `fraction` bits, like small halves ---- */

typedef struct fp8_form {
  int fraction, bias;
  uint8_t top, infinity; /* codes of the largest number, and of what an infinity becomes */
} fp8_form;

static const fp8_form e4m3 = { 3, 7, 0x7e, 0x7f }, e5m2 = { 2, 15, 0x7b, 0x7c };

static uint8_t fp8_of(float f, fp8_form form)
{
  uint32_t u = bits_of_float(f), rest = u & 0x7fffffffu, code;
  uint8_t sign = (uint8_t)(u >> 24 & 0x80u);
  int drop = 23 - form.fraction;
  if (rest > 0x7f800000u) return 0x7f;
  if (rest == 0x7f800000u) return form.infinity == 0x7f ? 0x7f : (uint8_t)(sign | form.infinity);
  if (rest < (uint32_t)(128 - form.bias) << 23) {
    /* Subnormal: this power of two has their spacing as its own, so the addition rounds. */
    uint32_t grid = (uint32_t)(128 - form.bias + drop) << 23;
    code = bits_of_float(float_of_bits(rest) + float_of_bits(grid)) - grid;
  } else {
    rest += (1u << (drop - 1)) - 1u + (rest >> drop & 1u) - ((uint32_t)(127 - form.bias) << 23);
    code = rest >> drop;
  }
  return (uint8_t)(sign | (code > form.top ? form.top : code));
}

static float fp8_value(uint8_t h, fp8_form form)
{
  uint32_t sign = (uint32_t)(h & 0x80u) << 24, rest = h & 0x7fu;
  if (rest > form.infinity || rest == 0x7fu) return float_of_bits(0x7fc00000u);
  if (rest == form.infinity) return float_of_bits(sign | 0x7f800000u);
  if (rest < 1u << form.fraction) {
    float unit = float_of_bits((uint32_t)(128 - form.bias - form.fraction) << 23);
    return float_of_bits(sign | bits_of_float((float)(int32_t)rest * unit));
  }
  return float_of_bits(sign | ((rest << (23 - form.fraction)) +
                               ((uint32_t)(127 - form.bias) << 23)));
}

float tide__e4m3_to_f32(uint8_t h) { return fp8_value(h, e4m3); }
float tide__e5m2_to_f32(uint8_t h) { return fp8_value(h, e5m2); }
uint8_t tide__f32_to_e4m3(float f) { return fp8_of(f, e4m3); }
uint8_t tide__f32_to_e5m2(float f) { return fp8_of(f, e5m2); }
