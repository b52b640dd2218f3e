/* The fast CPU kernels of reductions against the reference, on random operands. */
#include "case.h"

#define OP_LIST_REDUCE(X) \
  X(sum, K_ALL) X(mean, K_ALL) X(prod, K_ALL) X(amax, K_ALL) X(amin, K_ALL) X(any, K_ALL) \
  X(all, K_ALL)
#define OP_LIST_PLACE(X) X(argmax, K_ALL) X(argmin, K_ALL) X(cumsum, K_ALL) X(topk, K_ALL)

#define ROW_REDUCE(name, mask) { #name, k_ref_##name, k_cpu_##name, NULL, k_cpu_reduce_work, mask },

OP_LIST_REDUCE(DECLARE) OP_LIST_PLACE(DECLARE)
int64_t k_cpu_reduce_work(const k_call *);
OP_LIST_PLACE(ONE)

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
    k_reduce_attrs attrs = { (int)below(ndim + 1), 0 };
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
    k_reduce_attrs attrs = { ndim - 1, 0 };
    case_begin();
    k_tensor in = random_tensor(random_dtype(K_ALL), ndim, shape, ANY_LAYOUT);
    k_tensor out = make(TIDE_I64, ndim - 1, shape, PLAIN);
    check_case(k % 2 ? &op_argmax : &op_argmin, 1, &in, &out, &attrs, 0, 1);
    k_tensor sums = make(reduced_dtype("sum", in.dtype), ndim, shape, NO_BROADCAST);
    attrs.from_end = k % 2;
    check_case(&op_cumsum, 1, &in, &sums, &attrs, 2, 1);
  }
}

/* Some elements are NaN; some are equal: those of integers, and where a stride is 0. */
static void first_in_order(void **state)
{
  (void)state;
  for (int k = 0; k < 6 * REPEAT; k++) {
    int64_t shape[TIDE_MAX_DIM];
    int ndim = random_shape(shape, 3);
    if (ndim == 0) continue;
    k_topk_attrs attrs = { (int)below(2) };
    case_begin();
    k_tensor in = random_tensor(random_dtype(K_ALL), ndim, shape, ANY_LAYOUT);
    /* The reference takes k passes over a row. */
    int64_t n = shape[ndim - 1], most = n < 100 ? n : 12;
    shape[ndim - 1] = (int64_t)below((int)most + 1);
    k_tensor out = make(TIDE_I64, ndim, shape, PLAIN);
    check_case(&op_topk, 1, &in, &out, &attrs, 0, 1);
  }
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(reduce), cmocka_unit_test(extreme_position),
    cmocka_unit_test(first_in_order)
  };
  return RUN_CASES(tests);
}
