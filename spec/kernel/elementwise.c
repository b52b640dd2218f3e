/* The fast CPU kernels of the elementwise, reduce, movement, index and random families against the
 * reference, on random operands.
 *
 * The one idea: a case makes operands of random shape (sizes 0, 1, odd, large enough for threads),
 * random layout (contiguous, gaps, other memory order, negative strides, broadcast) and random
 * dtype, in blocks of exactly the bytes they may touch; the reference and the fast kernel run on
 * equal copies. Results must agree to the dtype's rounding, and one thread must equal two bit for
 * bit. Failures print op, dtype and the seed of the case.
 */
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

static uint32_t draw(void) { return tide__philox_word(7, 3, seed_state++); }
static int64_t below(int64_t n) { return n > 0 ? (int64_t)(draw() % (uint64_t)n) : 0; }
static double unit(void) { return draw() * 0x1p-32; }

enum { MAX_BLOCK = 64 };
static void *blocks[MAX_BLOCK];
static int nblock;

static void *block(int64_t bytes)
{
  assert_true(nblock < MAX_BLOCK);
  void *p = malloc(bytes > 0 ? (size_t)bytes : 1);
  assert_non_null(p);
  memset(p, 0xa5, bytes > 0 ? (size_t)bytes : 1);
  return blocks[nblock++] = p;
}

static void free_blocks(void)
{
  while (nblock > 0) free(blocks[--nblock]);
}

enum { PLAIN, ANY_LAYOUT, NO_BROADCAST };

/* A tensor over its own block; elements are set by fill_values. */
static k_tensor make(int dtype, int ndim, const int64_t *shape, int layout)
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

static double special(double lo, double hi)
{
  static const double values[] = { 0, -0.0, 1, -1, NAN, HUGE_VAL, -HUGE_VAL };
  return below(40) == 0 ? values[below(7)] : lo + (hi - lo) * unit();
}

/* Equal elements wherever strides meet, since each is written through its own address. */
static void fill_values(const k_tensor *t, double lo, double hi, int specials)
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

static k_tensor random_tensor(int dtype, int ndim, const int64_t *shape, int layout)
{
  k_tensor t = make(dtype, ndim, shape, layout);
  fill_values(&t, -3, 3, 1);
  return t;
}

/* The same elements in a block of their own with the same strides. */
static k_tensor twin(const k_tensor *t)
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

static int random_shape(int64_t *shape, int most)
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

static int random_dtype(int mask)
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

static double rounding(int dtype)
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
static void compare(const op_case *op, const k_tensor *want, const k_tensor *got, double slack,
                    double scale)
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

static void equal_bits(const op_case *op, const k_tensor *a, const k_tensor *b)
{
  int64_t n = k_numel(a), size = tide_dtype_size(a->dtype);
  ref_walk w = ref_begin(a->shape, a->ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w))
    if (memcmp((char *)a->data + ref_offset(&w, a) * size,
               (char *)b->data + ref_offset(&w, b) * size, (size_t)size))
      fail_msg("%s %s, element %lld differs with the number of threads or from ref, state %llu",
               op->name, tide_dtype_name(a->dtype), (long long)i, (unsigned long long)seed_state);
}

