/* Plain files: atomic writes, folders, links, hashes, and the words of errors. */
#include "check.h"

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[256];

static const char *in_root(char *path, const char *name)
{
  snprintf(path, 512, "%s/%s", root, name);
  return path;
}

static int setup(void **state)
{
  (void)state;
  const char *dir = getenv("TMPDIR");
  snprintf(root, sizeof root, "%s/tide-spec-path-XXXXXX", dir && *dir ? dir : "/tmp");
  return mkdtemp(root) ? 0 : -1;
}

static int teardown(void **state)
{
  (void)state;
  return rmdir(root);
}

static void check_bytes(tide_ctx *ctx, const char *path, const char *text, size_t n)
{
  tide_blob *blob = NULL;
  OK(ctx, tide_path_read(&blob, ctx, path, 0));
  assert_int_equal(tide_blob_size(blob), n);
  assert_memory_equal(tide_blob_data(blob), text, n);
  assert_int_equal(tide_blob_data(blob)[n], 0);
  tide_blob_release(blob);
}

static int count_entries(tide_ctx *ctx)
{
  tide_blob *blob = NULL;
  OK(ctx, tide_path_list(&blob, ctx, root));
  int n = 0;
  for (int64_t i = 0; i < tide_blob_size(blob); i++) n += tide_blob_data(blob)[i] == 0;
  tide_blob_release(blob);
  return n;
}

static void write_and_read(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  char path[512];
  struct stat st;
  (void)state;
  in_root(path, "a");
  OK(ctx, tide_path_write(ctx, path, "one\0two", 7));
  check_bytes(ctx, path, "one\0two", 7);
  OK(ctx, tide_path_write(ctx, path, "", 0));
  check_bytes(ctx, path, "", 0);
  OK(ctx, tide_path_append(ctx, path, "x", 1));
  OK(ctx, tide_path_append(ctx, path, "yz", 2));
  check_bytes(ctx, path, "xyz", 3);
  size_t n = 1 << 20;
  char *big = malloc(n);
  for (size_t i = 0; i < n; i++) big[i] = (char)(i * 31 >> 3);
  OK(ctx, tide_path_write(ctx, path, big, n));
  check_bytes(ctx, path, big, n);
  free(big);
  mode_t mask = umask(0);
  umask(mask);
  assert_int_equal(stat(path, &st), 0);
  assert_int_equal(st.st_mode & 0777, 0666 & ~mask);
  tide_blob *blob = NULL;
  assert_int_equal(tide_path_read(&blob, ctx, path, 100), TIDE_E_ARG);
  assert_null(blob);
  assert_int_equal(count_entries(ctx), 1);
  assert_int_equal(tide_path_remove(ctx, path), TIDE_OK);
  assert_int_equal(tide_path_remove(ctx, path), TIDE_MORE);
  close_ctx(ctx);
}

/* A write that fails half-way leaves the old file and nothing else. */
static void failed_write(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  char path[512];
  struct rlimit old, small;
  (void)state;
  in_root(path, "a");
  OK(ctx, tide_path_write(ctx, path, "old", 3));
  size_t n = 1 << 20;
  char *big = calloc(1, n);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
  small = old;
  small.rlim_cur = 4096;
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
  int rc = tide_path_write(ctx, path, big, n);
  setrlimit(RLIMIT_FSIZE, &old);
  free(big);
  assert_int_equal(rc, TIDE_E_IO);
  assert_non_null(strstr(tide_error(ctx)->message, path));
  assert_non_null(strstr(tide_error(ctx)->message, "File too large"));
  check_bytes(ctx, path, "old", 3);
  assert_int_equal(count_entries(ctx), 1);
  tide_path_remove(ctx, path);
  close_ctx(ctx);
}

static void folders(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  char path[512], other[512];
  int64_t size = -1;
  (void)state;
  assert_int_equal(tide_path_mkdir(ctx, in_root(path, "d/e/f"), false), TIDE_E_IO);
  assert_int_equal(tide_path_mkdir(ctx, path, true), TIDE_OK);
  assert_int_equal(tide_path_mkdir(ctx, path, true), TIDE_MORE);
  assert_int_equal(tide_path_mkdir(ctx, in_root(path, "d/e/f/"), true), TIDE_MORE);
  assert_int_equal(tide_path_kind(ctx, path, &size), TIDE_PATH_DIR);
  assert_int_equal(tide_path_is_writable(ctx, path), 1);
  assert_int_equal(tide_path_is_writable(ctx, "/nowhere"), 0);
  assert_int_equal(tide_path_kind(ctx, "/nowhere", NULL), TIDE_PATH_NONE);
  assert_int_equal(tide_path_kind(ctx, "/dev/null", NULL), TIDE_PATH_OTHER);
  OK(ctx, tide_path_write(ctx, in_root(path, "d/z"), "12345", 5));
  assert_int_equal(tide_path_kind(ctx, path, &size), TIDE_PATH_FILE);
  assert_int_equal(size, 5);
  assert_int_equal(tide_path_mkdir(ctx, path, false), TIDE_E_IO);
  OK(ctx, tide_path_rename(ctx, path, in_root(other, "d/b")));
  OK(ctx, tide_path_sync(ctx, other));
  OK(ctx, tide_path_sync(ctx, in_root(path, "d")));
  OK(ctx, tide_path_link(ctx, "b", in_root(path, "d/LATEST")));
  OK(ctx, tide_path_link(ctx, "b", path));
  check_bytes(ctx, path, "12345", 5);
  tide_blob *blob = NULL;
  OK(ctx, tide_path_list(&blob, ctx, in_root(path, "d")));
  assert_int_equal(tide_blob_size(blob), 11);
  assert_memory_equal(tide_blob_data(blob), "LATEST\0b\0e\0", 11);
  tide_blob_release(blob);
  static const char *const clean[] = {"d/LATEST", "d/b", "d/e/f", "d/e", "d"};
  assert_int_equal(tide_path_remove(ctx, in_root(path, "d")), TIDE_E_IO); /* not empty */
  for (size_t i = 0; i < LENGTH(clean); i++)
    assert_int_equal(tide_path_remove(ctx, in_root(path, clean[i])), TIDE_OK);
  close_ctx(ctx);
}

