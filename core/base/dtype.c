/* Element types: the table of dtype.def, promotion, and the conversions of FP8 floats. An unknown
 * number gives NULL, 0 or -1, never a read outside the table. */
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

/* Returns the promoted type, or -1 if either is unknown. */
int tide__dtype_promote(int a, int b)
{
  if (!tide__dtype_valid(a) || !tide__dtype_valid(b)) return -1;
  if (a == b) return a;
  if (rows[a].rank == rows[b].rank) return TIDE_F32;
  return rows[a].rank > rows[b].rank ? a : b;
}

int tide__dtype_sums(int sum, int of)
{
  return sum == of || (sum == TIDE_F32 && (of == TIDE_BF16 || of == TIDE_F16));
}

/* ---- FP8: sign, exponent, `fraction` bits, like small halves ---- */

typedef struct fp8_form {
  int fraction, bias;
  uint8_t top, infinity; /* code of the largest number, and of the result for an infinity */
} fp8_form;

static const fp8_form e4m3 = { 3, 7, 0x7e, 0x7f }, e5m2 = { 2, 15, 0x7b, 0x7c };

static uint8_t fp8_of(float f, fp8_form form)
{
  uint32_t u = tide__f32_bits(f), rest = u & 0x7fffffffu, code;
  uint8_t sign = (uint8_t)(u >> 24 & 0x80u);
  int drop = 23 - form.fraction;
  if (rest > 0x7f800000u) return 0x7f;
  if (rest == 0x7f800000u) return form.infinity == 0x7f ? 0x7f : (uint8_t)(sign | form.infinity);
  if (rest < (uint32_t)(128 - form.bias) << 23) {
    /* Subnormal: the spacing of this power of two is that of the subnormals, so the addition
     * rounds. */
    uint32_t grid = (uint32_t)(128 - form.bias + drop) << 23;
    code = tide__f32_bits(tide__bits_f32(rest) + tide__bits_f32(grid)) - grid;
  } else {
    rest += (1u << (drop - 1)) - 1u + (rest >> drop & 1u) - ((uint32_t)(127 - form.bias) << 23);
    code = rest >> drop;
  }
  return (uint8_t)(sign | (code > form.top ? form.top : code));
}

static float fp8_value(uint8_t h, fp8_form form)
{
  uint32_t sign = (uint32_t)(h & 0x80u) << 24, rest = h & 0x7fu;
  if (rest > form.infinity || rest == 0x7fu) return tide__bits_f32(0x7fc00000u);
  if (rest == form.infinity) return tide__bits_f32(sign | 0x7f800000u);
  if (rest < 1u << form.fraction) {
    float unit = tide__bits_f32((uint32_t)(128 - form.bias - form.fraction) << 23);
    return tide__bits_f32(sign | tide__f32_bits((float)(int32_t)rest * unit));
  }
  return tide__bits_f32(sign | ((rest << (23 - form.fraction)) +
                               ((uint32_t)(127 - form.bias) << 23)));
}

float tide__e4m3_to_f32(uint8_t h) { return fp8_value(h, e4m3); }
float tide__e5m2_to_f32(uint8_t h) { return fp8_value(h, e5m2); }
uint8_t tide__f32_to_e4m3(float f) { return fp8_of(f, e4m3); }
uint8_t tide__f32_to_e5m2(float f) { return fp8_of(f, e5m2); }
