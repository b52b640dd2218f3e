/* Each number of the weight is read once, as its 4 bits, and looked up in a table of 16 numbers of
 * its block: one row of x is bound by the rate of reading memory, where a panel of nf4.c would be
 * written and read again.
 *
 * A byte holds two numbers. A vector of bytes gives the first numbers of its pairs and the second
 * ones, so x is stored that way: for each block, 32 first numbers, then 32 second.
 */
#include "kernels/cpu/nf4_few.h"

#include "kernels/cpu/pool.h"

enum {
  MOST = 16,             /* rows of x; from more on, panels are faster (README.md) */
  AT_ONCE = 4,           /* rows of x whose sums stay in registers */
  OUT = 16,              /* rows of the weight that a thread takes at a time */
  HALF = NF4_BLOCK / 2
};

int tide__nf4_few_fits(int64_t m, const k_nf4_attrs *a)
{
  return m > 0 && m <= MOST && a->cols > 0 && a->cols % NF4_BLOCK == 0
    && a->first % NF4_BLOCK == 0 && a->stride % NF4_BLOCK == 0;
}

int64_t tide__nf4_few_work(int64_t m, int64_t cols) { return m * cols * (int64_t)sizeof(float); }

/* ---- the sums of one row of the weight ---- */

/* Returns the magnitude of block b of row r of the part. */
TIDE_INLINE float magnitude_at(const nf4 *w, int64_t r, int64_t b)
{
  return nf4_magnitude(w, r, nf4_row_start(w, r) / NF4_BLOCK + b);
}

/* Writes the 16 numbers of a block of that magnitude, as a weight of `dtype` holds them. */
TIDE_INLINE void block_table(float *of, float most, int dtype)
{
  double narrow[16]; /* room for any dtype */
  for (int c = 0; c < 16; c++) of[c] = nf4_share[c] * most;
  if (dtype == TIDE_F32) return;
  vec_narrow(narrow, of, dtype, 16);
  vec_widen(of, narrow, dtype, 16);
}

#if defined(__x86_64__) && defined(__GNUC__)
/* Returns block_table in a register. */
TIDE_AVX512_INLINE __m512 table_avx512(float most, int dtype)
{
  const __m512i half = _mm512_set1_epi32(0x7fff), one = _mm512_set1_epi32(1);
  __m512 v = _mm512_mul_ps(_mm512_loadu_ps(nf4_share), _mm512_set1_ps(most));
  if (dtype == TIDE_F16)
    return _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  if (dtype != TIDE_BF16) return v;
  __m512i bits = _mm512_castps_si512(v), up = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
  up = _mm512_add_epi32(bits, _mm512_add_epi32(up, half)); /* to nearest, ties to even */
  __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
  up = _mm512_and_si512(up, _mm512_set1_epi32((int)0xffff0000));
  return _mm512_mask_mov_ps(v, number, _mm512_castsi512_ps(up));
}

/* Computes sum[i] = row r of the weight times row i of x, i < m. m is a constant where this is
 * inlined. */
TIDE_AVX512_INLINE void dots_avx512(float *sum, const nf4_few *p, int64_t r, const float *x, int m)
{
  __m512 first[AT_ONCE], second[AT_ONCE];
  const int64_t blocks = p->cols / NF4_BLOCK;
  for (int i = 0; i < m; i++) first[i] = second[i] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; b++) {
    const __m512 table = table_avx512(magnitude_at(p->w, r, b), p->x->dtype);
    const uint8_t *pair = p->w->pair + (r * blocks + b) * HALF;
    for (int k = 0; k < HALF; k += 16) {
      __m512i v = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(pair + k)));
      __m512 high = _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4), table);
      __m512 low = _mm512_permutexvar_ps(v, table);
      for (int i = 0; i < m; i++) {
        const float *at = x + i * p->cols + b * NF4_BLOCK + k;
        first[i] = _mm512_fmadd_ps(high, _mm512_loadu_ps(at), first[i]);
        second[i] = _mm512_fmadd_ps(low, _mm512_loadu_ps(at + HALF), second[i]);
      }
    }
  }
  for (int i = 0; i < m; i++) sum[i] = _mm512_reduce_add_ps(_mm512_add_ps(first[i], second[i]));
}