static int run_one(k_fn fn, k_work_fn work, int nthread, int nin, const k_tensor *in,
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
static int check_case(const op_case *op, int nin, const k_tensor *in, const k_tensor *out,
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

/* ---- the ops -------------------------------------------------------------------------------- */

#define OP_LIST_BINARY(X) \
  X(add, K_ALL) X(sub, K_FLOAT | K_INT) X(mul, K_ALL) X(div, K_FLOAT) X(pow, K_FLOAT | K_INT) \
  X(minimum, K_ALL) X(maximum, K_ALL)
#define OP_LIST_COMPARE(X) \
  X(eq, K_ALL) X(ne, K_ALL) X(lt, K_ALL) X(le, K_ALL) X(gt, K_ALL) X(ge, K_ALL) \
  X(logical_and, K_ALL) X(logical_or, K_ALL)
#define OP_LIST_UNARY(X) \
  X(neg, K_FLOAT | K_INT) X(abs, K_ALL) X(sign, K_ALL) X(floor, K_ALL) X(square, K_ALL) \
  X(relu, K_ALL) X(exp, K_FLOAT) X(log, K_FLOAT) X(sqrt, K_FLOAT) X(rsqrt, K_FLOAT) \
  X(reciprocal, K_FLOAT) X(sin, K_FLOAT) X(cos, K_FLOAT) X(tanh, K_FLOAT) X(sigmoid, K_FLOAT) \
  X(silu, K_FLOAT) X(gelu, K_FLOAT) X(gelu_tanh, K_FLOAT) X(softplus, K_FLOAT)
#define OP_LIST_PREDICATE(X) X(logical_not, K_ALL) X(isfinite, K_ALL)
#define OP_LIST_BWD(X) \
  X(tanh_bwd, K_FLOAT) X(sigmoid_bwd, K_FLOAT) X(relu_bwd, K_FLOAT) X(silu_bwd, K_FLOAT) \
  X(gelu_bwd, K_FLOAT) X(gelu_tanh_bwd, K_FLOAT) X(softplus_bwd, K_FLOAT)
#define OP_LIST_SCALAR(X) \
  X(affine, K_FLOAT | K_INT) X(pow_scalar, K_FLOAT | K_INT) X(clamp, K_FLOAT | K_INT)
#define OP_LIST_IN_PLACE(X) \
  X(fill_, K_ALL) X(scale_, K_FLOAT | K_INT) X(axpy_, K_FLOAT | K_INT) X(copy_, K_ALL)
#define OP_LIST_RANDOM(X) X(uniform_, K_FLOAT) X(normal_, K_FLOAT) X(trunc_normal_, K_FLOAT)
#define OP_LIST_OTHER(X) \
  X(clamp_bwd, K_FLOAT) X(where, K_ALL) X(cast, K_ALL) X(argmax, K_ALL) X(argmin, K_ALL) \
  X(cumsum, K_ALL) X(cat, K_ALL) X(pad, K_ALL) X(roll, K_ALL) X(gather, K_ALL) \
  X(index_select, K_ALL) X(embedding, K_ALL) X(one_hot, K_ALL) X(dropout, K_FLOAT)
#define OP_LIST_REDUCE(X) \
  X(sum, K_ALL) X(mean, K_ALL) X(prod, K_ALL) X(amax, K_ALL) X(amin, K_ALL) X(any, K_ALL) \
  X(all, K_ALL)
#define OP_LIST_ADD(X) \
  X(scatter_add, K_FLOAT | K_INT) X(index_add, K_FLOAT | K_INT) X(embedding_bwd, K_FLOAT)

#define DECLARE(name, mask) int k_ref_##name(const k_call *); int k_cpu_##name(const k_call *);
#define DECLARE_WORK(name, mask) \
  int64_t k_ref_##name##_work(const k_call *); int64_t k_cpu_##name##_work(const k_call *);
#define ROW(name, mask) { #name, k_ref_##name, k_cpu_##name, NULL, NULL, mask },
#define ROW_REDUCE(name, mask) { #name, k_ref_##name, k_cpu_##name, NULL, k_cpu_reduce_work, mask },
#define ONE(name, mask) \
  static const op_case op_##name = { #name, k_ref_##name, k_cpu_##name, NULL, NULL, mask };
#define ONE_WORK(name, mask) \
  static const op_case op_##name = { #name, k_ref_##name, k_cpu_##name, k_ref_##name##_work, \
                                     k_cpu_##name##_work, mask };

OP_LIST_BINARY(DECLARE) OP_LIST_COMPARE(DECLARE) OP_LIST_UNARY(DECLARE)
OP_LIST_PREDICATE(DECLARE) OP_LIST_BWD(DECLARE) OP_LIST_SCALAR(DECLARE)
OP_LIST_IN_PLACE(DECLARE) OP_LIST_RANDOM(DECLARE) OP_LIST_OTHER(DECLARE)
OP_LIST_REDUCE(DECLARE) OP_LIST_ADD(DECLARE) OP_LIST_ADD(DECLARE_WORK)
int64_t k_cpu_reduce_work(const k_call *);
OP_LIST_OTHER(ONE) OP_LIST_ADD(ONE_WORK)

#define COUNT(a) ((int)(sizeof(a) / sizeof((a)[0])))
enum { REPEAT = 80 };

static void case_begin(void) { free_blocks(); }

static void maps(const op_case *ops, int nop, int nin, int to_bool, double slack)
{
  for (int k = 0; k < nop * REPEAT; k++) {
    const op_case *op = &ops[k % nop];
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 4), dtype = random_dtype(op->mask);
    k_tensor in[2], out;
    case_begin();
    for (int i = 0; i < nin; i++) in[i] = random_tensor(dtype, ndim, shape, ANY_LAYOUT);
    out = make(to_bool ? TIDE_BOOL : dtype, ndim, shape, below(2) ? PLAIN : NO_BROADCAST);
    check_case(op, nin, in, &out, NULL, slack, 1);
  }
}

static void binary(void **state)
{
  static const op_case ops[] = { OP_LIST_BINARY(ROW) };
  (void)state;
  maps(ops, COUNT(ops), 2, 0, 2);
}

static void comparison(void **state)
{
  static const op_case ops[] = { OP_LIST_COMPARE(ROW) };
  (void)state;
  maps(ops, COUNT(ops), 2, 1, 0);
}

static void unary(void **state)
{
  static const op_case ops[] = { OP_LIST_UNARY(ROW) };
  (void)state;
  maps(ops, COUNT(ops), 1, 0, 4);
}

static void predicate(void **state)
{
  static const op_case ops[] = { OP_LIST_PREDICATE(ROW) };
  (void)state;
  maps(ops, COUNT(ops), 1, 1, 0);
}

static void backward(void **state)
{
  static const op_case ops[] = { OP_LIST_BWD(ROW) };
  (void)state;
  /* The argument of exp reaches 8: a rounding of it is 8 of the result, in both. */
  maps(ops, COUNT(ops), 2, 0, 16);
}

static void scalar(void **state)
{
  static const op_case ops[] = { OP_LIST_SCALAR(ROW) };
  static const double values[] = { 2, 3, -1, 0.5, -0.5, 1, 0, 1.7, 0x1p70 };
  (void)state;
  for (int k = 0; k < COUNT(ops) * REPEAT; k++) {
    const op_case *op = &ops[k % COUNT(ops)];
    k_scalar_attrs attrs = { values[below(8)], values[below(9)] };
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 4), dtype = random_dtype(op->mask);
    case_begin();
    k_tensor in = random_tensor(dtype, ndim, shape, ANY_LAYOUT);
    k_tensor out = make(dtype, ndim, shape, PLAIN);
    check_case(op, 1, &in, &out, &attrs, 4, attrs.add > 1 ? attrs.add : 1);
  }
}

