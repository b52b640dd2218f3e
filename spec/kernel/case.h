/* What specs of single kernels share: random operands, the reference beside the fast kernel.
 *
 * A case makes operands of random shape (sizes 0, 1, odd, large enough for threads),
 * random layout (contiguous, gaps, other memory order, negative strides, broadcast) and random
 * dtype, in blocks of exactly the bytes they may touch; the reference and the fast kernel run on
 * equal copies. Results must agree to the dtype's rounding, and one thread must equal two bit for
 * bit. Failures print op, dtype and the seed of the case.
 */
#pragma once

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/base/dtype.h"
#include "core/base/rng.h"
#include "kernels/kernel.h"
#include "kernels/ref/load.h"

/* ---- random operands ------------------------------------------------------------------------ */

static uint64_t seed_state;

static inline uint32_t draw(void) { return tide__philox_word(7, 3, seed_state++); }
static inline int64_t below(int64_t n) { return n > 0 ? (int64_t)(draw() % (uint64_t)n) : 0; }
static inline double unit(void) { return draw() * 0x1p-32; }

enum { MAX_BLOCK = 64 };
static void *blocks[MAX_BLOCK];
static int nblock;

static inline void *block(int64_t bytes)
{
  assert_true(nblock < MAX_BLOCK);
  void *p = malloc(bytes > 0 ? (size_t)bytes : 1);
  assert_non_null(p);
  memset(p, 0xa5, bytes > 0 ? (size_t)bytes : 1);
  return blocks[nblock++] = p;
}

static inline void free_blocks(void)
{
  while (nblock > 0) free(blocks[--nblock]);
}

enum { PLAIN, ANY_LAYOUT, NO_BROADCAST };

/* A tensor over its own block; elements are set by fill_values. */
static inline k_tensor make(int dtype, int ndim, const int64_t *shape, int layout)
{
  k_tensor t = { .ndim = ndim, .dtype = dtype };
  int order[TIDE_MAX_DIM], kind = layout == PLAIN ? 0 : (int)below(4);
  int64_t step = 1, low = 0;
  for (int d = 0; d < ndim; d++) order[d] = ndim - 1 - d;
  if (kind >= 2)
    for (int d = ndim - 1; d > 0; d--) {
      int e = (int)below(d + 1), o = order[d];
      order[d] = order[e];
      order[e] = o;
    }
  for (int k = 0; k < ndim; k++) {
    int d = order[k];
    t.shape[d] = shape[d];
    if (layout == ANY_LAYOUT && below(5) == 0) {
      t.stride[d] = 0;
      continue;
    }
    if (kind == 1 || kind == 3) step += below(2);
    t.stride[d] = step;
    step *= shape[d] > 0 ? shape[d] : 1;
    if (kind == 3 && below(2)) {
      low -= (shape[d] > 0 ? shape[d] - 1 : 0) * t.stride[d];
      t.stride[d] = -t.stride[d];
    }
  }
  int64_t high = 0, size = tide_dtype_size(dtype);
  for (int d = 0; d < ndim; d++)
    if (t.stride[d] > 0 && shape[d] > 0) high += (shape[d] - 1) * t.stride[d];
  t.data = (char *)block(k_numel(&t) ? (high - low + 1) * size : 0) - low * size;
  return t;
}

static inline double special(double lo, double hi)
{
  static const double values[] = { 0, -0.0, 1, -1, NAN, HUGE_VAL, -HUGE_VAL };
  return below(40) == 0 ? values[below(7)] : lo + (hi - lo) * unit();
}

/* Equal elements wherever strides meet, since each is written through its own address. */
static inline void fill_values(const k_tensor *t, double lo, double hi, int specials)
{
  int64_t n = k_numel(t);
  ref_walk w = ref_begin(t->shape, t->ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    double v = specials ? special(lo, hi) : lo + (hi - lo) * unit();
    int64_t at = ref_offset(&w, t);
    if (t->dtype == TIDE_BOOL) ref_put_int(t, at, below(2));
    else if (ref_is_float(t)) ref_put(t, at, v);
    else if (t->dtype == TIDE_U8) ref_put_int(t, at, below(12));
    else ref_put_int(t, at, (int64_t)floor(lo + (hi - lo) * unit()));
  }
}

static inline k_tensor random_tensor(int dtype, int ndim, const int64_t *shape, int layout)
{
  k_tensor t = make(dtype, ndim, shape, layout);
  fill_values(&t, -3, 3, 1);
  return t;
}

/* The same elements in a block of their own with the same strides. */
static inline k_tensor twin(const k_tensor *t)
{
  k_tensor c = *t;
  int64_t low = 0, high = 0, size = tide_dtype_size(t->dtype), n = k_numel(t);
  for (int d = 0; d < t->ndim; d++)
    if (t->shape[d] > 0) *(t->stride[d] < 0 ? &low : &high) += (t->shape[d] - 1) * t->stride[d];
  c.data = (char *)block(n ? (high - low + 1) * size : 0) - low * size;
  ref_walk w = ref_begin(t->shape, t->ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w))
    ref_convert(&c, ref_offset(&w, &c), t, ref_offset(&w, t));
  return c;
}

