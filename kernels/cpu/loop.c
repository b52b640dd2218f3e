/* Streams and the two loops over them: see loop.h.
 *
 * Tables of small vectorised loops, indexed by form and dtype, load a strided run into contiguous
 * numbers or store them back. A run is the innermost merged dim.
 */
#include "kernels/cpu/loop.h"

#include "kernels/ref/load.h"

/* ---- loads: strided dtype S -> contiguous form D ------------------------------------------- */

typedef void (*load_fn)(void *dst, const void *src, int64_t stride, int64_t n);
typedef void (*store_fn)(void *dst, int64_t stride, const void *src, int64_t n);

#define LOAD(name, S, D, convert) \
  TIDE_LEVELS(void, name, \
              (void *dst, const void *src, int64_t stride, int64_t n), (dst, src, stride, n)) \
  { \
    const S *s = src; \
    D *d = dst; \
    if (stride == 1) { \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) { S v = s[i]; d[i] = convert; } \
    } else if (stride == 0) { \
      S v = s[0]; \
      D one = convert; \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) d[i] = one; \
    } else { \
      for (int64_t i = 0; i < n; i++) { S v = s[i * stride]; d[i] = convert; } \
    } \
  }

#define STORE(name, S, D, convert) \
  TIDE_LEVELS(void, name, \
              (void *dst, int64_t stride, const void *src, int64_t n), (dst, stride, src, n)) \
  { \
    const S *s = src; \
    D *d = dst; \
    if (stride == 1) { \
      _Pragma("omp simd") for (int64_t i = 0; i < n; i++) { S v = s[i]; d[i] = convert; } \
    } else { \
      for (int64_t i = 0; i < n; i++) { S v = s[i]; d[i * stride] = convert; } \
    } \
  }

/* Bits, by size. */
LOAD(load_1, uint8_t, uint8_t, v)
LOAD(load_2, uint16_t, uint16_t, v)
LOAD(load_4, uint32_t, uint32_t, v)
LOAD(load_8, uint64_t, uint64_t, v)
STORE(store_1, uint8_t, uint8_t, v)
STORE(store_2, uint16_t, uint16_t, v)
STORE(store_4, uint32_t, uint32_t, v)
STORE(store_8, uint64_t, uint64_t, v)

LOAD(load_f32_bf16, uint16_t, float, tide__bf16_to_f32(v))
LOAD(load_f32_f16, uint16_t, float, tide__f16_to_f32(v))
LOAD(load_f32_u8, uint8_t, float, v)
STORE(store_f32_bf16, float, uint16_t, tide__f32_to_bf16(v))
STORE(store_f32_f16, float, uint16_t, tide__f32_to_f16(v))

LOAD(load_f64_f32, float, double, v)
LOAD(load_f64_bf16, uint16_t, double, tide__bf16_to_f32(v))
LOAD(load_f64_f16, uint16_t, double, tide__f16_to_f32(v))
LOAD(load_f64_i64, int64_t, double, (double)v)
LOAD(load_f64_i32, int32_t, double, v)
LOAD(load_f64_u8, uint8_t, double, v)
STORE(store_f64_f32, double, float, (float)v)
STORE(store_f64_bf16, double, uint16_t, tide__f64_to_bf16(v))
STORE(store_f64_f16, double, uint16_t, tide__f64_to_f16(v))
STORE(store_f64_i64, double, int64_t, ref_truncate(v, INT64_MIN, INT64_MAX))
STORE(store_f64_i32, double, int32_t, (int32_t)ref_truncate(v, INT32_MIN, INT32_MAX))
STORE(store_f64_u8, double, uint8_t, (uint8_t)ref_truncate(v, 0, 255))
STORE(store_f64_bool, double, uint8_t, v != 0)

LOAD(load_i64_i32, int32_t, int64_t, v)
LOAD(load_i64_u8, uint8_t, int64_t, v)
STORE(store_i64_i32, int64_t, int32_t, (int32_t)(uint32_t)v)
STORE(store_i64_u8, int64_t, uint8_t, (uint8_t)v)
STORE(store_i64_bool, int64_t, uint8_t, v != 0)
STORE(store_i64_f32, int64_t, float, (float)v)
STORE(store_i64_f64, int64_t, double, (double)v)
STORE(store_i64_bf16, int64_t, uint16_t, tide__i64_to_bf16(v))
STORE(store_i64_f16, int64_t, uint16_t, tide__i64_to_f16(v))

