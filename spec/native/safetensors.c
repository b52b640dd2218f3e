/* safetensors: round trips, partial reads, and a corpus of files that must be refused. */
#include "check.h"

#include <unistd.h>

/* Writes header length, header and ndata bytes. length < 0: the true one. */
static void put_file(const char *path, int64_t length, const char *header, size_t nheader,
                     size_t ndata)
{
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  uint64_t n = length < 0 ? nheader : (uint64_t)length;
  for (int i = 0; i < 8; i++) fputc((int)(n >> (8 * i) & 255), f);
  fwrite(header, 1, nheader, f);
  for (size_t i = 0; i < ndata; i++) fputc((int)(i & 255), f);
  fclose(f);
}

static int try_open(tide_ctx *ctx, const char *path)
{
  tide_file *file = NULL;
  int rc = tide_file_open(&file, ctx, path);
  if (rc < 0) assert_null(file);
  tide_file_release(file);
  return rc;
}

#define T(dtype, shape, begin, end) \
  "{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" #begin "," #end "]}"

static const struct { const char *header; size_t ndata; } accepted[] = {
  {"{}", 0}, {"{}     ", 0}, {"{ }\n", 0}, {"{\"__metadata__\":{}}", 0},
  {"{\"__metadata__\":null}", 0}, {"{\"__metadata__\":{\"format\":\"pt\"}}", 0},
  {"{\"a\":" T("F32", "[2,3]", 0, 24) "}", 24}, {"{\"a\":" T("F32", "[]", 0, 4) "}", 4},
  {"{\"a\":" T("F32", "[0]", 0, 0) "}", 0}, {"{\"a\":" T("F32", "[2,0,3]", 0, 0) "}", 0},
  {"{\"b\":" T("U8", "[3]", 4, 7) ",\"a\":" T("F32", "[1]", 0, 4) "}", 7},
  {"{\"b\":" T("U8", "[0]", 4, 4) ",\"a\":" T("F32", "[1]", 0, 4) "}", 4},
  {"{\"a\":{\"data_offsets\":[0,2],\"shape\":[1],\"dtype\":\"BF16\"}}", 2},
  {"{\"a\":{\"dtype\":\"I8\",\"shape\":[3],\"data_offsets\":[0,3],\"note\":{\"x\":[1]}}}", 3},
  {"{\"a\":" T("F4", "[4]", 0, 2) "}", 2}, {"{\"a\":" T("F8_E4M3", "[4]", 0, 4) "}", 4},
  {"{\"a\":" T("F6_E2M3", "[4]", 0, 3) "}", 3}, {"{\"a\":" T("C64", "[1]", 0, 8) "}", 8},
  {"{\"\":" T("U8", "[1]", 0, 1) "}", 1}, {"{\"\\u00e9\":" T("U8", "[1]", 0, 1) "}", 1},
  {"{\"a\":" T("U8", "[1,1,1,1,1,1,1,1,1,1]", 0, 1) "}", 1},
};

