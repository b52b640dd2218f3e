/* Shared by the attention kernels of the CPU: operands, visibility, tiles.
 *
 * Scores are kept transposed, S^T[key][query], with 16 queries in the lanes of a vector. Softmax
 * then needs no operation across lanes, a product reads K and V one scalar at a time in any layout,
 * and P^T is directly the operand of O^T = V^T P^T.
 *
 * Queries are cut into blocks of ATTN_Q (ATTN_NG groups of ATTN_LANE), keys into blocks of ATTN_K.
 * The mask is data: query i has a document and an interval [lo, hi] of positions it may see, key j
 * a document and a position; implicit masks fill the same tables. Minimum and maximum over groups
 * and blocks decide which products are skipped and which need no mask test, for any order of the
 * tokens.
 *
 * Work is cut by (batch, head, block) and every sum runs in ascending order of its blocks, so the
 * bits do not depend on the number of threads.
 */
#pragma once

#include "kernels/cpu/vec.h"

enum { ATTN_LANE = 16, ATTN_NG = 4, ATTN_Q = 64, ATTN_K = 128, ATTN_NKG = ATTN_K / ATTN_LANE };

#define ATTN_LOG2E 1.44269504088896340736f
#define ATTN_LN2   0.69314718055994530942f

/* ---- visibility ---- */

/* Ranges over the live queries of a group; a query is live if it can see any key. */
typedef struct attn_qrange { int32_t doc0, doc1, lo0, lo1, hi0, hi1, nlive, ndead; } attn_qrange;
typedef struct attn_krange { int32_t doc0, doc1, pos0, pos1; } attn_krange;

/* Row b of each table begins at b * its length if there is one row per batch entry, else at 0.
 * Tables are padded to whole blocks; the padding is never visible and not part of a range. */
typedef struct attn_mask {
  int32_t *qdoc, *qlo, *qhi; /* [rows][nqb * ATTN_Q] */
  int32_t *kdoc, *kpos;      /* [rows][nkb * ATTN_K] */
  attn_qrange *qgroup, *qblock; /* [rows][nqb * ATTN_NG], [rows][nqb] */
  attn_krange *kgroup, *kblock; /* [rows][nkb * ATTN_NKG], [rows][nkb] */
  int64_t rows;
} attn_mask;

/* Keys [k0, k1) of a block that a query group may see: multiples of a step, except at the end of
 * the sequence; empty if k0 == k1. full: every query of the group sees all of them. */
typedef struct attn_span { int32_t k0, k1, full; } attn_span;

enum { ATTN_STEP = 4 }; /* keys: the step of spans for f32 tiles */

/* ---- the operands, by name ---- */

typedef struct attn {
  const k_attention_attrs *a;
  const k_tensor *q, *k, *v, *bias, *q_index, *k_index;
  const k_tensor *dout, *out, *lse, *dlse;  /* backward only, else null */
  int64_t nb, nh, nhk, ng, tq, tk, d, dv;   /* ng query heads share a key head */
  int64_t nqb, nkb;                         /* number of blocks of queries, of keys */
  int modified;                             /* scores pass through softcap or bias */
  attn_mask mask;
} attn;

/* Returns whether the mask may hide a key from a query within the sequences. */
static inline int attn_has_mask(const attn *s)
{
  const k_attention_attrs *a = s->a;
  return a->causal || a->window_left >= 0 || a->window_right >= 0 || !k_absent(s->q_index);
}

/* Returns whether a weight may be exactly 0: by the mask, or where a bias makes a score -inf. */
static inline int attn_hides(const attn *s) { return attn_has_mask(s) || !k_absent(s->bias); }

/* Reads shapes of a forward (is_bwd 0) or backward call. */
void tide__attn_open(attn *s, const k_call *c, int is_bwd);
/* Returns the bytes of the mask tables (a multiple of 64); fills them. */
int64_t tide__attn_mask_bytes(const attn *s);
void tide__attn_mask_fill(attn *s, void *work);
/* Computes the spans of the four groups of query block qb in key block kb, in steps of `step` keys,
 * a power of two. Returns 0 if all are empty. */
int tide__attn_spans(const attn *s, int64_t b, int64_t qb, int64_t kb, int step,
                     attn_span span[ATTN_NG]);

