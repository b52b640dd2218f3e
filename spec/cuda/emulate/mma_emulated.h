/* Twins of the assembly of kernels/cuda/mma.cuh: lanes meet, and the last one to come works out
 * what all of them get (mma.cpp). Copies are done late, at the wait, so that a missing wait is
 * seen. Spec only.
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

/* What a lane gives to mma.m16n8k16: its parts of c, a and b. */
struct tide_emulate_tile { float *c; uint32_t a[4], b[2]; };
template <bool F16> void tide_emulate_mma(const unsigned char *all);
extern template void tide_emulate_mma<false>(const unsigned char *all);
extern template void tide_emulate_mma<true>(const unsigned char *all);

template <bool F16> void tide_mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
  tide_emulate_tile give = {c, {a[0], a[1], a[2], a[3]}, {b0, b1}};
  tide_emulate_together(&give, sizeof give, tide_emulate_mma<F16>);
}

/* What a lane gives to ldmatrix.x4: the row that it names, and where its registers are. */
struct tide_emulate_rows { const void *row; uint32_t *r; };
template <bool TRANS> void tide_emulate_ldmatrix(const unsigned char *all);
extern template void tide_emulate_ldmatrix<false>(const unsigned char *all);
extern template void tide_emulate_ldmatrix<true>(const unsigned char *all);

template <bool TRANS> void tide_ldmatrix(uint32_t *r, const void *row)
{
  if ((uintptr_t)row % 16) __builtin_trap();
  tide_emulate_reads(row, 16);
  tide_emulate_rows give = {row, r};
  tide_emulate_together(&give, sizeof give, tide_emulate_ldmatrix<TRANS>);
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