static void clamp_backward(void **state)
{
  (void)state;
  for (int k = 0; k < REPEAT; k++) {
    k_scalar_attrs attrs = { -1 + 0.1 * (double)below(3), 0.1 * (double)below(20) };
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 4), dtype = random_dtype(K_FLOAT);
    case_begin();
    k_tensor in[2] = { random_tensor(dtype, ndim, shape, ANY_LAYOUT),
                       random_tensor(dtype, ndim, shape, ANY_LAYOUT) };
    k_tensor out = make(dtype, ndim, shape, PLAIN);
    check_case(&op_clamp_bwd, 2, in, &out, &attrs, 0, 1);
  }
}

static void in_place(void **state)
{
  static const op_case ops[] = { OP_LIST_IN_PLACE(ROW) };
  (void)state;
  for (int k = 0; k < COUNT(ops) * REPEAT * 4; k++) {
    const op_case *op = &ops[k % COUNT(ops)];
    k_scalar_attrs attrs = { below(4) ? (double)below(5) - 2 : 0.3, below(3) ? 2 : 1.5 };
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 4), dtype = random_dtype(op->mask);
    case_begin();
    k_tensor in = random_tensor(random_dtype(K_ALL), ndim, shape, ANY_LAYOUT);
    k_tensor out = random_tensor(dtype, ndim, shape, NO_BROADCAST);
    check_case(op, 1, &in, &out, &attrs, 2, 3);
  }
}

