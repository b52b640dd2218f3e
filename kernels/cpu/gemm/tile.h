/* Register-tile kernels: the inner products of gemm.c.
 *
 * A product is cut into tiles of mr x nr. Panels of A (mr rows) and of B (nr columns) are packed
 * first so that the kernel reads both front to back; every instruction set then needs one function
 * only, C_tile (+)= A_panel B_panel. Packing also handles transposition, 16-bit types that the
 * kernel cannot read, and edges, which are filled with zeros.
 *
 * The value of an element of C depends on k and the kernel alone: blocks of kc, each summed in
 * ascending order, added in ascending order. Neither the number of threads nor the cut of rows and
 * columns changes a bit.
 */
#pragma once

#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/isa.h"

/* One tile. c has the kernel's accumulator type and row stride c_rs; only rows x cols elements of
 * it are touched. k is a multiple of the kernel's kr. */
typedef struct tile_job {
  int64_t     k;
  const void *a, *b; /* packed panels */
  int64_t     a_rs;  /* 0; or a is rows of A in place, this many bytes apart */
  const void *soon;  /* nsoon rows of the next operand, soon_rs bytes apart: prefetched */
  int64_t     soon_rs;
  int         nsoon;
  void       *c;
  int64_t     c_rs;
  int         rows, cols; /* in [1, mr], [1, nr] */
  int         load;       /* start from what c holds, not from zero */
  uint16_t   *half;       /* if not null, the tile goes here as bf16 and not to c, rows half_rs */
  int64_t     half_rs;    /* elements apart */
  const void *next;       /* nnext rows of C that are written next, next_rs bytes apart, of */
  int64_t     next_rs;    /* next_lines cache lines each: prefetched for writing */
  int         nnext, next_lines;
} tile_job;

/* Rounds rows x cols of f32 at src to bf16 or f16 at dst. */
typedef struct tile_half {
  const float *src;
  uint16_t    *dst;
  int64_t      src_rs, dst_rs;
  int          rows, cols, dtype;
} tile_half;

/* A strip of A or B to pack: element (i, p), i along m or n, p along k, is src[i * is + p * ps].
 * width of the n rows go into each panel; missing rows and the last p up to k_pad become zero. */
typedef struct tile_strip {
  const void *src;
  int64_t     is, ps;
  int64_t     n, k, k_pad;
  int         dtype, width;
} tile_strip;

typedef void (*tile_pack_fn)(void *dst, const tile_strip *s);

typedef struct tile_kernel {
  int          mr, nr;
  int          kr;     /* depth is padded to a multiple of this */
  int          esize;  /* bytes of a packed element */
  int          f64;    /* accumulators are f64, else f32 */
  int          kc;     /* depth of a block of k */
  int          direct; /* if A has the packed type, runs along k and k is a multiple of kr, run
                        * reads whole panels of it in place */
  tile_pack_fn pack_a, pack_b;
  void (*run)(const tile_job *job);
  int half;            /* run can round a tile that it computes from the start to bf16 */
  /* Rounds a finished f32 tile into a 16-bit C. */
  void (*to_half)(const tile_half *job);
  /* Around all run calls of a thread's task; may be null. */
  void (*begin)(void);
  void (*end)(void);
  int cols;            /* bytes of packed B that panels of A meet before the next columns, */
  int whole;           /* or all of B, up to this many */
  int own;             /* most bytes of packed B that each thread packs for itself */
} tile_kernel;

/* Returns the f32 (also for bf16 and f16 operands) or f64 kernel of an instruction set; never
 * null. */
const tile_kernel *tide__tile_kernel_base(int isa, int f64);
/* Null if this build cannot compile them. The caller has checked the instruction set. */
const tile_kernel *tide__tile_kernel_avx512(void); /* f32 */
const tile_kernel *tide__tile_kernel_bf16(void);   /* bf16: AVX512_BF16 or AArch64's */
const tile_kernel *tide__tile_kernel_amx(void);    /* bf16, AMX */

/* Packs any dtype into f32 (or f64 from f64) panels: panel-major, then k, then width elements. */
void tide__tile_pack_f32(void *dst, const tile_strip *s);
void tide__tile_pack_f64(void *dst, const tile_strip *s);
void tide__tile_to_half(const tile_half *job);

/* Stores n sums of row r from column j on in C, with what C holds and the bias added as g asks.
 * sums is scratch afterwards. */
void tide__gemm_put_row(const cpu_gemm *g, float *sums, int64_t r, int64_t j, int64_t n);

/* Products with few rows, m <= TILE_SKINNY_M, that read B once, in place, without packing. See
 * skinny.c for the shapes it takes. */
enum { TILE_SKINNY_M = 16 };
int     tide__tile_skinny_takes(const cpu_gemm *g, int isa);
int64_t tide__tile_skinny_work(const cpu_gemm *g, int nthread);
void    tide__tile_skinny(const cpu_gemm *g, int nthread, void *work, int isa);

/* As in gemm.h with the instruction set limited to isa. */
void tide__cpu_gemm_plan_isa(cpu_gemm_plan *p, const cpu_gemm *g, int nthread, int isa);
int64_t tide__cpu_gemm_most_isa(const cpu_gemm *g, int nthread, int isa);