static const struct { const char *header; size_t ndata; } refused[] = {
  {"", 0}, {" {}", 0}, {"[]", 0}, {"null", 0}, {"{", 0}, {"{}}", 0}, {"{} x", 0}, {"{}{}", 0},
  {"{}", 1}, {"{\"a\":1}", 0}, {"{\"a\":null}", 0}, {"{\"a\":[]}", 0}, {"{\"a\":{}}", 0},
  {"{\"a\":\"b\"}", 0}, {"{\"__metadata__\":1}", 0}, {"{\"__metadata__\":[]}", 0},
  {"{\"__metadata__\":{\"k\":1}}", 0}, {"{\"__metadata__\":{\"k\":null}}", 0},
  {"{\"__metadata__\":{\"k\":{}}}", 0}, {"{\"__metadata__\":{\"k\":[\"v\"]}}", 0},
  {"{\"__metadata__\":{\"k\":\"v\",\"k\":\"w\"}}", 0},
  {"{\"__metadata__\":{},\"__metadata__\":{}}", 0}, {"{\"__metadata__\":{\"a\\u0000\":\"b\"}}", 0},
  /* missing, repeated and wrong members */
  {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
  {"{\"a\":" T("f32", "[1]", 0, 4) "}", 4}, {"{\"a\":" T("F33", "[1]", 0, 4) "}", 4},
  {"{\"__metadata__\":{\"a\":\"b\\u0000c\"}}", 0}, {"{\"a\":" T("F32\\u0000", "[1]", 0, 4) "}", 4},
  {"{\"a\":" T("", "[1]", 0, 4) "}", 4}, {"{\"a\":" T("F32\\u0000", "[1]", 0, 4) "x}", 4},
  {"{\"a\":{\"dtype\":32,\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
  {"{\"a\":{\"dtype\":null,\"shape\":[1],\"data_offsets\":[0,4]}}", 4},
  {"{\"a\":" T("F32", "1", 0, 4) "}", 4}, {"{\"a\":" T("F32", "{}", 0, 4) "}", 4},
  {"{\"a\":" T("F32", "null", 0, 4) "}", 4}, {"{\"a\":" T("F32", "[1.0]", 0, 4) "}", 4},
  {"{\"a\":" T("F32", "[-1]", 0, 4) "}", 4}, {"{\"a\":" T("F32", "[\"1\"]", 0, 4) "}", 4},
  {"{\"a\":" T("F32", "[[1]]", 0, 4) "}", 4}, {"{\"a\":" T("F32", "[1e0]", 0, 4) "}", 4},
  {"{\"a\":" T("F32", "[true]", 0, 4) "}", 4}, {"{\"a\":" T("F32", "[1,]", 0, 4) "}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[]}}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0.0,4]}}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,\"4\"]}}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":{}}}", 4},
  {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":null}}", 4},
  {"{\"a\":" T("F32", "[1]", -4, 0) "}", 4}, {"{\"a\":" T("F32", "[1]", 4, 0) "}", 4},
  /* sizes */
  {"{\"a\":" T("F32", "[1]", 0, 3) "}", 3}, {"{\"a\":" T("F32", "[1]", 0, 5) "}", 5},
  {"{\"a\":" T("F32", "[2]", 0, 4) "}", 4}, {"{\"a\":" T("F32", "[0]", 0, 4) "}", 4},
  {"{\"a\":" T("F64", "[1]", 0, 4) "}", 4}, {"{\"a\":" T("F4", "[3]", 0, 2) "}", 2},
  {"{\"a\":" T("F6_E3M2", "[2]", 0, 2) "}", 2},
  {"{\"a\":" T("F32", "[4294967296,4294967296]", 0, 0) "}", 0},
  {"{\"a\":" T("F32", "[4611686018427387904,4]", 0, 0) "}", 0},
  {"{\"a\":" T("F64", "[2305843009213693952]", 0, 0) "}", 0},
  {"{\"a\":" T("U8", "[9223372036854775807]", 0, 9223372036854775807) "}", 4},
  {"{\"a\":" T("U8", "[9223372036854775808]", 0, 4) "}", 4},
  {"{\"a\":" T("U8", "[4]", 0, 18446744073709551616) "}", 4},
  {"{\"a\":" T("F32", "[1]", 0, 4) "}", 3}, {"{\"a\":" T("F32", "[1]", 0, 4) "}", 5},
  {"{\"a\":" T("F32", "[1]", 0, 4) "}", 0}, {"{\"a\":" T("F32", "[1000000000000]", 0, 4) "}", 4},
  /* gaps, overlaps, what a second format could hide in */
  {"{\"a\":" T("F32", "[1]", 4, 8) "}", 8},
  {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 8, 12) "}", 12},
  {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 0, 4) "}", 4},
  {"{\"a\":" T("F32", "[2]", 0, 8) ",\"b\":" T("F32", "[1]", 4, 8) "}", 8},
  {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("F32", "[1]", 5, 9) "}", 9},
  {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("U8", "[0]", 2, 2) "}", 4},
  {"{\"a\":" T("F32", "[1]", 0, 4) ",\"b\":" T("U8", "[0]", 9, 9) "}", 4},
  /* names */
  {"{\"a\":" T("F32", "[1]", 0, 4) ",\"a\":" T("F32", "[1]", 4, 8) "}", 8},
  {"{\"a\":" T("F32", "[1]", 0, 4) ",\"\\u0061\":" T("F32", "[1]", 4, 8) "}", 8},
  {"{\"a\\u0000b\":" T("F32", "[1]", 0, 4) "}", 4}, {"{\"\xff\":" T("F32", "[1]", 0, 4) "}", 4},
  {"{\"\xc0\x80\":" T("F32", "[1]", 0, 4) "}", 4}, {"{\"\\ud800\":" T("F32", "[1]", 0, 4) "}", 4},
  {"{a:" T("F32", "[1]", 0, 4) "}", 4}, {"{'a':" T("F32", "[1]", 0, 4) "}", 4},
  {"{\"a\":" T("F32", "[1]", 0, 4) ",}", 4}, {"{\"a\" " T("F32", "[1]", 0, 4) "}", 4},
  {"{\"a\":" T("F32", "[1]", 0, 4), 4}, {"{\"a\":{\"dtype\":\"F32\"", 4}, {"{\"a\"", 4}, {"{\"a",
  4},
};

