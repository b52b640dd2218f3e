/* Twins of the assembly of kernels/cuda/mma.cuh: lanes meet, and each works out its part from what
 * the others hold. Copies are done late, at the wait, so that a missing wait is seen. Spec only.
 */
#pragma once

#include "cuda_bf16.h"
#include "cuda_fp16.h"
#include "cuda_runtime.h"

template <bool F16> static inline float tide_emulate_half(const void *p)
{
  uint16_t bits;
  memcpy(&bits, p, 2);
  return F16 ? tide__f16_to_f32(bits) : tide__bf16_to_f32(bits);
}

template <bool F16> void tide_mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
  uint32_t give[6] = {a[0], a[1], a[2], a[3], b0, b1};
  const unsigned char *all = tide_emulate_meet(give, sizeof give);
  int lane = tide_emulate_lane(), g = lane / 4, t = lane % 4;
  for (int e = 0; e < 4; e++) {
    int row = g + (e & 2 ? 8 : 0), col = 2 * t + (e & 1);
    for (int k = 0; k < 16; k++) {
      int a_lane = row % 8 * 4 + k % 8 / 2, a_reg = (row >= 8 ? 1 : 0) + (k >= 8 ? 2 : 0);
      int b_lane = col * 4 + k % 8 / 2, b_reg = 4 + (k >= 8);
      c[e] += tide_emulate_half<F16>(all + a_lane * TIDE_EMULATE_SLOT + a_reg * 4 + k % 2 * 2)
        * tide_emulate_half<F16>(all + b_lane * TIDE_EMULATE_SLOT + b_reg * 4 + k % 2 * 2);
    }
  }
}

template <bool TRANS> void tide_ldmatrix(uint32_t *r, const void *row)
{
  if ((uintptr_t)row % 16) __builtin_trap();
  const unsigned char *all = tide_emulate_meet(&row, sizeof row);
  int lane = tide_emulate_lane(), g = lane / 4, t = lane % 4;
  for (int m = 0; m < 4; m++) {
    uint16_t pair[2];
    for (int e = 0; e < 2; e++) {
      int from = TRANS ? 2 * t + e : g, col = TRANS ? g : 2 * t + e;
      const unsigned char *base;
      memcpy(&base, all + (m * 8 + from) * TIDE_EMULATE_SLOT, sizeof base);
      memcpy(&pair[e], base + col * 2, 2);
    }
    memcpy(&r[m], pair, 4);
  }
  __syncwarp(); /* a lane writes to the rows after all have read */
}

void tide_emulate_copy(void *to, const void *from, bool there);
void tide_emulate_commit();
void tide_emulate_wait(int n);
static inline void tide_copy16(void *to, const void *from, bool there)
{
  if ((uintptr_t)to % 16 || (there && (uintptr_t)from % 16)) __builtin_trap();
  tide_emulate_copy(to, from, there);
}
static inline void tide_copy_commit() { tide_emulate_commit(); }
template <int N> void tide_copy_wait() { tide_emulate_wait(N); }
static inline float tide_exp2(float x) { return exp2f(x); }
static inline float tide_reciprocal(float x) { return 1.0f / x; }