/* Returns half of block_table: 8 numbers, of the shares from `from` on. */
TIDE_AVX2_INLINE __m256 table_avx2(float most, int from, int dtype)
{
  const __m256i half = _mm256_set1_epi32(0x7fff), one = _mm256_set1_epi32(1);
  __m256 v = _mm256_mul_ps(_mm256_loadu_ps(nf4_share + from), _mm256_set1_ps(most));
  if (dtype == TIDE_F16)
    return _mm256_cvtph_ps(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  if (dtype != TIDE_BF16) return v;
  __m256i bits = _mm256_castps_si256(v), up = _mm256_and_si256(_mm256_srli_epi32(bits, 16), one);
  up = _mm256_add_epi32(bits, _mm256_add_epi32(up, half));
  up = _mm256_and_si256(up, _mm256_set1_epi32((int)0xffff0000));
  return _mm256_blendv_ps(v, _mm256_castsi256_ps(up), _mm256_cmp_ps(v, v, _CMP_ORD_Q));
}

/* Returns the number of each index, of a table in two halves: bits 0 to 2 choose in both, bit 3
 * the half. Bits from 4 on may be anything. */
TIDE_AVX2_INLINE __m256 pick_avx2(__m256i index, __m256 low, __m256 high)
{
  __m256 a = _mm256_permutevar8x32_ps(low, index), b = _mm256_permutevar8x32_ps(high, index);
  return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

TIDE_AVX2_INLINE float add_up_avx2(__m256 v)
{
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

TIDE_AVX2_INLINE void dots_avx2(float *sum, const nf4_few *p, int64_t r, const float *x, int m)
{
  __m256 acc[AT_ONCE];
  const int64_t blocks = p->cols / NF4_BLOCK;
  for (int i = 0; i < m; i++) acc[i] = _mm256_setzero_ps();
  for (int64_t b = 0; b < blocks; b++) {
    const float most = magnitude_at(p->w, r, b);
    const __m256 low = table_avx2(most, 0, p->x->dtype), high = table_avx2(most, 8, p->x->dtype);
    const uint8_t *pair = p->w->pair + (r * blocks + b) * HALF;
    for (int k = 0; k < HALF; k += 8) {
      __m256i v = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(pair + k)));
      __m256 first = pick_avx2(_mm256_srli_epi32(v, 4), low, high);
      __m256 second = pick_avx2(v, low, high);
      for (int i = 0; i < m; i++) {
        const float *at = x + i * p->cols + b * NF4_BLOCK + k;
        acc[i] = _mm256_fmadd_ps(first, _mm256_loadu_ps(at), acc[i]);
        acc[i] = _mm256_fmadd_ps(second, _mm256_loadu_ps(at + HALF), acc[i]);
      }
    }
  }
  for (int i = 0; i < m; i++) sum[i] = add_up_avx2(acc[i]);
}
#endif

/* Computes the sums on any processor: a block's numbers are written out, in the order of x. */
TIDE_INLINE void dots_base(float *sum, const nf4_few *p, int64_t r, const float *x, int m)
{
  float of[16], w[NF4_BLOCK], acc[AT_ONCE][16] = {{0}};
  const int64_t blocks = p->cols / NF4_BLOCK;
  for (int64_t b = 0; b < blocks; b++) {
    block_table(of, magnitude_at(p->w, r, b), p->x->dtype);
    const uint8_t *pair = p->w->pair + (r * blocks + b) * HALF;
    for (int k = 0; k < HALF; k++) {
      w[k] = of[pair[k] >> 4];
      w[k + HALF] = of[pair[k] & 15];
    }
    for (int i = 0; i < m; i++) {
      const float *at = x + i * p->cols + b * NF4_BLOCK;
      for (int k = 0; k < NF4_BLOCK; k += 16)
        for (int l = 0; l < 16; l++) acc[i][l] += w[k + l] * at[k + l];
    }
  }
  for (int i = 0; i < m; i++) {
    sum[i] = 0;
    for (int l = 0; l < 16; l++) sum[i] += acc[i][l];
  }
}

/* A function for each level, with m a constant of its loops. */
#define DOTS(level, target) \
  target static void dots_of_##level(float *sum, const nf4_few *p, int64_t r, const float *x, \
                                     int64_t m) \
  { \
    switch (m) { \
    case 1: dots_##level(sum, p, r, x, 1); break; \
    case 2: dots_##level(sum, p, r, x, 2); break; \
    case 3: dots_##level(sum, p, r, x, 3); break; \
    default: dots_##level(sum, p, r, x, 4); break; \
    } \
  }

