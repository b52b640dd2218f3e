/* Fast reductions: sum mean prod amax amin any all argmax argmin cumsum.
 *
 * The reduced elements are cut into blocks whose borders depend on the shape alone; a block is
 * folded on one thread into one accumulator (f32 in lanes inside a chunk, f64 between chunks), and
 * the blocks of a result are joined in order. So results do not depend on the number of threads.
 * Sums and extremes over rows that lie side by side (a bias gradient) fold whole rows into a row of
 * accumulators instead of walking columns.
 *
 * Definition: kernels/ref/reduce.c. Lanes are vectors of fixed width, so every instruction set
 * gives the same sum.
 */
#include "kernels/cpu/loop.h"
#include "kernels/ref/load.h"

enum {
  BLOCK = 65536,     /* elements of one partial result of a long row */
  CHUNK = 4096,      /* elements folded in lanes before they are added to the f64 accumulator */
  ROW_BLOCK = 512,   /* rows of one partial result of a column sum, at least */
  ROW_PARTS = 16,    /* partial results of a column sum, at most */
  ROW_GROUP = 32,    /* rows added in f32 before the f64 accumulator */
  MIN_COLUMNS = 16   /* fewer columns than this are walked one by one */
};

/* The accumulator of a result: d for floats, i for integers. */
typedef union total {
  double d;
  int64_t i;
} total;

/* acc = acc (op) x[0] (op) ... x[n - 1], x contiguous in a form. */
typedef void (*fold_fn)(total *acc, const void *x, int64_t n);
typedef void (*join_fn)(total *acc, const total *more);

typedef struct fold {
  fold_fn f32, f64, i64;
  join_fn join_real, join_int;
  double start_real;
  int64_t start_int;
} fold;

/* ---- folds --------------------------------------------------------------------------------- */

typedef float v_f32 __attribute__((vector_size(64)));
typedef double v_f64 __attribute__((vector_size(64)));
typedef uint64_t v_u64 __attribute__((vector_size(64)));

/* Four vectors of lanes, joined pairwise at the end. */
#define LANE_FOLD(name, T, V, start, op, out) \
  TIDE_LEVELS(void, name, (total *acc, const void *xv, int64_t n), (acc, xv, n)) \
  { \
    enum { LANES = 64 / sizeof(T) }; \
    const T *x = xv; \
    V a[4], b[4]; \
    T lane[LANES], tail = start; \
    int64_t i = 0; \
    for (int k = 0; k < 4; k++) a[k] = (V){ 0 } + (T)(start); \
    for (; i + 4 * LANES <= n; i += 4 * LANES) { \
      memcpy(b, x + i, sizeof b); \
      a[0] = a[0] op b[0], a[1] = a[1] op b[1], a[2] = a[2] op b[2], a[3] = a[3] op b[3]; \
    } \
    a[0] = (a[0] op a[1]) op (a[2] op a[3]); \
    memcpy(lane, a, sizeof lane); \
    for (; i < n; i++) tail = tail op x[i]; \
    for (int half = LANES / 2; half > 0; half /= 2) \
      for (int k = 0; k < half; k++) lane[k] = lane[k] op lane[k + half]; \
    out = out op (lane[0] op tail); \
  }

LANE_FOLD(sum_f32, float, v_f32, 0, +, acc->d)
LANE_FOLD(sum_f64, double, v_f64, 0, +, acc->d)
LANE_FOLD(sum_i64, uint64_t, v_u64, 0, +, acc->i)
LANE_FOLD(prod_f32, float, v_f32, 1, *, acc->d)
LANE_FOLD(prod_f64, double, v_f64, 1, *, acc->d)
LANE_FOLD(prod_i64, uint64_t, v_u64, 1, *, acc->i)

#define PRAGMA(text) _Pragma(#text)

/* Extremes do not depend on order, so the compiler chooses the lanes. NaN is counted separately.
 * clang starts a reduction at the largest finite number, so if that is the result, x is read
 * again. */
#define EXTREME(name, T, cmp, how, last, out) \
  TIDE_LEVELS(void, name, (total *acc, const void *xv, int64_t n), (acc, xv, n)) \
  { \
    const T *x = xv; \
    T best = n > 0 ? x[0] : (T)out; \
    int nan = 0; \
    PRAGMA(omp simd reduction(how : best) reduction(| : nan)) \
    for (int64_t i = 0; i < n; i++) { \
      best = x[i] cmp best ? x[i] : best; \
      nan |= x[i] != x[i]; \
    } \
    if (best == (last)) { \
      best = n > 0 ? x[0] : (T)out; \
      for (int64_t i = 0; i < n; i++) best = x[i] cmp best ? x[i] : best; \
    } \
    if (nan) acc->d = NAN; \
    else out = out cmp best ? out : out != out ? out : best; \
  }