/* Operands of the masked lanes of one group: its 16 queries and the keys of the block. */
typedef struct attn_lanes { const int32_t *qdoc, *qlo, *qhi, *kdoc, *kpos; } attn_lanes;
attn_lanes tide__attn_lanes(const attn *s, int64_t b, int64_t qb, int64_t kb, int group);
/* Returns whether lane l sees key j. */
TIDE_INLINE int attn_visible(const attn_lanes *m, int64_t j, int l)
{
  return (m->kdoc[j] == m->qdoc[l]) & (m->kpos[j] >= m->qlo[l]) & (m->kpos[j] <= m->qhi[l]);
}

/* Copies rows [row0, row0 + n) of head h of a [B, T, H, D] tensor to f32, row stride ld. */
void tide__attn_rows(float *dst, int64_t ld, const k_tensor *t, int64_t b, int64_t row0,
                     int64_t h, int64_t n);
/* Stores src * scale in rows [row0, row0 + n) of head h. */
void tide__attn_put_rows(const k_tensor *t, int64_t b, int64_t row0, int64_t h, int64_t n,
                         const float *src, int64_t ld, float scale);

/* Replaces a block of S^T by log2(e) (cap(scale S^T) + bias); slope, if not null, receives cap'.
 * Keys [k0, k1) of the block, all its queries. tmp: 2 * ATTN_Q * ATTN_K floats. */
void tide__attn_modify(const attn *s, int64_t b, int64_t h, int64_t qb, int64_t kb, int64_t k0,
                       int64_t k1, float scale, float *st, float *slope, float *tmp);

/* Returns the hull of two spans of the same block. */
attn_span tide__attn_join(attn_span a, attn_span b);
/* Returns the groups [g0, g1) that contain all groups whose span has key j; *end receives the first
 * key after j where this changes, at most ATTN_K. */
typedef struct attn_hull { int g0, g1; } attn_hull;
attn_hull tide__attn_hull(const attn_span span[ATTN_NG], int32_t j, int32_t *end);
/* Zeroes the rows of one group (st points at its lanes) that are in `all` but not in `own`. */
void tide__attn_clear(float *st, attn_span own, attn_span all);

/* A block of queries of a head, and one of keys. */
typedef struct attn_at { int64_t b, h, qb, kb; } attn_at;

/* ---- K and V as f32 ---- */

/* The tensor itself if it is f32 with a suitable layout, else an f32 copy of it in work memory. */
typedef struct attn_source {
  const float *data;
  int64_t batch, head, row; /* strides */
  uint8_t *nonfinite;       /* [B][Hk][nkb]: ATTN_FINITE, .. */
} attn_source;
int64_t tide__attn_source_bytes(const attn *s, const k_tensor *t);
void    tide__attn_source_open(attn_source *r, const attn *s, const k_tensor *t, void *work,
                               int nthread);
static inline const float *attn_source_row(const attn_source *r, int64_t b, int64_t h, int64_t j)
{
  return r->data + b * r->batch + h * r->head + j * r->row;
}
/* Which tiles of a block leave weights of 0 out, if it holds values that are not finite: those that
 * the mask cuts, or with a bias all of them. */
enum { ATTN_FINITE, ATTN_OUT_OF_CUT, ATTN_OUT_OF_ALL };
static inline int attn_source_nonfinite(const attn_source *r, const attn *s, const attn_at *at)
{
  return r->nonfinite[(at->b * s->nhk + at->h / s->ng) * s->nkb + at->kb];
}

/* ---- tiles: the inner loops, by instruction set ---- */

/* C[m][16 nv] (+)= A B. A(i, p) = a[i * rs + p * cs] with rs or cs 1; B and C have row strides. */
typedef struct attn_gemm {
  int64_t m, k;
  int nv, add;
  const float *a;
  int64_t rs, cs;
  const float *b;
  int64_t ldb;
  float *c;
  int64_t ldc;
} attn_gemm;

/* One lane group of one S^T block, n keys; scores in units of log2. */
typedef struct attn_soft {
  float *s;                /* rows of stride ATTN_Q; becomes P^T (f32 tiles) */
  int64_t n;
  const attn_lanes *lanes; /* null: everything visible; pointers at the first of the n keys */
  float *top, *sum;        /* [16] running maximum (log2) and sum */
  float *alpha;            /* [16] out: factor for older sums and outputs */
} attn_soft;

/* Backward of attn_soft: s becomes P^T, dp (dout . v) becomes dS^T; both are 0 where nothing is
 * visible, whatever the operands hold. */
