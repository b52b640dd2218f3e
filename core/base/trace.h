/* The trace: a ring of named spans, written out as a Chrome trace.
 *
 * Off by default (parameter trace). A span costs one clock read and a 64-byte slot; names are
 * copied, so callers may pass temporary text. Layer 0.
 */
#ifndef TIDE_BASE_TRACE_H
#define TIDE_BASE_TRACE_H

#include "core/base/ctx.h"

static inline bool tide__tracing(const tide_ctx *ctx) { return ctx->params.trace != 0; }
void tide__trace_close(tide_ctx *ctx);

#endif
