/* What the processor we run on can do, as a set of bits.
 *
 * The one idea: kernels are compiled for several instruction sets in one library and choose at run
 * time. The set is a constant of the machine and the operating system; a caller may hand kernels a
 * smaller set, which is how tests reach every kernel on one machine.
 */
#ifndef TIDE_KERNELS_CPU_ISA_H
#define TIDE_KERNELS_CPU_ISA_H

enum {
  CPU_ISA_BASE = 0,
  CPU_ISA_AVX2 = 1,    /* AVX2, FMA, F16C */
  CPU_ISA_AVX512 = 2,  /* F, BW, DQ, VL */
  CPU_ISA_BF16 = 4,    /* AVX512_BF16 */
  CPU_ISA_AMX = 8      /* AMX_TILE, AMX_BF16, and the kernel's permission to use them */
};

/* The set of this machine. The first call asks the operating system for the AMX registers, once per
 * process; refusal only means that the bit stays clear. */
int tide__cpu_isa(void);

/* The name of the highest level in the set: "amx", "avx512", "avx2" or "base". */
const char *tide__cpu_isa_name(int isa);

#endif
