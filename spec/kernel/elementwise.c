/* The fast CPU kernels of the elementwise family against the reference, on random operands. */
#include "case.h"

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
#define OP_LIST_OTHER(X) X(clamp_bwd, K_FLOAT) X(where, K_ALL) X(cast, K_ALL)

OP_LIST_BINARY(DECLARE) OP_LIST_COMPARE(DECLARE) OP_LIST_UNARY(DECLARE)
OP_LIST_PREDICATE(DECLARE) OP_LIST_BWD(DECLARE) OP_LIST_SCALAR(DECLARE)
OP_LIST_IN_PLACE(DECLARE) OP_LIST_OTHER(DECLARE)
OP_LIST_OTHER(ONE)
ONE(axpy_, K_FLOAT | K_INT)

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

/* axpy_ with a factor in memory. */
static void in_place_factor(void **state)
{
  (void)state;
  for (int k = 0; k < 4 * REPEAT; k++) {
    const k_scalar_attrs attrs = { below(2) ? 1 : 0.3, 0 };
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 4), dtype = random_dtype(K_FLOAT);
    case_begin();
    k_tensor in[2] = { random_tensor(random_dtype(K_FLOAT), ndim, shape, ANY_LAYOUT) };
    in[1] = random_tensor(dtype == TIDE_F64 ? TIDE_F64 : TIDE_F32, 0, shape, PLAIN);
    k_tensor out = random_tensor(dtype, ndim, shape, NO_BROADCAST);
    check_case(&op_axpy_, 2, in, &out, &attrs, 2, 3);
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

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(binary), cmocka_unit_test(comparison), cmocka_unit_test(unary),
    cmocka_unit_test(predicate), cmocka_unit_test(backward), cmocka_unit_test(scalar),
    cmocka_unit_test(clamp_backward), cmocka_unit_test(in_place), cmocka_unit_test(in_place_factor),
    cmocka_unit_test(convert), cmocka_unit_test(transpose), cmocka_unit_test(choose)
  };
  return RUN_CASES(tests);
}
