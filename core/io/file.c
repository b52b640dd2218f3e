/* Reading whole regular files, and the writer that replaces a file atomically. */
#include "core/io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST = 1 << 30 }; /* of one read or write call; the system's own limit is a little higher */

/* ---- reading -------------------------------------------------------------------------------- */

/* Opens a regular file for reading. O_NONBLOCK: opening a pipe without a writer must not block. */
int tide__fd_open(int *fd, int64_t *size, tide_ctx *ctx, const char *path, const char *op)
{
  *fd = -1;
  if (!path) return tide__fail(ctx, TIDE_E_ARG, op, "path is null");
  struct stat st;
  int got = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (got < 0) return tide__io_fail(ctx, op, "open", path);
  int rc = TIDE_OK;
  if (fstat(got, &st) < 0)
    rc = tide__io_fail(ctx, op, "examine", path);
  else if (!S_ISREG(st.st_mode))
    rc = tide__fail(ctx, TIDE_E_IO, op, "cannot read '%s': not a regular file", path);
  if (rc < 0) {
    close(got);
    return rc;
  }
  *fd = got;
  *size = st.st_size;
  return TIDE_OK;
}

void tide__fd_close(int fd) { if (fd >= 0) close(fd); }

int tide__fd_read(tide_ctx *ctx, int fd, void *data, int64_t n, int64_t offset, const char *path,
                  const char *op)
{
  for (int64_t done = 0; done < n;) {
    size_t want = (size_t)(n - done < MOST ? n - done : MOST);
    ssize_t got = pread(fd, (char *)data + done, want, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return tide__io_fail(ctx, op, "read", path);
    if (got == 0)
      return tide__fail(ctx, TIDE_E_IO, op, "cannot read '%s': it ends at byte %lld while bytes "
                        "%lld to %lld are wanted; was it changed?", path,
                        (long long)(offset + done), (long long)offset, (long long)(offset + n));
    done += got;
  }
  return TIDE_OK;
}

int tide_path_read(tide_blob **out, tide_ctx *ctx, const char *path, int64_t limit)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  int fd;
  int64_t size = 0;
  tide_blob *blob = NULL;
  TIDE_TRY(tide__fd_open(&fd, &size, ctx, path, "path_read"));
  int rc = TIDE_OK;
  if (limit > 0 && size > limit)
    rc = tide__fail(ctx, TIDE_E_ARG, "path_read", "'%s' has %lld bytes, more than the limit of "
                    "%lld", path, (long long)size, (long long)limit);
  if (rc == TIDE_OK) rc = tide__blob_new(&blob, ctx, size, "path_read");
  if (rc == TIDE_OK) rc = tide__fd_read(ctx, fd, blob->data, size, 0, path, "path_read");
  tide__fd_close(fd);
  if (rc < 0) tide_blob_release(blob);
  else *out = blob;
  return rc;
}

/* ---- writing -------------------------------------------------------------------------------- */

/* Does what write does. A limit on the size of files (ulimit -f) is the error EFBIG: its signal,
 * which the kernel sends to this thread, would end the host, and is taken here. */
static ssize_t write_some(int fd, const char *data, size_t n)
{
  const struct timespec now = {0};
  sigset_t limit, before;
  sigemptyset(&limit);
  sigaddset(&limit, SIGXFSZ);
  pthread_sigmask(SIG_BLOCK, &limit, &before);
  ssize_t put = write(fd, data, n);
  int saved = errno;
  if (put < 0 && saved == EFBIG) sigtimedwait(&limit, NULL, &now);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  errno = saved;
  return put;
}

static int write_all(tide__writer *w, const char *data, size_t n)
{
  while (n > 0) {
    ssize_t put = write_some(w->fd, data, n < MOST ? n : MOST);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return tide__io_fail(w->ctx, w->op, "write", w->path);
    data += put;
    n -= (size_t)put;
  }
  return TIDE_OK;
}

/* Creates a file of a unique name in the same folder: process, time and a count. */
static int create_temp(tide__writer *w)
{
  for (int attempt = 0; attempt < 100; attempt++) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int n = snprintf(w->temp, sizeof w->temp, "%s.tmp-%lx-%lx-%x", w->path, (long)getpid(),
                     (long)now.tv_nsec, attempt);
    if (n < 0 || n >= (int)sizeof w->temp) {
      errno = ENAMETOOLONG;
      break;
    }
    w->fd = open(w->temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (w->fd >= 0) return TIDE_OK;
    if (errno != EEXIST && errno != EINTR) break;
  }
  return tide__io_fail(w->ctx, w->op, "create a temporary file beside", w->path);
}