static void corpus(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  char path[256];
  (void)state;
  scratch(path, sizeof path, "st");
  for (size_t i = 0; i < LENGTH(accepted); i++) {
    put_file(path, -1, accepted[i].header, strlen(accepted[i].header), accepted[i].ndata);
    if (try_open(ctx, path) < 0)
      fail_msg("%s: %s", accepted[i].header, tide_error(ctx)->message);
  }
  for (size_t i = 0; i < LENGTH(refused); i++) {
    put_file(path, -1, refused[i].header, strlen(refused[i].header), refused[i].ndata);
    int rc = try_open(ctx, path);
    if (rc != TIDE_E_FORMAT) fail_msg("case %zu (%s): status %d", i, refused[i].header, rc);
    assert_non_null(strstr(tide_error(ctx)->message, path));
  }
  unlink(path);
  close_ctx(ctx);
}

static void frames(void **state)
{
  static const int64_t lengths[] = {0, 1, 3, 99, 100000000, 100000001, INT64_MAX, -8};
  tide_ctx *ctx = open_ctx(NULL);
  char path[256];
  (void)state;
  scratch(path, sizeof path, "st");
  assert_int_equal(try_open(ctx, path), TIDE_E_FORMAT); /* empty */
  for (int n = 1; n < 8; n++) {
    assert_int_equal(truncate(path, n), 0);
    assert_int_equal(try_open(ctx, path), TIDE_E_FORMAT);
  }
  for (size_t i = 0; i < LENGTH(lengths); i++) {
    put_file(path, lengths[i] == -8 ? INT64_MIN + 1 : lengths[i], "{}", 2, 0);
    if (lengths[i] == -8) { /* all bits set */
      FILE *f = fopen(path, "r+b");
      for (int b = 0; b < 8; b++) fputc(255, f);
      fclose(f);
    }
    assert_int_equal(try_open(ctx, path), TIDE_E_FORMAT);
  }
  unlink(path);
  assert_int_equal(try_open(ctx, path), TIDE_E_IO);
  assert_int_equal(try_open(ctx, "/dev/zero"), TIDE_E_IO);
  assert_int_equal(try_open(ctx, "/"), TIDE_E_IO);
  assert_int_equal(try_open(ctx, NULL), TIDE_E_ARG);
  close_ctx(ctx);
}

static void round_trip(void **state)
{
  static const char *const keys[] = {"format", "note"};
  static const char *const values[] = {"pt", "quote \" slash \\ line \n tab \t \xc3\xa9 \x01"};
  tide_ctx *ctx = open_ctx(NULL);
  char path[256];
  const char *names[TIDE_NDTYPE + 2] = {"f32", "f64", "bf16", "f16", "i64", "i32", "u8", "bool",
                                        "scalar \" \\ \n", "empty"};
  tide_tensor *ts[TIDE_NDTYPE + 2];
  const int64_t shape[] = {2, 3}, none[] = {0, 5};
  (void)state;
  scratch(path, sizeof path, "st");
  for (int d = 0; d < TIDE_NDTYPE; d++)
    OK(ctx, tide_full(&ts[d], ctx, TIDE_DEV_CPU, d, 2, shape, d == TIDE_BOOL ? 1 : d + 1));
  OK(ctx, tide_full(&ts[TIDE_NDTYPE], ctx, TIDE_DEV_CPU, TIDE_F32, 0, NULL, -1.5));
  OK(ctx, tide_empty(&ts[TIDE_NDTYPE + 1], ctx, TIDE_DEV_CPU, TIDE_F32, 2, none));
  OK(ctx, tide_file_save(ctx, path, (int64_t)LENGTH(names), names, ts, 2, keys, values));

  tide_file *file = NULL;
  OK(ctx, tide_file_open(&file, ctx, path));
  assert_int_equal(tide_file_count(file), LENGTH(names));
  assert_int_equal(tide_file_meta_count(file), 2);
  for (int i = 0; i < 2; i++) {
    assert_string_equal(tide_file_meta_key(file, i), keys[i]);
    assert_string_equal(tide_file_meta_value(file, i), values[i]);
  }
  for (size_t i = 0; i < LENGTH(names); i++) {
    int64_t at = tide_file_find(file, names[i]);
    assert_true(at >= 0);
    assert_string_equal(tide_file_name(file, at), names[i]);
    assert_int_equal(tide_file_dtype(file, at), tide_tensor_dtype(ts[i]));
    tide_tensor *t = NULL;
    OK(ctx, tide_file_load(&t, file, at, TIDE_DEV_CPU));
    size_t n = (size_t)tide_file_nbytes(file, at);
    assert_int_equal(tide_tensor_ndim(t), tide_tensor_ndim(ts[i]));
    assert_memory_equal(tide_tensor_data(t), tide_tensor_data(ts[i]), n);
    tide_tensor_release(t);
    tide_tensor_release(ts[i]);
  }
  assert_int_equal(tide_file_find(file, "absent"), -1);
  assert_null(tide_file_name(file, 99));
  assert_null(tide_file_name(file, -1));
  tide_file_release(file);
  unlink(path);
  close_ctx(ctx);
}