EXTREME(max_f32, float, >, max, -FLT_MAX, acc->d)
EXTREME(max_f64, double, >, max, -DBL_MAX, acc->d)
EXTREME(max_i64, int64_t, >, max, INT64_MIN, acc->i)
EXTREME(min_f32, float, <, min, FLT_MAX, acc->d)
EXTREME(min_f64, double, <, min, DBL_MAX, acc->d)
EXTREME(min_i64, int64_t, <, min, INT64_MAX, acc->i)

#define LOGICAL(name, T, op, out) \
  TIDE_LEVELS(void, name, (total *acc, const void *xv, int64_t n), (acc, xv, n)) \
  { \
    const T *x = xv; \
    int r = out != 0; \
    PRAGMA(omp simd reduction(op : r)) \
    for (int64_t i = 0; i < n; i++) r = r op (x[i] != 0); \
    out = r; \
  }

LOGICAL(any_f32, float, |, acc->d)
LOGICAL(any_f64, double, |, acc->d)
LOGICAL(any_i64, int64_t, |, acc->i)
LOGICAL(all_f32, float, &, acc->d)
LOGICAL(all_f64, double, &, acc->d)
LOGICAL(all_i64, int64_t, &, acc->i)

/* Two partial results are joined as two elements would be. */
#define JOIN(name) \
  static void name##_join_real(total *acc, const total *more) { name##_f64(acc, more, 1); } \
  static void name##_join_int(total *acc, const total *more) { name##_i64(acc, more, 1); } \
  static const fold name##_fold
#define FOLD_OF(name, start, start_integer) \
  JOIN(name) = { name##_f32, name##_f64, name##_i64, name##_join_real, name##_join_int, start, \
                 start_integer }

FOLD_OF(sum, 0, 0);
FOLD_OF(prod, 1, 1);
FOLD_OF(max, -HUGE_VAL, INT64_MIN);
FOLD_OF(min, HUGE_VAL, INT64_MAX);
FOLD_OF(any, 0, 0);
FOLD_OF(all, 1, 1);

/* ---- the job: kept dims, one stream of reduced elements, results --------------------------- */

typedef struct reduce_job {
  const fold *f;
  fold_fn body;
  k_tensor y;
  cpu_stream keep, row; /* kept dims as a stream of row starts; one row, data set per result */
  int form, mean;
  int64_t nkeep, nreduce, nblock;
  total *part; /* [nkeep][nblock] */
} reduce_job;

static void reduce_job_init(reduce_job *job, const k_call *call)
{
  const k_tensor *x = &call->in[0];
  int split = ((const k_reduce_attrs *)call->attrs)->nkeep;
  k_tensor keep = k_dims(x, 0, split), row = k_dims(x, split, x->ndim);
  tide__stream_init(&job->keep, &keep);
  tide__stream_init(&job->row, &row);
  job->y = call->out[0];
  job->form = tide__loop_form(x->dtype);
  job->nkeep = k_numel(&keep);
  job->nreduce = k_numel(&row);
  job->nblock = job->nreduce > BLOCK ? (job->nreduce + BLOCK - 1) / BLOCK : 1;
  job->part = call->work;
  job->mean = 0;
}

static cpu_stream reduce_row_at(const reduce_job *job, int64_t i)
{
  cpu_stream row = job->row;
  row.data = job->keep.data + tide__stream_offset(&job->keep, i) * row.size;
  return row;
}

static total start_of(const reduce_job *job)
{
  total t;
  if (job->form == TIDE_I64) t.i = job->f->start_int;
  else t.d = job->f->start_real;
  return t;
}

static void put_total(const reduce_job *job, int64_t i, total t)
{
  if (job->form != TIDE_I64) ref_put(&job->y, i, job->mean ? t.d / (double)job->nreduce : t.d);
  else if (job->mean) ref_put(&job->y, i, (double)t.i / (double)job->nreduce);
  else ref_put_int(&job->y, i, t.i);
}