typedef struct attn_grad {
  float *s, *dp;
  const float *slope;      /* laid out as s, or null; multiplies dS^T after dbias */
  float *dbias;            /* laid out as s, or null: receives dS^T before slope */
  int64_t n;
  const attn_lanes *lanes;
  int bias;                 /* whether a score may be -inf, which is not visible either */
  const float *lse, *delta; /* [16] lse in log2, +inf for a query that sees nothing */
} attn_grad;

typedef struct attn_tiles {
  void (*gemm)(const attn_gemm *g);
  int  (*soft)(const attn_soft *t); /* returns 1 if older outputs must be rescaled */
  /* Multiplies row d of ot (stride ATTN_Q) by the 16 lanes of alpha, d < n. */
  void (*rescale)(float *ot, int64_t n, const float *alpha);
  void (*grad)(const attn_grad *t);
  /* dst[j * ldd + i] = src[i * lds + j] * scale for i < m, j < n. */
  void (*transpose)(float *dst, int64_t ldd, const float *src, int64_t lds, int64_t m, int64_t n,
                    float scale);
  int together; /* groups that a product over keys takes at once, unless all four do: 1 or 2 */
} attn_tiles;

/* ---- tiles that the mask cuts (attention_nonfinite.c) ---- */

/* Returns whether a row of n holds a value that is not finite. ld: distance of the rows. */
int tide__attn_has_nonfinite(const float *x, int64_t n, int64_t ld, int64_t width);
/* Returns ATTN_FINITE, .. of a block of such rows. */
int tide__attn_search(const attn *s, const float *x, int64_t n, int64_t ld, int64_t width);
/* Returns whether some pair of n query groups and the keys [k0, k1) of a block is masked. */
int tide__attn_cut(const attn_span *span, int n, int32_t k0, int32_t k1);
/* C += A B as tiles->gemm with add, but terms of weight 0 are left out: the weights are A
 * (a_is_weight; the rows of B may be NaN or infinite) or B (then those of A, whose rs is 1). Equal
 * to tiles->gemm bit for bit where all rows are finite. */
void tide__attn_gemm_cut(const attn_tiles *tiles, const attn_gemm *g, int a_is_weight);
/* Computes C += A B where the inner dimension is the keys of a block and the columns are its
 * queries: each group over the keys that it sees. nv, k and add are set here. nonfinite: of A,
 * ATTN_FINITE, .. */
void tide__attn_gemm_keys(const attn_tiles *tiles, const attn_span span[ATTN_NG],
                          const attn_gemm *g, int nonfinite);
/* The keys that the groups of part p of ATTN_NG / tiles->together see, joined. */
attn_span tide__attn_part(const attn_tiles *tiles, const attn_span span[ATTN_NG], int p);

const attn_tiles *tide__attn_tiles(int isa);
const attn_tiles *tide__attn_tiles_avx512(void); /* these two: null if not in this build */
const attn_tiles *tide__attn_tiles_avx2(void);

/* ---- the two kernels with the instruction set limited to isa (tests) ---- */

int     tide__attention_isa(const k_call *c, int isa);
int64_t tide__attention_work_isa(const k_call *c, int isa);
int     tide__attention_bwd_isa(const k_call *c, int isa);
int64_t tide__attention_bwd_work_isa(const k_call *c, int isa);

/* What multiplies: f32 tiles; or bf16 tiles by vdpbf16ps on pairs, or by AMX. */
typedef enum attn_unit { ATTN_F32, ATTN_PAIRS, ATTN_AMX } attn_unit;

/* ---- the forward task: one query block of one head ---- */

/* Scratch of one thread. */
typedef struct attn_fwd_scratch {
  float *qt;                /* [D][64] scaled queries; f32 tiles only */
  float *st;                /* [ATTN_K][64] */
  float *ot;                /* [wide_dv][64] */
  float *rows;              /* [64][max(D, Dv)] */
  float *top, *sum, *alpha; /* [64] */
  float *tmp;               /* for tide__attn_modify */
  uint16_t *packed;         /* bf16 tiles */
} attn_fwd_scratch;

typedef struct attn_fwd {
  attn s;
  const attn_tiles *tiles;
  const k_tensor *out, *lse;
  attn_source k, v;                  /* f32 tiles */
  const uint16_t *k_tiles, *v_tiles; /* bf16 tiles */
  attn_unit unit;
  int64_t wide_dv;                   /* Dv rounded up to ATTN_LANE */
  float *scratch;
  int64_t nscratch;                  /* floats per thread */
} attn_fwd;