static void convert(void **state)
{
  (void)state;
  for (int k = 0; k < 8 * REPEAT; k++) {
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 4);
    case_begin();
    k_tensor in = make(random_dtype(K_ALL), ndim, shape, ANY_LAYOUT);
    double range = below(4) ? 300 : 1e20;
    fill_values(&in, -range, range, 1);
    k_tensor out = make(random_dtype(K_ALL), ndim, shape, below(2) ? PLAIN : NO_BROADCAST);
    check_case(&op_cast, 1, &in, &out, NULL, 0, 1);
  }
}

/* Two dims whose memory order is swapped, as a transposed matrix has it. */
static void transpose(void **state)
{
  (void)state;
  for (int k = 0; k < REPEAT; k++) {
    int64_t shape[3] = { 1 + below(3), 1 + below(150), 1 + below(150) };
    case_begin();
    k_tensor in = random_tensor(random_dtype(K_ALL), 3, shape, PLAIN);
    int64_t keep = in.stride[1];
    in.stride[1] = in.stride[2];
    in.stride[2] = keep;
    in.shape[1] = shape[2];
    in.shape[2] = shape[1];
    k_tensor out = make(below(3) ? in.dtype : random_dtype(K_ALL), 3, in.shape, PLAIN);
    check_case(&op_cast, 1, &in, &out, NULL, 0, 1);
  }
}

static void choose(void **state)
{
  (void)state;
  for (int k = 0; k < REPEAT; k++) {
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 4), dtype = random_dtype(K_ALL);
    case_begin();
    k_tensor in[3] = { random_tensor(TIDE_BOOL, ndim, shape, ANY_LAYOUT),
                       random_tensor(dtype, ndim, shape, ANY_LAYOUT),
                       random_tensor(dtype, ndim, shape, ANY_LAYOUT) };
    k_tensor out = make(dtype, ndim, shape, PLAIN);
    check_case(&op_where, 3, in, &out, NULL, 0, 1);
  }
}

/* ---- reductions ----------------------------------------------------------------------------- */

static int reduced_dtype(const char *name, int dtype)
{
  if (!strcmp(name, "any") || !strcmp(name, "all")) return TIDE_BOOL;
  if (!strcmp(name, "mean")) return tide__dtype_is_float(dtype) ? dtype : TIDE_F32;
  if (!strcmp(name, "amax") || !strcmp(name, "amin")) return dtype;
  return tide__dtype_is_float(dtype) ? dtype : TIDE_I64;
}

static void reduce(void **state)
{
  static const op_case ops[] = { OP_LIST_REDUCE(ROW_REDUCE) };
  (void)state;
  for (int k = 0; k < COUNT(ops) * REPEAT * 2; k++) {
    const op_case *op = &ops[k % COUNT(ops)];
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 4), dtype = random_dtype(op->mask), sums = k % COUNT(ops) < 3;
    k_reduce_attrs attrs = { (int)below(ndim + 1) };
    case_begin();
    if (ndim == 2 && below(3) == 0) { /* columns: several blocks of rows, or several pieces */
      int tall = (int)below(2);
      shape[0] = tall ? 20 : 1300;
      shape[1] = tall ? 2500 : 40;
      attrs.nkeep = 1;
    }
    k_tensor in = make(dtype, ndim, shape, ANY_LAYOUT);
    fill_values(&in, sums ? 0.995 : -3, sums ? 1.005 : 3, !sums);
    k_tensor out = make(reduced_dtype(op->name, dtype), attrs.nkeep, shape, PLAIN);
    int64_t n = 1;
    for (int d = attrs.nkeep; d < ndim; d++) n *= shape[d];
    /* n roundings in a product; in f64 also in a sum, where the reference has no more digits. */
    int worst = op->ref == k_ref_prod || dtype == TIDE_F64;
    check_case(op, 1, &in, &out, &attrs, worst ? 8 + (double)n / 2 : 8, 0);
  }
}

