/* The fast CPU kernels that move elements, by shape or by index, against the reference, on random
 * operands; and an index that is out of range. */
#include "case.h"

#define OP_LIST_MOVE(X) \
  X(cat, K_ALL) X(pad, K_ALL) X(roll, K_ALL) X(gather, K_ALL) X(index_select, K_ALL) \
  X(embedding, K_ALL) X(one_hot, K_ALL)
#define OP_LIST_ADD(X) \
  X(scatter_add, K_FLOAT | K_INT) X(index_add, K_FLOAT | K_INT) X(embedding_bwd, K_FLOAT)

OP_LIST_MOVE(DECLARE) OP_LIST_ADD(DECLARE) OP_LIST_ADD(DECLARE_WORK)
OP_LIST_MOVE(ONE) OP_LIST_ADD(ONE_WORK)

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

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(joining), cmocka_unit_test(padding), cmocka_unit_test(rolling),
    cmocka_unit_test(by_index), cmocka_unit_test(adding_by_index), cmocka_unit_test(embedding),
    cmocka_unit_test(bad_index)
  };
  return RUN_CASES(tests);
}
