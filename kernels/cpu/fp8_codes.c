/* fp8_codes on the CPU: an operand is read once, a tile of 128 x 128 at a time, and becomes codes
 * in both directions. A tile is whole blocks of either kind in either direction, so tiles are
 * independent.
 *
 * Rounding is one addition: adding 1.5 * 2^23 times the FP8 spacing at a number, then subtracting
 * it, leaves a multiple of that spacing, to nearest even. An operand is walked in memory order: of
 * a transposed view the two directions trade places. Scales: kernels/fp8.h.
 */
#include "kernels/cpu/loop.h"
#include "kernels/cpu/row.h"
#include "kernels/fp8.h"

enum { TILE = K_FP8_BLOCK, GRAIN = LOOP_GRAIN / LOOP_CHUNK /* chunks per thread at fp8_least */ };

/* What a thread holds of a tile. */
typedef struct fp8_tile {
  float   x[TILE][TILE], most[TILE], scale[TILE];
  uint8_t code[TILE][TILE];
} fp8_tile;

/* Codes in one direction, [wide rows, wide cols], and their scale; null if not wanted. */
typedef struct fp8_side {
  uint8_t *codes;
  float   *scale;
} fp8_side;

typedef struct codes_job {
  cpu_stream  from;
  int64_t     rows, cols, tiles_across;
  k_fp8_attrs at;
  fp8_side    along, across;
  float       whole; /* of TENSOR: the factor */
  float      *most;  /* of TENSOR: one number per thread */
  fp8_tile   *tile;  /* one per thread */
} codes_job;

TIDE_LEVELS(float, largest, (const float *x, int64_t n, float most), (x, n, most))
{
  for (int64_t i = 0; i < n; i++) {
    float a = fabsf(x[i]);
    most = a > most ? a : most; /* NaN is ignored */
  }
  return most;
}

TIDE_LEVELS(void, largest_each, (float *most, const float *x, int64_t n), (most, x, n))
{
  for (int64_t i = 0; i < n; i++) {
    float a = fabsf(x[i]);
    most[i] = a > most[i] ? a : most[i];
  }
}

/* Returns the code of v. Adding and subtracting `grid`, 1.5 * 2^23 times the spacing of codes at v,
 * rounds to a code; its bits are those of the power of two below |v|, moved up by the bits that are
 * dropped. */
TIDE_INLINE uint8_t fp8_code_of(float v, int e5m2)
{
  const int drop = e5m2 ? 21 : 20, bias = e5m2 ? 15 : 7;
  const float top = k_fp8_top(e5m2), infinity = e5m2 ? INFINITY : NAN;
  const float lowest = e5m2 ? 0x1p-14f : 0x1p-6f, units = e5m2 ? 0x1p16f : 0x1p9f;
  float a = fabsf(v), c = a > top ? top : a;
  c = a == INFINITY ? infinity : c;
  uint32_t e = tide__f32_bits(c) & 0x7f800000u, fp8_least = (uint32_t)(128 - bias) << 23;
  uint32_t up = (uint32_t)drop << 23;
  float grid = tide__bits_f32(((e < fp8_least ? fp8_least : e) + up) | 0x400000u);
  float r = (c + grid) - grid;
  uint32_t normal = (tide__f32_bits(r) >> drop) - ((uint32_t)(127 - bias) << (23 - drop));
  uint32_t small = (uint32_t)(int32_t)((r < lowest ? r : 0) * units);
  uint32_t code = (r < lowest ? small : normal) | (tide__f32_bits(v) >> 24 & 0x80u);
  code = r == INFINITY ? 0x7c | (tide__f32_bits(v) >> 24 & 0x80u) : code;
  return (uint8_t)(r == r ? code : 0x7f);
}

TIDE_LEVELS(void, code_by, (uint8_t *to, const float *x, int64_t n, float scale, int e5m2),
            (to, x, n, scale, e5m2))
{
  if (e5m2)
    for (int64_t i = 0; i < n; i++) to[i] = fp8_code_of(x[i] * scale, 1);
  else
    for (int64_t i = 0; i < n; i++) to[i] = fp8_code_of(x[i] * scale, 0);
}

