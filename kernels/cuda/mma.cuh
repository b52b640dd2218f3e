/* Tensor-core products of 16x8 tiles, the loads that feed them, copies into shared memory, 2^x.
 *
 * Small functions hold all inline assembly (Hopper's: wgmma.cuh); spec/cuda/emulate
 * has a twin of each, made of the documented layout of the fragments. With g = lane / 4 and
 * t = lane % 4:
 *   a[16 rows, 16 k]: a0 (g, 2t), a1 (g + 8, 2t), a2 (g, 2t + 8), a3 (g + 8, 2t + 8), pairs along k
 *   b[16 k, 8 cols]:  b0 (2t, g), b1 (2t + 8, g), pairs along k
 *   c[16 rows, 8 cols]: c0 c1 (g, 2t), c2 c3 (g + 8, 2t)
 *
 * Source: PTX ISA, mma.m16n8k16 and ldmatrix. Needs sm_80.
 */
#pragma once

#include "kernels/cuda/cuda.cuh"

#ifdef TIDE_EMULATED
#include <mma_emulated.h>
#else

/* c += a b in f32; f16 or bf16 operands. */
template <bool F16>
TIDE_DEVICE void tide_mma(float *c, const uint32_t *a, uint32_t b0, uint32_t b1)
{
  if (F16)
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
                 "{%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/* Four 8x8 matrices; lane l gives the address of row l % 8 of matrix l / 8. Lane gets of each the
 * pair (row g, columns 2t, 2t + 1); transposed, (rows 2t, 2t + 1, column g). */
template <bool TRANS> TIDE_DEVICE void tide_ldmatrix(uint32_t *r, const void *row)
{
  uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
  if (TRANS)
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  else
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}

/* Starts to copy 16 bytes into shared memory, zeros if not there. Both aligned to 16. */
TIDE_DEVICE void tide_copy16(void *to, const void *from, bool there)
{
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::
               "r"((uint32_t)__cvta_generic_to_shared(to)), "l"(from), "r"(there ? 16 : 0)
               : "memory");
}
TIDE_DEVICE void tide_copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits for all groups but the last n. */
template <int N> TIDE_DEVICE void tide_copy_wait()
{
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Returns 2^x to 2 ulp; a result that would be denormal is 0. */
TIDE_DEVICE float tide_exp2(float x)
{
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
/* Returns 1 / x to 1 ulp; a result that would be denormal is 0. */
TIDE_DEVICE float tide_reciprocal(float x)
{
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

#endif

template <bool F16> TIDE_DEVICE uint32_t tide_pack(float lo, float hi)
{
  uint32_t r;
  if (F16) {
    __half2 p = __floats2half2_rn(lo, hi);
    memcpy(&r, &p, 4);
  } else {
    __nv_bfloat162 p = __floats2bfloat162_rn(lo, hi);
    memcpy(&r, &p, 4);
  }
  return r;
}