int tide__writer_open(tide__writer *w, tide_ctx *ctx, const char *path, const char *op)
{
  w->ctx = ctx;
  w->op = op;
  w->path = path;
  w->open = false;
  w->used = 0;
  if (!path || !*path) return tide__fail(ctx, TIDE_E_ARG, op, "path is null or empty");
  struct stat st;
  if (stat(path, &st) == 0 && !S_ISREG(st.st_mode))
    return tide__fail(ctx, TIDE_E_IO, op, "cannot replace '%s': it is %s", path,
                      S_ISDIR(st.st_mode) ? "a folder" : "not a regular file");
  TIDE_TRY(create_temp(w));
  w->open = true;
  return TIDE_OK;
}

static int flush(tide__writer *w)
{
  size_t n = w->used;
  w->used = 0;
  return write_all(w, w->buffer, n);
}

int tide__writer_put(tide__writer *w, const void *data, size_t n)
{
  if (n >= sizeof w->buffer) {
    TIDE_TRY(flush(w));
    return write_all(w, data, n);
  }
  if (n > sizeof w->buffer - w->used) TIDE_TRY(flush(w));
  if (n) memcpy(w->buffer + w->used, data, n);
  w->used += n;
  return TIDE_OK;
}

/* Synchronises a folder. A file system that cannot do so returns EINVAL, which is ignored. */
static int sync_dir(tide_ctx *ctx, const char *dir, const char *op)
{
  int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return tide__io_fail(ctx, op, "open folder", dir);
  int rc = TIDE_OK;
  if (fsync(fd) < 0 && errno != EINVAL) rc = tide__io_fail(ctx, op, "synchronise folder", dir);
  close(fd);
  return rc;
}

static int sync_parent(tide_ctx *ctx, const char *path, const char *op)
{
  char dir[TIDE__PATH];
  const char *slash = strrchr(path, '/');
  size_t n = slash ? (size_t)(slash - path) : 0;
  if (n >= sizeof dir) {
    errno = ENAMETOOLONG;
    return tide__io_fail(ctx, op, "open the folder of", path);
  }
  memcpy(dir, path, n);
  dir[n] = 0;
  return sync_dir(ctx, !slash ? "." : n == 0 ? "/" : dir, op);
}

/* Writes the file through to the disk and renames it. A failed fsync may have lost the bytes for
 * good, so it is never retried. */
int tide__writer_commit(tide__writer *w)
{
  TIDE_TRY(flush(w));
  if (fsync(w->fd) < 0) return tide__io_fail(w->ctx, w->op, "synchronise", w->path);
  int fd = w->fd;
  w->fd = -1;
  if (close(fd) < 0) return tide__io_fail(w->ctx, w->op, "close", w->path);
  if (rename(w->temp, w->path) < 0) return tide__io_fail(w->ctx, w->op, "replace", w->path);
  w->open = false;
  return sync_parent(w->ctx, w->path, w->op);
}

void tide__writer_abort(tide__writer *w)
{
  if (!w->open) return;
  w->open = false;
  tide__fd_close(w->fd);
  unlink(w->temp);
}

int tide_path_write(tide_ctx *ctx, const char *path, const void *data, size_t nbytes)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!data && nbytes) return tide__fail(ctx, TIDE_E_ARG, "path_write", "data is null");
  tide__writer w;
  TIDE_TRY(tide__writer_open(&w, ctx, path, "path_write"));
  int rc = tide__writer_put(&w, data, nbytes);
  if (rc == TIDE_OK) rc = tide__writer_commit(&w);
  tide__writer_abort(&w);
  return rc;
}

int tide_path_append(tide_ctx *ctx, const char *path, const void *data, size_t nbytes)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!path) return tide__fail(ctx, TIDE_E_ARG, "path_append", "path is null");
  if (!data && nbytes) return tide__fail(ctx, TIDE_E_ARG, "path_append", "data is null");
  tide__writer w = {.ctx = ctx, .op = "path_append", .path = path};
  w.fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (w.fd < 0) return tide__io_fail(ctx, "path_append", "open", path);
  int rc = write_all(&w, data, nbytes);
  if (close(w.fd) < 0 && rc == TIDE_OK) rc = tide__io_fail(ctx, "path_append", "close", path);
  return rc;
}

int tide_path_sync(tide_ctx *ctx, const char *path)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  struct stat st;
  if (!path) return tide__fail(ctx, TIDE_E_ARG, "path_sync", "path is null");
  if (stat(path, &st) < 0) return tide__io_fail(ctx, "path_sync", "examine", path);
  if (S_ISDIR(st.st_mode)) return sync_dir(ctx, path, "path_sync");
  int fd;
  int64_t size = 0;
  TIDE_TRY(tide__fd_open(&fd, &size, ctx, path, "path_sync"));
  int rc = TIDE_OK;
  if (fsync(fd) < 0) rc = tide__io_fail(ctx, "path_sync", "synchronise", path);
  close(fd);
  return rc;
}
