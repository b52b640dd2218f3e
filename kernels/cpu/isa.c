/* Finds the instruction sets of the processor. See isa.h.
 *
 * The cached word is a constant of the process: two threads that race compute the same value. It is
 * cached because CPUID traps in a virtual machine (about a microsecond).
 */
#include "kernels/cpu/isa.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tide/tide.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <cpuid.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REQ_XCOMP_PERM = 0x1023, XFEATURE_TILEDATA = 18 };

/* Returns XCR0: which register files the operating system saves. Only called when OSXSAVE is
 * set. */
static uint64_t xcr0(void)
{
  uint32_t lo, hi;
  __asm__ volatile("xgetbv" : "=a"(lo), "=d"(hi) : "c"(0));
  return ((uint64_t)hi << 32) | lo;
}

static int amx_permitted(void)
{
#ifdef SYS_arch_prctl
  return syscall(SYS_arch_prctl, REQ_XCOMP_PERM, XFEATURE_TILEDATA) == 0;
#else
  return 0;
#endif
}

static int detect(void)
{
  enum { YMM = 0x6, ZMM = 0xe6, TILE = 0x60000 };
  enum { FMA = 1 << 12, OSXSAVE = 1 << 27, F16C = 1 << 29 };
  enum { AVX2 = 1 << 5, F = 1 << 16, DQ = 1 << 17, BW = 1 << 30 };
  const unsigned vl = 1u << 31, amx = (1u << 24) | (1u << 22);
  unsigned a, b, c, d, c1;
  int isa = CPU_ISA_BASE;
  if (!__get_cpuid(1, &a, &b, &c1, &d) || !(c1 & OSXSAVE)) return isa;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return isa;
  uint64_t os = xcr0();
  if ((os & YMM) != YMM || !(b & AVX2) || !(c1 & FMA) || !(c1 & F16C)) return isa;
  isa |= CPU_ISA_AVX2;
#ifdef TIDE_EMULATE
  return isa | CPU_ISA_AVX512 | CPU_ISA_BF16 | CPU_ISA_AMX;
#endif
  if ((os & ZMM) != ZMM || !(b & F) || !(b & DQ) || !(b & BW) || !(b & vl)) return isa;
  isa |= CPU_ISA_AVX512;
  int has_amx = (os & TILE) == TILE && (d & amx) == amx;
  if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & (1u << 5))) isa |= CPU_ISA_BF16;
  if (has_amx && (isa & CPU_ISA_BF16) && amx_permitted()) isa |= CPU_ISA_AMX;
  return isa;
}

#elif defined(__aarch64__) && defined(__linux__)

#include <sys/auxv.h>

static int detect(void)
{
  enum { HWCAP2_BF16_BIT = 14 };
  return getauxval(AT_HWCAP2) >> HWCAP2_BF16_BIT & 1 ? CPU_ISA_BF16 : CPU_ISA_BASE;
}

#else

static int detect(void) { return CPU_ISA_BASE; }

#endif

/* Each level holds all bits of those before it. */
static const struct level { const char *name; int isa; } levels[] = {
#if defined(__aarch64__)
  {"neon", CPU_ISA_BASE},
  {"neon_bf16", CPU_ISA_BF16},
#else
  {"base", CPU_ISA_BASE},
  {"avx2", CPU_ISA_AVX2},
  {"avx512", CPU_ISA_AVX2 | CPU_ISA_AVX512},
  {"avx512_bf16", CPU_ISA_AVX2 | CPU_ISA_AVX512 | CPU_ISA_BF16},
  {"amx", CPU_ISA_AVX2 | CPU_ISA_AVX512 | CPU_ISA_BF16 | CPU_ISA_AMX},
#endif
};

enum { NLEVEL = sizeof levels / sizeof levels[0] };

const char *tide__cpu_isa_name(int isa)
{
  int i = NLEVEL - 1;
  while (i > 0 && (levels[i].isa & isa) != levels[i].isa) i--;
  return levels[i].name;
}

/* Returns the level that the environment names, or NULL without one or for an unknown one. */
static const struct level *asked(void)
{
  const char *name = getenv("TIDE_ISA");
  for (int i = 0; name && i < NLEVEL; i++)
    if (!strcmp(levels[i].name, name)) return &levels[i];
  return NULL;
}

int tide__cpu_isa(void)
{
  static _Atomic int known; /* the set, plus a bit for "computed" */
  enum { FOUND = 1 << 30 };
  int isa = atomic_load_explicit(&known, memory_order_relaxed);
  if (!(isa & FOUND)) {
    const struct level *most = asked();
    isa = (most ? detect() & most->isa : detect()) | FOUND;
    atomic_store_explicit(&known, isa, memory_order_relaxed);
  }
  return isa & ~FOUND;
}

/* Writes "TIDE_ISA is 'x', expected " and the levels of this architecture. */
static void say_levels(char *msg, size_t size, const char *name)
{
  size_t n = (size_t)snprintf(msg, size, "TIDE_ISA is '%s', expected ", name);
  for (int i = 0; i < NLEVEL && n < size; i++)
    n += (size_t)snprintf(msg + n, size - n, "%s%s",
                          i == 0 ? "" : i + 1 < NLEVEL ? ", " : " or ", levels[i].name);
}

int tide__cpu_isa_check(char *msg, size_t size)
{
  const char *name = getenv("TIDE_ISA");
  const struct level *most = asked();
  int isa = tide__cpu_isa();
  if (!name || !*name || (most && (isa & most->isa) == most->isa)) return TIDE_OK;
  if (most)
    snprintf(msg, size, "TIDE_ISA asks for %s, but this processor has %s at most", name,
             tide__cpu_isa_name(isa));
  else
    say_levels(msg, size, name);
  return TIDE_E_DEVICE;
}