static void strided_and_partial(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  char path[256];
  const char *name = "w";
  const float values[6] = {0, 1, 2, 3, 4, 5}, turned[6] = {0, 3, 1, 4, 2, 5};
  const int64_t shape[] = {2, 3}, row[] = {2};
  tide_tensor *t = NULL, *tt = NULL, *part = NULL;
  tide_file *file = NULL;
  float got[6];
  (void)state;
  scratch(path, sizeof path, "st");
  OK(ctx, tide_from_bytes(&t, ctx, TIDE_DEV_CPU, TIDE_F32, 2, shape, values, sizeof values));
  OK(ctx, tide_transpose(&tt, t, 0, 1));
  OK(ctx, tide_file_save(ctx, path, 1, &name, &tt, 0, NULL, NULL));
  OK(ctx, tide_file_open(&file, ctx, path));
  assert_int_equal(tide_file_dim(file, 0, 0), 3);
  assert_int_equal(tide_file_dim(file, 0, 1), 2);
  OK(ctx, tide_empty(&part, ctx, TIDE_DEV_CPU, TIDE_F32, 1, row));
  for (int start = 0; start <= 4; start++) {
    OK(ctx, tide_file_read(part, file, 0, start));
    OK(ctx, tide_to_bytes(part, got, 8));
    assert_memory_equal(got, turned + start, 8);
  }
  assert_int_equal(tide_file_read(part, file, 0, 5), TIDE_E_SHAPE);
  assert_int_equal(tide_file_read(part, file, 0, -1), TIDE_E_SHAPE);
  assert_int_equal(tide_file_read(part, file, 0, INT64_MAX), TIDE_E_SHAPE);
  assert_int_equal(tide_file_read(part, file, 1, 0), TIDE_E_ARG);
  assert_int_equal(tide_file_read(tt, file, 0, 0), TIDE_E_ARG); /* not contiguous */
  tide_tensor_release(part);
  part = NULL;
  OK(ctx, tide_empty(&part, ctx, TIDE_DEV_CPU, TIDE_I32, 1, row));
  assert_int_equal(tide_file_read(part, file, 0, 0), TIDE_E_DTYPE);
  assert_int_equal(truncate(path, 40), 0); /* cut short behind our back: an error, no signal */
  tide_tensor *gone = NULL;
  assert_int_equal(tide_file_load(&gone, file, 0, TIDE_DEV_CPU), TIDE_E_IO);
  assert_null(gone);
  tide_file_release(file);
  tide_tensor_release(part);
  tide_tensor_release(t);
  tide_tensor_release(tt);
  unlink(path);
  close_ctx(ctx);
}

static void unknown_to_tide(void **state)
{
  static const char header[] = "{\"a\":" T("F8_E4M3", "[4]", 0, 4) ",\"b\":"
                               T("U8", "[1,1,1,1,1,1,1,1,1]", 4, 5) ",\"c\":" T("BOOL", "[3]", 5, 8)
                               "}";
  tide_ctx *ctx = open_ctx(NULL);
  char path[256];
  tide_file *file = NULL;
  tide_tensor *t = NULL;
  unsigned char got[3];
  (void)state;
  scratch(path, sizeof path, "st");
  put_file(path, -1, header, strlen(header), 8);
  OK(ctx, tide_file_open(&file, ctx, path));
  assert_int_equal(tide_file_dtype(file, 0), -1);
  assert_string_equal(tide_file_dtype_text(file, 0), "F8_E4M3");
  assert_int_equal(tide_file_load(&t, file, 0, TIDE_DEV_CPU), TIDE_E_UNSUPPORTED);
  assert_int_equal(tide_file_load(&t, file, 1, TIDE_DEV_CPU), TIDE_E_UNSUPPORTED);
  OK(ctx, tide_file_load(&t, file, 2, TIDE_DEV_CPU)); /* stored as 5, 6, 7 */
  OK(ctx, tide_to_bytes(t, got, 3));
  assert_true(got[0] == 1 && got[1] == 1 && got[2] == 1);
  assert_int_equal(tide_file_read(t, file, 0, 0), TIDE_E_UNSUPPORTED);
  tide_tensor_release(t);
  OK(ctx, tide_empty(&t, ctx, TIDE_DEV_CPU, TIDE_U8, 1, (int64_t[]){2}));
  OK(ctx, tide_file_read(t, file, 0, 2)); /* stored as 2, 3 */
  OK(ctx, tide_to_bytes(t, got, 2));
  assert_true(got[0] == 2 && got[1] == 3);
  assert_int_equal(tide_file_read(t, file, 0, 3), TIDE_E_SHAPE);
  tide_tensor_release(t);
  tide_file_release(file);
  unlink(path);
  close_ctx(ctx);
}