static void words(void **state)
{
  tide_ctx *ctx = open_ctx(NULL);
  tide_blob *blob = NULL;
  char text[17], name[6000];
  (void)state;
  assert_int_equal(tide_path_read(&blob, ctx, "/nowhere/x", 0), TIDE_E_IO);
  assert_string_equal(tide_error(ctx)->message,
                      "cannot open '/nowhere/x': No such file or directory");
  assert_string_equal(tide_error(ctx)->name, "E_IO");
  assert_string_equal(tide_error(ctx)->op, "path_read");
  assert_int_equal(tide_path_read(&blob, ctx, "/dev/zero", 0), TIDE_E_IO);
  assert_string_equal(tide_error(ctx)->message, "cannot read '/dev/zero': not a regular file");
  assert_int_equal(tide_path_list(&blob, ctx, "/nowhere"), TIDE_E_IO);
  assert_int_equal(tide_path_hash(ctx, "/nowhere", text), TIDE_E_IO);
  assert_int_equal(tide_path_sync(ctx, "/nowhere"), TIDE_E_IO);
  assert_int_equal(tide_path_rename(ctx, "/nowhere", "/elsewhere"), TIDE_E_IO);
  assert_int_equal(tide_path_read(&blob, ctx, NULL, 0), TIDE_E_ARG);
  assert_int_equal(tide_path_write(ctx, NULL, "x", 1), TIDE_E_ARG);
  assert_int_equal(tide_path_write(ctx, "", "x", 1), TIDE_E_ARG);
  assert_int_equal(tide_path_write(ctx, "/tmp/x", NULL, 1), TIDE_E_ARG);
  memset(name, 'n', sizeof name - 1);
  name[sizeof name - 1] = 0;
  assert_int_equal(tide_path_write(ctx, name, "x", 1), TIDE_E_IO);
  assert_int_equal(tide_path_mkdir(ctx, name, true), TIDE_E_IO);
  assert_int_equal(tide_path_link(ctx, "x", name), TIDE_E_IO);
  close_ctx(ctx);
}

/* Values from the reference program xxhsum 0.8. */
static void hashes(void **state)
{
  static const struct { const char *text; uint64_t seed, hash; } cases[] = {
    {"", 0, 0xef46db3751d8e999u},
    {"a", 0, 0xd24ec4f1a98c6e5bu},
    {"abc", 0, 0x44bc2cf5ad770999u},
    {"message digest", 0, 0x066ed728fceeb3beu},
    {"abcdefghijklmnopqrstuvwxyz", 0, 0xcfe1f278fa89835cu},
    {"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789", 0, 0xaaa46907d3047814u},
    {"12345678901234567890123456789012345678901234567890123456789012345678901234567890", 0,
     0xe04a477f19ee145du},
  };
  tide_ctx *ctx = open_ctx(NULL);
  char path[512], text[17], want[17];
  (void)state;
  for (size_t i = 0; i < LENGTH(cases); i++) {
    size_t n = strlen(cases[i].text);
    assert_int_equal(tide_hash(cases[i].text, n, cases[i].seed), cases[i].hash);
    OK(ctx, tide_path_write(ctx, in_root(path, "h"), cases[i].text, n));
    OK(ctx, tide_path_hash(ctx, path, text));
    snprintf(want, sizeof want, "%016llx", (unsigned long long)cases[i].hash);
    assert_string_equal(text, want);
  }
  /* a file longer than the read buffer gives what one block in memory gives */
  size_t n = 200003;
  char *big = malloc(n);
  for (size_t i = 0; i < n; i++) big[i] = (char)(i * 131 >> 2);
  OK(ctx, tide_path_write(ctx, path, big, n));
  OK(ctx, tide_path_hash(ctx, path, text));
  snprintf(want, sizeof want, "%016llx", (unsigned long long)tide_hash(big, n, 0));
  assert_string_equal(text, want);
  free(big);
  tide_path_remove(ctx, path);
  close_ctx(ctx);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test(write_and_read), cmocka_unit_test(failed_write), cmocka_unit_test(folders),
    cmocka_unit_test(words), cmocka_unit_test(hashes),
  };
  return cmocka_run_group_tests(tests, setup, teardown);
}
