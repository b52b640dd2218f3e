/* Statuses: the table of names and texts, the function that writes an error record, log lines. */
#include "core/base/status.h"
#include "core/base/base.h"
#include "core/base/format.h"

#include <errno.h>

static const struct { int code; const char *name, *text; } table[] = {
#define TIDE_STATUS(code, text) {TIDE_##code, #code, text},
#include "core/base/status.def"
#undef TIDE_STATUS
};

enum { NSTATUS = sizeof table / sizeof table[0] };

const char *tide_status_name(int status)
{
  for (int i = 0; i < NSTATUS; i++)
    if (table[i].code == status) return table[i].name;
  return "E_UNKNOWN";
}

const char *tide_status_text(int status)
{
  for (int i = 0; i < NSTATUS; i++)
    if (table[i].code == status) return table[i].text;
  return "a status this version of tide does not know";
}

/* The record of calls that were given no context, of this thread: the one state of the library
 * outside a context. */
static _Thread_local char thread_message[TIDE__MESSAGE];
static _Thread_local tide_error_record thread_error = {0, "OK", "", ""};

int tide__fail(tide_ctx *ctx, int status, const char *op, const char *fmt, ...)
{
  char *message = ctx ? ctx->message : thread_message;
  va_list args;
  va_start(args, fmt);
  tide__format(message, TIDE__MESSAGE, fmt, args);
  va_end(args);
  *(ctx ? &ctx->error : &thread_error) =
    (tide_error_record){status, tide_status_name(status), op, message};
  return status;
}

void tide__log(tide_ctx *ctx, int level, const char *fmt, ...)
{
  if (!ctx->hooks.log || level > ctx->params.log) return;
  char text[TIDE__MESSAGE];
  va_list args;
  va_start(args, fmt);
  tide__format(text, sizeof text, fmt, args);
  va_end(args);
  ctx->hooks.log(ctx->hooks.user, level, text);
}

tide__text tide__text_in(char *buf, size_t n)
{
  buf[0] = 0;
  return (tide__text){buf, n, 0};
}

void tide__add(tide__text *t, const char *fmt, ...)
{
  va_list args;
  if (t->at + 1 >= t->n) return;
  va_start(args, fmt);
  int k = tide__format(t->buf + t->at, t->n - t->at, fmt, args);
  va_end(args);
  t->at += k < 0 ? 0 : (size_t)k;
  if (t->at >= t->n) t->at = t->n - 1;
}

int tide__io_fail(tide_ctx *ctx, const char *op, const char *verb, const char *path)
{
  char text[128];
  const char *reason = strerror_r(errno, text, sizeof text);
  return tide__fail(ctx, TIDE_E_IO, op, "cannot %s '%s': %s", verb, path, reason);
}

int tide__refuse_new(const char *op, char *msg, size_t n, int status, const char *fmt, ...)
{
  va_list args;
  va_start(args, fmt);
  tide__format(thread_message, TIDE__MESSAGE, fmt, args);
  va_end(args);
  if (msg && n) snprintf(msg, n, "%s", thread_message);
  thread_error = (tide_error_record){status, tide_status_name(status), op, thread_message};
  return status;
}

int tide__relabel(tide_ctx *ctx, int rc, const char *op)
{
  if (rc < 0 && rc != TIDE_E_NOMEM && rc != TIDE_E_INTERRUPT) ctx->error.op = op;
  return rc;
}

const tide_error_record *tide_error(tide_ctx *ctx)
{
  return tide__alive(ctx, TIDE__KIND_CTX) ? &ctx->error : &thread_error;
}
