/* Shared by the files of the SSD scan backward: scan_bwd.c walks over the chunks, scan_bwd_piece.c
 * computes the gradients of one piece. See scan.h and scan_bwd.c. */
#pragma once

#include "kernels/cpu/scan/scan.h"

enum { IN_DY, IN_X, IN_STATES = 10, IN_DLAST };
enum { OUT_X, OUT_DT, OUT_A, OUT_B, OUT_C, OUT_D, OUT_BIAS, OUT_INITIAL };
enum { SUM_A, SUM_BIAS, SUM_D };            /* a head's sums over tokens: dA, dbias, dD [P] */

typedef struct ssd_back_scratch {
  ssd_steps st;
  float *cb, *pair, *dcb;             /* [Q, ld]: C B', dS, d(C B'); transposed triangles */
  float *u, *du, *dC, *C;             /* [Q, P] twice, [Q, N] twice */
  float *sum_B, *sum_C;               /* [Q, N]: dB and dC over the heads */
  float *row, *row2, *row3, *row4;    /* rows of the longest kind */
  float *D, *dD;                      /* [P]: D of the head, its gradient over the piece */
  float *so_far;                      /* [Q]: K[t, s] summed over the rows s done so far */
  float *pairs, *entered, *left;      /* [Q]: what a token's decay gains by the pairs that span
                                       * it; dC . C by the state before the piece; by what the
                                       * tokens before it add to the state */
  void  *tri, *own_u, *late, *in_g, *narrow; /* operand form */
  void  *a_B, *b_Cq, *b_Cn, *b_Bn;    /* packed, shared by the heads */
  void  *a_tri, *a_rows, *a_cols, *b_q, *b_p, *b_pn, *b_n; /* packed, one use after another */
} ssd_back_scratch;

typedef struct ssd_back {
  ssd     s;
  const k_call *call;
  char   *work;
  int64_t each;                       /* bytes per thread */
  int64_t K, c0, c1;                  /* chunks of a window, at most; those of the current one */
  float  *dstate;                     /* [nb][K + 1, H, P, N]: after each chunk: ssd_slot */
  double *part;                       /* [nb][K, H, 2 + P]: sums over the tokens of a chunk */
  double *sum;                        /* [nb, H, 2 + P]: over all chunks so far */
} ssd_back;

/* Returns the gradient of one head's state after chunk c; -1 is before the first. */
static inline float *ssd_slot(const ssd_back *w, int64_t b, int64_t c, int64_t h)
{
  const ssd *s = &w->s;
  return w->dstate + ((b * (w->K + 1) + (c + 1) % (w->K + 1)) * s->H + h) * s->P * s->N;
}

/* Returns one head's sums over the tokens of chunk c: SUM_A and so on. */
static inline double *ssd_sums(const ssd_back *w, int64_t b, int64_t c, int64_t h)
{
  return w->part + ((b * w->K + c % w->K) * w->s.H + h) * (2 + w->s.P);
}

/* Returns the offset of row (token i of the piece, head h) of x, dy or dx. */
static inline int64_t ssd_offset(const k_tensor *t, const ssd_at *at, int64_t i, int64_t h)
{
  return at->b * t->stride[0] + (at->t0 + i) * t->stride[1] + h * t->stride[2];
}

/* Lays out the scratch of a thread at base and returns its bytes; a null base only counts. */
int64_t tide__ssd_back_layout(const ssd *s, char *base, ssd_back_scratch *r);

/* Before the heads of a piece, for each of them, and after: dB and dC of the piece. */
void tide__ssd_back_share(const ssd *s, const ssd_at *at, ssd_back_scratch *r);
void tide__ssd_back_head(const ssd_back *w, const ssd_at *at, int64_t h, ssd_back_scratch *r);
void tide__ssd_back_end(const ssd_back *w, const ssd_at *at, ssd_back_scratch *r);