static void extreme_position(void **state)
{
  (void)state;
  for (int k = 0; k < 4 * REPEAT; k++) {
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 3);
    if (ndim == 0) continue;
    k_reduce_attrs attrs = { ndim - 1 };
    case_begin();
    k_tensor in = random_tensor(random_dtype(K_ALL), ndim, shape, ANY_LAYOUT);
    k_tensor out = make(TIDE_I64, ndim - 1, shape, PLAIN);
    check_case(k % 2 ? &op_argmax : &op_argmin, 1, &in, &out, &attrs, 0, 1);
    k_tensor sums = make(reduced_dtype("sum", in.dtype), ndim, shape, NO_BROADCAST);
    check_case(&op_cumsum, 1, &in, &sums, &attrs, 2, 1);
  }
}

/* ---- movement ------------------------------------------------------------------------------- */

static void joining(void **state)
{
  (void)state;
  for (int k = 0; k < REPEAT; k++) {
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 4), dtype = random_dtype(K_ALL), n = 1 + (int)below(3);
    if (ndim == 0) continue;
    k_dim_attrs attrs = { (int)below(ndim) };
    k_tensor in[3];
    int64_t total = 0;
    case_begin();
    for (int i = 0; i < n; i++) {
      shape[attrs.dim] = below(9);
      total += shape[attrs.dim];
      in[i] = random_tensor(dtype, ndim, shape, ANY_LAYOUT);
    }
    shape[attrs.dim] = total;
    k_tensor out = make(dtype, ndim, shape, PLAIN);
    check_case(&op_cat, n, in, &out, &attrs, 0, 1);
  }
}

static void padding(void **state)
{
  (void)state;
  for (int k = 0; k < 3 * REPEAT; k++) {
    int64_t shape[TIDE_MAX_DIM], size[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 3), dtype = random_dtype(K_ALL);
    k_pad_attrs attrs = { .value = below(2) ? 0 : 2.5 };
    case_begin();
    k_tensor in = random_tensor(dtype, ndim, shape, ANY_LAYOUT);
    for (int d = 0; d < ndim; d++) {
      attrs.before[d] = below(7) - 3;
      size[d] = shape[d] + attrs.before[d] + below(7) - 3;
      if (size[d] < 0) size[d] = 0;
    }
    k_tensor out = make(dtype, ndim, size, PLAIN);
    check_case(&op_pad, 1, &in, &out, &attrs, 0, 1);
  }
}

static void rolling(void **state)
{
  (void)state;
  for (int k = 0; k < REPEAT; k++) {
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 4), dtype = random_dtype(K_ALL);
    k_roll_attrs attrs = { ndim ? (int)below(ndim) : 0, 0, below(200) - 100 };
    case_begin();
    k_tensor in = random_tensor(dtype, ndim, shape, ANY_LAYOUT);
    k_tensor out = make(dtype, ndim, shape, PLAIN);
    check_case(&op_roll, 1, &in, &out, &attrs, 0, 1);
  }
}

/* ---- index ---------------------------------------------------------------------------------- */

static k_tensor random_index(int ndim, const int64_t *shape, int64_t limit)
{
  k_tensor t = make(below(2) ? TIDE_I64 : TIDE_I32, ndim, shape, ANY_LAYOUT);
  int64_t n = k_numel(&t);
  ref_walk w = ref_begin(shape, ndim);
  for (int64_t i = 0; i < n; i++, ref_step(&w))
    ref_put_int(&t, ref_offset(&w, &t), below(200) == 0 && below(40) == 0 ? limit : below(limit));
  return t;
}