static total fold_range(const reduce_job *job, const cpu_stream *row, int64_t begin, int64_t end)
{
  _Alignas(64) cpu_chunk buf;
  total acc = start_of(job);
  int direct = row->flat && row->dtype == job->form;
  int64_t most = direct ? CHUNK : LOOP_CHUNK;
  for (int64_t at = begin; at < end; at += most) {
    int64_t n = end - at < most ? end - at : most;
    job->body(&acc, tide__stream_read(row, job->form, at, n, &buf), n);
  }
  return acc;
}

/* ---- rows: items are (result, block) ------------------------------------------------------- */

static void reduce_rows_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const reduce_job *job = arg;
  (void)thread;
  for (int64_t item = begin; item < end; item++) {
    int64_t i = item / job->nblock, from = item % job->nblock * BLOCK;
    int64_t to = job->nblock == 1 || from + BLOCK > job->nreduce ? job->nreduce : from + BLOCK;
    cpu_stream row = reduce_row_at(job, i);
    total acc = fold_range(job, &row, from, to);
    if (job->nblock == 1) put_total(job, i, acc);
    else job->part[item] = acc;
  }
}

static void join_parts(const reduce_job *job, int64_t i, int64_t stride, int64_t step, int64_t n)
{
  join_fn join = job->form == TIDE_I64 ? job->f->join_int : job->f->join_real;
  total acc = start_of(job);
  for (int64_t b = 0; b < n; b++) join(&acc, &job->part[i * stride + b * step]);
  put_total(job, i, acc);
}

static void reduce_rows(reduce_job *job, int nthread)
{
  int64_t item = job->nblock > 1 ? BLOCK : job->nreduce;
  tide__pool_for(nthread, job->nkeep * job->nblock, loop_grain(item), reduce_rows_range, job);
  if (job->nblock > 1)
    for (int64_t i = 0; i < job->nkeep; i++) join_parts(job, i, job->nblock, 1, job->nblock);
}

/* ---- columns: folds over rows whose kept elements lie side by side ----------------------------
 * Items are (outer kept dims, piece of a row, block of rows). Partial sums: [nblock][nkeep]. */

typedef struct column_job {
  reduce_job *r;
  int64_t width;           /* kept elements that lie side by side */
  int64_t npiece, nblock;  /* pieces of a row, blocks of rows */
  int64_t block;           /* rows in a block */
} column_job;

/* acc[j] += rows[0][j] + ... rows[m - 1][j], m <= 4 */
#define ADD_ROWS(name, T) \
  TIDE_LEVELS(void, name, (void *av, const void *const *rows, int m, int64_t n), (av, rows, m, n)) \
  { \
    T *acc = av; \
    const T *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3]; \
    if (m == 4) { \
      _Pragma("omp simd") \
      for (int64_t j = 0; j < n; j++) acc[j] += (a[j] + b[j]) + (c[j] + d[j]); \
    } else { \
      for (int r = 0; r < m; r++) { \
        const T *x = rows[r]; \
        _Pragma("omp simd") for (int64_t j = 0; j < n; j++) acc[j] += x[j]; \
      } \
    } \
  }
ADD_ROWS(add_rows_f32, float)
ADD_ROWS(add_rows_f64, double)
ADD_ROWS(add_rows_i64, uint64_t)

/* acc[j] = the larger (smaller) of acc[j] and rows[0][j] ... rows[m - 1][j]; NaN stays. */
#define EXTREME_ROWS(name, T, cmp) \
  TIDE_LEVELS(void, name, (void *av, const void *const *rows, int m, int64_t n), (av, rows, m, n)) \
  { \
    T *acc = av; \
    for (int r = 0; r < m; r++) { \
      const T *x = rows[r]; \
      _Pragma("omp simd") \
      for (int64_t j = 0; j < n; j++) \
        acc[j] = ((x[j] cmp acc[j]) | (x[j] != x[j])) ? x[j] : acc[j]; \
    } \
  }
EXTREME_ROWS(max_rows_f32, float, >)
EXTREME_ROWS(max_rows_f64, double, >)
EXTREME_ROWS(max_rows_i64, int64_t, >)
EXTREME_ROWS(min_rows_f32, float, <)
EXTREME_ROWS(min_rows_f64, double, <)
EXTREME_ROWS(min_rows_i64, int64_t, <)

typedef void (*rows_fn)(void *acc, const void *const *rows, int m, int64_t n);

