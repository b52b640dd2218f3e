/* Twins of the assembly of kernels/cuda/wgmma.cuh; what they do is in wgmma.cpp. Spec only. */
#pragma once

#include "cuda.h"
#include "cuda_runtime.h"

uint32_t tide_shared_address(const void *p);

void tide_barrier_init(uint32_t barrier, uint32_t count);
void tide_barrier_init_fence();
void tide_barrier_expect(uint32_t barrier, uint32_t bytes);
void tide_barrier_arrive(uint32_t barrier);
void tide_barrier_wait(uint32_t barrier, uint32_t parity);
void tide_box_copy(uint32_t to, const CUtensorMap *map, uint32_t barrier, int c0, int c1, int c2,
                   int c3);

/* d[64, n] = (add ? d : 0) + a b. a_registers: null if a is in shared memory. */
struct tide_emulate_product {
  float *d;
  int n;
  const uint32_t *a_registers;
  uint64_t a, b;
  bool b_columns, add, f16;
};
void tide_emulate_wgmma(const tide_emulate_product &p);
void tide_emulate_wgmma_wait(int n);
void tide_wgmma_fence();
void tide_wgmma_commit();
template <int N> void tide_wgmma_wait() { tide_emulate_wgmma_wait(N); }
template <int N, class T> void tide_hold(T (*)[4]) {}
static inline void tide_finish(float) {}

template <bool F16, int N>
void tide_wgmma_rows(float (*d)[4], uint64_t a, uint64_t b, bool add)
{
  tide_emulate_wgmma({d[0], N, nullptr, a, b, false, add, F16});
}
template <bool F16, int N>
void tide_wgmma_columns(float (*d)[4], const uint32_t *a, uint64_t b)
{
  tide_emulate_wgmma({d[0], N, a, 0, b, true, true, F16});
}

template <int N> void tide_registers_give() {}
template <int N> void tide_registers_take() {}
