/* quantize_nf4, dequantize_nf4, linear_nf4 and its grouped form, a product a group, on the CPU
 * (kernels/ref/nf4.h has the format).
 *
 * A product reads the weight a panel at a time: all threads turn rows of it (backward: columns)
 * into numbers of x's dtype, in scratch that stays in the cache, and gemm.c multiplies by that
 * panel. Panels cut results, not sums, so nothing is added up twice. Few rows of x take nf4_few.c.
 */
#include "kernels/cpu/gemm/gemm.h"
#include "kernels/cpu/nf4_few.h"
#include "kernels/ref/nf4_groups.h"

enum {
  PANEL = 1 << 19,                       /* numbers of a panel, if that is wide enough */
  LEAST_ROWS = 64, LEAST_COLS = NF4_BLOCK,
  UNIT = 64 * NF4_BLOCK                  /* numbers that a thread reads or codes at a time */
};

/* ---- reading ---- */

#if defined(__x86_64__) && defined(__GNUC__)
/* Writes the numbers of 32 pairs: a lane of 64 bits takes a pair, and of[] is looked up by the low
 * 4 bits of each half. */
TIDE_AVX512 static void read_pairs_avx512(float *to, const uint8_t *pair, const float *of)
{
  const __m512 table = _mm512_loadu_ps(of);
  const __m512i first_high = _mm512_set1_epi64(4);
  for (int k = 0; k < NF4_BLOCK / 2; k += 8) {
    __m512i v = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(pair + k)));
    v = _mm512_srlv_epi32(_mm512_or_si512(v, _mm512_slli_epi64(v, 32)), first_high);
    _mm512_storeu_ps(to + 2 * k, _mm512_permutexvar_ps(v, table));
  }
}
#endif

/* Writes the numbers of `n` pairs, on any processor. */
static void read_pairs(float *to, const uint8_t *pair, const float *of, int64_t n)
{
#if defined(__x86_64__) && defined(__GNUC__)
  if (n == NF4_BLOCK / 2 && tide__cpu_isa() & CPU_ISA_AVX512) {
    read_pairs_avx512(to, pair, of);
    return;
  }
#endif
  for (int64_t k = 0; k < n; k++) {
    to[2 * k] = of[pair[k] >> 4];
    to[2 * k + 1] = of[pair[k] & 15];
  }
}

/* Writes numbers [at, at + n) of the part, in order, as dtype. */
TIDE_LEVELS(void, nf4_read, (void *to, const nf4 *q, int64_t at, int64_t n, int dtype),
            (to, q, at, n, dtype))
{
  float of[16], row[NF4_BLOCK];
  int64_t cols = q->at.cols, r = cols ? at / cols : 0, c = at - r * cols;
  for (int64_t done = 0; done < n;) {
    int64_t i = at + done, place = nf4_row_start(q, r) + c;
    int64_t left = NF4_BLOCK - place % NF4_BLOCK;
    if (left > cols - c) left = cols - c;
    int64_t size = n - done < left ? n - done : left;
    float most = nf4_magnitude(q, r, place / NF4_BLOCK);
    for (int c = 0; c < 16; c++) of[c] = nf4_share[c] * most;
    int64_t k = 0;
    if (i % 2) row[k++] = of[nf4_code_at(q, i)];
    read_pairs(row + k, q->pair + (i + k) / 2, of, (size - k) / 2);
    k += (size - k) / 2 * 2;
    if (k < size) row[k] = of[nf4_code_at(q, i + k)];
    vec_narrow((char *)to + done * vec_size(dtype), row, dtype, size);
    done += size;
    c += size;
    if (c == cols) r++, c = 0;
  }
}

typedef struct nf4_all {
  nf4 q;
  const k_tensor *t;   /* read: the result; coded: the numbers */
  int64_t n;
  uint8_t *codes;
  float *most;
} nf4_all;

