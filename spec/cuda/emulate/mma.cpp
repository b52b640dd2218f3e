/* Products and loads of matrix fragments on emulated threads, a warp at a time. Which element lies
 * where: PTX ISA, "Matrix Fragments for mma.m16n8k16", ldmatrix. Spec only.
 */
#include "mma_emulated.h"

namespace {

enum { LANES = 32 };

template <class T> T of_lane(const unsigned char *all, int lane)
{
  T r;
  memcpy(&r, all + lane * TIDE_EMULATE_SLOT, sizeof r);
  return r;
}

/* Two neighbours of a register: the second, `by` floats behind. */
template <bool F16> void unpack(float *to, uint32_t pair, int by)
{
  uint16_t bits[2];
  memcpy(bits, &pair, sizeof bits);
  to[0] = tide_emulate_half<F16>(&bits[0]);
  to[by] = tide_emulate_half<F16>(&bits[1]);
}

}  // namespace

/* Sums run over k in order. */
template <bool F16> void tide_emulate_mma(const unsigned char *all)
{
  float a[16][16], b[16][8], c[16][8], *to[LANES];
  for (int lane = 0; lane < LANES; lane++) {
    const tide_emulate_tile x = of_lane<tide_emulate_tile>(all, lane);
    int g = lane / 4, t = lane % 4 * 2;
    for (int r = 0; r < 4; r++) unpack<F16>(&a[g + r % 2 * 8][t + r / 2 * 8], x.a[r], 1);
    for (int r = 0; r < 2; r++) unpack<F16>(&b[t + r * 8][g], x.b[r], 8);
    for (int e = 0; e < 4; e++) c[g + e / 2 * 8][t + e % 2] = x.c[e];
    to[lane] = x.c;
  }
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < 16; k++)
      for (int col = 0; col < 8; col++) c[row][col] += a[row][k] * b[k][col];
  for (int lane = 0; lane < LANES; lane++)
    for (int e = 0; e < 4; e++) to[lane][e] = c[lane / 4 + e / 2 * 8][lane % 4 * 2 + e % 2];
}
template void tide_emulate_mma<false>(const unsigned char *all);
template void tide_emulate_mma<true>(const unsigned char *all);

template <bool TRANS> void tide_emulate_ldmatrix(const unsigned char *all)
{
  uint16_t rows[LANES][8];
  for (int lane = 0; lane < LANES; lane++)
    memcpy(rows[lane], of_lane<tide_emulate_rows>(all, lane).row, sizeof rows[lane]);
  for (int lane = 0; lane < LANES; lane++) {
    uint32_t *to = of_lane<tide_emulate_rows>(all, lane).r;
    int g = lane / 4, t = lane % 4 * 2;
    for (int m = 0; m < 4; m++) {
      const uint16_t pair[2] = {TRANS ? rows[m * 8 + t][g] : rows[m * 8 + g][t],
                                TRANS ? rows[m * 8 + t + 1][g] : rows[m * 8 + g][t + 1]};
      memcpy(&to[m], pair, sizeof pair);
    }
  }
}
template void tide_emulate_ldmatrix<false>(const unsigned char *all);
template void tide_emulate_ldmatrix<true>(const unsigned char *all);