static const load_fn load_f32[TIDE_NDTYPE] = {
  [TIDE_BF16] = load_f32_bf16, [TIDE_F16] = load_f32_f16, [TIDE_U8] = load_f32_u8,
  [TIDE_BOOL] = load_f32_u8
};
static const load_fn load_f64[TIDE_NDTYPE] = {
  [TIDE_F32] = load_f64_f32, [TIDE_BF16] = load_f64_bf16, [TIDE_F16] = load_f64_f16,
  [TIDE_I64] = load_f64_i64, [TIDE_I32] = load_f64_i32, [TIDE_U8] = load_f64_u8,
  [TIDE_BOOL] = load_f64_u8
};
static const load_fn load_i64[TIDE_NDTYPE] = {
  [TIDE_I32] = load_i64_i32, [TIDE_U8] = load_i64_u8, [TIDE_BOOL] = load_i64_u8
};
static const store_fn store_f32[TIDE_NDTYPE] = {
  [TIDE_BF16] = store_f32_bf16, [TIDE_F16] = store_f32_f16
};
static const store_fn store_f64[TIDE_NDTYPE] = {
  [TIDE_F32] = store_f64_f32, [TIDE_BF16] = store_f64_bf16, [TIDE_F16] = store_f64_f16,
  [TIDE_I64] = store_f64_i64, [TIDE_I32] = store_f64_i32, [TIDE_U8] = store_f64_u8,
  [TIDE_BOOL] = store_f64_bool
};
static const store_fn store_i64[TIDE_NDTYPE] = {
  [TIDE_I32] = store_i64_i32, [TIDE_U8] = store_i64_u8, [TIDE_BOOL] = store_i64_bool,
  [TIDE_F32] = store_i64_f32, [TIDE_F64] = store_i64_f64, [TIDE_BF16] = store_i64_bf16,
  [TIDE_F16] = store_i64_f16
};

static load_fn find_load(int form, int dtype, int size)
{
  if (form == dtype) return CPU_OF_SIZE(size, load);
  return (form == TIDE_F32 ? load_f32 : form == TIDE_F64 ? load_f64 : load_i64)[dtype];
}

static store_fn find_store(int form, int dtype, int size)
{
  if (form == dtype) return CPU_OF_SIZE(size, store);
  return (form == TIDE_F32 ? store_f32 : form == TIDE_F64 ? store_f64 : store_i64)[dtype];
}

int tide__loop_form(int dtype)
{
  if (dtype == TIDE_F64) return TIDE_F64;
  return tide__dtype_is_float(dtype) ? TIDE_F32 : TIDE_I64;
}

/* ---- streams ------------------------------------------------------------------------------- */

int tide__loop_merge(int ndim, int64_t *shape, int64_t *stride)
{
  int n = 0;
  for (int d = 0; d < ndim; d++) {
    if (shape[d] == 1) continue;
    if (n > 0 && stride[n - 1] == stride[d] * shape[d]) {
      shape[n - 1] *= shape[d];
      stride[n - 1] = stride[d];
    } else {
      shape[n] = shape[d];
      stride[n++] = stride[d];
    }
  }
  return n;
}

void tide__stream_init(cpu_stream *s, const k_tensor *t)
{
  for (int d = 0; d < t->ndim; d++) {
    s->shape[d] = t->shape[d];
    s->stride[d] = t->stride[d];
  }
  s->data = t->data;
  s->dtype = t->dtype;
  s->size = tide_dtype_size(t->dtype);
  s->ndim = tide__loop_merge(t->ndim, s->shape, s->stride);
  if (s->ndim == 0) {
    s->ndim = 1;
    s->shape[0] = 1;
    s->stride[0] = 1;
  }
  s->flat = s->ndim == 1 && s->stride[0] == 1;
}

/* Sets the coordinates of the element with row-major number at; returns its offset. */
static int64_t seek(const cpu_stream *s, int64_t at, int64_t *coord)
{
  int64_t offset = 0;
  for (int d = s->ndim - 1; d > 0; d--) {
    coord[d] = at % s->shape[d];
    at /= s->shape[d];
    offset += coord[d] * s->stride[d];
  }
  coord[0] = at;
  return offset + at * s->stride[0];
}

int64_t tide__stream_offset(const cpu_stream *s, int64_t at)
{
  int64_t coord[TIDE_MAX_DIM];
  return seek(s, at, coord);
}