TIDE_LEVELS(void, code_by_each, (uint8_t *to, const float *x, int64_t n, const float *scale),
            (to, x, n, scale))
{
  for (int64_t i = 0; i < n; i++) to[i] = fp8_code_of(x[i] * scale[i], 0);
}

/* ---- a tile ---------------------------------------------------------------------------------- */

static int64_t fp8_least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Reads the tile at (r0, c0), with zeros behind the operand. */
static void read_tile(const codes_job *j, int64_t r0, int64_t c0, fp8_tile *t)
{
  int64_t h = fp8_least(j->rows - r0, TILE), w = fp8_least(j->cols - c0, TILE);
  for (int64_t r = 0; r < h; r++) {
    int64_t at = (r0 + r) * j->cols + c0;
    const float *x = tide__stream_read(&j->from, TIDE_F32, at, w, t->x[r]);
    if (x != t->x[r]) memcpy(t->x[r], x, (size_t)w * sizeof *x);
    memset(t->x[r] + w, 0, (size_t)(TILE - w) * sizeof(float));
  }
  for (int64_t r = h; r < TILE; r++) memset(t->x[r], 0, sizeof t->x[r]);
}

/* Writes rows [r0, ..) and columns [c0, ..) of codes in one direction; h x w with the zeros. */
static void write_along(const codes_job *j, const fp8_tile *t, int64_t r0, int64_t c0, int64_t h,
                        int64_t w)
{
  int64_t wide = k_fp8_wide(j->cols);
  for (int64_t r = 0; r < h; r++)
    memcpy(j->along.codes + (r0 + r) * wide + c0, t->code[r], (size_t)w);
}

static void write_across(const codes_job *j, const fp8_tile *t, int64_t r0, int64_t c0, int64_t h,
                         int64_t w)
{
  int64_t wide = k_fp8_wide(j->rows);
  for (int64_t c = 0; c < w; c++) {
    uint8_t *to = j->across.codes + (c0 + c) * wide + r0;
    for (int64_t r = 0; r < h; r++) to[r] = t->code[r][c];
  }
}

/* Returns one scale for the tile, the same in both directions. */
static float square_scale(const codes_job *j, const fp8_tile *t, int64_t i, int64_t k)
{
  float most = 0, s;
  if (j->at.kind == K_FP8_TENSOR) return j->whole;
  for (int64_t r = 0; r < TILE; r++) most = largest(t->x[r], TILE, most);
  s = k_fp8_block_scale(most, j->at.f32_scale);
  int64_t down = k_fp8_blocks(j->rows), across = j->tiles_across;
  int64_t wide_across = k_fp8_square_row(j->cols), wide_down = k_fp8_square_row(j->rows);
  if (j->along.scale) {
    j->along.scale[i * wide_across + k] = 1 / s;
    for (int64_t p = across; k == across - 1 && p < wide_across; p++)
      j->along.scale[i * wide_across + p] = 1;
  }
  if (j->across.scale) {
    j->across.scale[k * wide_down + i] = 1 / s;
    for (int64_t p = down; i == down - 1 && p < wide_down; p++)
      j->across.scale[k * wide_down + p] = 1;
  }
  return s;
}

static void code_square(const codes_job *j, fp8_tile *t, int64_t i, int64_t k, int64_t h, int64_t w)
{
  float s = square_scale(j, t, i, k);
  for (int64_t r = 0; r < h; r++) code_by(t->code[r], t->x[r], w, s, j->at.e5m2);
  if (j->along.codes) write_along(j, t, i * TILE, k * TILE, h, w);
  if (j->across.codes) write_across(j, t, i * TILE, k * TILE, h, w);
}

static void code_rows(const codes_job *j, fp8_tile *t, int64_t i, int64_t k, int64_t h, int64_t w)
{
  if (j->along.codes) {
    float *scale = j->along.scale + k * k_fp8_wide(j->rows) + i * TILE;
    for (int64_t r = 0; r < h; r++) {
      float s = k_fp8_block_scale(largest(t->x[r], TILE, 0), j->at.f32_scale);
      scale[r] = 1 / s;
      code_by(t->code[r], t->x[r], w, s, 0);
    }
    write_along(j, t, i * TILE, k * TILE, h, w);
  }
  if (!j->across.codes) return;
  float *scale = j->across.scale + i * k_fp8_wide(j->cols) + k * TILE;
  memset(t->most, 0, sizeof t->most);
  for (int64_t r = 0; r < h; r++) largest_each(t->most, t->x[r], w);
  for (int64_t c = 0; c < w; c++) {
    t->scale[c] = k_fp8_block_scale(t->most[c], j->at.f32_scale);
    scale[c] = 1 / t->scale[c];
  }
  for (int64_t r = 0; r < h; r++) code_by_each(t->code[r], t->x[r], w, t->scale);
  write_across(j, t, i * TILE, k * TILE, h, w);
}