static int64_t nf4_unit_size(int64_t n, int64_t unit)
{
  return n - unit * UNIT < UNIT ? n - unit * UNIT : UNIT;
}

static void read_units(void *arg, int64_t begin, int64_t end, int thread)
{
  const nf4_all *j = arg;
  (void)thread;
  for (int64_t u = begin; u < end; u++)
    nf4_read((float *)j->t->data + u * UNIT, &j->q, u * UNIT, nf4_unit_size(j->n, u), TIDE_F32);
}

int k_cpu_dequantize_nf4(const k_call *call)
{
  nf4_all j = {.t = &call->out[0], .n = k_numel(&call->out[0])};
  nf4_init(&j.q, call->in[0].data, call->in[1].data, call->attrs);
  tide__pool_for(call->nthread, (j.n + UNIT - 1) / UNIT, 4, read_units, &j);
  return TIDE_OK;
}

/* ---- coding ---- */

static void code_units(void *arg, int64_t begin, int64_t end, int thread)
{
  const nf4_all *j = arg;
  float tmp[NF4_BLOCK];
  (void)thread;
  for (int64_t at = begin * UNIT; at < end * UNIT && at < j->n; at += NF4_BLOCK) {
    int64_t size = j->n - at < NF4_BLOCK ? j->n - at : NF4_BLOCK;
    const float *x = row_read(j->t, at, tmp, size);
    float most = nf4_largest(x, size);
    j->most[at / NF4_BLOCK] = most;
    nf4_code_block(j->codes + at / 2, x, size, most);
  }
}

int k_cpu_quantize_nf4(const k_call *call)
{
  nf4_all j = {.t = &call->in[0], .n = k_numel(&call->in[0]), .codes = call->out[0].data,
               .most = call->work};
  tide__pool_for(call->nthread, (j.n + UNIT - 1) / UNIT, 4, code_units, &j);
  nf4_code_magnitudes(j.codes + nf4_pairs(j.n), call->out[1].data, j.most, nf4_blocks(j.n));
  return TIDE_OK;
}

/* ---- the product ---- */

typedef struct nf4_product {
  nf4 q;
  const k_nf4_attrs *a;
  cpu_gemm g;              /* of one panel */
  int64_t width, at, size; /* results of a whole panel; those of the current one */
  int64_t n, panel_bytes;
  char *panel;
} nf4_product;

static int64_t panel_width(const k_nf4_attrs *a)
{
  int64_t depth = a->transposed ? a->rows : a->cols;
  int64_t least = a->transposed ? LEAST_COLS : LEAST_ROWS;
  int64_t all = a->transposed ? a->cols : a->rows;
  int64_t width = PANEL / (depth ? depth : 1) / least * least;
  if (width < least) width = least;
  return width < all ? width : all;
}

/* Uses sizes alone: data pointers may be null. */
static void make_product(nf4_product *p, const k_call *call)
{
  const k_nf4_attrs *a = call->attrs;
  const k_tensor *x = &call->in[0], *y = &call->out[0];
  int64_t k = a->transposed ? a->rows : a->cols;
  p->a = a;
  p->n = a->transposed ? a->cols : a->rows;
  p->width = panel_width(a);
  p->g = (cpu_gemm){.m = p->n ? k_numel(y) / p->n : 0, .n = p->width, .k = k, .a_rs = k, .a_cs = 1,
                    .b_rs = a->transposed ? p->width : 1, .b_cs = a->transposed ? 1 : k,
                    .c_rs = p->n, .ab_dtype = x->dtype, .c_dtype = x->dtype};
  p->panel_bytes = i64_round_up(p->width * k * vec_size(x->dtype), 64);
}

/* Returns the product of the panel [p->at, p->at + p->size). */
static cpu_gemm panel_product(const nf4_product *p, int64_t size)
{
  cpu_gemm g = p->g;
  g.n = size;
  if (p->a->transposed) g.b_rs = size;
  return g;
}

