/* The bf16 tile for AMX: 32 x 32 of C in four tile registers, f32 sums, with its packing.
 *
 * Each step loads two tiles of A and two of B (1 KiB each, 32 of k) for four tile products, so one
 * KiB is loaded per product and the unit stays busy from the first-level cache. A is packed as rows
 * of 32 k; B as rows of 16 pairs of k ("pair rows"), which is what the unit reads; one form is the
 * other transposed in 32-bit pieces, so a single routine packs both. A panel of A up to some 700
 * deep stays in the first-level cache while panels of B are read from the second level with the
 * hint that keeps them from evicting A. The lines of C that the next tile writes are prefetched
 * meanwhile: a tile takes less time than a miss on each of its rows.
 *
 * See tile.h. Tile registers are configured per task and released at its end: live state costs
 * every context switch. The unit flushes denormals by itself.
 */
#include "kernels/cpu/gemm/tile.h"

#include "kernels/cpu/vec.h"
#include "kernels/cpu/gemm/tile_amx.h"
#include "kernels/cpu/transpose16.h"

#if defined(__x86_64__) && defined(__GNUC__)

enum { SIDE = 32, PART = 16, STEP = 32, TILE_BYTES = 1024, DEPTH = 2048,
       TOGETHER = 256, NEAR = 1 << 20, WHOLE = 3 << 19 };

/* ---- state ---- */

#ifdef TIDE_EMULATE

_Thread_local emulated_tile tide__emulated_tile[8];

void tide__tile_amx_begin(void) {}
void tide__tile_amx_end(void) {}

#else

/* The layout that the processor prescribes: palette 1, eight tiles of 16 rows of 64 bytes. */
typedef struct tile_config {
  uint8_t  palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t  rows[16];
} tile_config;

void tide__tile_amx_begin(void)
{
  tile_config cfg = {.palette = 1};
  for (int i = 0; i < 8; i++) cfg.row_bytes[i] = 64, cfg.rows[i] = PART;
  __asm__ volatile("ldtilecfg %0" ::"m"(cfg) : "memory");
}

void tide__tile_amx_end(void) { __asm__ volatile("tilerelease" ::: "memory"); }

#endif

/* ---- the tile ---- */

TIDE_AVX512_BF16_INLINE __mmask32 lanes(int64_t n)
{
  return n >= 32 ? 0xffffffffu : n <= 0 ? 0u : (1u << n) - 1;
}

/* Prefetches the next rows to be written, a share of them at each step. */
typedef struct fetch { const char *at; int64_t rs; int left, each, lines; } fetch;

static inline __attribute__((always_inline)) void fetch_some(fetch *f)
{
  for (int i = 0; i < f->each && f->left > 0; i++, f->left--, f->at += f->rs)
    for (int l = 0; l < f->lines; l++) __builtin_prefetch(f->at + 64 * l, 1, 3);
}

/* Leaves the product in tiles 0 (top left), 1 (top right), 2, 3 (bottom). */
static inline __attribute__((always_inline)) void multiply(const tile_job *job)
{
  const char *a = job->a, *b = job->b, *soon = job->soon ? job->soon : a;
  int64_t rs = job->a_rs ? job->a_rs : 64, low = job->a_rs ? PART * rs : TILE_BYTES;
  int64_t step = job->a_rs ? 2 * STEP : 2 * TILE_BYTES, nstep = job->k / STEP;
  fetch out = {.at = job->next, .rs = job->next_rs, .left = job->nnext, .lines = job->next_lines};
  out.each = (int)((job->nnext + nstep - 1) / nstep);
  for (int64_t p = job->k; p > 0; p -= STEP, a += step, b += 2 * TILE_BYTES) {
    for (int i = 0; i < job->nsoon; i++) __builtin_prefetch(soon + i * job->soon_rs, 0, 2);
    soon += 2 * STEP;
    fetch_some(&out);
    TILE_LOAD_ONCE(6, b, 64);
    TILE_LOAD(4, a, rs);
    TILE_DOT(0, 4, 6);
    TILE_LOAD_ONCE(7, b + TILE_BYTES, 64);
    TILE_DOT(1, 4, 7);
    TILE_LOAD(5, a + low, rs);
    TILE_DOT(2, 5, 6);
    TILE_DOT(3, 5, 7);
  }
}

