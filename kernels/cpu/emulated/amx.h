/* The AMX instructions that the kernels use, as loops over the tile registers of a thread.
 *
 * Every tile is 16 rows of 64 bytes: the only configuration that the kernels set. Source: Intel 64
 * and IA-32 Architectures Software Developer's Manual, volume 2.
 */
#pragma once

#include <stdint.h>
#include <string.h>

#include "kernels/cpu/intrinsics.h"

typedef union emulated_tile {
  uint8_t  bytes[16][64];
  float    sums[16][16];
  uint16_t halves[16][32];
} emulated_tile;

/* The registers of this thread. */
extern _Thread_local emulated_tile tide__emulated_tile[8];

EMULATED void emulated_tile_load(int t, const void *p, int64_t stride)
{
  for (int i = 0; i < 16; i++)
    memcpy(tide__emulated_tile[t].bytes[i], (const char *)p + i * stride, 64);
}

EMULATED void emulated_tile_store(int t, void *p, int64_t stride)
{
  for (int i = 0; i < 16; i++)
    memcpy((char *)p + i * stride, tide__emulated_tile[t].bytes[i], 64);
}

/* c += a * b. The even and the odd elements of k have a sum each. */
EMULATED void emulated_tile_dot(int c, int a, int b)
{
  for (int i = 0; i < 16; i++) {
    float even[16] = {0}, odd[16] = {0};
    for (int p = 0; p < 16; p++) {
      const uint16_t *pair = tide__emulated_tile[a].halves[i] + 2 * p;
      const uint16_t *with = tide__emulated_tile[b].halves[p];
      for (int j = 0; j < 16; j++) {
        even[j] = emulated_flush(__builtin_fmaf(emulated_widen(pair[0]),
                                                emulated_widen(with[2 * j]), even[j]));
        odd[j] = emulated_flush(__builtin_fmaf(emulated_widen(pair[1]),
                                               emulated_widen(with[2 * j + 1]), odd[j]));
      }
    }
    float *sum = tide__emulated_tile[c].sums[i];
    for (int j = 0; j < 16; j++)
      sum[j] = emulated_flush(emulated_flush(sum[j]) + emulated_flush(even[j] + odd[j]));
  }
}

#define TILE_ZERO(t) memset(tide__emulated_tile + (t), 0, sizeof(emulated_tile))
#define TILE_LOAD(t, p, stride) emulated_tile_load(t, p, stride)
#define TILE_LOAD_ONCE(t, p, stride) emulated_tile_load(t, p, stride)
#define TILE_STORE(t, p, stride) emulated_tile_store(t, p, stride)
#define TILE_DOT(c, a, b) emulated_tile_dot(c, a, b)
