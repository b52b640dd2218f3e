/* Log lines: see log.h. */
#include "core/base/log.h"

#include <stdarg.h>
#include <stdio.h>

void tide__log(tide_ctx *ctx, int level, const char *fmt, ...)
{
  if (!ctx->hooks.log || level > ctx->params.log) return;
  char text[TIDE__MESSAGE];
  va_list args;
  va_start(args, fmt);
  vsnprintf(text, sizeof text, fmt, args);
  va_end(args);
  ctx->hooks.log(ctx->hooks.user, level, text);
}