TIDE_AVX512_BF16 static void copy_part(float *to, int64_t to_rs, const float *from, int64_t from_rs,
                             int rows, int cols)
{
  __mmask16 m0 = (__mmask16)lanes(cols), m1 = (__mmask16)(lanes(cols) >> 16);
  for (int i = 0; i < rows; i++) {
    __m512 lo = _mm512_maskz_loadu_ps(m0, from + i * from_rs);
    __m512 hi = _mm512_maskz_loadu_ps(m1, from + i * from_rs + 16);
    _mm512_mask_storeu_ps(to + i * to_rs, m0, lo);
    _mm512_mask_storeu_ps(to + i * to_rs + 16, m1, hi);
  }
}

TIDE_AVX512_BF16 static void run(const tile_job *job)
{
  _Alignas(64) float edge[SIDE * SIDE];
  int whole = job->rows == SIDE && job->cols == SIDE;
  float *c = whole ? job->c : edge;
  int64_t rs = whole ? job->c_rs : SIDE;
  if (job->load) {
    if (!whole) copy_part(edge, SIDE, job->c, job->c_rs, job->rows, job->cols);
    TILE_LOAD(0, c, rs * 4);
    TILE_LOAD(1, c + PART, rs * 4);
    TILE_LOAD(2, c + PART * rs, rs * 4);
    TILE_LOAD(3, c + PART * rs + PART, rs * 4);
  } else {
    TILE_ZERO(0);
    TILE_ZERO(1);
    TILE_ZERO(2);
    TILE_ZERO(3);
  }
  multiply(job);
  TILE_STORE(0, c, rs * 4);
  TILE_STORE(1, c + PART, rs * 4);
  TILE_STORE(2, c + PART * rs, rs * 4);
  TILE_STORE(3, c + PART * rs + PART, rs * 4);
  if (!whole) copy_part(job->c, job->c_rs, edge, SIDE, job->rows, job->cols);
}

TIDE_AVX512_BF16 static void to_half(const tile_half *job)
{
  __mmask32 mask = lanes(job->cols);
  if (job->cols == SIDE) {
#pragma GCC unroll 4
    for (int i = 0; i < job->rows; i++) {
      const float *src = job->src + i * job->src_rs;
      __m512 lo = _mm512_loadu_ps(src), hi = _mm512_loadu_ps(src + 16);
      _mm512_storeu_si512(job->dst + i * job->dst_rs, (__m512i)_mm512_cvtne2ps_pbh(hi, lo));
    }
    return;
  }
  for (int i = 0; i < job->rows; i++) {
    const float *src = job->src + i * job->src_rs;
    __m512 lo = _mm512_maskz_loadu_ps((__mmask16)mask, src);
    __m512 hi = _mm512_maskz_loadu_ps((__mmask16)(mask >> 16), src + 16);
    __m512i h = (__m512i)_mm512_cvtne2ps_pbh(hi, lo);
    _mm512_mask_storeu_epi16(job->dst + i * job->dst_rs, mask, h);
  }
}

/* ---- packing ---- */

/* Loads r[i] = 32 of k of row i, from a source that runs along k. Prefetches the 16 rows after
 * it. */
TIDE_AVX512_BF16_INLINE void load_rows(__m512i r[16], const tile_strip *s, int64_t i0, int64_t p)
{
  const uint16_t *src = (const uint16_t *)s->src + i0 * s->is + p;
  int64_t rows = s->n - i0;
  __mmask32 mask = lanes(s->k - p);
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) {
    r[i] = i < rows ? _mm512_maskz_loadu_epi16(mask, src + i * s->is) : _mm512_setzero_si512();
    if (i + PART < rows) _mm_prefetch(src + (i + PART) * s->is, _MM_HINT_T0);
  }
}

/* Gathers rows element by element, for a source with neither stride 1. */
TIDE_AVX512_BF16_INLINE void load_any(__m512i r[16], const tile_strip *s, int64_t i0, int64_t p)
{
  _Alignas(64) uint16_t t[16][32];
  memset(t, 0, sizeof t);
  for (int64_t i = 0; i < 16 && i0 + i < s->n; i++)
    for (int64_t q = 0; q < 32 && p + q < s->k; q++)
      t[i][q] = ((const uint16_t *)s->src)[(i0 + i) * s->is + (p + q) * s->ps];
  for (int i = 0; i < 16; i++) r[i] = _mm512_load_si512(t[i]);
}

/* Packs 32 rows of a source that runs along the rows, 32 of k, into two tiles of pairs. Prefetches
 * the next 32 of k. */
