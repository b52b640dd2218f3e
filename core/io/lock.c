/* A lock on a file that is released with its process.
 *
 * flock belongs to the open file, so the lock ends with the process in any case, and two holders
 * within one process exclude each other too. The descriptor is closed in children.
 */
#include "core/io/io.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct tide_lock {
  tide__object object;
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

/* Returns TIDE_MORE if path names another file by now: a holder may remove it before the end, and
 * another program has made it again. */
static int lock_current(int fd, const char *path)
{
  struct stat mine, now;
  bool same = fstat(fd, &mine) == 0 && stat(path, &now) == 0 && mine.st_ino == now.st_ino &&
              mine.st_dev == now.st_dev;
  return same ? TIDE_OK : TIDE_MORE;
}

static void lock_destroy(tide__object *o, int n)
{
  (void)n;
  tide__fd_close(((tide_lock *)o)->fd);
  tide__object_free(o);
}

int tide_path_lock(tide_lock **out, tide_ctx *ctx, const char *path)
{
  TIDE_DOOR_OUT(out, TIDE_OBJECT(CTX, ctx));
  if (!path || !*path) return tide__fail(ctx, TIDE_E_ARG, "path_lock", "path is null or empty");
  tide__objects_settle(ctx);
  tide_lock *lock = tide__object_new(ctx, TIDE__KIND_LOCK, sizeof *lock, lock_destroy);
  if (!lock) return tide__fail(ctx, TIDE_E_NOMEM, "path_lock", "no memory for a lock");
  int fd = lock->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  int rc = fd < 0 ? tide__io_fail(ctx, "path_lock", "open", path) : lock_fd(ctx, fd, path);
  if (rc == TIDE_OK) rc = lock_current(fd, path);
  if (rc == TIDE_OK) *out = lock;
  else tide_lock_release(lock);
  return rc;
}

void tide_lock_release(tide_lock *lock) { tide__object_release(lock, TIDE__KIND_LOCK); }
