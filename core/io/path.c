/* Paths: kinds, folders, renames, links. */
#include "core/io/io.h"

#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

int tide_path_rename(tide_ctx *ctx, const char *from, const char *to)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!from || !to) return tide__fail(ctx, TIDE_E_ARG, "path_rename", "from or to is null");
  if (rename(from, to) == 0) return TIDE_OK;
  char text[128];
  const char *reason = strerror_r(errno, text, sizeof text);
  return tide__fail(ctx, TIDE_E_IO, "path_rename", "cannot rename '%s' to '%s': %s", from, to,
                    reason);
}

/* Makes one folder; TIDE_MORE if it exists. */
static int make_one(tide_ctx *ctx, const char *path)
{
  if (mkdir(path, 0777) == 0) return TIDE_OK;
  int reason = errno;
  struct stat st;
  if (reason == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return TIDE_MORE;
  errno = reason;
  return tide__io_fail(ctx, "path_mkdir", "make folder", path);
}

int tide_path_mkdir(tide_ctx *ctx, const char *path, bool parents)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!path || !*path) return tide__fail(ctx, TIDE_E_ARG, "path_mkdir", "path is null or empty");
  char part[TIDE__PATH];
  if (strlen(path) >= sizeof part) {
    errno = ENAMETOOLONG;
    return tide__io_fail(ctx, "path_mkdir", "make folder", path);
  }
  if (parents)
    for (const char *slash = path; (slash = strchr(slash + 1, '/')) && slash[1];) {
      memcpy(part, path, (size_t)(slash - path));
      part[slash - path] = 0;
      TIDE_TRY(make_one(ctx, part));
    }
  return make_one(ctx, path);
}

int tide_path_remove(tide_ctx *ctx, const char *path)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!path) return tide__fail(ctx, TIDE_E_ARG, "path_remove", "path is null");
  if (unlink(path) == 0) return TIDE_OK;
  if (errno == ENOENT) return TIDE_MORE;
  if ((errno == EISDIR || errno == EPERM) && rmdir(path) == 0) return TIDE_OK;
  return tide__io_fail(ctx, "path_remove", "remove", path);
}

int tide_path_link(tide_ctx *ctx, const char *target, const char *path)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!target || !path) return tide__fail(ctx, TIDE_E_ARG, "path_link", "target or path is null");
  char temp[TIDE__PATH];
  int n = snprintf(temp, sizeof temp, "%s.tmp-%lx", path, (long)getpid());
  if (n < 0 || n >= (int)sizeof temp) {
    errno = ENAMETOOLONG;
    return tide__io_fail(ctx, "path_link", "link", path);
  }
  unlink(temp); /* left by a process of the same number that was killed */
  if (symlink(target, temp) < 0) return tide__io_fail(ctx, "path_link", "make link", temp);
  if (rename(temp, path) == 0) return TIDE_OK;
  int rc = tide__io_fail(ctx, "path_link", "replace", path);
  unlink(temp);
  return rc;
}

int tide_path_kind(tide_ctx *ctx, const char *path, int64_t *size)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  struct stat st;
  if (size) *size = 0;
  if (!path) return tide__fail(ctx, TIDE_E_ARG, "path_kind", "path is null");
  if (stat(path, &st) < 0) {
    if (errno == ENOENT || errno == ENOTDIR) return TIDE_PATH_NONE;
    return tide__io_fail(ctx, "path_kind", "examine", path);
  }
  if (S_ISDIR(st.st_mode)) return TIDE_PATH_DIR;
  if (!S_ISREG(st.st_mode)) return TIDE_PATH_OTHER;
  if (size) *size = st.st_size;
  return TIDE_PATH_FILE;
}

int tide_path_is_writable(tide_ctx *ctx, const char *path)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  struct stat st;
  if (!path) return tide__fail(ctx, TIDE_E_ARG, "path_is_writable", "path is null");
  if (stat(path, &st) < 0) return 0;
  return access(path, S_ISDIR(st.st_mode) ? W_OK | X_OK : W_OK) == 0;
}

/* ---- listing: all names one after the other, then sorted through an index -------------------- */

typedef struct list {
  tide_ctx *ctx;
  char     *text;
  size_t    used, cap;
  int32_t   count;
} list;

static bool add_name(list *l, const char *name)
{
  size_t n = strlen(name) + 1;
  if (l->used + n > l->cap) {
    size_t cap = l->cap * 2 + n + 1024;
    void *p = cap > INT32_MAX ? NULL : tide__resize(l->ctx, l->text, l->cap, cap);
    if (!p) return false;
    l->text = p;
    l->cap = cap;
  }
  memcpy(l->text + l->used, name, n);
  l->used += n;
  l->count++;
  return true;
}

static bool path_name_before(const void *arg, int32_t a, int32_t b)
{
  const char *text = arg;
  return strcmp(text + a, text + b) < 0;
}

static int sorted_blob(tide_blob **out, list *l)
{
  tide_blob *blob = NULL;
  size_t bytes = (size_t)l->count * sizeof(int32_t);
  int32_t *index = bytes ? tide__alloc(l->ctx, bytes) : NULL;
  if (bytes && !index)
    return tide__fail(l->ctx, TIDE_E_NOMEM, "path_list", "no memory for %d names", l->count);
  int rc = tide__blob_new(&blob, l->ctx, (int64_t)l->used, "path_list");
  if (rc == TIDE_OK) {
    int32_t at = 0;
    for (int32_t i = 0; i < l->count; i++, at += (int32_t)strlen(l->text + at) + 1) index[i] = at;
    tide__sort(index, l->count, path_name_before, l->text);
    char *to = blob->data;
    for (int32_t i = 0; i < l->count; i++) to = stpcpy(to, l->text + index[i]) + 1;
    *out = blob;
  }
  tide__free(l->ctx, index, bytes);
  return rc;
}

int tide_path_list(tide_blob **out, tide_ctx *ctx, const char *path)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  if (!path) return tide__fail(ctx, TIDE_E_ARG, "path_list", "path is null");
  DIR *dir = opendir(path);
  if (!dir) return tide__io_fail(ctx, "path_list", "open folder", path);
  list l = {.ctx = ctx};
  int rc = TIDE_OK;
  for (struct dirent *e; rc == TIDE_OK && (errno = 0, e = readdir(dir));)
    if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && !add_name(&l, e->d_name))
      rc = tide__fail(ctx, TIDE_E_NOMEM, "path_list", "no memory for the names in '%s'", path);
  if (rc == TIDE_OK && errno) rc = tide__io_fail(ctx, "path_list", "read folder", path);
  closedir(dir);
  if (rc == TIDE_OK) rc = sorted_blob(out, &l);
  tide__free(ctx, l.text, l.cap);
  return rc;
}