static rows_fn rows_fold(const reduce_job *job)
{
  static const rows_fn table[3][3] = {
    { add_rows_f32, add_rows_f64, add_rows_i64 }, { max_rows_f32, max_rows_f64, max_rows_i64 },
    { min_rows_f32, min_rows_f64, min_rows_i64 }
  };
  int op = job->f == &sum_fold ? 0 : job->f == &max_fold ? 1 : 2;
  return table[op][job->form == TIDE_F32 ? 0 : job->form == TIDE_F64 ? 1 : 2];
}

static void set_chunk(cpu_chunk *c, int form, total start)
{
  for (int64_t j = 0; j < LOOP_CHUNK; j++) {
    if (form == TIDE_F32) c->f32[j] = (float)start.d;
    else if (form == TIDE_F64) c->f64[j] = start.d;
    else c->i64[j] = start.i;
  }
}

static void join_chunk(const reduce_job *job, total *acc, const cpu_chunk *more, int64_t n)
{
  join_fn join = job->form == TIDE_I64 ? job->f->join_int : job->f->join_real;
  for (int64_t j = 0; j < n; j++) {
    total t;
    if (job->form == TIDE_I64) t.i = more->i64[j];
    else t.d = job->form == TIDE_F32 ? more->f32[j] : more->f64[j];
    join(&acc[j], &t);
  }
}

TIDE_LEVELS(void, add_totals,
            (total *acc, const cpu_chunk *more, int64_t n, int form), (acc, more, n, form))
{
  if (form == TIDE_F32) for (int64_t j = 0; j < n; j++) acc[j].d += more->f32[j];
  else if (form == TIDE_F64) for (int64_t j = 0; j < n; j++) acc[j].d += more->f64[j];
  else for (int64_t j = 0; j < n; j++) acc[j].i += more->i64[j];
}

/* rows[0..m) point at elements [at, at + n) of rows first, first + 1, ... */
static void read_rows(const column_job *job, const void **rows, cpu_chunk *buf, const char *base,
                      int64_t first, int m, int64_t n)
{
  const reduce_job *r = job->r;
  for (int k = 0; k < 4; k++) {
    cpu_stream line = { .shape = { n }, .stride = { 1 }, .ndim = 1, .dtype = r->row.dtype,
                        .size = r->row.size, .flat = 1 };
    int64_t row = first + (k < m ? k : 0);
    line.data = (char *)base + tide__stream_offset(&r->row, row) * line.size;
    rows[k] = k < m ? tide__stream_read(&line, r->form, 0, n, &buf[k]) : rows[0];
  }
}

static void columns_item(const column_job *job, int64_t item)
{
  _Alignas(64) cpu_chunk buf[4], sum;
  const reduce_job *r = job->r;
  int64_t block = item % job->nblock, piece = item / job->nblock % job->npiece;
  int64_t column = piece * LOOP_CHUNK, outer = item / job->nblock / job->npiece * job->width;
  int64_t n = job->width - column < LOOP_CHUNK ? job->width - column : LOOP_CHUNK;
  int64_t end = (block + 1) * job->block < r->nreduce ? (block + 1) * job->block : r->nreduce;
  const char *base = r->keep.data
                   + tide__stream_offset(&r->keep, outer + column) * r->keep.size;
  total *part = r->part + block * r->nkeep + outer + column;
  rows_fn fold_rows = rows_fold(r);
  for (int64_t j = 0; j < n; j++) part[j] = start_of(r);
  for (int64_t i = block * job->block; i < end; i += ROW_GROUP) {
    int64_t stop = i + ROW_GROUP < end ? i + ROW_GROUP : end;
    set_chunk(&sum, r->form, start_of(r));
    for (int64_t row = i; row < stop; row += 4) {
      const void *rows[4];
      int m = stop - row < 4 ? (int)(stop - row) : 4;
      read_rows(job, rows, buf, base, row, m, n);
      fold_rows(&sum, rows, m, n);
    }
    if (r->f == &sum_fold) add_totals(part, &sum, n, r->form);
    else join_chunk(r, part, &sum, n);
  }
}

static void columns_range(void *arg, int64_t begin, int64_t end, int thread)
{
  (void)thread;
  for (int64_t item = begin; item < end; item++) columns_item(arg, item);
}

static int64_t row_block(int64_t nrow)
{
  int64_t least = (nrow + ROW_PARTS - 1) / ROW_PARTS;
  return least < ROW_BLOCK ? ROW_BLOCK : least;
}

