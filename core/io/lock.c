/* A lock on a file that is released with its process.
 *
 * flock belongs to the open file, so the lock ends with the process in any case, and two holders
 * within one process exclude each other too. The descriptor is closed in children.
 */
#include "core/io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

struct tide_lock {
  tide__foreign foreign;
  tide_ctx *ctx;
  int fd;
};

/* Returns TIDE_MORE if the lock is held elsewhere. A file system without locks grants it always. */
static int lock_fd(tide_ctx *ctx, int fd, const char *path)
{
  while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
    if (errno == EWOULDBLOCK) return TIDE_MORE;
    if (errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS) return TIDE_OK;
    if (errno != EINTR) return tide__io_fail(ctx, "path_lock", "lock", path);
  }
  return TIDE_OK;
}

static void lock_destroy(tide__foreign *f, int n)
{
  tide_lock *lock = (tide_lock *)f;
  tide_ctx *ctx = lock->ctx;
  (void)n;
  tide__fd_close(lock->fd);
  tide__free(ctx, lock, sizeof *lock);
  tide__ctx_drop(ctx);
}

int tide_path_lock(tide_lock **out, tide_ctx *ctx, const char *path)
{
  *out = NULL;
  if (!path || !*path) return tide__fail(ctx, TIDE_E_ARG, "path_lock", "path is null or empty");
  tide__foreign_settle(ctx);
  tide_lock *lock = tide__alloc(ctx, sizeof *lock);
  if (!lock) return tide__fail(ctx, TIDE_E_NOMEM, "path_lock", "no memory for a lock");
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  int rc = fd < 0 ? tide__io_fail(ctx, "path_lock", "open", path) : lock_fd(ctx, fd, path);
  if (rc != TIDE_OK) {
    tide__fd_close(fd);
    tide__free(ctx, lock, sizeof *lock);
    return rc;
  }
  *lock = (tide_lock){{.release = lock_destroy}, ctx, fd};
  tide__ctx_hold(ctx);
  *out = lock;
  return TIDE_OK;
}

void tide_lock_release(tide_lock *lock)
{
  if (lock) tide__foreign_release(lock->ctx, &lock->foreign);
}
