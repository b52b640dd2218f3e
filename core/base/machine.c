/* What this machine grants the process, from /proc, /sys/fs/cgroup and the scheduler.
 *
 * A cgroup limits all its descendants, so limits are read from the process' own group up to the
 * root of the hierarchy. In a container the path in /proc/self/cgroup may be the one outside; the
 * walk towards the root ends at the group that the container sees.
 */
#include "core/base/machine.h"
#include "core/base/base.h"

#include <sched.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATH_SIZE = 4096, LINE_SIZE = 4096 };
static const int64_t UNLIMITED = INT64_MAX / 2; /* version 1 writes a number near INT64_MAX */

/* One version of cgroups: where it is mounted and what its files are called. */
typedef struct hierarchy {
  const char *mount, *limit, *usage, *inactive, *active;
} hierarchy;

static const hierarchy v1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes",
                             "memory.usage_in_bytes", "total_inactive_file", "total_active_file"};
static const hierarchy v2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file",
                             "active_file"};

int tide__machine_cores(void)
{
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return CPU_COUNT(&set) > 0 ? CPU_COUNT(&set) : 1;
  long n = sysconf(_SC_NPROCESSORS_ONLN);
  return n > 0 ? (int)n : 1;
}

/* Returns the number after `key` (and a colon) at the start of a line of the file, or -1. */
static int64_t machine_field(const char *path, const char *key)
{
  char line[LINE_SIZE];
  size_t n = strlen(key);
  int64_t value = -1;
  FILE *f = fopen(path, "re");
  while (f && value < 0 && fgets(line, sizeof line, f)) {
    if (strncmp(line, key, n) || !strchr(": ", line[n])) continue;
    value = strtoll(line + n + 1, NULL, 10);
  }
  if (f) fclose(f);
  return value;
}

/* Returns the number in the file, or -1 for another text ("max": no limit). */
static int64_t machine_number(const char *folder, const char *name)
{
  char path[PATH_SIZE], text[64] = "";
  if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return -1;
  FILE *f = fopen(path, "re");
  if (!f) return -1;
  char *got = fgets(text, sizeof text, f), *end;
  fclose(f);
  long long value = got ? strtoll(text, &end, 10) : -1;
  return got && end != text ? value : -1;
}

/* Lowers m to the rest of the group in `folder`; the group's file pages count as available. */
static void machine_group(const char *folder, const hierarchy *h, tide__memory *m)
{
  char stat[PATH_SIZE];
  int64_t limit = machine_number(folder, h->limit), used = machine_number(folder, h->usage);
  if (limit < 0 || limit > UNLIMITED) return;
  if (m->total == 0 || limit < m->total) m->total = limit;
  if (used < 0 || snprintf(stat, sizeof stat, "%s/memory.stat", folder) >= (int)sizeof stat) return;
  int64_t inactive = machine_field(stat, h->inactive), active = machine_field(stat, h->active);
  int64_t free = limit - used + (inactive > 0 ? inactive : 0) + (active > 0 ? active : 0);
  if (free < 1) free = 1;
  if (free < m->available || m->available == 0) m->available = free;
}

/* Applies the limits of the group `path` and of all groups above it. */
static void machine_groups(const char *root, const char *path, const hierarchy *h, tide__memory *m)
{
  char folder[PATH_SIZE];
  int base = snprintf(folder, sizeof folder, "%s%s", root, h->mount);
  int n = snprintf(folder, sizeof folder, "%s%s%s", root, h->mount, path);
  if (n >= (int)sizeof folder) return;
  for (;;) {
    machine_group(folder, h, m);
    char *slash = strrchr(folder, '/');
    if (!slash || slash - folder < base) return;
    *slash = 0;
  }
}

/* Reads the limits of the cgroups of this process. The rows of /proc/self/cgroup are
 * "number:controllers:path"; version 2 names no controllers. */
static void machine_cgroups(const char *root, tide__memory *m)
{
  char line[LINE_SIZE], path[PATH_SIZE];
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *f = fopen(path, "re");
  while (f && fgets(line, sizeof line, f)) {
    line[strcspn(line, "\n")] = 0;
    char *first = strchr(line, ':'), *group = first ? strchr(first + 1, ':') : NULL;
    if (!group) continue;
    *group++ = 0;
    const char *controllers = first + 1;
    if (!*controllers) machine_groups(root, group, &v2, m);
    else if (strstr(controllers, "memory")) machine_groups(root, group, &v1, m);
  }
  if (f) fclose(f);
}

tide__memory tide__machine_memory(const char *root)
{
  char path[PATH_SIZE];
  tide__memory m = {0, 0};
  snprintf(path, sizeof path, "%s/proc/meminfo", root);
  int64_t ram = machine_field(path, "MemTotal"), swap = machine_field(path, "SwapTotal");
  int64_t free = machine_field(path, "MemAvailable"), unused = machine_field(path, "SwapFree");
  if (ram > 0) m.total = (ram + (swap > 0 ? swap : 0)) * 1024;
  if (free > 0) m.available = (free + (unused > 0 ? unused : 0)) * 1024;
  machine_cgroups(root, &m);
  return m;
}

enum { PAGE = 4096 };

const uint32_t *tide__fork_mark_new(void)
{
  void *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return NULL;
#ifdef MADV_WIPEONFORK
  madvise(p, PAGE, MADV_WIPEONFORK);
#endif
  *(uint32_t *)p = 1;
  return p;
}

void tide__fork_mark_release(const uint32_t *mark) { if (mark) munmap((void *)mark, PAGE); }
