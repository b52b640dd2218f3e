/* Sums and extremes over rows whose kept elements lie side by side, as those of a bias gradient:
 * whole rows are folded into a row of accumulators. See reduce.h.
 *
 * Items are (outer kept dims, piece of a row, block of rows). Partial results: [nblock][nkeep].
 */
#include "kernels/cpu/reduce.h"

enum {
  ROW_BLOCK = 512,   /* rows of one partial result, at least */
  ROW_PARTS = 16,    /* partial results of a kept element, at most */
  ROW_GROUP = 32,    /* rows added in f32 before the f64 accumulator */
  MIN_COLUMNS = 16   /* fewer columns than this are walked one by one */
};

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
  int op = job->f == &tide__fold_sum ? 0 : job->f == &tide__fold_max ? 1 : 2;
  return table[op][job->form == TIDE_F32 ? 0 : job->form == TIDE_F64 ? 1 : 2];
}

static void set_chunk(cpu_chunk *c, int form, reduce_total start)
{
  for (int64_t j = 0; j < LOOP_CHUNK; j++) {
    if (form == TIDE_F32) c->f32[j] = (float)start.d;
    else if (form == TIDE_F64) c->f64[j] = start.d;
    else c->i64[j] = start.i;
  }
}

static void join_chunk(const reduce_job *job, reduce_total *acc, const cpu_chunk *more, int64_t n)
{
  reduce_join_fn join = job->form == TIDE_I64 ? job->f->join_int : job->f->join_real;
  for (int64_t j = 0; j < n; j++) {
    reduce_total t;
    if (job->form == TIDE_I64) t.i = more->i64[j];
    else t.d = job->form == TIDE_F32 ? more->f32[j] : more->f64[j];
    join(&acc[j], &t);
  }
}

TIDE_LEVELS(void, add_totals,
            (reduce_total *acc, const cpu_chunk *more, int64_t n, int form), (acc, more, n, form))
{
  if (form == TIDE_F32) for (int64_t j = 0; j < n; j++) acc[j].d += more->f32[j];
  else if (form == TIDE_F64) for (int64_t j = 0; j < n; j++) acc[j].d += more->f64[j];
  else for (int64_t j = 0; j < n; j++) acc[j].i += more->i64[j];
}

/* Reads rows[0..m), which point at elements [at, at + n) of rows first, first + 1, ... */
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
  reduce_total *part = r->part + block * r->nkeep + outer + column;
  rows_fn fold_rows = rows_fold(r);
  for (int64_t j = 0; j < n; j++) part[j] = reduce_start(r);
  for (int64_t i = block * job->block; i < end; i += ROW_GROUP) {
    int64_t stop = i + ROW_GROUP < end ? i + ROW_GROUP : end;
    set_chunk(&sum, r->form, reduce_start(r));
    for (int64_t row = i; row < stop; row += 4) {
      const void *rows[4];
      int m = stop - row < 4 ? (int)(stop - row) : 4;
      read_rows(job, rows, buf, base, row, m, n);
      fold_rows(&sum, rows, m, n);
    }
    if (r->f == &tide__fold_sum) add_totals(part, &sum, n, r->form);
    else join_chunk(r, part, &sum, n);
  }
}

static void columns_range(void *arg, int64_t begin, int64_t end, int thread)
{
  (void)thread;
  for (int64_t item = begin; item < end; item++) columns_item(arg, item);
}

/* Returns the rows of a block. */
static int64_t row_block(int64_t nrow)
{
  int64_t least = (nrow + ROW_PARTS - 1) / ROW_PARTS;
  return least < ROW_BLOCK ? ROW_BLOCK : least;
}

int64_t tide__reduce_row_blocks(int64_t nrow)
{
  return (nrow + row_block(nrow) - 1) / row_block(nrow);
}

void tide__reduce_columns(reduce_job *r, int nthread)
{
  column_job job = { .r = r, .width = r->keep.shape[r->keep.ndim - 1] };
  job.npiece = (job.width + LOOP_CHUNK - 1) / LOOP_CHUNK;
  job.block = row_block(r->nreduce);
  job.nblock = tide__reduce_row_blocks(r->nreduce);
  int64_t items = r->nkeep / job.width * job.npiece * job.nblock;
  int64_t columns = job.width < LOOP_CHUNK ? job.width : LOOP_CHUNK;
  int64_t rows = r->nreduce < job.block ? r->nreduce : job.block;
  tide__pool_for(nthread, items, loop_grain(rows * columns), columns_range, &job);
  for (int64_t i = 0; i < r->nkeep; i++) tide__reduce_join(r, i, 1, r->nkeep, job.nblock);
}

int tide__reduce_suits_columns(const reduce_job *job)
{
  int last = job->keep.ndim - 1;
  int known = job->f == &tide__fold_sum || job->f == &tide__fold_max || job->f == &tide__fold_min;
  return known && job->keep.stride[last] == 1 && job->nreduce > 1
      && job->keep.shape[last] >= MIN_COLUMNS && job->row.stride[job->row.ndim - 1] != 1;
}