/* Advances by n elements, n at most the rest of the run; returns the change of the offset. */
static int64_t loop_advance(const cpu_stream *s, int64_t n, int64_t *coord)
{
  int d = s->ndim - 1;
  int64_t offset = n * s->stride[d];
  coord[d] += n;
  while (d > 0 && coord[d] == s->shape[d]) {
    offset += s->stride[d - 1] - coord[d] * s->stride[d];
    coord[d--] = 0;
    coord[d]++;
  }
  return offset;
}

/* Returns whether n elements from coord on lie inside one run of stride 1 in the right dtype. */
static int loop_in_place(const cpu_stream *s, int form, int64_t n, const int64_t *coord)
{
  int last = s->ndim - 1;
  return form == s->dtype && s->stride[last] == 1 && coord[last] + n <= s->shape[last];
}

const void *tide__stream_read(const cpu_stream *s, int form, int64_t at, int64_t n, void *buf)
{
  int64_t coord[TIDE_MAX_DIM], offset = seek(s, at, coord);
  int last = s->ndim - 1, width = form == s->dtype ? s->size : tide_dtype_size(form);
  load_fn load;
  char *to = buf;
  if (loop_in_place(s, form, n, coord)) return s->data + offset * s->size;
  load = find_load(form, s->dtype, s->size);
  while (n > 0) {
    int64_t run = s->shape[last] - coord[last];
    run = run < n ? run : n;
    load(to, s->data + offset * s->size, s->stride[last], run);
    offset += loop_advance(s, run, coord);
    to += run * width;
    n -= run;
  }
  return buf;
}

void *tide__stream_target(const cpu_stream *s, int form, int64_t at, int64_t n, void *buf)
{
  int64_t coord[TIDE_MAX_DIM], offset = seek(s, at, coord);
  return loop_in_place(s, form, n, coord) ? s->data + offset * s->size : buf;
}

void tide__stream_write(const cpu_stream *s, int form, int64_t at, int64_t n, const void *from)
{
  int64_t coord[TIDE_MAX_DIM], offset = seek(s, at, coord);
  int last = s->ndim - 1, width = form == s->dtype ? s->size : tide_dtype_size(form);
  const char *src = from;
  store_fn store;
  if (loop_in_place(s, form, n, coord) && src == s->data + offset * s->size) return;
  store = find_store(form, s->dtype, s->size);
  while (n > 0) {
    int64_t run = s->shape[last] - coord[last];
    run = run < n ? run : n;
    store(s->data + offset * s->size, s->stride[last], src, run);
    offset += loop_advance(s, run, coord);
    src += run * width;
    n -= run;
  }
}

#define ADD(name, T, sum) \
  TIDE_LEVELS(void, name, (void *yv, const void *av, const void *bv, int64_t n), (yv, av, bv, n)) \
  { \
    const T *a = av, *b = bv; \
    T *y = yv; \
    _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y[i] = (T)(sum); \
  }
ADD(loop_add_f32, float, a[i] + b[i])
ADD(loop_add_f64, double, a[i] + b[i])
ADD(loop_add_i64, int64_t, (uint64_t)a[i] + (uint64_t)b[i])

void tide__loop_add(int form, void *y, const void *a, const void *b, int64_t n)
{
  (form == TIDE_F32 ? loop_add_f32 : form == TIDE_F64 ? loop_add_f64 : loop_add_i64)(y, a, b, n);
}

/* ---- the map ------------------------------------------------------------------------------- */

typedef struct map_job {
  const cpu_map *m;
  cpu_stream x[LOOP_MAX_IN], y;
  int64_t n;
  int direct; /* every operand has the layout of its form: the body takes the whole range at once */
} map_job;

/* Items are whole chunks, so that the vector part and the rest of a body's loop cover the same
 * elements for any number of threads: the compiler may fuse products and sums differently in the
 * two. */
static void map_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const map_job *job = arg;
  const cpu_map *m = job->m;
  _Alignas(64) cpu_chunk buf[LOOP_MAX_IN + 1];
  begin *= LOOP_CHUNK;
  end = end * LOOP_CHUNK < job->n ? end * LOOP_CHUNK : job->n;
  int64_t most = job->direct ? end - begin : LOOP_CHUNK;
  (void)thread;
  for (int64_t at = begin; at < end; at += most) {
    const void *x[LOOP_MAX_IN];
    int64_t n = end - at < most ? end - at : most;
    void *y = tide__stream_target(&job->y, m->out_form, at, n, &buf[LOOP_MAX_IN]);
    for (int i = 0; i < m->nin; i++)
      x[i] = tide__stream_read(&job->x[i], m->in_form[i], at, n, &buf[i]);
    m->body(y, x, n, m->s);
    tide__stream_write(&job->y, m->out_form, at, n, y);
  }
}