static void reduce_columns(reduce_job *r, int nthread)
{
  column_job job = { .r = r, .width = r->keep.shape[r->keep.ndim - 1] };
  job.npiece = (job.width + LOOP_CHUNK - 1) / LOOP_CHUNK;
  job.block = row_block(r->nreduce);
  job.nblock = (r->nreduce + job.block - 1) / job.block;
  int64_t items = r->nkeep / job.width * job.npiece * job.nblock;
  int64_t columns = job.width < LOOP_CHUNK ? job.width : LOOP_CHUNK;
  int64_t rows = r->nreduce < job.block ? r->nreduce : job.block;
  tide__pool_for(nthread, items, loop_grain(rows * columns), columns_range, &job);
  for (int64_t i = 0; i < r->nkeep; i++) join_parts(r, i, 1, r->nkeep, job.nblock);
}

static int suits_columns(const reduce_job *job)
{
  int last = job->keep.ndim - 1;
  int known = job->f == &sum_fold || job->f == &max_fold || job->f == &min_fold;
  return known && job->keep.stride[last] == 1 && job->nreduce > 1
      && job->keep.shape[last] >= MIN_COLUMNS && job->row.stride[job->row.ndim - 1] != 1;
}

/* ---- the kernels --------------------------------------------------------------------------- */

/* Enough for both methods: blocks of rows, and blocks of a long row. */
int64_t k_cpu_reduce_work(const k_call *call)
{
  reduce_job job;
  reduce_job_init(&job, call);
  int64_t block = row_block(job.nreduce), parts = (job.nreduce + block - 1) / block;
  int64_t most = parts > job.nblock ? parts : job.nblock;
  return job.nkeep * most * (int64_t)sizeof(total);
}

static int reduce_run(const k_call *call, const fold *f, int mean)
{
  reduce_job job;
  reduce_job_init(&job, call);
  job.f = f;
  job.mean = mean;
  job.body = job.form == TIDE_F32 ? f->f32 : job.form == TIDE_F64 ? f->f64 : f->i64;
  if (job.nkeep == 0) return TIDE_OK;
  if (suits_columns(&job)) reduce_columns(&job, call->nthread);
  else reduce_rows(&job, call->nthread);
  return TIDE_OK;
}

static int reduce_check_not_empty(const k_call *call)
{
  reduce_job job;
  reduce_job_init(&job, call);
  if (job.nreduce > 0 || job.nkeep == 0) return TIDE_OK;
  return ref_fail(call, TIDE_E_SHAPE, "the reduced dims hold no elements, so there is no largest "
                  "or smallest one");
}

int k_cpu_sum(const k_call *call) { return reduce_run(call, &sum_fold, 0); }
int k_cpu_mean(const k_call *call) { return reduce_run(call, &sum_fold, 1); }
int k_cpu_prod(const k_call *call) { return reduce_run(call, &prod_fold, 0); }
int k_cpu_any(const k_call *call) { return reduce_run(call, &any_fold, 0); }
int k_cpu_all(const k_call *call) { return reduce_run(call, &all_fold, 0); }

int k_cpu_amax(const k_call *call)
{
  int rc = reduce_check_not_empty(call);
  return rc == TIDE_OK ? reduce_run(call, &max_fold, 0) : rc;
}

int k_cpu_amin(const k_call *call)
{
  int rc = reduce_check_not_empty(call);
  return rc == TIDE_OK ? reduce_run(call, &min_fold, 0) : rc;
}

/* ---- argmax, argmin: the extreme of a chunk first, then its position ----------------------- */

#define FIND(name, T) \
  static int64_t name(const void *xv, int64_t n, T v) \
  { \
    const T *x = xv; \
    int64_t i = 0; \
    while (i < n && !(x[i] == v || (v != v && x[i] != x[i]))) i++; \
    return i; \
  }
FIND(find_f32, float)
FIND(find_f64, double)
FIND(find_i64, int64_t)

static int64_t reduce_find(int form, const void *x, int64_t n, total v)
{
  if (form == TIDE_F32) return find_f32(x, n, (float)v.d);
  return form == TIDE_F64 ? find_f64(x, n, v.d) : find_i64(x, n, v.i);
}

/* Returns whether v is strictly beyond best. NaN is beyond every number. */
static int reduce_beyond(const reduce_job *job, total v, total best)
{
  int up = job->f == &max_fold;
  if (job->form == TIDE_I64) return up ? v.i > best.i : v.i < best.i;
  if (v.d != v.d || best.d != best.d) return v.d != v.d && best.d == best.d;
  return up ? v.d > best.d : v.d < best.d;
}