static void bad_saves(void **state)
{
  static const char *const twice[] = {"a", "a"}, *const meta[] = {"__metadata__"},
                    *const bytes[] = {"\xff"}, *const one[] = {"a"}, *const none[] = {NULL};
  const float x = 1;
  tide_ctx *ctx = open_ctx(NULL);
  char path[256];
  (void)state;
  scratch(path, sizeof path, "st");
  tide_tensor *t = vector_f32(ctx, 1, &x), *ts[] = {t, t}, *null[] = {NULL};
  assert_int_equal(tide_file_save(ctx, path, 2, twice, ts, 0, NULL, NULL), TIDE_E_ARG);
  assert_int_equal(tide_file_save(ctx, path, 1, meta, ts, 0, NULL, NULL), TIDE_E_ARG);
  assert_int_equal(tide_file_save(ctx, path, 1, bytes, ts, 0, NULL, NULL), TIDE_E_ARG);
  assert_int_equal(tide_file_save(ctx, path, 1, none, ts, 0, NULL, NULL), TIDE_E_ARG);
  assert_int_equal(tide_file_save(ctx, path, 1, one, null, 0, NULL, NULL), TIDE_E_ARG);
  assert_int_equal(tide_file_save(ctx, path, 1, one, ts, 2, twice, twice), TIDE_E_ARG);
  assert_int_equal(tide_file_save(ctx, path, 1, one, ts, 1, one, bytes), TIDE_E_ARG);
  assert_int_equal(tide_file_save(ctx, path, -1, one, ts, 0, NULL, NULL), TIDE_E_ARG);
  assert_int_equal(tide_file_save(ctx, path, 1, NULL, ts, 0, NULL, NULL), TIDE_E_ARG);
  assert_int_equal(tide_file_save(ctx, NULL, 1, one, ts, 0, NULL, NULL), TIDE_E_ARG);
  assert_int_equal(tide_file_save(ctx, "/nowhere/x", 1, one, ts, 0, NULL, NULL), TIDE_E_IO);
  assert_non_null(strstr(tide_error(ctx)->message, "No such file or directory"));
  OK(ctx, tide_tensor_drop(t));
  assert_int_equal(tide_file_save(ctx, path, 1, one, ts, 0, NULL, NULL), TIDE_E_GONE);
  tide_tensor_release(t);
  unlink(path);
  close_ctx(ctx);
}

/* Every byte of a small file set to a few values: opened or refused, never worse. */
static void mutations(void **state)
{
  static const char header[] =
      "{\"__metadata__\":{\"k\":\"v\"},\"a\":" T("F32", "[1,2]", 0, 8) "}";
  static const unsigned char bytes[] = {0, 1, '"', '{', '}', '[', ']', ',', ':', '9', '-', 255};
  tide_ctx *ctx = open_ctx(NULL);
  char path[256];
  (void)state;
  scratch(path, sizeof path, "st");
  put_file(path, -1, header, strlen(header), 8);
  OK(ctx, try_open(ctx, path));
  for (long i = 0; i < (long)(8 + strlen(header)); i++)
    for (size_t b = 0; b < LENGTH(bytes); b++) {
      put_file(path, -1, header, strlen(header), 8);
      FILE *f = fopen(path, "r+b");
      fseek(f, i, SEEK_SET);
      fputc(bytes[b], f);
      fclose(f);
      int rc = try_open(ctx, path);
      assert_true(rc == TIDE_OK || rc == TIDE_E_FORMAT);
    }
  unlink(path);
  close_ctx(ctx);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(corpus), cmocka_unit_test(frames), cmocka_unit_test(round_trip),
    cmocka_unit_test(strided_and_partial), cmocka_unit_test(unknown_to_tide),
    cmocka_unit_test(bad_saves), cmocka_unit_test(mutations),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
