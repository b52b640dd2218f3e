/* What the C specs share: cmocka, a context, and one-line tensors. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tide/tide.h"

#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

/* The call must succeed; its message is shown if it does not. */
#define OK(ctx, call)                                                            \
  do {                                                                           \
    int ok_rc_ = (call);                                                         \
    if (ok_rc_ < 0) fail_msg("%s: %s", #call, tide_error(ctx)->message);         \
  } while (0)

/* Opens a context; the spec fails with its message if that fails. */
static inline tide_ctx *open_with(const tide_opts *opts)
{
  char msg[256] = "";
  tide_ctx *ctx = NULL;
  if (tide_ctx_new(&ctx, opts, msg, sizeof msg) < 0) fail_msg("tide_ctx_new: %s", msg);
  return ctx;
}

static inline tide_ctx *open_ctx(const char *params)
{
  tide_opts opts;
  tide_opts_init(&opts);
  opts.params = params;
  return open_with(&opts);
}

/* Everything the spec made must be gone. */
static inline void close_ctx(tide_ctx *ctx)
{
  assert_int_equal(tide_ctx_stats(ctx)->ntensor, 0);
  assert_int_equal(tide_ctx_stats(ctx)->live, 0);
  assert_int_equal(tide_ctx_stats(ctx)->nnode, 0);
  tide_ctx_release(ctx);
}

static inline tide_tensor *vector_f32(tide_ctx *ctx, int64_t n, const float *values)
{
  tide_tensor *t = NULL;
  OK(ctx, tide_from_bytes(&t, ctx, TIDE_DEV_CPU, TIDE_F32, 1, &n, values, (size_t)n * 4));
  return t;
}

/* A name for a scratch file in TMPDIR; the caller unlinks it. */
static inline const char *scratch(char *path, size_t n, const char *name)
{
  const char *dir = getenv("TMPDIR");
  snprintf(path, n, "%s/tide-spec-%s-XXXXXX", dir && *dir ? dir : "/tmp", name);
  int fd = mkstemp(path);
  assert_true(fd >= 0);
  FILE *f = fdopen(fd, "w");
  fclose(f);
  return path;
}