static void arg_range(void *arg, int64_t begin, int64_t end, int thread)
{
  const reduce_job *job = arg;
  _Alignas(64) cpu_chunk buf;
  (void)thread;
  for (int64_t i = begin; i < end; i++) {
    cpu_stream row = reduce_row_at(job, i);
    int64_t most = row.flat && row.dtype == job->form ? CHUNK : LOOP_CHUNK, where = 0;
    total best = start_of(job);
    for (int64_t at = 0; at < job->nreduce; at += most) {
      int64_t n = job->nreduce - at < most ? job->nreduce - at : most;
      const void *x = tide__stream_read(&row, job->form, at, n, &buf);
      total here = start_of(job);
      job->body(&here, x, n);
      if (at > 0 && !reduce_beyond(job, here, best)) continue;
      best = here;
      where = at + reduce_find(job->form, x, n, here);
    }
    ref_put_int(&job->y, i, where);
  }
}

static int reduce_arg_extreme(const k_call *call, const fold *f)
{
  reduce_job job;
  TIDE_TRY(reduce_check_not_empty(call));
  reduce_job_init(&job, call);
  job.f = f;
  job.body = job.form == TIDE_F32 ? f->f32 : job.form == TIDE_F64 ? f->f64 : f->i64;
  tide__pool_for(call->nthread, job.nkeep, loop_grain(job.nreduce), arg_range, &job);
  return TIDE_OK;
}

int k_cpu_argmax(const k_call *call) { return reduce_arg_extreme(call, &max_fold); }
int k_cpu_argmin(const k_call *call) { return reduce_arg_extreme(call, &min_fold); }

/* ---- cumsum: running totals in f64 or i64, one row at a time ------------------------------- */

typedef struct cumsum_job {
  reduce_job r;
  cpu_stream y_keep, y_row;
  int form;
} cumsum_job;

static void cumsum_row(const cumsum_job *job, int64_t i)
{
  _Alignas(64) cpu_chunk buf, out;
  cpu_stream x = reduce_row_at(&job->r, i), y = job->y_row;
  double sum = 0;
  uint64_t count = 0;
  y.data = job->y_keep.data + tide__stream_offset(&job->y_keep, i) * y.size;
  for (int64_t at = 0; at < job->r.nreduce; at += LOOP_CHUNK) {
    int64_t n = job->r.nreduce - at < LOOP_CHUNK ? job->r.nreduce - at : LOOP_CHUNK;
    cpu_chunk *from = (cpu_chunk *)tide__stream_read(&x, job->form, at, n, &buf);
    if (job->form == TIDE_F64)
      for (int64_t j = 0; j < n; j++) out.f64[j] = sum += from->f64[j];
    else
      for (int64_t j = 0; j < n; j++) out.i64[j] = (int64_t)(count += (uint64_t)from->i64[j]);
    tide__stream_write(&y, job->form, at, n, &out);
  }
}

static void cumsum_range(void *arg, int64_t begin, int64_t end, int thread)
{
  (void)thread;
  for (int64_t i = begin; i < end; i++) cumsum_row(arg, i);
}

/* Makes a row run from its last element to its first; returns where the first row then begins. */
static char *turned(cpu_stream *row, char *data)
{
  data += (row->shape[0] - 1) * row->stride[0] * row->size;
  row->stride[0] = -row->stride[0];
  row->flat = 0;
  return data;
}

int k_cpu_cumsum(const k_call *call)
{
  cumsum_job job;
  const k_tensor *y = &call->out[0];
  int split = ((const k_reduce_attrs *)call->attrs)->nkeep;
  k_tensor keep = k_dims(y, 0, split), row = k_dims(y, split, y->ndim);
  reduce_job_init(&job.r, call);
  tide__stream_init(&job.y_keep, &keep);
  tide__stream_init(&job.y_row, &row);
  if (((const k_reduce_attrs *)call->attrs)->from_end) {
    job.r.keep.data = turned(&job.r.row, job.r.keep.data);
    job.y_keep.data = turned(&job.y_row, job.y_keep.data);
  }
  job.form = job.r.form == TIDE_I64 && !ref_is_float(y) ? TIDE_I64 : TIDE_F64;
  tide__pool_for(call->nthread, job.r.nkeep, loop_grain(job.r.nreduce), cumsum_range, &job);
  return TIDE_OK;
}
