/* Instruction sets of this processor as a set of bits, and attributes for functions that need them.
 *
 * Kernels are compiled for several instruction sets in one library and choose at run time. The set
 * is a constant of the process: what the machine and the operating system have, or less if TIDE_ISA
 * in the environment names a lower level. Some kernels also take the set as an argument, so that a
 * test reaches all their forms in one process.
 */
#pragma once

#include <stddef.h>

enum {
  CPU_ISA_BASE = 0,
  CPU_ISA_AVX2 = 1,    /* AVX2, FMA, F16C */
  CPU_ISA_AVX512 = 2,  /* F, BW, DQ, VL */
  CPU_ISA_BF16 = 4,    /* AVX512_BF16; FEAT_BF16 on AArch64 */
  CPU_ISA_AMX = 8      /* AMX_TILE, AMX_BF16, and the kernel's permission to use them */
};

/* Marks a function that is compiled for the instructions of a bit above; the caller has checked the
 * bit. The _INLINE forms are for its parts. */
#if defined(__x86_64__) && defined(__GNUC__)
#define TIDE_AVX2 __attribute__((target("avx2,fma,f16c")))
#ifdef TIDE_EMULATE /* AVX-512 and AMX are loops: see emulated/ */
#define TIDE_AVX512 TIDE_AVX2
#define TIDE_AVX512_BF16 TIDE_AVX2
#else
#define TIDE_AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#define TIDE_AVX512_BF16 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,f16c")))
#endif
#define TIDE_AVX2_INLINE static inline __attribute__((always_inline)) TIDE_AVX2
#define TIDE_AVX512_INLINE static inline __attribute__((always_inline)) TIDE_AVX512
#define TIDE_AVX512_BF16_INLINE static inline __attribute__((always_inline)) TIDE_AVX512_BF16
#endif

/* Returns the set of this process. The first call asks the operating system for the AMX registers,
 * once per process; if it refuses, the bit stays clear. */
int tide__cpu_isa(void);

/* Returns the name of the highest level in the set: "amx", "avx512_bf16", "avx512", "avx2" or
 * "base"; on AArch64 "neon_bf16" or "neon"; on other processors "base". */
const char *tide__cpu_isa_name(int isa);

/* Returns TIDE_OK, or TIDE_E_DEVICE and a reason of at most `size` bytes if TIDE_ISA names no level
 * or one that this machine does not have. */
int tide__cpu_isa_check(char *msg, size_t size);