static void by_index(void **state)
{
  (void)state;
  for (int k = 0; k < 4 * REPEAT; k++) {
    int64_t shape[TIDE_MAX_DIM], size[TIDE_MAX_DIM], n = below(40);
    int ndim = random_shape(shape, 3), dtype = random_dtype(K_ALL);
    if (ndim == 0) continue;
    k_dim_attrs attrs = { (int)below(ndim) };
    int64_t limit = shape[attrs.dim];
    if (limit == 0) n = 0;
    case_begin();
    memcpy(size, shape, sizeof size);
    size[attrs.dim] = n;
    k_tensor in[2] = { random_tensor(dtype, ndim, shape, ANY_LAYOUT),
                       random_index(ndim, size, limit) };
    k_tensor out = make(dtype, ndim, size, PLAIN);
    check_case(&op_gather, 2, in, &out, &attrs, 0, 1);
    in[1] = random_index(1, &n, limit);
    check_case(&op_index_select, 2, in, &out, &attrs, 0, 1);
  }
}

static void adding_by_index(void **state)
{
  (void)state;
  for (int k = 0; k < 4 * REPEAT; k++) {
    int64_t shape[TIDE_MAX_DIM], size[TIDE_MAX_DIM], n = below(40);
    int ndim = random_shape(shape, 3), dtype = random_dtype(K_FLOAT | K_INT);
    if (ndim == 0) continue;
    k_dim_attrs attrs = { (int)below(ndim) };
    int64_t limit = shape[attrs.dim];
    if (limit == 0) n = 0;
    case_begin();
    memcpy(size, shape, sizeof size);
    size[attrs.dim] = n;
    k_tensor in[2] = { random_index(ndim, size, limit), make(dtype, ndim, size, ANY_LAYOUT) };
    k_tensor out = make(dtype, ndim, shape, NO_BROADCAST), target;
    fill_values(&in[1], 0, 2, 0);
    fill_values(&out, 0, 2, 0);
    target = twin(&out);
    check_case(&op_scatter_add, 2, in, &out, &attrs, 8, 1);
    in[0] = random_index(1, &n, limit);
    check_case(&op_index_add, 2, in, &target, &attrs, 8, 1);
  }
}

static void embedding(void **state)
{
  (void)state;
  for (int k = 0; k < 2 * REPEAT; k++) {
    int64_t shape[TIDE_MAX_DIM], table[2] = { 1 + below(50), below(700) };
    int ndim = random_shape(shape, 2), dtype = random_dtype(K_FLOAT);
    case_begin();
    for (int d = 0; d < ndim; d++) shape[d] = shape[d] > 70 ? 70 : shape[d];
    k_tensor in[2] = { random_tensor(dtype, 2, table, ANY_LAYOUT),
                       random_index(ndim, shape, table[0]) };
    shape[ndim] = table[1];
    k_tensor out = make(dtype, ndim + 1, shape, PLAIN);
    check_case(&op_embedding, 2, in, &out, NULL, 0, 1);
    in[0] = make(dtype, ndim + 1, shape, ANY_LAYOUT);
    fill_values(&in[0], 0, 2, 0);
    out = make(dtype, 2, table, PLAIN);
    /* As many terms as there are ids may meet in one element, each rounded in f32. */
    check_case(&op_embedding_bwd, 2, in, &out, NULL, 8 + (double)k_numel(&in[1]) / 2, 1);
    shape[ndim] = table[0];
    out = make(random_dtype(K_ALL), ndim + 1, shape, PLAIN);
    check_case(&op_one_hot, 1, &in[1], &out, NULL, 0, 1);
  }
}

