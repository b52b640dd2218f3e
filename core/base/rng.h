/* The counter-based generator: Philox4x32-10 (Salmon, Moraes, Dror, Shaw, SC 2011).
 *
 * A random word is a pure function of (seed, stream, index). Nothing is carried from
 * one draw to the next, so a sharded, resumed or re-ordered run sees the same numbers.
 * Word i is lane i % 4 of the block with counter (i / 4, stream) under key seed.
 */
#pragma once

#include <stdint.h>

/* Attributes of functions that device kernels call too. */
#ifdef __CUDACC__
#define TIDE__ANYWHERE __host__ __device__
#else
#define TIDE__ANYWHERE
#endif

/* Computes the four words of one block. out: 4 words. */
TIDE__ANYWHERE
static inline void tide__philox_block(uint64_t seed, uint64_t stream, uint64_t block, uint32_t *out)
{
  uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
  uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
  uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
  for (int round = 0; round < 10; round++) {
    uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
    uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c1 = (uint32_t)p1;
    c3 = (uint32_t)p0;
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

TIDE__ANYWHERE
static inline uint32_t tide__philox_word(uint64_t seed, uint64_t stream, uint64_t index)
{
  uint32_t w[4];
  tide__philox_block(seed, stream, index >> 2, w);
  return w[index & 3];
}

/* Returns a word as a number in [0, 1), a multiple of 2^-32. */
TIDE__ANYWHERE static inline double tide__philox_unit(uint32_t word) { return word * 0x1p-32; }

/* Returns the standard normal quantile at p (Wichura, AS 241: 1e-15 relative). At (word + 0.5) /
 * 2^32 one word gives one normal, which keeps the index arithmetic of sharded tensors simple. */
double tide__normal_quantile(double p);
/* Returns the cumulative standard normal. */
double tide__normal_cdf(double x);
