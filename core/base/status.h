/* Statuses, the error record, log lines, and texts that are put together for them.
 *
 * A function that fails writes one record into its context, returns a negative status, and every
 * caller passes the status on unchanged. Nothing prints, nothing jumps.
 */
#pragma once

#include "core/base/ctx.h"
#include "core/base/try.h"

/* Records a failure, replacing the last one, and returns the status. op is the public name without
 * prefix ("matmul"). Without a context (ctx null) the record is the thread's. */
int tide__fail(tide_ctx *ctx, int status, const char *op, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Records E_IO with "cannot <verb> 'path': <reason>", the reason from errno. */
int tide__io_fail(tide_ctx *ctx, const char *op, const char *verb, const char *path);
/* Records, in the thread's record and in msg (n bytes; may be null), why no object could be made.
 * Returns status. */
int tide__refuse_new(const char *op, char *msg, size_t n, int status, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* Names the public function in the record of a call inside it that returned rc. Returns rc. */
int tide__relabel(tide_ctx *ctx, int rc, const char *op);

/* Writes a log line through the host's hook, on the owner thread. Without a hook nothing is
 * written. */
void tide__log(tide_ctx *ctx, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* A text in a buffer of fixed size; what does not fit is cut off. */
typedef struct tide__text {
  char  *buf;
  size_t n, at;                /* size of buf, length so far */
} tide__text;

/* Returns an empty text in buf. */
tide__text tide__text_in(char *buf, size_t n);
void tide__add(tide__text *t, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