/* An index out of range is named with its position and leaves the target as it was. */
static void bad_index(void **state)
{
  int64_t ids[5] = { 0, 7, 3, 8, -1 };
  float x[8] = { 0 }, src[5] = { 1, 1, 1, 1, 1 };
  k_tensor index = { ids, { 5 }, { 1 }, 1, TIDE_I64 }, source = { src, { 5 }, { 1 }, 1, TIDE_F32 };
  k_tensor in[2] = { index, source }, out = { x, { 8 }, { 1 }, 1, TIDE_F32 };
  k_dim_attrs attrs = { 0 };
  char msg[K_MSG];
  (void)state;
  assert_int_equal(run_one(k_cpu_index_add, k_cpu_index_add_work, 1, 2, in, &out, &attrs, msg),
                   TIDE_E_ARG);
  assert_string_equal(msg, "index 8 at position 3 is outside [0, 8)");
  for (int i = 0; i < 8; i++) assert_true(x[i] == 0);
  ids[3] = 0;
  assert_int_equal(run_one(k_ref_index_add, k_ref_index_add_work, 1, 2, in, &out, &attrs, msg),
                   TIDE_E_ARG);
  assert_string_equal(msg, "index -1 at position 4 is outside [0, 8)");
}

/* ---- random numbers ------------------------------------------------------------------------- */

static k_random_attrs random_attrs(int ndim, const int64_t *shape)
{
  k_random_attrs a = { .seed = draw(), .stream = below(3), .offset = (uint64_t)below(1000),
                       .a = -0.5, .b = 1.5, .lo = -1, .hi = 2, .start = below(10) };
  int64_t step = 1;
  if (below(2)) return a;
  a.ndim = ndim; /* a shard: gaps between its rows */
  for (int d = ndim - 1; d >= 0; d--) {
    a.gstride[d] = step;
    step *= shape[d] + below(5);
  }
  return a;
}

static void random_numbers(void **state)
{
  static const op_case ops[] = { OP_LIST_RANDOM(ROW) };
  (void)state;
  for (int k = 0; k < COUNT(ops) * REPEAT; k++) {
    const op_case *op = &ops[k % COUNT(ops)];
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 3), dtype = random_dtype(op->mask);
    k_random_attrs attrs = random_attrs(ndim, shape);
    case_begin();
    if (below(4) == 0) attrs.lo = 3, attrs.hi = HUGE_VAL;
    int64_t three = 3, words[] = { (int64_t)draw(), below(3), (int64_t)draw() };
    k_tensor out = make(dtype, ndim, shape, NO_BROADCAST);
    k_tensor place = make(TIDE_I64, 1, &three, PLAIN), absent = { .ndim = -1, .dtype = -1 };
    memcpy(place.data, words, sizeof words);
    int given = (int)below(3); /* no place, one that is absent, one */
    check_case(op, given > 0, given > 1 ? &place : &absent, &out, &attrs, 0, 1);
    k_tensor in[] = { random_tensor(dtype, ndim, shape, ANY_LAYOUT), given > 1 ? place : absent };
    attrs.a = below(5) / 4.0;
    check_case(&op_dropout, 1 + (given > 0), in, &out, &attrs, 2, 0);
  }
}

/* Published vectors: Random123, kat_vectors, philox4x32 10. */
static void philox_vectors(void **state)
{
  static const struct { uint64_t block, stream, seed; uint32_t word[4]; } known[] = {
    { 0, 0, 0, { 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8 } },
    { ~0ull, ~0ull, ~0ull, { 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd } },
    { 0x85a308d3243f6a88ull, 0x0370734413198a2eull, 0x299f31d0a4093822ull,
      { 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1 } }
  };
  (void)state;
  for (int i = 0; i < COUNT(known); i++) {
    uint32_t word[4];
    tide__philox_block(known[i].seed, known[i].stream, known[i].block, word);
    assert_memory_equal(word, known[i].word, sizeof word);
  }
}

static void normal_quantile(void **state)
{
  (void)state;
  assert_true(fabs(tide__normal_quantile(0.25) + 0.6744897501960817) < 1e-15);
  assert_true(fabs(tide__normal_quantile(0.001) + 3.090232306167814) < 2e-15);
  assert_true(fabs(tide__normal_quantile(1e-20) + 9.262340089798408) < 4e-15);
  assert_true(tide__normal_quantile(0) == -HUGE_VAL && tide__normal_quantile(1) == HUGE_VAL);
  assert_true(isnan(tide__normal_quantile(-0.1)) && isnan(tide__normal_quantile(NAN)));
  for (double p = 1e-300; p < 1; p *= 1.37) {
    double z = tide__normal_quantile(p);
    assert_true(fabs(tide__normal_cdf(z) - p) <= 4e-15 * p * (1 + z * z));
  }
}

