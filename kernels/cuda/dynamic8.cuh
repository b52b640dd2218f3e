/* Dynamic 8-bit numbers on the GPU: the maps of kernels/ref/dynamic8.h in constant memory, and the
 * nearest code by bisection in shared memory.
 */
#pragma once

#include "kernels/cuda/block.cuh"

namespace {

/* The codes of a map: the value of a code, and the middles of magnitudes, ascending. */
struct map8 { float of[256], mid[256]; int top, zero; };

/* Magnitude q, from 0 to 1; see dyn8_magnitude. */
constexpr double magnitude(int q, bool is_signed)
{
  constexpr double tens[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
  int at = is_signed ? q : q + 1, power = 0;
  if (q == 0) return 0;
  if (at == (is_signed ? 128 : 256)) return 1;
  while (at >> (power + 1)) power++;
  double count = 1 << power;
  return tens[is_signed ? power : power - 1] * (0.1 + 0.9 * (at - count + 0.5) / count);
}

constexpr map8 make_map(bool is_signed)
{
  map8 m = {};
  m.top = is_signed ? 128 : 255;
  m.zero = is_signed ? 127 : 0;
  for (int c = 0; c < 256; c++) {
    int q = c - m.zero;
    m.of[c] = (float)(q < 0 ? -magnitude(-q, true) : magnitude(q, is_signed));
    m.mid[c] = c < m.top ? (float)((magnitude(c, is_signed) + magnitude(c + 1, is_signed)) / 2)
                         : INFINITY;
  }
  return m;
}

__constant__ const map8 signed_map = make_map(true), unsigned_map = make_map(false);

/* Loads a map into shared memory; all threads of the block call this. */
TIDE_DEVICE void load_map(map8 *m, bool is_signed)
{
  const map8 &from = is_signed ? signed_map : unsigned_map;
  for (int i = threadIdx.x; i < 256; i += blockDim.x) {
    m->of[i] = from.of[i];
    m->mid[i] = from.mid[i];
  }
  if (threadIdx.x == 0) m->top = from.top, m->zero = from.zero;
}

/* Returns the nearest code of the share t. */
TIDE_DEVICE uint8_t code_of(const map8 &m, float t)
{
  int q = 0;
  float size = fabsf(t);
#pragma unroll
  for (int step = 128; step > 0; step >>= 1)
    if (size > m.mid[q + step - 1]) q += step;
  if (m.zero == 0) return (uint8_t)(t > 0 ? (q > 0 ? q : 1) : 0);
  return (uint8_t)(t < 0 ? 127 - (q < 127 ? q : 127) : 127 + q);
}

}  // namespace
