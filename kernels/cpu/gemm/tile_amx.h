/* The AMX tile instructions and their state.
 *
 * They are written as assembly because the compiler's own wrappers do not declare that they read
 * memory: it may then drop or delay the stores that fill a tile's source.
 *
 * Tile numbers are literal digits, pointers any type, strides bytes. Use the instructions only
 * between tide__tile_amx_begin and tide__tile_amx_end, and only if CPU_ISA_AMX is set.
 */
#pragma once

#include <stdint.h>

#ifdef TIDE_EMULATE
#include "kernels/cpu/emulated/amx.h"
#else
#define TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t ::)
#define TILE_LOAD(t, p, stride) \
  __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
/* TILE_LOAD for data that is not needed again soon: it does not evict the first-level cache. */
#define TILE_LOAD_ONCE(t, p, stride) \
  __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"(p), "r"((int64_t)(stride)) : "memory")
#define TILE_STORE(t, p, stride) \
  __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((int64_t)(stride)) : "memory")
/* c += a * b: rows of 32 bf16 in a, rows of 16 pairs in b, f32 in c. */
#define TILE_DOT(c, a, b) __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#endif

/* Configures this thread's eight tiles as 16 rows of 64 bytes; releases them. */
void tide__tile_amx_begin(void);
void tide__tile_amx_end(void);