void tide__loop_map(const cpu_map *m, int nthread)
{
  map_job job = { .m = m, .n = k_numel(m->out) };
  int64_t chunks = (job.n + LOOP_CHUNK - 1) / LOOP_CHUNK;
  if (job.n == 0) return;
  tide__stream_init(&job.y, m->out);
  job.direct = job.y.flat && job.y.dtype == m->out_form;
  for (int i = 0; i < m->nin; i++) {
    tide__stream_init(&job.x[i], m->in[i]);
    job.direct = job.direct && job.x[i].flat && job.x[i].dtype == m->in_form[i];
  }
  tide__pool_for(nthread, chunks, LOOP_GRAIN / LOOP_CHUNK, map_range, &job);
}

/* ---- conversion and copy ------------------------------------------------------------------- */

/* Returns the narrowest form that holds x and from which y's numbers are made in one rounding. */
static int common_form(int x, int y)
{
  int bytes = x == TIDE_U8 || x == TIDE_BOOL, xf = tide__dtype_is_float(x);
  int yf = tide__dtype_is_float(y);
  if (x == y) return x;
  if (!xf && !(bytes && yf)) return TIDE_I64;
  return yf && x != TIDE_F64 && y != TIDE_F64 ? TIDE_F32 : TIDE_F64;
}

/* Makes streams of x and y over the same dims, merged where both allow it. */
static void merge_both(cpu_copy *c, const k_tensor *y, const k_tensor *x)
{
  int n = 0;
  for (int d = 0; d < y->ndim; d++) {
    int64_t size = y->shape[d], xs = x->stride[d], ys = y->stride[d];
    if (size == 1) continue;
    int joins = n > 0 && c->x.stride[n - 1] == xs * size && c->y.stride[n - 1] == ys * size;
    int at = joins ? n - 1 : n++;
    c->x.shape[at] = c->y.shape[at] = joins ? c->y.shape[at] * size : size;
    c->x.stride[at] = xs;
    c->y.stride[at] = ys;
  }
  c->x.ndim = c->y.ndim = n;
}

void tide__copy_init(cpu_copy *c, const k_tensor *y, const k_tensor *x)
{
  c->form = common_form(x->dtype, y->dtype);
  tide__stream_init(&c->x, x);
  tide__stream_init(&c->y, y);
  c->rows = 0;
  if (x->dtype != y->dtype) return;
  cpu_copy both = *c;
  merge_both(&both, y, x);
  int last = both.y.ndim - 1;
  both.rows = last >= 0 && both.x.stride[last] == 1 && both.y.stride[last] == 1;
  if (both.rows) *c = both;
}

/* Copies whole rows of the last but one dim in one loop, the rest of a row by itself. */
static void copy_rows(const cpu_copy *c, int64_t at, int64_t n)
{
  int last = c->y.ndim - 1;
  int64_t size = c->y.size, row = c->y.shape[last], x_step = 0, y_step = 0;
  if (last > 0) {
    x_step = c->x.stride[last - 1] * size;
    y_step = c->y.stride[last - 1] * size;
  }
  while (n > 0) {
    int64_t coord[TIDE_MAX_DIM];
    const char *x = c->x.data + seek(&c->x, at, coord) * size;
    char *y = c->y.data + seek(&c->y, at, coord) * size;
    int64_t run = row - coord[last], rows = 1;
    run = run < n ? run : n;
    if (run == row && last > 0) {
      rows = c->y.shape[last - 1] - coord[last - 1];
      rows = rows < n / row ? rows : n / row;
    }
    for (int64_t r = 0; r < rows; r++)
      memmove(y + r * y_step, x + r * x_step, (size_t)(run * size));
    at += rows * run;
    n -= rows * run;
  }
}

void tide__copy_range(const cpu_copy *c, int64_t begin, int64_t end)
{
  _Alignas(64) cpu_chunk buf;
  int flat = c->x.flat && c->y.flat && c->form == c->x.dtype;
  int64_t most = flat ? end - begin : LOOP_CHUNK;
  if (c->rows) {
    copy_rows(c, begin, end - begin);
    return;
  }
  for (int64_t at = begin; at < end; at += most) {
    int64_t n = end - at < most ? end - at : most;
    void *to = tide__stream_target(&c->y, c->form, at, n, &buf);
    const void *x = tide__stream_read(&c->x, c->form, at, n, to);
    tide__stream_write(&c->y, c->form, at, n, x);
  }
}

