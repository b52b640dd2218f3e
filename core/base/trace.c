/* The trace: a ring of spans, allocated on first use, dumped as Chrome trace events. */
#include "core/base/base.h"

#include <errno.h>
#include <math.h>
#include <time.h>

typedef struct span { double t0, t1; char cat[8], name[104]; } span;

static const char *const categories[] = {"op", "comm", "mem", "grad", "user"};

struct tide__trace { int64_t size, count; span spans[]; };

#define LONGEST 4e9 /* seconds that fit an int64_t as nanoseconds */

double tide_trace_clock(void)
{
  struct timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static size_t ring_bytes(int64_t size)
{
  return sizeof(struct tide__trace) + (size_t)size * sizeof(span);
}

/* Copies text into a fixed field, truncated and terminated; replaces what JSON would escape, and
 * characters that the end would split. */
static void field(char *to, size_t n, const char *from)
{
  size_t i = 0;
  for (; from[i] && i + 1 < n; i++)
    to[i] = from[i] == '"' || from[i] == '\\' || from[i] < 32 || from[i] > 126 ? '_' : from[i];
  to[i] = 0;
}

static bool is_category(const char *cat)
{
  for (size_t i = 0; i < sizeof categories / sizeof *categories; i++)
    if (strcmp(cat, categories[i]) == 0) return true;
  return false;
}

int tide_trace_span(tide_ctx *ctx, const char *cat, const char *name, double t0, double t1)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!cat || !name)
    return tide__fail(ctx, TIDE_E_ARG, "trace_span", "%s is null", cat ? "name" : "cat");
  if (!is_category(cat))
    return tide__fail(ctx, TIDE_E_ARG, "trace_span", "cat: expected op, comm, mem, grad or user, "
                      "got '%s'", cat);
  if (!(fabs(t0) < LONGEST && fabs(t1) < LONGEST))
    return tide__fail(ctx, TIDE_E_ARG, "trace_span", "t0 and t1: expected times of "
                      "tide_trace_clock, got %g and %g", t0, t1);
  if (!ctx->trace) {
    int64_t size = ctx->params.trace_events;
    ctx->trace = tide__alloc(ctx, ring_bytes(size));
    if (!ctx->trace)
      return tide__fail(ctx, TIDE_E_NOMEM, "trace_span", "no memory for a ring of %lld events",
                        (long long)size);
    ctx->trace->size = size;
  }
  span *s = &ctx->trace->spans[ctx->trace->count++ % ctx->trace->size];
  s->t0 = t0;
  s->t1 = t1;
  field(s->cat, sizeof s->cat, cat);
  field(s->name, sizeof s->name, name);
  return TIDE_OK;
}

/* Writes seconds as microseconds, by integers: a host's locale may write a comma in %f. */
static void put_micros(FILE *f, const char *key, double seconds)
{
  int64_t ns = (int64_t)(seconds * 1e9), part = ns < 0 ? -ns : ns;
  fprintf(f, ",\"%s\":%s%lld.%03lld", key, ns < 0 ? "-" : "", (long long)(part / 1000),
          (long long)(part % 1000));
}

int tide_trace_dump(tide_ctx *ctx, const char *path)
{
  TIDE_DOOR(TIDE_OBJECT(CTX, ctx));
  if (!path) return tide__fail(ctx, TIDE_E_ARG, "trace_dump", "path is null");
  FILE *f = fopen(path, "w");
  if (!f) return tide__io_fail(ctx, "trace_dump", "write", path);
  fputs("{\"traceEvents\":[", f);
  int64_t count = ctx->trace ? ctx->trace->count : 0, size = ctx->trace ? ctx->trace->size : 1;
  const char *comma = "";
  for (int64_t i = count > size ? count - size : 0; i < count; i++, comma = ",") {
    const span *s = &ctx->trace->spans[i % size];
    fprintf(f, "%s\n{\"ph\":\"X\",\"pid\":0,\"tid\":\"%s\",\"cat\":\"%s\",\"name\":\"%s\"", comma,
            s->cat, s->cat, s->name);
    put_micros(f, "ts", s->t0);
    put_micros(f, "dur", s->t1 - s->t0);
    fputs("}", f);
  }
  fputs("\n]}\n", f);
  bool bad = fflush(f) != 0 || ferror(f);
  int reason = errno;
  if (fclose(f) == 0 && !bad) return TIDE_OK;
  if (bad) errno = reason;
  return tide__io_fail(ctx, "trace_dump", "write", path);
}

void tide__trace_close(tide_ctx *ctx)
{
  if (ctx->trace) tide__free(ctx, ctx->trace, ring_bytes(ctx->trace->size));
  ctx->trace = NULL;
}
