/* Files: whole reads, atomic writes, folders. Every failure names path and reason.
 *
 * A reader never sees half a file. Bytes go to a temporary file in the same folder, which is
 * synchronised and then renamed over the old one; the folder is synchronised last. Reading takes
 * regular files only and never maps them, so a file truncated meanwhile is an error and not a
 * signal.
 */
#ifndef TIDE_IO_FILE_H
#define TIDE_IO_FILE_H

#include "core/io/io.h"

/* Records E_IO with "cannot <verb> 'path': <reason>", the reason from errno. */
int tide__io_fail(tide_ctx *ctx, const char *op, const char *verb, const char *path);

/* Opens a regular file. fd is -1 on failure. */
int tide__fd_open(int *fd, int64_t *size, tide_ctx *ctx, const char *path, const char *op);
/* Reads exactly n bytes from offset; E_IO if the file has become shorter. */
int tide__fd_read(tide_ctx *ctx, int fd, void *data, int64_t n, int64_t offset, const char *path,
                  const char *op);
void tide__fd_close(int fd);

enum { TIDE__PATH = 4096 };

/* A file being written. Zero-initialised is closed. Abort after a failure, or always: it does
 * nothing after commit. */
typedef struct tide__writer {
  tide_ctx   *ctx;
  const char *op, *path; /* borrowed for the writer's life */
  int         fd;
  bool        open;
  size_t      used;
  char        temp[TIDE__PATH];
  char        buffer[1 << 14];
} tide__writer;

int  tide__writer_open(tide__writer *w, tide_ctx *ctx, const char *path, const char *op);
int  tide__writer_put(tide__writer *w, const void *data, size_t n);
int  tide__writer_commit(tide__writer *w);
void tide__writer_abort(tide__writer *w);

#endif