static inline int random_shape(int64_t *shape, int most)
{
  static const int64_t sizes[] = { 0, 1, 2, 3, 5, 8, 17, 33, 70 };
  int ndim = (int)below(most + 1);
  int64_t n = 1;
  for (int d = 0; d < ndim; d++) {
    shape[d] = sizes[below(8) + (below(4) ? 1 : 0)];
    if (n * shape[d] > 20000) shape[d] = 1;
    n *= shape[d];
  }
  if (ndim > 0 && below(8) == 0) { /* large enough for threads */
    for (int d = 0; d < ndim; d++) shape[d] = 1;
    shape[ndim - 1] = 3 + below(700);
    shape[0] = ndim > 1 ? 300 + below(200) : 70001;
  }
  return ndim;
}

static inline int random_dtype(int mask)
{
  for (;;) {
    int dtype = (int)below(TIDE_NDTYPE);
    if (mask >> dtype & 1) return dtype;
  }
}

/* ---- running and comparing ------------------------------------------------------------------ */

typedef struct op_case {
  const char *name;
  k_fn ref, cpu;
  k_work_fn ref_work, cpu_work;
  int mask;
} op_case;

static inline double rounding(int dtype)
{
  switch (dtype) {
    case TIDE_F32: return 0x1p-23;
    case TIDE_F64: return 0x1p-52;
    case TIDE_BF16: return 0x1p-7;
    case TIDE_F16: return 0x1p-10;
    default: return 0;
  }
}

/* slack: in units of the dtype's rounding, relative to max(|want|, scale). */
static inline void compare(const op_case *op, const k_tensor *want, const k_tensor *got,
                           double slack, double scale)
{
  int64_t n = k_numel(want);
  ref_walk w = ref_begin(want->shape, want->ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w)) {
    double a = ref_get(want, ref_offset(&w, want)), b = ref_get(got, ref_offset(&w, got));
    double size = fabs(a) > scale ? fabs(a) : scale;
    double most = slack * rounding(want->dtype) * size + 1e-37;
    if (a == b || (a != a && b != b) || fabs(a - b) <= most) continue;
    fail_msg("%s %s, element %lld: ref %.17g, cpu %.17g, state %llu", op->name,
             tide_dtype_name(want->dtype), (long long)i, a, b, (unsigned long long)seed_state);
  }
}

static inline void equal_bits(const op_case *op, const k_tensor *a, const k_tensor *b)
{
  int64_t n = k_numel(a), size = tide_dtype_size(a->dtype);
  ref_walk w = ref_begin(a->shape, a->ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w))
    if (memcmp((char *)a->data + ref_offset(&w, a) * size,
               (char *)b->data + ref_offset(&w, b) * size, (size_t)size))
      fail_msg("%s %s, element %lld differs with the number of threads or from ref, state %llu",
               op->name, tide_dtype_name(a->dtype), (long long)i, (unsigned long long)seed_state);
}

static inline int run_one(k_fn fn, k_work_fn work, int nthread, int nin, const k_tensor *in,
                          const k_tensor *out, const void *attrs, char *msg)
{
  k_call call = { .nin = nin, .nout = 1, .in = in, .out = out, .attrs = attrs,
                  .nthread = nthread, .msg = msg };
  void *scratch = NULL;
  int64_t bytes = work ? work(&call) : 0;
  if (bytes > 0) assert_int_equal(posix_memalign(&scratch, 64, (size_t)bytes), 0);
  call.work = scratch;
  msg[0] = 0;
  int rc = fn(&call);
  free(scratch);
  return rc;
}

/* Runs ref once and cpu with one and two threads; each on its own copy of out. */
static inline int check_case(const op_case *op, int nin, const k_tensor *in, const k_tensor *out,
                             const void *attrs, double slack, double scale)
{
  char msg[3][K_MSG];
  k_tensor one = twin(out), two = twin(out);
  int rc = run_one(op->ref, op->ref_work, 1, nin, in, out, attrs, msg[0]);
  int rc1 = run_one(op->cpu, op->cpu_work, 1, nin, in, &one, attrs, msg[1]);
  int rc2 = run_one(op->cpu, op->cpu_work, 2, nin, in, &two, attrs, msg[2]);
  if (rc != rc1 || rc != rc2)
    fail_msg("%s: status ref %d (%s), cpu %d (%s), %d", op->name, rc, msg[0], rc1, msg[1], rc2);
  if (rc != TIDE_OK) {
    assert_true(msg[0][0] != 0);
    assert_string_equal(msg[0], msg[1]);
    return rc;
  }
  equal_bits(op, &one, &two);
  if (slack == 0) equal_bits(op, out, &one);
  else compare(op, out, &one, slack, scale);
  return rc;
}

/* ---- tables of ops: lists of X(name, dtypes) ------------------------------------------------ */

#define DECLARE(name, mask) int k_ref_##name(const k_call *); int k_cpu_##name(const k_call *);
#define DECLARE_WORK(name, mask) \
  int64_t k_ref_##name##_work(const k_call *); int64_t k_cpu_##name##_work(const k_call *);
#define ROW(name, mask) { #name, k_ref_##name, k_cpu_##name, NULL, NULL, mask },
#define ONE(name, mask) \
  static const op_case op_##name = { #name, k_ref_##name, k_cpu_##name, NULL, NULL, mask };
#define ONE_WORK(name, mask) \
  static const op_case op_##name = { #name, k_ref_##name, k_cpu_##name, k_ref_##name##_work, \
                                     k_cpu_##name##_work, mask };

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
enum { REPEAT = 40 };

static inline void case_begin(void) { free_blocks(); }

/* The tests of a program; 0 if all pass. */
#define RUN_CASES(tests) run_cases(cmocka_run_group_tests(tests, NULL, NULL))
static inline int run_cases(int failed)
{
  free_blocks();
  return failed;
}