static void convert_range(void *arg, int64_t begin, int64_t end, int thread)
{
  (void)thread;
  tide__copy_range(arg, begin, end);
}

/* ---- transposing copies: x runs along one dim, y along another; by tiles through a buffer --- */

enum { TILE = 64 };

typedef struct transpose_job {
  cpu_stream x, y;              /* the other dims */
  int64_t np, nq;               /* sizes of the dim along which x runs, and y */
  int64_t x_step, y_step;       /* strides of x along q and of y along p */
  int64_t ntile;                /* tiles of p */
} transpose_job;

/* y[p * y_step + q] = x[q * x_step + p] for p < np, q < nq, both at most TILE. */
#define TRANSPOSE(name, T) \
  TIDE_LEVELS(void, name, \
              (void *yv, const void *xv, int64_t y_step, int64_t x_step, int np, int nq), \
              (yv, xv, y_step, x_step, np, nq)) \
  { \
    T tile[TILE][TILE + 1], *y = yv; \
    const T *x = xv; \
    for (int q = 0; q < nq; q++) \
      for (int p = 0; p < np; p++) tile[p][q] = x[q * x_step + p]; \
    for (int p = 0; p < np; p++) memcpy(y + p * y_step, tile[p], (size_t)nq * sizeof(T)); \
  }
CPU_SIZES(TRANSPOSE, transpose)

static void transpose_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const transpose_job *job = arg;
  int size = job->x.size;
  (void)thread;
  for (int64_t item = begin; item < end; item++) {
    int64_t outer = item / job->ntile, p = item % job->ntile * TILE;
    int np = job->np - p < TILE ? (int)(job->np - p) : TILE;
    const char *x = job->x.data + (tide__stream_offset(&job->x, outer) + p) * size;
    char *y = job->y.data + (tide__stream_offset(&job->y, outer) + p * job->y_step) * size;
    for (int64_t q = 0; q < job->nq; q += TILE) {
      int nq = job->nq - q < TILE ? (int)(job->nq - q) : TILE;
      CPU_OF_SIZE(size, transpose)
        (y + q * size, x + q * job->x_step * size, job->y_step, job->x_step, np, nq);
    }
  }
}

static k_tensor without_dims(const k_tensor *t, int p, int q)
{
  k_tensor v = *t;
  v.ndim = 0;
  for (int d = 0; d < t->ndim; d++) {
    if (d == p || d == q) continue;
    v.shape[v.ndim] = t->shape[d];
    v.stride[v.ndim++] = t->stride[d];
  }
  return v;
}

int tide__loop_transpose(const k_tensor *y, const k_tensor *x, int nthread)
{
  int p = -1, q = y->ndim - 1;
  if (x->dtype != y->dtype || q < 1 || y->stride[q] != 1 || x->stride[q] == 1) return 0;
  for (int d = 0; d < q; d++)
    if (x->stride[d] == 1 && (p < 0 || x->shape[d] > x->shape[p])) p = d;
  if (p < 0 || x->shape[p] < 8 || y->shape[q] < 8) return 0;
  transpose_job job = { .np = x->shape[p], .nq = y->shape[q], .x_step = x->stride[q],
                   .y_step = y->stride[p], .ntile = (x->shape[p] + TILE - 1) / TILE };
  k_tensor x_outer = without_dims(x, p, q), y_outer = without_dims(y, p, q);
  int64_t items = k_numel(&x_outer) * job.ntile, grain = LOOP_GRAIN / (job.nq * TILE);
  tide__stream_init(&job.x, &x_outer);
  tide__stream_init(&job.y, &y_outer);
  tide__pool_for(nthread, items, grain < 1 ? 1 : grain, transpose_range, &job);
  return 1;
}

void tide__loop_convert(const k_tensor *y, const k_tensor *x, int nthread)
{
  cpu_copy copy;
  int64_t n = k_numel(y);
  if (n == 0 || tide__loop_transpose(y, x, nthread)) return;
  tide__copy_init(&copy, y, x);
  tide__pool_for(nthread, n, LOOP_GRAIN, convert_range, &copy);
}
