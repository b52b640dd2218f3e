/* The trace: a ring of named spans, written as a Chrome trace.
 *
 * Off by default (parameter trace). A span costs two clock reads and a slot of 128 bytes; names are
 * copied, so callers may pass temporary text.
 */
#pragma once

#include "core/base/ctx.h"

static inline bool tide__tracing(const tide_ctx *ctx) { return ctx->params.trace != 0; }
/* Begins and ends a span; both do nothing unless the context traces. */
static inline double tide__trace_begin(const tide_ctx *ctx)
{
  return tide__tracing(ctx) ? tide_trace_clock() : 0;
}
static inline int tide__trace_end(tide_ctx *ctx, const char *cat, const char *name, double begin)
{
  return tide__tracing(ctx) ? tide_trace_span(ctx, cat, name, begin, tide_trace_clock()) : TIDE_OK;
}
void tide__trace_close(tide_ctx *ctx);