TIDE_AVX512_BF16_INLINE void pack_pairs(char *to, const tile_strip *s, int64_t i0, int64_t p)
{
  /* Which 16-bit pieces of (even, odd) make up the first and the second half, in pairs. */
  const __m512i low = _mm512_or_si512(_mm512_cvtepu16_epi32(_mm256_setr_epi16(
    0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)), _mm512_slli_epi32(
    _mm512_cvtepu16_epi32(_mm256_setr_epi16(32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43, 44, 45,
    46, 47)), 16));
  const __m512i high = _mm512_add_epi16(low, _mm512_set1_epi16(16));
  const uint16_t *src = (const uint16_t *)s->src + i0 + p * s->ps;
  __mmask32 mask = lanes(s->n - i0);
  int64_t deep = s->k - p;
  for (int q = 0; q < 16; q++, src += 2 * s->ps, to += 64) {
    if (2 * q + STEP < deep) _mm_prefetch(src + STEP * s->ps, _MM_HINT_T0);
    if (2 * q + STEP + 1 < deep) _mm_prefetch(src + (STEP + 1) * s->ps, _MM_HINT_T0);
    __m512i even = _mm512_setzero_si512(), odd = even;
    if (2 * q < deep) even = _mm512_maskz_loadu_epi16(mask, src);
    if (2 * q + 1 < deep) odd = _mm512_maskz_loadu_epi16(mask, src + s->ps);
    _mm512_store_si512(to, _mm512_permutex2var_epi16(even, low, odd));
    _mm512_store_si512(to + TILE_BYTES, _mm512_permutex2var_epi16(even, high, odd));
  }
}

TIDE_AVX512_BF16_INLINE void store_tile(char *to, const __m512i r[16])
{
#pragma GCC unroll 16
  for (int i = 0; i < 16; i++) _mm512_store_si512(to + 64 * i, r[i]);
}

/* Packs a source that runs along the rows: several panels at a time, so that a line of the source
 * is followed by its neighbours. */
TIDE_AVX512_BF16_INLINE void pack_across(char *to, const tile_strip *s, const int pairs)
{
  const int64_t panel = SIDE * s->k_pad * 2;
  for (int64_t i0 = 0; i0 < s->n; i0 += TOGETHER, to += TOGETHER / SIDE * panel) {
    int64_t end = s->n - i0 < TOGETHER ? s->n : i0 + TOGETHER;
    for (int64_t p = 0; p < s->k_pad; p += STEP) {
      char *at = to + p * SIDE * 2;
      for (int64_t i = i0; i < end; i += SIDE, at += panel) {
        _Alignas(64) char tile[2 * TILE_BYTES];
        pack_pairs(pairs ? at : tile, s, i, p);
        for (int part = 0; part < 2 && !pairs; part++) {
          __m512i r[16];
#pragma GCC unroll 16
          for (int q = 0; q < 16; q++) r[q] = _mm512_load_si512(tile + part * TILE_BYTES + 64 * q);
          transpose16(r);
          store_tile(at + part * TILE_BYTES, r);
        }
      }
    }
  }
}

TIDE_AVX512_BF16_INLINE void pack(char *to, const tile_strip *s, const int pairs)
{
  if (s->is == 1 && s->ps != 1) {
    pack_across(to, s, pairs);
    return;
  }
  for (int64_t i0 = 0; i0 < s->n; i0 += SIDE) {
    for (int64_t p = 0; p < s->k_pad; p += STEP) {
      for (int part = 0; part < SIDE; part += PART, to += TILE_BYTES) {
        __m512i r[16];
        if (s->ps == 1) load_rows(r, s, i0 + part, p);
        else load_any(r, s, i0 + part, p);
        if (pairs) transpose16(r);
        store_tile(to, r);
      }
    }
  }
}

TIDE_AVX512_BF16 static void pack_rows(void *dst, const tile_strip *s) { pack(dst, s, 0); }
TIDE_AVX512_BF16 static void pack_cols(void *dst, const tile_strip *s) { pack(dst, s, 1); }

static const tile_kernel kernel = {
  .mr = SIDE, .nr = SIDE, .kr = STEP, .esize = 2, .f64 = 0, .direct = 1, .kc = DEPTH,
  .cols = NEAR, .whole = WHOLE,
  .pack_a = pack_rows, .pack_b = pack_cols, .run = run, .to_half = to_half,
  .begin = tide__tile_amx_begin, .end = tide__tile_amx_end
};

const tile_kernel *tide__tile_kernel_amx(void) { return &kernel; }

#else

void tide__tile_amx_begin(void) {}
void tide__tile_amx_end(void) {}

const tile_kernel *tide__tile_kernel_amx(void) { return 0; }

#endif