static void code_tiles(void *arg, int64_t begin, int64_t end, int thread)
{
  const codes_job *j = arg;
  fp8_tile *t = j->tile + thread;
  for (int64_t n = begin; n < end; n++) {
    int64_t i = n / j->tiles_across, k = n % j->tiles_across;
    int64_t h = fp8_least(k_fp8_wide(j->rows) - i * TILE, TILE);
    int64_t w = fp8_least(k_fp8_wide(j->cols) - k * TILE, TILE);
    read_tile(j, i * TILE, k * TILE, t);
    if (j->at.kind == K_FP8_ROWS) code_rows(j, t, i, k, h, w);
    else code_square(j, t, i, k, h, w);
  }
}

/* ---- one scale for all ----------------------------------------------------------------------- */

static void find_largest(void *arg, int64_t begin, int64_t end, int thread)
{
  codes_job *j = arg;
  cpu_chunk buf;
  int64_t n = j->rows * j->cols;
  float most = j->most[thread];
  for (int64_t c = begin; c < end; c++) {
    int64_t at = c * LOOP_CHUNK, size = fp8_least(n - at, LOOP_CHUNK);
    most = largest(tide__stream_read(&j->from, TIDE_F32, at, size, &buf), size, most);
  }
  j->most[thread] = most;
}

static void scale_whole(codes_job *j, float *scale, int nthread)
{
  int64_t chunks = (j->rows * j->cols + LOOP_CHUNK - 1) / LOOP_CHUNK;
  float most = 0;
  for (int i = 0; i < nthread; i++) j->most[i] = 0;
  tide__pool_for(nthread, chunks, GRAIN, find_largest, j);
  for (int i = 0; i < nthread; i++) most = j->most[i] > most ? j->most[i] : most;
  j->whole = k_fp8_scale(most, j->at.e5m2);
  *scale = 1 / j->whole;
}

/* ---- the call -------------------------------------------------------------------------------- */

static int threads_of(const k_call *call) { return call->nthread < 1 ? 1 : call->nthread; }

static int64_t most_bytes(int nthread) { return (4 * (int64_t)nthread + 63) / 64 * 64; }

int64_t k_cpu_fp8_codes_work(const k_call *call)
{
  int nthread = threads_of(call);
  return most_bytes(nthread) + nthread * (int64_t)sizeof(fp8_tile);
}

static fp8_side side_of(const k_tensor *codes, const k_tensor *scale)
{
  return (fp8_side){k_absent(codes) ? NULL : codes->data, k_absent(scale) ? NULL : scale->data};
}

int k_cpu_fp8_codes(const k_call *call)
{
  const k_tensor *x = &call->in[0], *y = call->out;
  k_tensor lies;
  int nthread = threads_of(call);
  bool turned = k_fp8_lying(x, &lies);
  codes_job j = {.at = *(const k_fp8_attrs *)call->attrs, .most = call->work,
                 .tile = (fp8_tile *)((char *)call->work + most_bytes(nthread)),
                 .along = side_of(&y[turned ? 2 : 0], &y[turned ? 3 : 1]),
                 .across = side_of(&y[turned ? 0 : 2], &y[turned ? 1 : 3])};
  j.rows = k_row_count(&lies), j.cols = k_row_size(&lies), j.tiles_across = k_fp8_blocks(j.cols);
  tide__stream_init(&j.from, &lies);
  if (j.at.kind == K_FP8_TENSOR) scale_whole(&j, y[1].data, nthread);
  tide__pool_for(nthread, k_fp8_blocks(j.rows) * j.tiles_across, 1 + LOOP_GRAIN / (TILE * TILE),
                 code_tiles, &j);
  return TIDE_OK;
}