static int takes_few(const nf4_product *p)
{
  return !p->a->transposed && tide__nf4_few_fits(p->g.m, p->a);
}

int64_t k_cpu_linear_nf4_work(const k_call *call)
{
  nf4_product p;
  make_product(&p, call);
  if (takes_few(&p)) return tide__nf4_few_work(p.g.m, p.a->cols);
  int64_t rest = p.width ? p.n % p.width : 0;
  cpu_gemm whole = panel_product(&p, p.width), last = panel_product(&p, rest);
  int64_t work = tide__cpu_gemm_work(&whole, call->nthread);
  int64_t more = rest ? tide__cpu_gemm_work(&last, call->nthread) : 0;
  return p.panel_bytes + (work > more ? work : more);
}

/* Expands rows of the panel: as many as results in forward, all rows of the weight in backward. */
static void read_panel(void *arg, int64_t begin, int64_t end, int thread)
{
  const nf4_product *p = arg;
  int64_t cols = p->a->cols, bytes = vec_size(p->g.ab_dtype);
  (void)thread;
  for (int64_t r = begin; r < end; r++) {
    int64_t size = p->a->transposed ? p->size : cols;
    int64_t from = p->a->transposed ? r * cols + p->at : (p->at + r) * cols;
    nf4_read(p->panel + r * size * bytes, &p->q, from, size, p->g.ab_dtype);
  }
}

int k_cpu_linear_nf4(const k_call *call)
{
  nf4_product p;
  const k_tensor *bias = &call->in[3], *y = &call->out[0];
  make_product(&p, call);
  if (p.g.m == 0 || p.n == 0) return TIDE_OK;
  nf4_init(&p.q, call->in[1].data, call->in[2].data, p.a);
  if (takes_few(&p)) {
    nf4_few few = {.w = &p.q, .x = &call->in[0], .bias = bias, .y = y, .m = p.g.m,
                   .rows = p.a->rows, .cols = p.a->cols, .pairs = call->work};
    tide__nf4_few(&few, call->nthread);
    return TIDE_OK;
  }
  p.panel = call->work;
  int64_t bytes = vec_size(y->dtype);
  for (p.at = 0; p.at < p.n; p.at += p.width) {
    p.size = p.n - p.at < p.width ? p.n - p.at : p.width;
    int64_t row = p.a->transposed ? p.size : p.a->cols;
    tide__pool_for(call->nthread, p.a->transposed ? p.a->rows : p.size, 1 + UNIT / (1 + row),
                   read_panel, &p);
    cpu_gemm g = panel_product(&p, p.size);
    g.a = call->in[0].data;
    g.b = p.panel;
    g.c = (char *)y->data + p.at * bytes;
    g.bias = k_absent(bias) ? NULL : (const char *)bias->data + p.at * bytes;
    tide__cpu_gemm(&g, call->nthread, p.panel + p.panel_bytes);
  }
  return TIDE_OK;
}

/* Returns the bytes that suffice for a group of any number of rows. */
int64_t k_cpu_grouped_linear_nf4_work(const k_call *call)
{
  nf4_group all;
  nf4_product p;
  int64_t few = 0;
  nf4_group_make(&all, call, 0, 0, call->in[0].shape[0]);
  make_product(&p, &all.call);
  for (int64_t m = 1; m <= p.g.m && !p.a->transposed && tide__nf4_few_fits(m, p.a); m++)
    few = tide__nf4_few_work(m, p.a->cols);
  int64_t rest = p.width ? p.n % p.width : 0;
  cpu_gemm whole = panel_product(&p, p.width), last = panel_product(&p, rest);
  int64_t work = tide__cpu_gemm_most(&whole, call->nthread);
  int64_t more = rest ? tide__cpu_gemm_most(&last, call->nthread) : 0;
  return i64_max(few, p.panel_bytes + i64_max(work, more));
}

int k_cpu_grouped_linear_nf4(const k_call *call) { return nf4_each_group(call, k_cpu_linear_nf4); }