DOTS(base, )
#if defined(__x86_64__) && defined(__GNUC__)
DOTS(avx512, TIDE_AVX512)
DOTS(avx2, TIDE_AVX2)
#endif

typedef void dots_fn(float *sum, const nf4_few *p, int64_t r, const float *x, int64_t m);

static dots_fn *dots_of_this(void)
{
#if defined(__x86_64__) && defined(__GNUC__)
  if (tide__cpu_isa() & CPU_ISA_AVX512) return dots_of_avx512;
  if (tide__cpu_isa() & CPU_ISA_AVX2) return dots_of_avx2;
#endif
  return dots_of_base;
}

/* ---- all rows ---- */

/* Writes rows [begin, end) of x as f32, first numbers of pairs before second ones. */
static void few_split(void *arg, int64_t begin, int64_t end, int thread)
{
  const nf4_few *p = arg;
  float tmp[NF4_BLOCK];
  (void)thread;
  for (int64_t at = begin * p->cols; at < end * p->cols; at += NF4_BLOCK) {
    const float *x = row_read(p->x, at, tmp, NF4_BLOCK);
    for (int k = 0; k < HALF; k++) {
      p->pairs[at + k] = x[2 * k];
      p->pairs[at + k + HALF] = x[2 * k + 1];
    }
  }
}

static void few_rows(void *arg, int64_t begin, int64_t end, int thread)
{
  const nf4_few *p = arg;
  dots_fn *dots = dots_of_this();
  float sum[AT_ONCE], out[AT_ONCE][OUT], bias[OUT];
  (void)thread;
  for (int64_t r = begin * OUT; r < end * OUT && r < p->rows; r += OUT) {
    int64_t n = p->rows - r < OUT ? p->rows - r : OUT;
    if (!k_absent(p->bias)) row_widen(bias, row_at(p->bias, r), p->bias->dtype, n);
    for (int64_t i = 0; i < p->m; i += AT_ONCE) {
      int64_t m = p->m - i < AT_ONCE ? p->m - i : AT_ONCE;
      for (int64_t k = 0; k < n; k++) {
        dots(sum, p, r + k, p->pairs + i * p->cols, m);
        for (int64_t l = 0; l < m; l++) out[l][k] = sum[l] + (k_absent(p->bias) ? 0 : bias[k]);
      }
      for (int64_t l = 0; l < m; l++)
        row_narrow(row_at(p->y, (i + l) * p->rows + r), out[l], p->y->dtype, n);
    }
  }
}

void tide__nf4_few(nf4_few *p, int nthread)
{
  tide__pool_for(nthread, p->m, 1 + 16384 / p->cols, few_split, p);
  tide__pool_for(nthread, (p->rows + OUT - 1) / OUT, 1 + 65536 / (OUT * p->cols), few_rows, p);
}
