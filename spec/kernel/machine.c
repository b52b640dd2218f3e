/* The memory of a machine, read from made-up /proc and /sys trees: plain, and in cgroups of both
 * versions with limits at the group, above it, and outside the container. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "core/base/machine.h"

static char root[64];

/* Writes a file below root with all its folders. */
static void put(const char *path, const char *text)
{
  char full[512];
  snprintf(full, sizeof full, "%s%s", root, path);
  for (char *p = full + strlen(root) + 1; (p = strchr(p, '/')); p++) {
    *p = 0;
    mkdir(full, 0700);
    *p = '/';
  }
  FILE *f = fopen(full, "w");
  assert_non_null(f);
  fputs(text, f);
  fclose(f);
}

static int begin(void **state)
{
  (void)state;
  strcpy(root, "/tmp/tide-machine-XXXXXX");
  if (!mkdtemp(root)) return -1;
  put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:   1 kB\nMemAvailable:  600 kB\n"
      "SwapTotal:      24 kB\nSwapFree:       4 kB\n");
  return 0;
}

static int end(void **state)
{
  char command[128];
  (void)state;
  snprintf(command, sizeof command, "rm -r '%s'", root);
  return system(command);
}

static void expect(int64_t total, int64_t available)
{
  tide__memory m = tide__machine_memory(root);
  assert_int_equal(m.total, total);
  assert_int_equal(m.available, available);
}

static void test_without_groups(void **state)
{
  (void)state;
  expect(1024 * 1024, 604 * 1024);
  put("/proc/self/cgroup", "0::/\n");
  expect(1024 * 1024, 604 * 1024);
}

static void test_version_2(void **state)
{
  (void)state;
  put("/proc/self/cgroup", "0::/job/step\n");
  put("/sys/fs/cgroup/job/step/memory.max", "max\n");
  put("/sys/fs/cgroup/job/memory.max", "500000\n");
  put("/sys/fs/cgroup/job/memory.current", "300000\n");
  put("/sys/fs/cgroup/job/memory.stat",
      "anon 7\nfile 9\ninactive_file 100000\nactive_file 10000\n");
  expect(500000, 310000);
  put("/sys/fs/cgroup/job/step/memory.max", "400000\n"); /* the lower of two; its use is unknown */
  expect(400000, 310000);
  put("/sys/fs/cgroup/job/step/memory.current", "500000\n"); /* above the limit: nothing is left */
  expect(400000, 1);
}

static void test_version_1(void **state)
{
  (void)state;
  put("/proc/self/cgroup", "5:cpu:/a\n4:memory:/batch/7\n1:name=systemd:/\n0::/\n");
  put("/sys/fs/cgroup/memory/batch/7/memory.limit_in_bytes", "200000\n");
  put("/sys/fs/cgroup/memory/batch/7/memory.usage_in_bytes", "150000\n");
  put("/sys/fs/cgroup/memory/batch/7/memory.stat", "total_inactive_file 20000\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  expect(200000, 70000);
}

/* In a container /proc/self/cgroup may tell the path outside, which the mount does not have. */
static void test_container(void **state)
{
  (void)state;
  put("/proc/self/cgroup", "4:memory:/docker/0123456789\n");
  put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "300000\n");
  put("/sys/fs/cgroup/memory/memory.usage_in_bytes", "100000\n");
  expect(300000, 200000);
}

static void test_nothing_is_known(void **state)
{
  tide__memory m = tide__machine_memory("/nowhere");
  (void)state;
  assert_int_equal(m.total, 0);
  assert_int_equal(m.available, 0);
}

static void test_this_machine(void **state)
{
  tide__memory m = tide__machine_memory("");
  (void)state;
  assert_true(m.total > (int64_t)1 << 24 && m.total < (int64_t)1 << 50);
  assert_true(m.available > 0 && m.available <= m.total);
  assert_true(tide__machine_cores() >= 1);
}

int main(void)
{
  const struct CMUnitTest tests[] = {
    cmocka_unit_test_setup_teardown(test_without_groups, begin, end),
    cmocka_unit_test_setup_teardown(test_version_2, begin, end),
    cmocka_unit_test_setup_teardown(test_version_1, begin, end),
    cmocka_unit_test_setup_teardown(test_container, begin, end),
    cmocka_unit_test(test_nothing_is_known),
    cmocka_unit_test(test_this_machine),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