/* [lo, hi) holds in the dtype, where rounding alone would reach hi. */
static void uniform_range(void **state)
{
  static const int dtypes[] = { TIDE_F32, TIDE_BF16, TIDE_F16, TIDE_F64 };
  int64_t n = 20000;
  char msg[K_MSG];
  (void)state;
  for (int k = 0; k < 4; k++) {
    k_random_attrs attrs = { .a = 1, .b = 1.1 };
    case_begin();
    k_tensor t = make(dtypes[k], 1, &n, PLAIN);
    assert_int_equal(run_one(k_cpu_uniform_, NULL, 2, 0, NULL, &t, &attrs, msg), TIDE_OK);
    for (int64_t i = 0; i < n; i++) assert_true(ref_get(&t, i) >= 1 && ref_get(&t, i) < 1.1);
  }
}

static void half_round_trip(void **state)
{
  (void)state;
  for (uint32_t h = 0; h < 65536; h++) {
    float f = tide__f16_to_f32((uint16_t)h);
    if (f == f) assert_int_equal(tide__f32_to_f16(f), h);
    else assert_true(isnan(tide__f16_to_f32(tide__f32_to_f16(f))));
  }
  assert_int_equal(tide__f32_to_f16(65519.996f), 0x7bff);
  assert_int_equal(tide__f32_to_f16(65520.0f), 0x7c00);
  assert_int_equal(tide__f32_to_f16(0x1p-25f), 0);          /* halfway: to even */
  assert_int_equal(tide__f32_to_f16(0x1.000002p-25f), 1);
  assert_int_equal(tide__f32_to_f16(1 + 0x1p-11f), 0x3c00);
  assert_int_equal(tide__f32_to_f16(1 + 0x3p-11f), 0x3c02);
}

static void promotion(void **state)
{
  (void)state;
  assert_int_equal(tide__dtype_promote(TIDE_BOOL, TIDE_U8), TIDE_U8);
  assert_int_equal(tide__dtype_promote(TIDE_I64, TIDE_BF16), TIDE_BF16);
  assert_int_equal(tide__dtype_promote(TIDE_F16, TIDE_BF16), TIDE_F32);
  assert_int_equal(tide__dtype_promote(TIDE_F16, TIDE_F16), TIDE_F16);
  assert_int_equal(tide__dtype_promote(TIDE_F64, TIDE_F16), TIDE_F64);
  assert_int_equal(tide__dtype_promote(TIDE_F64, 8), -1);
  assert_null(tide_dtype_name(-1));
  assert_int_equal(tide_dtype_size(8), 0);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(half_round_trip), cmocka_unit_test(promotion),
    cmocka_unit_test(philox_vectors), cmocka_unit_test(normal_quantile),
    cmocka_unit_test(binary), cmocka_unit_test(comparison), cmocka_unit_test(unary),
    cmocka_unit_test(predicate), cmocka_unit_test(backward), cmocka_unit_test(scalar),
    cmocka_unit_test(clamp_backward), cmocka_unit_test(in_place), cmocka_unit_test(convert),
    cmocka_unit_test(transpose), cmocka_unit_test(choose), cmocka_unit_test(reduce),
    cmocka_unit_test(extreme_position), cmocka_unit_test(joining), cmocka_unit_test(padding),
    cmocka_unit_test(rolling), cmocka_unit_test(by_index), cmocka_unit_test(adding_by_index),
    cmocka_unit_test(embedding), cmocka_unit_test(bad_index), cmocka_unit_test(random_numbers),
    cmocka_unit_test(uniform_range)
  };
  int rc = cmocka_run_group_tests(tests, NULL, NULL);
  free_blocks();
  return rc;
}