/* ---- the backward task: one query block against key blocks ---- */

enum { ATTN_WANT_DQ = 1, ATTN_WANT_DKV = 2 };

typedef struct attn_bwd_scratch {
  float *qt, *qr;       /* [D][64] scaled, [64][wide_d]: the queries; f32 tiles */
  float *dot, *dor;     /* [Dv][64], [64][wide_dv]: dout in both layouts. dot: f32 tiles */
  float *st, *dp;       /* [128][64]: S^T then P^T; dP^T then dS^T */
  float *dqt;           /* [wide_d][64] */
  float *lse, *delta;   /* [64] */
  float *rows;          /* [64][max(wide_d, wide_dv)] */
  float *slope, *dbias; /* [128][64], only if scores are modified */
  float *tmp;           /* [2][128][64], only if scores are modified */
  float *dk, *dv;       /* [nrow][wide_d], [nrow][wide_dv] */
  int *nonfinite;       /* whether dor or qr has a value that is not finite */
  uint16_t *packed;     /* bf16 tiles */
} attn_bwd_scratch;

typedef struct attn_bwd {
  attn s;
  const attn_tiles *tiles;
  const k_tensor *dq, *dk, *dv, *dbias;
  attn_source k, v;                              /* f32 tiles */
  const uint16_t *k_tiles, *v_tiles, *kt_tiles;  /* bf16 tiles */
  attn_unit unit;
  float *scratch;
  int64_t nscratch;        /* floats per thread */
  int64_t wide_d, wide_dv; /* D and Dv, rounded up to ATTN_LANE */
  int64_t nrow;            /* rows of dk and dv in scratch */
} attn_bwd;

/* Writes a block of dbias of one group from m->dbias, keys [k0, k1). */
void tide__attn_put_dbias(const attn_bwd *w, const attn_bwd_scratch *m, const attn_at *at,
                          int group, int32_t k0, int32_t k1);

/* ---- bf16 tiles: the steps that differ, between begin and end. Sizes count bf16 elements. ---- */

/* Returns the unit for operands of this dtype on a processor with the instructions `isa`. */
attn_unit tide__attn_unit(int dtype, int isa);
void    tide__attn_unit_begin(attn_unit unit);
void    tide__attn_unit_end(attn_unit unit);
/* Returns the size of a block of keys of one head as tiles: which 0: rows (A of K Q^T), 1: columns
 * (A of V^T P^T). */
int64_t tide__attn_bf16_tiles_size(int64_t d, int which);
void    tide__attn_bf16_pack(const attn *s, const k_tensor *t, int which, uint16_t *dst,
                             int nthread);
int64_t tide__attn_bf16_fwd_size(const attn *s);
void    tide__attn_bf16_fwd_start(const attn_fwd *w, const attn_fwd_scratch *m, const attn_at *at);
void    tide__attn_bf16_fwd_pair(const attn_fwd *w, const attn_fwd_scratch *m, const attn_at *at);
int64_t tide__attn_bf16_bwd_size(const attn *s);
void    tide__attn_bf16_bwd_start(const attn_bwd *w, const attn_bwd_scratch *m, const attn_at *at);
/* dk, dv: of this key block; read only with ATTN_WANT_DKV. */
void    tide__attn_bf16_bwd_pair(const attn_bwd *w, const attn_bwd_scratch *m, const attn_at *at,
                           int want, float *dk, float *dv);

/* ---- a few queries, f32 or bf16, without a bias: work bytes and the forward ---- */

int     tide__attn_few_takes(const attn *s);
int64_t tide__attn_few_work(const attn *s, int nthread);
void    tide__attn_few(const attn *s, const k_call *c);

/* Makes K or V readable for the unit at base: rows as f32, or tiles of kind `which`. Returns the
 * bytes (a multiple of 64); with base NULL it only counts. */
int64_t tide__attn_keys(const attn *s, const k_tensor *t, attn_unit unit, int which, char *base,
                        int nthread, attn_source *rows, const uint16_t **tiles);

/* ---- f64: work bytes and kernels ---- */

int64_t tide__attn_f64_work(const k_call *c, int is_bwd);
int     tide__attn_f64(const k_call *c);
int     tide__attn_f64_bwd(const k_call *c);
