/* An operand as a row-major sequence of numbers, for any strides and dtype.
 *
 * A kernel works on chunks of contiguous f32, f64 or i64 numbers. A stream returns a chunk of an
 * operand in that form: a pointer into the tensor if it already has that layout, else a small
 * buffer filled by a converting, striding loop. Each operand merges its own dims, so contiguous
 * ones cost nothing and broadcast ones (stride 0) fill from one element.
 *
 * A "form" is a dtype: F32 holds f32, bf16, f16 (and u8, bool); F64 holds everything; I64 holds
 * integers and bool; the operand's own dtype means bits unchanged. Conversions are those of
 * kernels/ref/load.h. Streams hold no state between calls and may be shared by threads.
 */
#pragma once

#include "kernels/cpu/vec.h"

enum {
  LOOP_CHUNK = 512,   /* elements of a buffer; four of f64 fit in L1 with room to spare */
  LOOP_GRAIN = 32768  /* elements per thread at least */
};

typedef struct cpu_stream {
  char   *data;
  int64_t shape[TIDE_MAX_DIM], stride[TIDE_MAX_DIM]; /* merged; sizes are at least 2 */
  int     ndim, dtype, size;
  int     flat; /* contiguous as a whole */
} cpu_stream;

/* One buffer of any form. */
typedef union cpu_chunk {
  float    f32[LOOP_CHUNK];
  double   f64[LOOP_CHUNK];
  int64_t  i64[LOOP_CHUNK];
  uint8_t  u8[LOOP_CHUNK];
  uint16_t u16[LOOP_CHUNK];
} cpu_chunk;

/* Drops dims of size 1 and merges neighbours that one stride walks. Returns the new ndim. */
int tide__loop_merge(int ndim, int64_t *shape, int64_t *stride);

void tide__stream_init(cpu_stream *s, const k_tensor *t);

/* Returns the offset from data of the element with row-major number at. */
int64_t tide__stream_offset(const cpu_stream *s, int64_t at);

/* Returns elements [at, at + n) in `form`: buf or a pointer into the tensor. n <= LOOP_CHUNK unless
 * the stream is flat and of that dtype. */
const void *tide__stream_read(const cpu_stream *s, int form, int64_t at, int64_t n, void *buf);

/* Returns the address for a result [at, at + n): inside the tensor if it has the layout, else
 * buf. */
void *tide__stream_target(const cpu_stream *s, int form, int64_t at, int64_t n, void *buf);

/* Stores n numbers of `form`. Does nothing if `from` is the target inside the tensor. */
void tide__stream_write(const cpu_stream *s, int form, int64_t at, int64_t n, const void *from);

/* Returns the form for arithmetic on a dtype: F32, F64 or I64. */
int tide__loop_form(int dtype);

/* Returns the least number of items worth a thread, for items of item_size elements. */
static inline int64_t loop_grain(int64_t item_size)
{
  return item_size >= LOOP_GRAIN ? 1 : LOOP_GRAIN / (item_size < 1 ? 1 : item_size);
}

/* Define a function for each size of an element, DEF(name_1, uint8_t) to DEF(name_8, uint64_t), and
 * choose the one of a size. */
#define CPU_SIZES(DEF, name) \
  DEF(name##_1, uint8_t) DEF(name##_2, uint16_t) DEF(name##_4, uint32_t) DEF(name##_8, uint64_t)
#define CPU_OF_SIZE(size, name) \
  ((size) == 1 ? name##_1 : (size) == 2 ? name##_2 : (size) == 4 ? name##_4 : name##_8)

/* A loop body: n elements of contiguous operands. s: the op's scalars. */
typedef void (*cpu_body)(void *y, const void *const *x, int64_t n, const double *s);

/* Computes y = a + b of a form; y may be a or b. */
void tide__loop_add(int form, void *y, const void *a, const void *b, int64_t n);

enum { LOOP_MAX_IN = 3 };
typedef struct cpu_map {
  int nin;
  const k_tensor *in[LOOP_MAX_IN];
  const k_tensor *out;
  int in_form[LOOP_MAX_IN], out_form;
  cpu_body body;
  const double *s;
} cpu_map;

/* Runs body over all elements, cut among threads. Operands have out's shape. */
void tide__loop_map(const cpu_map *m, int nthread);

/* Copies x to y with conversion, any strides, same shape. */
void tide__loop_convert(const k_tensor *y, const k_tensor *x, int nthread);

/* The same copy in ranges of elements, row-major, that the caller distributes. */
typedef struct cpu_copy {
  cpu_stream x, y;
  int form;
  int rows; /* same merged dims, last one dense in both: copies bits, row by row */
} cpu_copy;

void tide__copy_init(cpu_copy *c, const k_tensor *y, const k_tensor *x);
void tide__copy_range(const cpu_copy *c, int64_t begin, int64_t end);

/* Copies x to y by tiles and returns 1 if that is faster than ranges (x and y run along different
 * dims); else returns 0. */
int tide__loop_transpose(const k_tensor *y, const k_tensor *x, int nthread);
