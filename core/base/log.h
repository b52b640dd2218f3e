/* Log lines: formatted here, written by the host's hook on the owner thread. Without a hook nothing
 * is written. */
#ifndef TIDE_BASE_LOG_H
#define TIDE_BASE_LOG_H

#include "core/base/ctx.h"

void tide__log(tide_ctx *ctx, int level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

#endif
