/* Products with few rows: what skinny.c and the loops of its instruction sets share. */
#pragma once

#include "kernels/cpu/gemm/tile.h"

/* Floats of a row of a stage. */
enum { SKINNY_CHUNK = 4096 };

/* How A is held: rows of f32; rows of bf16, for multiply-adds on pairs of k; or pairs of k for 16
 * columns of the transposed product (AMX). */
typedef enum skinny_unit { SKINNY_F32, SKINNY_PAIRS, SKINNY_TILES } skinny_unit;

typedef struct skinny {
  const cpu_gemm *g;
  float      *a;      /* [m padded][kp] */
  int64_t     kp;
  char       *stages;
  skinny_unit unit;
  /* Computes columns [j0, j1) of C into the stage, rows of SKINNY_CHUNK sums. */
  void (*columns)(const struct skinny *s, float *stage, int64_t j0, int64_t j1);
} skinny;

typedef void (*skinny_fn)(const skinny *s, float *stage, int64_t j0, int64_t j1);

/* Return the loops over f32 rows of A for a B of this dtype along k or along n; null if this build
 * cannot compile them. The caller has checked the instruction set. */
skinny_fn tide__skinny_avx512(int along_k, int dtype);
skinny_fn tide__skinny_avx2(int along_k, int dtype);
/* For bf16 along k. */
skinny_fn tide__skinny_pairs(void);
skinny_fn tide__skinny_amx(void);
